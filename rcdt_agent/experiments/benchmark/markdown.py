"""Pieces of Markdown that every table uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def span(interval: tuple[float, float], digits: int) -> str:
    """An interval in brackets; of one seed there is none."""
    if interval[0] != interval[0]:
        return "(one seed)"
    return f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
