"""Files that are complete or not there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rcdt_agent.errors import RCDTError


@contextmanager
def whole_file(target: Path, error: type[RCDTError]) -> Iterator[Path]:
    """A path beside `target` to write to; it takes `target`'s place once it is safely on disk.

    Whatever goes wrong before that leaves an older file at `target` as it was and nothing beside.

    Args:
        target: Where the file should be; missing folders are made.
        error: Raised instead of an `OSError`, such as a full disk or a read-only folder.
    """
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as cause:
        raise error(
            f"{target}: could not be written ({cause}); an older file there is untouched."
        ) from cause
