"""The `rcdt` command line: thin commands over the library; heavy imports happen inside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from rcdt_agent.errors import RCDTError
from rcdt_agent.tasks.registry import SUITES, TASKS, Suite

app = tyro.extras.SubcommandApp()
console = Console()
SuiteName = Literal["bullet", "safety-gymnasium", "metadrive"]


@app.command
def doctor() -> int:
    """Show what is installed and really step each simulator; exit code 1 if one is broken."""
    from rcdt_agent.doctor import run_checks

    colours = {"ok": "green", "missing": "yellow", "broken": "red"}
    table = Table("check", "status", "detail", title="rcdt doctor")
    with console.status("stepping the simulators ..."):
        checks = run_checks()
    for check in checks:
        colour = colours[check.status]
        table.add_row(check.name, f"[{colour}]{check.status}[/]", check.detail)
    console.print(table)
    return int(any(check.status == "broken" for check in checks))


@app.command
def tasks(*, suite: SuiteName | None = None) -> int:
    """List the DSRL tasks: ids, episode length, published ranges and evaluation budgets.

    Args:
        suite: Only this simulator family.
    """
    table = Table("task", "suite", "steps", "return", "cost", "budgets", "dataset file")
    for task in TASKS.values():
        if suite in (None, task.suite):
            low, high = task.return_range
            table.add_row(
                task.id,
                task.suite,
                str(task.episode_length),
                f"{low:.4g} .. {high:.4g}",
                f"{task.cost_range[0]:.4g} .. {task.cost_range[1]:.4g}",
                " ".join(f"{budget:g}" for budget in task.budgets),
                task.dataset_file,
            )
    console.print(table)
    return 0


@app.command(name="install-simulators")
def install_simulators_command(
    suites: Annotated[tuple[SuiteName, ...], tyro.conf.Positional] = (),
    *,
    constraints: Path | None = None,
) -> int:
    """Install the simulators in the versions that are tested together.

    Args:
        suites: Which families; none named means all three.
        constraints: Another file of versions to keep to.
    """
    from rcdt_agent.tasks.install import CONSTRAINTS, install_simulators

    chosen: tuple[Suite, ...] = suites or SUITES
    install_simulators(
        chosen,
        constraints=constraints or CONSTRAINTS,
        say=lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False),
    )
    console.print(f"Installed: {', '.join(chosen)}. `rcdt doctor` checks that they run.")
    return 0


@app.command
def inspect(
    file: Annotated[Path, tyro.conf.Positional],
    *,
    output: Path | None = None,
    task: str | None = None,
    cost_limit: float | None = None,
    alpha: float = 1.0,
    gamma: float = 0.1,
) -> int:
    """Describe a dataset file and draw its return-cost plane.

    Args:
        file: HDF5 file in DSRL's layout.
        output: PNG to write; by default the file's name with .png in the current folder.
        task: Task whose budgets are shown; guessed from the file name.
        cost_limit: c_lim of the trajectory weights; by default the middle budget.
        alpha: Sensitivity of the weights to return.
        gamma: Sensitivity of the weights to cost.
    """
    from rcdt_agent.inspection import inspect_file

    path = output or Path(f"{file.stem}.png")
    tables = inspect_file(file, path, task=task, cost_limit=cost_limit, alpha=alpha, gamma=gamma)
    for title, rows in tables.items():
        table = Table(*rows[0], title=title)
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    console.print(f"Picture: {path}")
    return 0


def main() -> None:
    """Entry point: run a command, print the package's own errors as one line."""
    try:
        code = app.cli(prog="rcdt", description="Train once offline, choose the budget later.")
    except RCDTError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
    sys.exit(code)
