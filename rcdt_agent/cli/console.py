"""The one console of the command line."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rcdt_agent.errors import InvalidArgumentError


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `main` knows what to do


console = _Console()


def echo(text: str) -> None:
    """Print plain text: not wrapped, no colours, no markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def echo_error(text: str, kind: str = "error") -> None:
    """Print one line about an error to stderr."""
    errors = Console(stderr=True)
    errors.print(f"[bold red]{kind}:[/] ", end="")
    errors.print(text, soft_wrap=True, highlight=False, markup=False)


def check_output(path: Path | None) -> None:
    """Refuse an output that cannot be written, before any work is done for it.

    Args:
        path: A file that may exist, in folders that need not; None: nothing to check.

    Raises:
        InvalidArgumentError: Names the path and the operating system's reason.
    """
    if path is None:
        return
    if path.is_dir():
        raise InvalidArgumentError(f"`output` must be a file, got the folder {path}.")
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".rcdt-"):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"`output` must be a file that can be written, got {path} ({error.strerror})."
        ) from error


def check_budgets(budgets: Sequence[float]) -> None:
    """Refuse cost budgets that are negative or not finite, before any work is done for them."""
    for budget in budgets:
        if not (math.isfinite(budget) and budget >= 0):
            raise InvalidArgumentError(f"`budgets` must be >= 0, got {budget:g}.")
