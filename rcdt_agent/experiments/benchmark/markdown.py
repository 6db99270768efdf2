"""Pieces of Markdown that every table uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rcdt_agent.variants import DEFAULT_VARIANT

_NAMES = {
    DEFAULT_VARIANT: "RCDT",
    **{name: name.upper() for name in ("dt", "qt", "cdt", "bc", "cpq", "fisor", "caps")},
    "bc-safe": "BC-Safe",
    "bcq-lag": "BCQ-Lag",
    "bear-lag": "BEAR-Lag",
    "coptidice": "COptiDICE",
    "trac": "TraC",
}


def method_name(method: str) -> str:
    """A method as papers write it; one with switches stays as the command line has it."""
    return _NAMES.get(method, method)


def span(interval: tuple[float, float], digits: int) -> str:
    """An interval in brackets; of one seed there is none."""
    if interval[0] != interval[0]:
        return "(one seed)"
    return f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
