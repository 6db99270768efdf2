"""The command `rcdt export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.cli.console import check_output, echo
from rcdt_agent.errors import InvalidArgumentError

DEFAULT_OUTPUT = Path("policy.onnx")


def export(
    agent: Annotated[Path, tyro.conf.Positional],
    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None,
    *,
    output: Path = DEFAULT_OUTPUT,
    cost_budget: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None,
    without_shield: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Write a trained agent as an ONNX file, which `rcdt_agent.onnx_agent` runs without torch.

    Args:
        agent: A run folder or a checkpoint.
        file: File to write.
        output: The same, as an option.
        cost_budget: Initial budget of the exported policy; by default the agent's.
        without_shield: Export without the critic shield, which ONNX files cannot hold.
    """
    from rcdt_agent.experiments.runs import open_budget_conditioned

    if file is not None and output != DEFAULT_OUTPUT:
        raise InvalidArgumentError(f"Name one file to write, got {file} and `--output {output}`.")
    output = file or output
    check_output(output)
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
