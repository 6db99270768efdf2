"""The command `rcdt export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.cli.console import check_output, echo


def export(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    output: Path = Path("policy.onnx"),
    cost_budget: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None,
) -> int:
    """Write a trained policy as an ONNX file, which runs without torch.

    Args:
        agent: A run folder or a checkpoint.
        output: File to write.
        cost_budget: Default budget noted in the file; otherwise the agent's own.
    """
    from rcdt_agent.experiments.runs import open_budget_conditioned

    check_output(output)
    loaded = open_budget_conditioned(agent, "exported to ONNX")
    if cost_budget is not None:
        loaded.set_cost_budget(cost_budget)
    loaded.export_onnx(output)
    size = output.stat().st_size / 1e6
    echo(
        f"Policy: {output} ({size:.2f} MB), cost budget {loaded.cost_budget:g}, target return "
        f"{loaded.target_return:g}"
    )
    return 0
