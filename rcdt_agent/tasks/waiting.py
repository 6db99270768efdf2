"""A line on the screen while something does not answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

_PATIENCE = 1.0  # seconds of waiting that need no explanation


@contextmanager
def waiting_for(what: str, seconds: float, *, shown: bool) -> Iterator[None]:
    """Say on stderr what the block waits for, how long already, and when it gives up.

    Args:
        what: Such as the name of a host.
        seconds: After which the block gives up by itself.
        shown: Otherwise nothing is said.
    """
    done = threading.Event()

    def tell() -> None:
        if done.wait(_PATIENCE):
            return
        text = f"waiting for {what} (gives up after {seconds:g} s without an answer):"
        bar = tqdm(desc=text, bar_format="{desc} {elapsed}", leave=False)
        while not done.wait(1.0):
            if sys.stderr.isatty():  # once is enough in a log file
                bar.refresh()
        bar.close()

    thread = threading.Thread(target=tell, daemon=True)
    if shown:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if shown:
            thread.join()
