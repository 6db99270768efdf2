"""`docs/offline_evaluation.md` shows what its JSON holds, and its statistics are right."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _load():
    path = ROOT / "benchmarks" / "offline_evaluation.py"
    spec = importlib.util.spec_from_file_location("offline_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["offline_benchmark"] = module
    spec.loader.exec_module(module)
    return module


benchmark = _load()
ROWS = json.loads((ROOT / "docs" / "offline_evaluation.json").read_text())
PAGE = (ROOT / "docs" / "offline_evaluation.md").read_text()


def _row(budget: float, estimate: float, nearest: float, rolled: float, method="wcdt") -> dict:
    found = {
        "offline": [estimate, 0.0, 10.0], "nearest": nearest, "rolled": [rolled, rolled, rolled],
        "deviation": 2.0,
    }  # fmt: skip
    return {"task": "T", "method": method, "budget": budget, "return": found, "cost": found}


def test_the_page_is_rebuilt_from_the_json():
    assert benchmark.fill(PAGE, ROWS) == PAGE


def test_a_figure_of_the_page_by_hand():
    own = [r["cost"] for r in ROWS if r["task"] == "BallCircle"]
    inside = sum(c["offline"][1] <= c["rolled"][0] <= c["offline"][2] for c in own)
    (line,) = [x for x in PAGE.splitlines() if x.startswith(f"| BallCircle | {len(own)} | cost")]
    assert line.endswith(f"| {inside} of {len(own)} |")


def test_statistics_by_hand():
    rows = [_row(5, 1, 4, 2), _row(5, 2, 6, 4), _row(5, 3, 1, 11), _row(5, 9, 0, 3, "bc")]
    assert benchmark.rank_correlation(rows[:3], "cost", "offline") == pytest.approx(1.0)
    assert benchmark.rank_correlation(rows[:3], "cost", "nearest") == pytest.approx(-0.5)
    assert benchmark.error(rows[:3], "cost", "offline") == pytest.approx((1 + 2 + 8) / 3 / 2)
    assert benchmark.error(rows[:3], "cost", "nearest") == pytest.approx((2 + 2 + 10) / 3 / 2)
    assert [benchmark.contained(r, "return") for r in rows] == [True, True, False, True]
    # Said to keep 5: the first, which does, and the third, which costs 11. To break it: the second.
    assert benchmark.verdicts(rows) == (2, 1, 1, 0)
