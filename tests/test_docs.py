"""Code in the documentation runs."""

from __future__ import annotations

import pytest
from test_examples import python_blocks


@pytest.mark.parametrize(
    "page",
    [
        "docs/data.md",
        "docs/agent.md",
        "docs/benchmark.md",
        "docs/collect.md",
        "docs/speed_limit.md",
        pytest.param("docs/tasks.md", marks=[pytest.mark.simulator, pytest.mark.safety_gymnasium]),
    ],
)
def test_code_blocks_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = python_blocks(page)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
