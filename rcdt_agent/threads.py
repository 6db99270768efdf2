"""Work cut into pieces, each with a processor core to itself.

Torch spreads every operation over all cores and waits for the slowest at its end. In a transformer
this small, the waiting and the traffic between the cores' caches cost a good part of the time;
pieces that have a core to themselves do without.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_ARENAS, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # mallopt's names of its settings


def lanes() -> int:
    """How many pieces run at a time: as many as torch has threads."""
    return torch.get_num_threads()


def in_lanes(function: Callable[[Sequence[Item]], Result], items: Sequence[Item]) -> list[Result]:
    """Cut the items into one run a lane; what `function` makes of each run, in order.

    With one lane or one item it is called here, and torch's own threads are at its disposal.
    """
    n = min(lanes(), len(items))
    if n <= 1:
        return [function(items)]
    cuts = [len(items) * i // n for i in range(n + 1)]
    crew = _crew(lanes(), os.getpid())
    return list(crew.map(function, [items[a:b] for a, b in pairwise(cuts)]))


@lru_cache(maxsize=1)
def _crew(n: int, _process: int) -> ThreadPoolExecutor:
    """Threads of one core each; made anew in a forked process, which inherits none."""
    together = threading.Barrier(n)

    def take_one_core() -> None:
        torch.get_num_threads()  # a thread's first look at it would undo the next line
        torch.set_num_threads(1)
        together.wait()  # so that each thread is started, and does it

    crew = ThreadPoolExecutor(n, "rcdt")
    for each in [crew.submit(take_one_core) for _ in range(n)]:
        each.result()
    # The count is a thread's own, but the last one set is the default of threads made later.
    torch.set_num_threads(n)
    return crew


def keep_freed_memory() -> None:
    """Give back what is free, then let the C library keep what is freed from now on.

    A training step frees and allocates hundreds of megabytes; every page that comes back from the
    system is cleared first. Up to 256 MB stay with the process. Only glibc has these settings.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    mallopt, trim = getattr(library, "mallopt", None), getattr(library, "malloc_trim", None)
    if mallopt is not None and trim is not None:
        trim(0)  # of reading the data
        mallopt(_ARENAS, 1)  # a thread's own would be cut into pieces of 64 MB
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 256 << 20)
