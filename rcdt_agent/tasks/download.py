"""Fetch DSRL dataset files into the cache folder that `dsrl` uses.

A download goes to `<filename>.partial` and gets its final name only once it is complete and opens
as a DSRL HDF5 file. A sidecar, `<filename>.partial.json`, notes which version of which URL the
bytes belong to, so that a later call resumes the same file or starts over, never a mixture.

One process at a time works on a file, under an operating-system lock on `<filename>.partial.lock`.
The kernel drops it however the holder ends, SIGKILL included. A lock made of a PID cannot do that:
PIDs are reused, mean nothing on another machine or container that shares the folder, and taking
over a stale one is itself a race. Partials named per process would not be found again to resume.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import h5py  # type: ignore[import-untyped, unused-ignore]
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from rcdt_agent._io import file_lock
from rcdt_agent.errors import DownloadError, InvalidArgumentError
from rcdt_agent.tasks.waiting import waiting_for

__all__ = ["MIRRORS", "dataset_dir", "download_dataset"]

MIRRORS: tuple[str, ...] = (
    "https://huggingface.co/datasets/YYY-45/DSRL/resolve/main/",
    "https://hf-mirror.com/datasets/YYY-45/DSRL/resolve/main/",
)
"""Base URLs, tried in order; the environment variable `RCDT_DATASET_URL` replaces them."""

_KEYS = ("observations", "actions", "rewards", "costs", "terminals", "timeouts")
_TIMEOUT = 10.0  # seconds; the environment variable RCDT_DATASET_TIMEOUT replaces them
_ATTEMPTS = 3  # in a row without getting further, per mirror
_SILENT_ATTEMPTS = 2  # the same, where each takes the whole timeout
_BACKOFF = 0.5  # seconds before the second attempt, doubled before each further one
_CHUNK = 1 << 20  # bytes
_BUSY = frozenset({408, 429, 500, 502, 503, 504})  # HTTP codes worth asking again


class _Interrupted(Exception):
    """This attempt failed; the same mirror may do better next time."""


class _Silent(_Interrupted):
    """Not a byte came for the whole timeout."""


class _MirrorFailed(Exception):
    """This mirror cannot deliver the file."""


def dataset_dir() -> Path:
    """Return the cache folder: `$DSRL_DATASET_DIR`, by default `~/.dsrl/datasets`."""
    return Path(os.environ.get("DSRL_DATASET_DIR") or "~/.dsrl/datasets").expanduser()


def download_dataset(
    filename: str,
    *,
    directory: Path | None = None,
    progress: bool = True,
    timeout: float | None = None,
    expected_size: int | None = None,
) -> Path:
    """Return the path of a dataset file, downloading it unless the cache holds it.

    A cached file that does not open as HDF5 (or is not `expected_size` long) is replaced, but only
    once its replacement is verified. A call that is cut off, even by SIGKILL, is resumed by the
    next one. A call that finds another process downloading the same file waits for it.

    Args:
        filename: Name of the file on the mirrors, without any folder.
        directory: Where to keep it; `dataset_dir()` by default. Created when missing.
        progress: Show a progress bar on stderr, and what is waited for.
        timeout: Seconds without an answer after which a mirror is given up, and without a byte
            after which a connection counts as cut; default: `$RCDT_DATASET_TIMEOUT`, or 10.
        expected_size: Size in bytes, where known.

    Raises:
        InvalidArgumentError: `filename`, `timeout`, or one of the environment variables
            `RCDT_DATASET_URL` and `RCDT_DATASET_TIMEOUT`, breaks its rule.
        DownloadError: No mirror delivered the file, or the folder cannot be written.
    """
    _check_filename(filename)
    seconds = _seconds(timeout)
    folder = dataset_dir() if directory is None else Path(directory).expanduser()
    final = folder / filename
    damage = _damage(final, expected_size)  # before the lock: the folder may be read-only
    if damage is None:
        return final

    urls = [base + quote(filename) for base in _mirrors()]
    download = _Download(folder / f"{filename}.partial", seconds, expected_size, progress)
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f"{filename}.partial.lock"):
            damage = _damage(final, expected_size)
            if damage is None:  # another process fetched it meanwhile
                return final
            for url in urls:
                try:
                    download.fetch(url)
                except _MirrorFailed as failure:
                    failures.append(f"  {url}: {failure}")
                else:
                    download.publish(final)
                    return final
    except OSError as error:  # the disk's: those of the network never come out of `fetch`
        failures.append(f"  cannot write to {folder}: {error}")
        failures.append("Make room or gain access there, or set DSRL_DATASET_DIR elsewhere.")
    advice = (
        f"Put {filename} into {folder}, give a file from elsewhere (`dataset=`, `--dataset`), or "
        f"set RCDT_DATASET_URL to a base URL that serves it."
    )
    lines = [f"Could not download {filename}:", *failures, advice]
    if os.path.lexists(final):
        lines.append(f"The cached file {final} is damaged ({damage}); it was kept as it is.")
    raise DownloadError("\n".join(lines))


def _check_filename(filename: str) -> None:
    if not filename or filename == "." or ".." in filename or re.search(r"[/\\:\0]", filename):
        rule = r"must be a plain file name without '/', '\', ':' or '..'"
        raise InvalidArgumentError(f"`filename` {rule}, got {filename!r}.")


def _seconds(timeout: float | None) -> float:
    name, value = "timeout", timeout
    if timeout is None:
        name, text = "RCDT_DATASET_TIMEOUT", os.environ.get("RCDT_DATASET_TIMEOUT")
        try:
            value = float(text) if text else _TIMEOUT
        except ValueError:
            raise InvalidArgumentError(f"`{name}` must be a number, got {text!r}.") from None
    if value is None or not 0 < value < float("inf"):
        raise InvalidArgumentError(f"`{name}` must be > 0, got {value!r}.")
    return value


def _mirrors() -> tuple[str, ...]:
    bases = os.environ.get("RCDT_DATASET_URL", "").split()
    for base in bases:
        try:
            parts = urlsplit(base)
            # `port` raises when it is no number; urllib cannot send a user name in a URL.
            usable = parts.hostname and parts.port != 0 and base.isascii() and "@" not in base
        except ValueError:
            usable = False
        if not usable or parts.scheme not in ("http", "https"):
            rule = "must hold http:// or https:// base URLs separated by spaces"
            raise InvalidArgumentError(f"`RCDT_DATASET_URL` {rule}, got {base!r}.")
    return tuple(base.rstrip("/") + "/" for base in bases) or MIRRORS


def _damage(path: Path, expected_size: int | None, keys: tuple[str, ...] = ()) -> str | None:
    """Say what is wrong with a file, or None. Finds truncation, not a flipped bit in the data."""
    try:
        size = path.stat().st_size
        if expected_size is not None and size != expected_size:
            return f"{size} bytes instead of {expected_size}"
        with h5py.File(path, "r") as file:
            missing = [key for key in keys if not isinstance(file.get(key), h5py.Dataset)]
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        return f"not readable as HDF5: {error}"
    return f"lacks the DSRL datasets {', '.join(missing)}" if missing else None


class _Resume(NamedTuple):
    """What a server must confirm before its bytes are appended to the partial."""

    start: int
    size: int
    validator: str


@dataclass(frozen=True)
class _Download:
    """One file on its way: the partial, its sidecar and how to fill it."""

    partial: Path
    timeout: float
    expected_size: int | None
    progress: bool

    def fetch(self, url: str) -> None:
        """Fill the partial from one mirror until it is complete and verified."""
        resume = self.resume_point(url)
        furthest = resume.start if resume else 0
        failed = 0  # attempts since one got further than all before it
        while True:
            try:
                resumed = self.attempt(url)
                damage = _damage(self.partial, self.expected_size, _KEYS)
                if damage is None:
                    return
                self.partial.unlink()
                self.sidecar.unlink(missing_ok=True)
                message = f"what it sent is no DSRL file ({damage}) and was deleted"
                # Old bytes may be at fault in a resumed file, only the server in a fresh one.
                raise _Interrupted(message) if resumed else _MirrorFailed(message)
            except _Interrupted as error:
                reached = self.partial.stat().st_size if self.partial.exists() else 0
                failed = 1 if reached > furthest else failed + 1
                furthest = max(furthest, reached)
                allowed = _SILENT_ATTEMPTS if isinstance(error, _Silent) else _ATTEMPTS
                if failed >= allowed:
                    raise _MirrorFailed(f"{error} (attempt {failed} of {allowed})") from error
                time.sleep(_BACKOFF * 2 ** (failed - 1))

    def attempt(self, url: str) -> bool:
        """Make one request and store its bytes; return whether earlier bytes were kept."""
        resume = self.resume_point(url)
        response = self.open(url, resume)
        if response is None:
            return True
        size: int | None
        with response:
            if response.status == 206 and resume and _confirms(response, resume):
                mode, have, size = "ab", resume.start, resume.size
            elif response.status == 206:
                self.sidecar.unlink(missing_ok=True)
                raise _Interrupted("the range it sent does not fit the partial file")
            else:
                mode, have, size = "wb", 0, response.length
            if self.expected_size is not None and size not in (None, self.expected_size):
                raise _MirrorFailed(f"offers {size} bytes instead of {self.expected_size}")
            with self.partial.open(mode) as file, self.bar(have, size) as bar:
                if mode == "wb":  # only now that the old bytes are gone
                    self.remember(url, size, _validator(response))
                while chunk := _read(response, _CHUNK if size is None else size - have):
                    file.write(chunk)
                    have += len(chunk)
                    bar.update(len(chunk))
        if size is not None and have < size:
            raise _Interrupted(f"connection cut after {have} of {size} bytes")
        return mode == "ab"

    def open(self, url: str, resume: _Resume | None) -> HTTPResponse | None:
        """Send the request; None means that the partial already holds the whole file."""
        headers = {"User-Agent": "rcdt-agent"}
        if resume:
            headers |= {"Range": f"bytes={resume.start}-", "If-Range": resume.validator}
        request, host = Request(url, headers=headers), urlsplit(url).netloc
        try:
            with waiting_for(host, self.timeout, shown=self.progress):
                response: HTTPResponse = urlopen(request, timeout=self.timeout)
            return response
        except HTTPError as error:
            error.close()
            if error.code == 416 and resume:
                whole = error.headers.get("Content-Range", f"bytes */{resume.size}")
                if whole == f"bytes */{resume.start}" and resume.start == resume.size:
                    return None
                self.sidecar.unlink(missing_ok=True)
                raise _Interrupted("the partial file is longer than the server's") from error
            failure = _Interrupted if error.code in _BUSY else _MirrorFailed
            raise failure(f"HTTP {error.code} {error.reason}") from error
        except TimeoutError as error:  # connected: asking again would only wait again
            raise _MirrorFailed(f"no answer within {self.timeout:g} s") from error
        except URLError as error:  # no connection: unknown host, refused, bad certificate
            if isinstance(error.reason, TimeoutError):
                raise _MirrorFailed(f"no connection within {self.timeout:g} s") from error
            raise _MirrorFailed(str(error.reason)) from error
        except (OSError, HTTPException) as error:  # connected, then cut before an answer
            raise _Interrupted(str(error) or type(error).__name__) from error

    def bar(self, have: int, size: int | None) -> tqdm[Any]:
        return tqdm(
            desc=self.partial.stem, initial=have, total=size, disable=not self.progress,
            leave=False, unit="B", unit_scale=True, unit_divisor=1024,
        )  # fmt: skip

    @property
    def sidecar(self) -> Path:
        return self.partial.with_name(f"{self.partial.name}.json")

    def resume_point(self, url: str) -> _Resume | None:
        """Where to go on with `url`; None when the bytes are not known to be its beginning."""
        try:
            start = self.partial.stat().st_size
            saved = json.loads(self.sidecar.read_text(encoding="utf-8"))
            resume = _Resume(start, int(saved["size"]), str(saved["validator"]))
            return resume if start > 0 and saved["url"] == url else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def remember(self, url: str, size: int | None, validator: str | None) -> None:
        """Note the origin of the bytes to come, if they can be told from another version's."""
        self.sidecar.unlink(missing_ok=True)
        if size is not None and validator is not None:
            saved = {"url": url, "size": size, "validator": validator}
            self.sidecar.write_text(json.dumps(saved), encoding="utf-8")

    def publish(self, final: Path) -> None:
        with self.partial.open("rb+") as file:
            os.fsync(file.fileno())
        self.partial.replace(final)
        self.sidecar.unlink(missing_ok=True)


def _read(response: HTTPResponse, limit: int) -> bytes:
    try:
        # Not `read`: it loses the bytes it already holds when the connection breaks.
        return response.read1(min(limit, _CHUNK)) if limit else b""
    except TimeoutError as error:
        raise _Silent("connection cut: it fell silent") from error
    except (OSError, HTTPException) as error:
        raise _Interrupted(f"connection cut: {error or type(error).__name__}") from error


def _confirms(response: HTTPResponse, resume: _Resume) -> bool:
    """Whether a 206 goes on exactly where the partial ends. Some servers ignore If-Range."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    return span is not None and resume == (int(span[1]), int(span[2]), _validator(response))


def _validator(response: HTTPResponse) -> str | None:
    """What identifies the version of a file; If-Range allows no weak ETag."""
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
