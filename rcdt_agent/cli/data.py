"""The commands about data: `rcdt tasks`, `inspect`, `collect` and `convert`."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.table import Table

from rcdt_agent._io import versions, write_json
from rcdt_agent.cli.console import check_budgets, check_output, console, echo
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.registry import TASKS, get_task

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset

SuiteName = Literal["bullet", "safety-gymnasium", "metadrive", "embedded"]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT")]


def tasks(
    *,
    suite: Annotated[SuiteName | None, tyro.conf.arg(metavar="SUITE")] = None,
    files: bool = False,
) -> int:
    """List the tasks: ids, episode length, published ranges and evaluation budgets.

    One plain line per task, so that `rcdt tasks | grep -i hopper` works.

    Args:
        suite: Only bullet, safety-gymnasium, metadrive or embedded.
        files: Print the name of each task's dataset file instead.
    """
    head = ("task", "dataset file") if files else ("task", "steps", "return", "cost", "budgets")
    rows = [head]
    for task in TASKS.values():
        if suite not in (None, task.suite):
            continue
        if files:
            rows.append((task.id, task.dataset_file or "-"))
            continue
        rows.append(
            (
                task.id,
                str(task.episode_length),
                "..".join(f"{round(value, 1):g}" for value in task.return_range),
                "..".join(f"{round(value, 1):g}" for value in task.cost_range),
                " ".join(f"{budget:g}" for budget in task.budgets),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo(" ".join(cells).rstrip())
    return 0


def inspect(
    file: Annotated[Path, tyro.conf.Positional],
    *,
    output: OptionalPath = None,
    task: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None,
    budgets: tuple[float, ...] = (),
    cost_limit: OptionalFloat = None,
    alpha: OptionalFloat = None,
    gamma: OptionalFloat = None,
) -> int:
    """Describe a dataset file and draw its return-cost plane.

    Args:
        file: HDF5 file in DSRL's layout.
        output: PNG to write; by default the file's name with .png in the current folder.
        task: Task whose budgets are shown; guessed from the file name.
        budgets: Cost budgets to look at; by default the task's, or without a task round figures
            near the quartiles of the data's costs.
        cost_limit: Colour by the paper's weights, Eq. (w-def), with this c_lim; by default by the
            default agent's weights, closeness to the frontier averaged over a trajectory.
        alpha: Colour by the paper's weights with this sensitivity to return.
        gamma: Colour by the paper's weights with this sensitivity to cost.
    """
    from rcdt_agent.experiments.inspection import inspect_file

    path = output or Path(f"{file.stem}.png")
    check_budgets(budgets)
    check_output(path)
    tables = inspect_file(
        file, path, task=task, budgets=budgets, cost_limit=cost_limit, alpha=alpha, gamma=gamma
    )
    for title, rows in tables.items():
        table = Table(*rows[0], title=title)
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    echo(f"Picture: {path}")
    return 0


def collect(
    task: Annotated[str, tyro.conf.Positional],
    *,
    output: Path,
    steps: int = 100_000,
    behaviour: Annotated[
        Literal["scripted", "idm", "ppo", "random"] | None, tyro.conf.arg(metavar="NAME")
    ] = None,
    penalties: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0),
    n_envs: int = 1,
    seed: int = 0,
    per_cell: Annotated[int | None, tyro.conf.arg(metavar="INT|None")] = 6,
    max_trajectories: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    round_observations: Annotated[int | None, tyro.conf.arg(metavar="BITS")] = None,
    resume: bool = False,
) -> int:
    """Record a dataset in a task's simulator, in DSRL's HDF5 layout.

    Safe to interrupt: complete trajectories are kept, and `--resume` continues.

    Args:
        task: A DSRL task, in any spelling.
        output: HDF5 file to write; <output>.json beside it records how it was made.
        steps: Environment steps to record; ppo divides them among the penalties, and needs at
            least the default to cover a range of costs and returns.
        behaviour: scripted, idm, ppo or random; by default scripted for Bullet's Ball and Car and
            for Safety-Gymnasium's Circle and Goal tasks, idm for MetaDrive, ppo otherwise.
        penalties: Penalties subtracted from the reward per unit of cost; ppo is trained with each.
        n_envs: Environments in parallel.
        seed: The same seed gives the same dataset.
        per_cell: Maximum number of trajectories in a cell of a 40 x 50 return-cost grid; None
            keeps all.
        max_trajectories: Maximum number of trajectories in the file, drawn at random.
        round_observations: Mantissa bits that observations keep (1 to 23), for a smaller file.
        resume: Continue an interrupted collection, given the same arguments.
    """
    from rcdt_agent.collect import collect_dataset, default_behaviour

    known = get_task(task)
    arguments: dict[str, Any] = {
        "steps": steps,
        "behaviour": behaviour or default_behaviour(known),
        "penalties": penalties,
        "n_envs": n_envs,
        "seed": seed,
        "per_cell": per_cell,
        "max_trajectories": max_trajectories,
        "round_observations": round_observations,
    }
    try:
        dataset = collect_dataset(
            known, output, **arguments, resume=resume, progress_bar=sys.stderr is not None
        )
    except KeyboardInterrupt as interrupt:
        echo(str(interrupt).replace("`resume`", "`--resume`"))
        return 130
    _write_record(known.id, output, arguments, dataset, resumed=resume)
    return 0


def _write_record(
    task_id: str,
    output: Path,
    arguments: dict[str, Any],
    dataset: TrajectoryDataset,
    *,
    resumed: bool,
) -> None:
    """Write and print how a collected file was made."""
    summary = asdict(dataset.summary())
    record = {
        "command": command_line(task_id, output, arguments),
        "task": task_id,
        "arguments": arguments,
        "resumed": resumed,
        "versions": versions(),
        "summary": {key: value for key, value in summary.items() if key != "name"},
    }
    beside = output.with_name(f"{output.name}.json")
    write_json(beside, record)
    table = Table("", "", title=f"{task_id}, {arguments['behaviour']}", show_header=False)
    for key in ("trajectories", "transitions", "return_range", "cost_range", "length_range"):
        value = summary[key]
        text = " .. ".join(f"{v:.5g}" for v in value) if isinstance(value, tuple) else str(value)
        table.add_row(key.replace("_", " "), text)
    console.print(table)
    echo(f"File: {output} ({output.stat().st_size / 1e6:.1f} MB), how it was made: {beside}")


def command_line(task_id: str, output: Path, arguments: dict[str, Any]) -> str:
    """The command that collects the same data; `penalties` are said for ppo only."""
    command = ["rcdt", "collect", task_id, "--output", str(output)]
    for name, value in arguments.items():
        if name == "penalties" and arguments["behaviour"] != "ppo":
            continue
        values = value if isinstance(value, tuple) else (value,)
        command += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(command)


def convert(
    source: Annotated[str, tyro.conf.Positional], target: Annotated[str, tyro.conf.Positional]
) -> int:
    """Copy a dataset between DSRL's HDF5 layout and Minari (cost in the infos).

    Also from HDF5 to a folder of memory-mapped arrays, for datasets larger than memory.

    Args:
        source: An HDF5 file, or the id of a local Minari dataset.
        target: An HDF5 file (.hdf5, .h5), a new folder of arrays (.npy), or a new Minari id such
            as robot/pick-v0.
    """
    from rcdt_agent.data import TrajectoryDataset
    from rcdt_agent.data.mapped import SUFFIX, hdf5_to_npy

    if Path(target).suffix == SUFFIX and _is_hdf5("source", source):
        hdf5_to_npy(Path(source), Path(target))
        data = TrajectoryDataset.from_npy(target)
        echo(f"{len(data)} trajectories, {data.n_transitions} steps: {target}")
        return 0
    from_file, to_file = _is_hdf5("source", source), _is_hdf5("target", target)
    if to_file:
        check_output(Path(target))
    data = (
        TrajectoryDataset.from_hdf5(source) if from_file else TrajectoryDataset.from_minari(source)
    )
    if to_file:
        data.to_hdf5(target)
    else:
        data.to_minari(target)
    echo(f"{len(data)} trajectories, {data.n_transitions} steps: {target}")
    return 0


def _is_hdf5(argument: str, name: str) -> bool:
    """Whether a name is that of an HDF5 file; otherwise it has to be a Minari id."""
    if Path(name).suffix in (".hdf5", ".h5"):
        return True
    if not re.fullmatch(r"([\w-]+/)*[\w-]+-v\d+", name):
        raise InvalidArgumentError(
            f"`{argument}` must be an HDF5 file (.hdf5, .h5) or a Minari id with its version "
            f"(robot/pick-v0), got {name!r}. A CSV file or another table: "
            f"`TrajectoryDataset.from_dataframe(pandas.read_csv(path), ...).to_hdf5(path)`."
        )
    return False
