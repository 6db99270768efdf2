"""JSON files that are complete or not there, and locks that end with their process."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: without locks, two commands must not share a folder
    fcntl = None  # type: ignore[assignment]


def write_json(path: Path, values: Any) -> None:
    """Write next to the place and rename."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write next to the place and rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The contents, or None if there is no such file."""
    return json.loads(path.read_text()) if path.is_file() else None


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock for the block; yields False, without waiting, if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if fcntl is None or os.name == "nt":
            yield True
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
