"""One way to show progress: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

from tqdm.auto import tqdm

FIRST_ESTIMATE = 10.0
"""Seconds after which the remaining time can be told."""
DAY = 86_400.0


def progress(shown: bool, **kwargs: Any) -> tqdm[Any]:
    """A tqdm bar on stderr; where stderr is not a terminal, at most one line in ten seconds."""
    interval = 0.2 if sys.stderr.isatty() else 10.0
    return tqdm(disable=not shown, mininterval=interval, **kwargs)


class Stopwatch:
    """Speed and remaining time of so many steps."""

    def __init__(self, n_steps: int) -> None:
        """Start now."""
        self.n_steps = n_steps
        self._started = monotonic()
        self._told = False

    def speed(self, done: int) -> float:
        """Steps a second so far."""
        return done / max(monotonic() - self._started, 1e-9)

    def remaining(self, done: int) -> float:
        """Seconds that the other steps need at this speed."""
        return (self.n_steps - done) / self.speed(done)

    def first_estimate(self, done: int) -> float | None:
        """The remaining seconds, once: as soon as they can be told; None before and after."""
        if self._told or monotonic() - self._started < FIRST_ESTIMATE:
            return None
        self._told = True
        return self.remaining(done)


def in_words(seconds: float) -> str:
    """A duration: 40 seconds, 3.2 hours, 19 days."""
    for unit, size in (("day", DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.{int(seconds < 10 * size)}f} {unit}s"
    return f"{seconds:.0f} seconds"
