"""Files and processes: atomic writes, file locks, worker processes, installed versions."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rcdt_agent.errors import RCDTError
from rcdt_agent.version import __version__

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_POLL_SECONDS = 0.1  # between attempts to take a lock
_PACKAGES = (
    "numpy", "gymnasium", "torch", "stable-baselines3", "bullet-safety-gym", "pybullet",
    "safety-gymnasium", "mujoco", "metadrive-simulator",
)  # fmt: skip

_logger = logging.getLogger(__name__)


@contextmanager
def atomic_write(target: Path, error: type[RCDTError]) -> Iterator[Path]:
    """A temporary path beside `target`, renamed to `target` once its bytes are on disk.

    Whatever goes wrong before that leaves an older file at `target` as it was and no temporary
    file behind.

    Args:
        target: Where the file should be; missing folders are made.
        error: Raised instead of an `OSError`, such as a full disk or a read-only folder.
    """
    try:
        with _replacing(target) as partial:
            yield partial
    except OSError as cause:
        raise error(
            f"{target}: could not be written ({cause}); an older file there is untouched."
        ) from cause


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; missing folders are made."""
    with _replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file atomically; missing folders are made."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The contents of a JSON file, or None if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold an operating-system lock on a file for the block.

    The kernel releases the lock however its holder ends, SIGKILL included. The file is removed
    when the lock is released; missing folders are made.

    Args:
        path: The lock file.
        wait: Wait for another holder. Otherwise the block runs at once either way.

    Yields:
        Whether the lock is held; always True with `wait`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = False
    while True:
        with path.open("ab") as file:
            if _try_lock(file.fileno()):
                if not _is_current(file.fileno(), path):
                    continue  # the last holder removed the file between our open and our lock
                try:
                    yield True
                finally:
                    with contextlib.suppress(OSError):  # Windows does not remove an open file
                        path.unlink()
                return
            if not wait:
                yield False
                return
        if not waiting:
            _logger.info("waiting for another process, which holds %s", path)
            waiting = True
        time.sleep(_POLL_SECONDS)


def die_with_parent() -> None:
    """End this worker process when the process that started it ends, however that happens."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def versions() -> dict[str, str]:
    """Versions that results depend on; packages that are not installed are left out."""
    found = {"rcdt_agent": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    if "torch" in sys.modules:  # its own version names the build too, such as +cpu
        found["torch"] = str(sys.modules["torch"].__version__)
    return found


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
