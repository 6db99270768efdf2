"""The command `rcdt export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.cli.console import echo


def export(
    agent: Annotated[Path, tyro.conf.Positional],
    output: Annotated[Path, tyro.conf.Positional] = Path("policy.onnx"),
    *,
    cost_budget: float | None = None,
    without_shield: bool = False,
) -> int:
    """Write a trained agent as an ONNX file, which `rcdt_agent.onnx_agent` runs without torch.

    Args:
        agent: A run folder or a checkpoint.
        output: File to write.
        cost_budget: Budget that the file begins with; otherwise the agent's own.
        without_shield: Leave out the critic shield, which a file cannot hold.
    """
    from rcdt_agent.experiments.runs import open_budget_conditioned

    loaded = open_budget_conditioned(agent, "exported to ONNX")
    if cost_budget is not None:
        loaded.set_cost_budget(cost_budget)
    if without_shield:
        loaded.set_deployment(shield_candidates=0)
    loaded.export_onnx(output)
    size = output.stat().st_size / 1e6
    echo(
        f"Policy: {output} ({size:.2f} MB), cost budget {loaded.cost_budget:g}, target return "
        f"{loaded.target_return:g}"
    )
    return 0
