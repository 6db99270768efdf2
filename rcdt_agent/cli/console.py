"""The one console of the command line."""

from __future__ import annotations

from rich.console import Console

console = Console()


def echo(text: str) -> None:
    """Print plain text: not wrapped, no colours, no markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def echo_error(text: str) -> None:
    """Print one line about an error to stderr."""
    errors = Console(stderr=True)
    errors.print("[bold red]error:[/] ", end="")
    errors.print(text, soft_wrap=True, highlight=False, markup=False)
