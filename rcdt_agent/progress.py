"""One way to show progress: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm


def progress(shown: bool, **kwargs: Any) -> tqdm[Any]:
    """A tqdm bar on stderr; where stderr is not a terminal, at most one line in ten seconds."""
    interval = 0.2 if sys.stderr.isatty() else 10.0
    return tqdm(disable=not shown, mininterval=interval, **kwargs)
