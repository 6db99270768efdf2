"""The `rcdt` command line: thin commands over the library; heavy imports happen inside them."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tyro

from rcdt_agent.cli.benchmark import benchmark, tune
from rcdt_agent.cli.compare import compare
from rcdt_agent.cli.console import console, echo, echo_error
from rcdt_agent.cli.data import collect, convert, inspect, tasks
from rcdt_agent.cli.evaluate import calibrate, dashboard, evaluate, plot, report
from rcdt_agent.cli.export import export
from rcdt_agent.cli.record import record
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
    "dashboard": dashboard,
    "record": record,
    "collect": collect,
    "compare": compare,
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
        description=(
            "Train once offline, choose the cost budget later. `rcdt COMMAND --help` lists a "
            "command's options, `rcdt --version` prints the version."
        ),
        args=_with_address(arguments),
    )
    return code


def _with_address(arguments: Sequence[str]) -> list[str]:
    """`--ray` without an address means a cluster of this machine."""
    words: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], "--"], strict=True):
        words.append(word)
        if word == "--ray" and following.startswith("--"):
            words.append("local")
    return words


def main() -> None:
    """Entry point: run a command; a failure that a user can act on is one line, exit code 2."""
    signal.signal(signal.SIGTERM, _terminate)
    warnings.showwarning = _show_warning
    if os.environ.get("RANK", "0") != "0":  # of torchrun: rank 0 speaks for all
        console.quiet = True
        warnings.simplefilter("ignore")
    try:
        try:
            code = run_command(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except RCDTError as error:
        echo_error(str(error))
        code = 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        echo_error(f"{error.filename}: {error.strerror}." if error.filename else str(error))
        code = 2
    except KeyboardInterrupt:
        echo_error("interrupted")
        code = 128 + signal.SIGINT
    sys.exit(code)


def _terminate(number: int, _frame: object) -> NoReturn:
    """End as after an exception, so that files and processes are cleaned up."""
    raise SystemExit(128 + number)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    echo_error(str(message), "warning")
