"""The commands `rcdt export` and `rcdt convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

console = Console()


def export(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    output: Path = Path("policy.onnx"),
    cost_budget: float | None = None,
) -> int:
    """Write a trained policy as an ONNX file, which runs without torch.

    Args:
        agent: A run folder or a checkpoint.
        output: File to write.
        cost_budget: Default budget noted in the file; otherwise the agent's own.
    """
    from rcdt_agent.agent import RCDT
    from rcdt_agent.runs import Run

    loaded = Run(agent).agent() if agent.is_dir() else RCDT.load(agent)
    if cost_budget is not None:
        loaded.set_cost_budget(cost_budget)
    loaded.export_onnx(output)
    size = output.stat().st_size / 1e6
    console.print(
        f"Policy: {output} ({size:.2f} MB), cost budget {loaded.cost_budget:g}, target return "
        f"{loaded.target_return:g}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    return 0


def convert(
    source: Annotated[str, tyro.conf.Positional], target: Annotated[str, tyro.conf.Positional]
) -> int:
    """Copy a dataset between DSRL's HDF5 layout and Minari (cost in the infos).

    Args:
        source: An HDF5 file, or the id of a local Minari dataset.
        target: An HDF5 file (.hdf5, .h5), or a new Minari id such as robot/pick-v0.
    """
    from rcdt_agent.data import TrajectoryDataset

    is_file = {name: Path(name).suffix in (".hdf5", ".h5") for name in (source, target)}
    read = TrajectoryDataset.from_hdf5 if is_file[source] else TrajectoryDataset.from_minari
    data = read(source)
    if is_file[target]:
        data.to_hdf5(target)
    else:
        data.to_minari(target)
    console.print(
        f"{len(data)} trajectories, {data.n_transitions} steps: {target}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    return 0
