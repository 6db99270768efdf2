"""The command `rcdt collect`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from rcdt_agent._io import versions
from rcdt_agent.tasks.registry import get_task

console = Console()


def collect(
    task: Annotated[str, tyro.conf.Positional],
    *,
    output: Path,
    steps: int = 100_000,
    behaviour: Literal["scripted", "idm", "ppo", "random"] | None = None,
    penalties: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0),
    n_envs: int = 1,
    seed: int = 0,
    per_cell: int | None = 6,
    max_trajectories: int | None = None,
    resume: bool = False,
) -> int:
    """Collect a dataset of one's own in a task's simulator, in DSRL's layout.

    Safe to interrupt: complete trajectories are kept, and `--resume` continues.

    Args:
        task: A DSRL task, in any spelling.
        output: HDF5 file to write; <output>.json beside it says how it was made.
        steps: Environment steps to record; ppo divides them among the penalties, and needs the
            default or more before costs and returns spread.
        behaviour: By default scripted for Bullet's Ball and Car and for Safety-Gymnasium's Circle
            and Goal tasks, idm for MetaDrive, ppo otherwise.
        penalties: Reward taken off for each unit of cost; ppo trains once with each.
        n_envs: Environments in parallel.
        seed: The same seed gives the same dataset.
        per_cell: Most trajectories in a cell of a 40 x 50 return-cost grid; None keeps all.
        max_trajectories: Most trajectories in the file, drawn at random.
        resume: Continue an interrupted collection; say the same arguments again.
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
    }
    try:
        dataset = collect_dataset(
            known, output, **arguments, resume=resume, progress_bar=sys.stderr is not None
        )
    except KeyboardInterrupt as interrupt:
        _say(str(interrupt).replace("`resume`", "`--resume`"))
        return 130
    summary = asdict(dataset.summary())
    record = {
        "command": command_line(known.id, output, arguments),
        "task": known.id,
        "arguments": arguments,
        "resumed": resume,
        "versions": versions(),
        "summary": {key: value for key, value in summary.items() if key != "name"},
    }
    beside = output.with_name(f"{output.name}.json")
    beside.write_text(json.dumps(record, indent=2) + "\n")
    table = Table("", "", title=f"{known.id}, {arguments['behaviour']}", show_header=False)
    for key in ("trajectories", "transitions", "return_range", "cost_range", "length_range"):
        value = summary[key]
        text = " .. ".join(f"{v:.5g}" for v in value) if isinstance(value, tuple) else str(value)
        table.add_row(key.replace("_", " "), text)
    console.print(table)
    _say(f"File: {output} ({output.stat().st_size / 1e6:.1f} MB), how it was made: {beside}")
    return 0


def command_line(task_id: str, output: Path, arguments: dict[str, Any]) -> str:
    """The command that collects the same data; `penalties` are said for ppo only."""
    words = ["rcdt", "collect", task_id, "--output", str(output)]
    for name, value in arguments.items():
        if name == "penalties" and arguments["behaviour"] != "ppo":
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(tyro.cli(collect))
