"""The commands `rcdt doctor` and `rcdt install-simulators`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Column, Table

from rcdt_agent.cli.console import console, echo
from rcdt_agent.tasks.registry import SUITES, Suite

SuiteName = Literal["bullet", "safety-gymnasium", "metadrive"]


def doctor() -> int:
    """List installed versions and test each simulator by stepping it; exit code 1 if one fails."""
    from rcdt_agent.doctor import run_checks

    colours = {"ok": "green", "missing": "yellow", "broken": "red"}
    detail = Column("detail", overflow="fold")  # a path cut short helps nobody
    table = Table("check", "status", detail, title="rcdt doctor")
    with console.status("stepping the simulators ..."):
        checks = run_checks()
    for check in checks:
        colour = colours[check.status]
        table.add_row(check.name, f"[{colour}]{check.status}[/]", check.detail)
    console.print(table)
    return int(any(check.status == "broken" for check in checks))


def install_simulators(
    suites: Annotated[tuple[SuiteName, ...], tyro.conf.Positional] = (),
    *,
    constraints: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
) -> int:
    """Install the simulators in the versions that are tested together.

    Args:
        suites: Simulator families; by default all three.
        constraints: A constraints file for pip to use instead of the package's own.
    """
    from rcdt_agent.tasks import install

    chosen: tuple[Suite, ...] = suites or SUITES
    install.install_simulators(chosen, constraints=constraints or install.CONSTRAINTS, echo=echo)
    echo(f"Installed: {', '.join(chosen)}. `rcdt doctor` checks that they run.")
    return 0
