"""The `rcdt` command line: thin commands over the library; heavy imports happen inside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import tyro

from rcdt_agent.cli.benchmark import benchmark, tune
from rcdt_agent.cli.console import echo, echo_error
from rcdt_agent.cli.data import collect, convert, inspect, tasks
from rcdt_agent.cli.evaluate import calibrate, evaluate, plot, report
from rcdt_agent.cli.export import export
from rcdt_agent.cli.system import doctor, install_simulators
from rcdt_agent.cli.train import train_command
from rcdt_agent.errors import RCDTError
from rcdt_agent.version import __version__

COMMANDS: dict[str, Callable[..., int]] = {
    "doctor": doctor,
    "tasks": tasks,
    "install-simulators": install_simulators,
    "inspect": inspect,
    "evaluate": evaluate,
    "calibrate": calibrate,
    "plot": plot,
    "report": report,
    "collect": collect,
    "benchmark": benchmark,
    "tune": tune,
    "convert": convert,
    "export": export,
}
"""Every command but `train`, whose options depend on the algorithm."""


def run_command(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: As typed after `rcdt`.

    Returns:
        The exit code.

    Raises:
        RCDTError: Bad input, or something that a user can act on.
    """
    if list(arguments) == ["--version"]:
        echo(f"rcdt_agent {__version__}")
        return 0
    app = tyro.extras.SubcommandApp()
    for name, command in {"train": train_command(arguments), **COMMANDS}.items():
        app.command(name=name)(command)
    code: int = app.cli(
        prog="rcdt",
        description="Train once offline, choose the cost budget later.",
        args=arguments,
    )
    return code


def main() -> None:
    """Entry point: run a command, print the package's own errors as one line."""
    try:
        code = run_command(sys.argv[1:])
    except RCDTError as error:
        echo_error(str(error))
        code = 2
    except KeyboardInterrupt:
        echo_error("interrupted")
        code = 130
    sys.exit(code)
