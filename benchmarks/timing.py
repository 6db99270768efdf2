"""Timing two programs in one process by turns: what the other benchmarks share."""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(
    name: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    *,
    rounds: int,
    inner: int = 1,
    inner_theirs: int = 1,
    wanted: float | None = None,
) -> dict[str, Any]:
    """Alternate both after a warm-up of each; a row of the table, printed.

    Args:
        name: What is timed.
        ours: Ours.
        theirs: The peer's.
        rounds: How often each is timed.
        inner: Repeats of ours within a round, where it is too short to time.
        inner_theirs: The same for the peer's.
        wanted: How many times faster it should be.
    """
    ours()
    theirs()
    ours_times, theirs_times = [], []
    for _ in range(rounds):
        ours_times.append(seconds(lambda: [ours() for _ in range(inner)]) / inner)
        theirs_times.append(seconds(lambda: [theirs() for _ in range(inner_theirs)]) / inner_theirs)
    return row(name, ours_times, theirs_times, wanted)


def row(
    name: str, ours: list[float], theirs: list[float], wanted: float | None = None
) -> dict[str, Any]:
    """One line of the table, printed: medians, and the median ratio with its spread."""
    ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    entry = {
        "what": name,
        "ours_ms": 1e3 * statistics.median(ours),
        "peer_ms": 1e3 * statistics.median(theirs),
        "times_faster": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "wanted": wanted,
    }
    goal = "" if wanted is None else f"  wanted {wanted:g}"
    print(
        f"{name:<38} {entry['ours_ms']:>10.2f} ms {entry['peer_ms']:>10.1f} ms "
        f"{entry['times_faster']:>8.1f}x  ({entry['least']:.1f} to {entry['most']:.1f}){goal}",
        flush=True,
    )
    return entry


def heading(title: str) -> None:
    print(f"\n{title}, {torch.get_num_threads()} threads")
    print(f"{'':<38} {'ours':>13} {'peer':>13} {'faster':>9}", flush=True)


def matmul_peak(size: int = 1536, repeats: int = 5) -> float:
    """FLOP/s of the largest dense float32 product that torch does well here; the best of a few."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    times = [seconds(lambda: torch.mm(a, b, out=out)) for _ in range(repeats + 1)]
    return 2 * size**3 / min(times[1:])


def quietly(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function without its prints and progress bars."""

    def run() -> Any:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return function()

    return run
