"""`download_dataset` against a real HTTP server on this machine that can be told to misbehave."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest

from rcdt_agent.errors import DownloadError, InvalidArgumentError
from rcdt_agent.tasks import download, waiting
from rcdt_agent.tasks.download import MIRRORS, dataset_dir, download_dataset

NAME = "SafetyBallRun-v0-80-940.hdf5"
CUT = 1000  # bytes after which the server hangs up, where a test wants that
ROOT = Path(download.__file__).parents[2]


@dataclass
class Mirror:
    """How the server answers under one base URL, and what it was asked."""

    url: str
    content: bytes
    etag: str | None = '"v1"'
    modified: str | None = None
    ranges: bool = True
    """Answers Range requests with 206 / 416 rather than 200."""
    if_range: bool = True
    """Looks at If-Range."""
    shift: int = 0
    """Added to the start of every range it serves."""
    announce: bool = True
    """Sends Content-Length."""
    redirect: str | None = None
    statuses: list[int] = field(default_factory=list)
    """One HTTP error per request; the last one stays, 200 means a normal answer."""
    sends: list[int | None] = field(default_factory=list)
    """Body bytes per request before the cut, None for all of them; the last one stays."""
    reset: bool = False
    """Cuts with a TCP reset rather than an orderly close."""
    gate: threading.Event | None = None
    """Waited for instead of cutting."""
    asked: list[str | None] = field(default_factory=list)
    """The Range header of each request."""
    if_ranges: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    """Serves every `Mirror` of its server; `/a/<file>` is mirror `a`."""

    server: Server

    def do_GET(self) -> None:
        """Answer as the mirror is told to."""
        mirror = self.server.mirrors[self.path.split("/")[1]]
        wanted, condition = self.headers["Range"], self.headers["If-Range"]
        with self.server.guard:
            turn = len(mirror.asked)
            mirror.asked.append(wanted)
            mirror.if_ranges.append(condition)
            mirror.paths.append(self.path)
        with contextlib.suppress(ConnectionError):
            self.answer(mirror, turn, wanted, condition)
        self.close_connection = True

    def answer(self, mirror: Mirror, turn: int, wanted: str | None, condition: str | None) -> None:
        """Send status, headers and as much of the body as the mirror is told to."""
        status = mirror.statuses[min(turn, len(mirror.statuses) - 1)] if mirror.statuses else 200
        if mirror.redirect or status != 200:
            self.send_response(302 if mirror.redirect else status)
            if mirror.redirect:
                self.send_header("Location", mirror.redirect + NAME)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        total, start = len(mirror.content), 0
        fresh = condition not in (None, mirror.etag, mirror.modified) and mirror.if_range
        if wanted is not None and mirror.ranges and not fresh:
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) + mirror.shift
            self.send_response(206 if start < total else 416)
            span = f"{start}-{total - 1}" if start < total else "*"
            self.send_header("Content-Range", f"bytes {span}/{total}")
        else:
            self.send_response(200)
        body = mirror.content[start:]
        if mirror.etag:
            self.send_header("ETag", mirror.etag)
        if mirror.modified:
            self.send_header("Last-Modified", mirror.modified)
        if mirror.announce:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limit = mirror.sends[min(turn, len(mirror.sends) - 1)] if mirror.sends else None
        self.wfile.write(body[:limit])
        self.wfile.flush()
        if limit is not None and mirror.gate:
            mirror.gate.wait(10)
            self.wfile.write(body[limit:])
        elif limit is not None and mirror.reset:
            time.sleep(0.05)  # let the client take the bytes before the reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output clean."""


class Server(ThreadingHTTPServer):
    """The HTTP server with its mirrors."""

    def __init__(self, content: bytes) -> None:
        """Listen on a free port; both mirrors hold `content`."""
        super().__init__(("127.0.0.1", 0), Handler)
        base = f"http://127.0.0.1:{self.server_address[1]}"
        self.guard = threading.Lock()
        self.mirrors = {name: Mirror(f"{base}/{name}/", content) for name in ("a", "b")}


def dsrl_file(path: Path, *, seed: int, leave_out: str = "") -> bytes:
    """Write a small file in DSRL's layout and return its bytes."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for key, width in (("observations", 8), ("next_observations", 8), ("actions", 2)):
            file[key] = rng.normal(size=(500, width)).astype(np.float32)
        for key in ("rewards", "costs", "terminals", "timeouts"):
            if key != leave_out:
                file[key] = rng.normal(size=500).astype(np.float32)
    return path.read_bytes()


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file that the mirrors hold."""
    return dsrl_file(tmp_path_factory.mktemp("data") / "v1.hdf5", seed=1)


@pytest.fixture(scope="module")
def payload_v2(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Another version of it: the same size, other numbers."""
    return dsrl_file(tmp_path_factory.mktemp("data") / "v2.hdf5", seed=2)


@pytest.fixture
def server(payload: bytes) -> Iterator[Server]:
    """A running server whose mirrors behave."""
    with Server(payload) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        for mirror in running.mirrors.values():
            if mirror.gate:
                mirror.gate.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache folder, not yet made."""
    return tmp_path / "cache" / "datasets"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, server: Server, cache: Path) -> None:
    """Both mirrors, the cache folder, no proxy and no waiting."""
    urls = " ".join(mirror.url for mirror in server.mirrors.values())
    monkeypatch.setenv("RCDT_DATASET_URL", urls)
    monkeypatch.setenv("DSRL_DATASET_DIR", str(cache))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(download, "_BACKOFF", 0.0)


@pytest.fixture
def first(server: Server) -> Mirror:
    """The mirror asked first."""
    return server.mirrors["a"]


@pytest.fixture
def second(server: Server) -> Mirror:
    """The mirror asked next."""
    return server.mirrors["b"]


def files(folder: Path) -> list[str]:
    """Names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def partial(cache: Path) -> Path:
    """Where an unfinished download is kept."""
    return cache / f"{NAME}.partial"


def fail(cache: Path, *, timeout: float | None = None, progress: bool = False) -> str:
    """Download, expect a failure without a final file, and return the error's text."""
    with pytest.raises(DownloadError) as caught:
        download_dataset(NAME, progress=progress, timeout=timeout)
    assert not (cache / NAME).exists()
    return str(caught.value)


def leave_partial(first: Mirror, second: Mirror, cache: Path) -> None:
    """Make a first call that dies after `CUT` bytes, then let the first mirror behave again."""
    first.sends, second.statuses = [CUT, 0], [404]
    fail(cache)
    assert partial(cache).read_bytes() == first.content[:CUT]
    first.sends, first.asked, first.if_ranges = [], [], []


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something another thread or process does."""
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "waited 15 s in vain"
        time.sleep(0.01)


# --- the ordinary way ---


def test_downloads_once(first: Mirror, second: Mirror, cache: Path, payload: bytes) -> None:
    """The bytes arrive, nothing else stays, and the second call asks nobody."""
    path = download_dataset(NAME, progress=False)
    assert path == cache / NAME
    assert path.read_bytes() == payload
    assert files(cache) == [NAME]
    assert download_dataset(NAME, progress=False) == path
    assert (first.asked, second.asked) == ([None], [])


def test_explicit_directory(tmp_path: Path, cache: Path, payload: bytes) -> None:
    """`directory` wins over the environment."""
    path = download_dataset(NAME, directory=tmp_path / "mine", progress=False)
    assert path == tmp_path / "mine" / NAME
    assert path.read_bytes() == payload
    assert not cache.exists()


def test_dataset_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is dsrl's own; an empty variable counts as none."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("DSRL_DATASET_DIR", "~/elsewhere")
    assert dataset_dir() == tmp_path / "home" / "elsewhere"
    monkeypatch.setenv("DSRL_DATASET_DIR", "")
    assert dataset_dir() == tmp_path / "home" / ".dsrl" / "datasets"
    monkeypatch.delenv("DSRL_DATASET_DIR")
    assert dataset_dir() == tmp_path / "home" / ".dsrl" / "datasets"


@pytest.mark.parametrize("progress", [True, False])
def test_prints_only_the_bar(progress: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The bar goes to stderr and names the file."""
    download_dataset(NAME, progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert (NAME in err) is progress
    assert bool(err) is progress


def test_follows_redirects(first: Mirror, second: Mirror, cache: Path, payload: bytes) -> None:
    """Hugging Face redirects to its storage; Range and If-Range must go along."""
    first.redirect, second.sends = second.url, [CUT, None]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == second.asked == [None, f"bytes={CUT}-"]
    assert second.if_ranges == [None, '"v1"']


def test_on_disk_before_renamed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not leave the final name on bytes that were never written."""
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), partial(cache).stat())
        calls.append("fsync")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> Path:
        calls.append("replace")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    download_dataset(NAME, progress=False)
    assert calls == ["fsync", "replace"]


def test_no_content_length(first: Mirror, payload: bytes) -> None:
    """A server that does not announce the size."""
    first.announce = False
    path = download_dataset(NAME, progress=False, expected_size=len(payload))
    assert path.read_bytes() == payload


# --- cut connections ---


@pytest.mark.parametrize("reset", [False, True])
def test_resumes_after_a_cut(first: Mirror, cache: Path, payload: bytes, reset: bool) -> None:
    """Each attempt asks only for what is missing, on condition that the file is the same."""
    first.sends, first.reset = [CUT, 5000, None], reset
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None, "bytes=1000-", "bytes=6000-"]
    assert first.if_ranges == [None, '"v1"', '"v1"']
    assert files(cache) == [NAME]


def test_progress_resets_the_count(first: Mirror, payload: bytes) -> None:
    """Ten cuts do no harm as long as each attempt gets further."""
    first.sends = [CUT] * 10 + [None]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None] + [f"bytes={CUT * n}-" for n in range(1, 11)]


def test_gives_up_and_resumes_in_the_next_call(
    first: Mirror, second: Mirror, cache: Path, payload: bytes
) -> None:
    """Three attempts without progress, then the other mirror; the partial waits."""
    first.sends, second.statuses = [CUT, 0], [404]
    text = fail(cache)
    assert f"{first.url}{NAME}: connection cut after 1000 of {len(payload)} bytes" in text
    assert first.asked == [None, "bytes=1000-", "bytes=1000-"]
    assert partial(cache).read_bytes() == payload[:CUT]
    assert files(cache) == [f"{NAME}.partial", f"{NAME}.partial.json"]
    first.sends = []
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked[3:] == ["bytes=1000-"]
    assert files(cache) == [NAME]


@pytest.mark.parametrize("sent", [0, CUT])
def test_silence_counts_as_a_cut(first: Mirror, payload: bytes, sent: int) -> None:
    """No byte for `timeout` seconds ends the attempt."""
    first.sends, first.gate = [sent, None], threading.Event()
    started = time.monotonic()
    assert download_dataset(NAME, progress=False, timeout=0.2).read_bytes() == payload
    assert 0.2 <= time.monotonic() - started < 3
    assert first.asked == [None, f"bytes={sent}-" if sent else None]


@pytest.fixture
def silent() -> Iterator[str]:
    """The base URL of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_a_silent_server_is_given_up_after_the_stated_time(
    silent: str, second: Mirror, cache: Path, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once: a second question would only be waited for again."""
    monkeypatch.setenv("RCDT_DATASET_URL", silent)
    monkeypatch.setenv("RCDT_DATASET_TIMEOUT", "0.4")
    started = time.monotonic()
    assert f"{silent}{NAME}: no answer within 0.4 s" in fail(cache)
    assert 0.4 <= time.monotonic() - started < 0.8
    monkeypatch.setenv("RCDT_DATASET_URL", f"{silent} {second.url}")
    assert download_dataset(NAME, progress=False).read_bytes() == payload


def test_the_default_wait_for_silent_mirrors_is_well_under_a_minute() -> None:
    """Also where they send a header first."""
    attempts = download._SILENT_ATTEMPTS
    per_mirror = attempts * download._seconds(None) + 0.5 * (attempts - 1)
    assert len(MIRRORS) * download._seconds(None) <= 20
    assert len(MIRRORS) * per_mirror < 45


def test_a_server_that_falls_silent_is_asked_twice(
    first: Mirror, second: Mirror, cache: Path
) -> None:
    """It may have been a hiccup; three whole timeouts would be too long."""
    first.sends, first.gate, second.statuses = [0], threading.Event(), [404]
    text = fail(cache, timeout=0.2)
    assert f"{first.url}{NAME}: connection cut: it fell silent (attempt 2 of 2)" in text
    assert len(first.asked) == 2


def test_waiting_is_explained(
    silent: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Host, limit and time gone by are said once an answer is late, and only then."""
    monkeypatch.setattr(waiting, "_PATIENCE", 0.05)
    monkeypatch.setenv("RCDT_DATASET_URL", silent)
    fail(cache, timeout=0.3, progress=True)
    host = silent.removeprefix("http://").rstrip("/")
    text = f"waiting for {host} (gives up after 0.3 s without an answer): 00:00"
    assert text in capsys.readouterr().err
    fail(cache, timeout=0.3)
    assert "waiting" not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "inf"])
def test_rejects_timeouts_of_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those given by argument."""
    monkeypatch.setenv("RCDT_DATASET_TIMEOUT", value)
    with pytest.raises(InvalidArgumentError, match="`RCDT_DATASET_TIMEOUT` must be "):
        download_dataset(NAME)


def test_back_off_doubles(
    first: Mirror, second: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.5 s and 1 s between three attempts; none before the next mirror."""
    waits: list[float] = []
    monkeypatch.setattr(download, "_BACKOFF", 0.5)
    monkeypatch.setattr("rcdt_agent.tasks.download.time.sleep", waits.append)
    first.statuses, second.statuses = [503], [404]
    fail(cache)
    assert waits == [0.5, 1.0]


# --- servers with or without ranges, files that change ---


def test_server_without_ranges(first: Mirror, cache: Path, payload: bytes) -> None:
    """A 200 replaces the partial, it is not appended to it."""
    first.ranges, first.sends = False, [CUT, None]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None, "bytes=1000-"]
    assert files(cache) == [NAME]


def test_server_without_ranges_that_always_cuts(
    first: Mirror, second: Mirror, cache: Path, payload: bytes
) -> None:
    """Getting to the same byte again is no progress, so this ends."""
    first.ranges, first.sends, second.statuses = False, [CUT], [404]
    fail(cache)
    assert len(first.asked) == 3


@pytest.mark.parametrize("if_range", [True, False])
def test_changed_file_starts_over(
    first: Mirror, second: Mirror, cache: Path, payload_v2: bytes, if_range: bool
) -> None:
    """A partial of the old version is dropped, even by a server that ignores If-Range."""
    leave_partial(first, second, cache)
    first.content, first.etag, first.if_range = payload_v2, '"v2"', if_range
    assert download_dataset(NAME, progress=False).read_bytes() == payload_v2
    assert first.asked == (["bytes=1000-"] if if_range else ["bytes=1000-", None])


def test_changed_size_starts_over(
    first: Mirror, second: Mirror, cache: Path, tmp_path: Path
) -> None:
    """The same ETag does not excuse another total in Content-Range."""
    leave_partial(first, second, cache)
    first.content = dsrl_file(tmp_path / "short.hdf5", seed=3) + bytes(7)
    assert download_dataset(NAME, progress=False).read_bytes() == first.content
    assert first.asked == ["bytes=1000-", None]


def test_wrong_content_range_starts_over(
    first: Mirror, second: Mirror, cache: Path, payload: bytes
) -> None:
    """A range that begins elsewhere is not appended."""
    leave_partial(first, second, cache)
    first.shift = 100
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == ["bytes=1000-", None]


def test_last_modified_identifies_the_file(
    first: Mirror, second: Mirror, cache: Path, payload: bytes
) -> None:
    """If-Range allows no weak ETag."""
    first.etag, first.modified = 'W/"v1"', "Wed, 01 May 2024 00:00:00 GMT"
    leave_partial(first, second, cache)
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == ["bytes=1000-"]
    assert first.if_ranges == ["Wed, 01 May 2024 00:00:00 GMT"]


def test_unidentified_file_starts_over(first: Mirror, payload: bytes) -> None:
    """Without ETag and Last-Modified nobody knows what the partial is."""
    first.etag, first.sends = None, [CUT, None]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None, None]


@pytest.mark.parametrize("sidecar", [None, b"", b"{", b"[]", b'{"url": 1}'])
def test_unreadable_sidecar_starts_over(
    first: Mirror, second: Mirror, cache: Path, payload: bytes, sidecar: bytes | None
) -> None:
    """So do a lost or torn sidecar."""
    leave_partial(first, second, cache)
    path = cache / f"{NAME}.partial.json"
    if sidecar is None:
        path.unlink()
    else:
        path.write_bytes(sidecar)
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None]


def test_416_complete_partial(first: Mirror, second: Mirror, cache: Path, payload: bytes) -> None:
    """All bytes were there already: verified and renamed, not sent again."""
    leave_partial(first, second, cache)
    partial(cache).write_bytes(payload)
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [f"bytes={len(payload)}-"]


@pytest.mark.parametrize("wrong", ["longer", "damaged"])
def test_416_wrong_partial(
    first: Mirror, second: Mirror, cache: Path, payload: bytes, wrong: str
) -> None:
    """A partial longer than the file, or of its length and no HDF5, is fetched anew."""
    leave_partial(first, second, cache)
    stale = payload + b"x" if wrong == "longer" else bytes(len(payload))
    partial(cache).write_bytes(stale)
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [f"bytes={len(stale)}-", None]


def test_damaged_partial_starts_over(
    first: Mirror, second: Mirror, cache: Path, payload: bytes
) -> None:
    """When a resumed file turns out bad, the same mirror gets a fresh chance."""
    leave_partial(first, second, cache)
    partial(cache).write_bytes(bytes(CUT))
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == ["bytes=1000-", None]


# --- mirrors ---


@pytest.mark.parametrize("status", [401, 403, 404, 410, 416])
def test_next_mirror_after_a_refusal(
    first: Mirror, second: Mirror, payload: bytes, status: int
) -> None:
    """A mirror that does not have the file is asked once."""
    first.statuses = [status]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert (first.asked, second.asked) == ([None], [None])


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_mirror_is_asked_again(
    first: Mirror, second: Mirror, payload: bytes, status: int
) -> None:
    """A mirror that is busy gets three attempts."""
    first.statuses = [status, status, 200]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert (len(first.asked), len(second.asked)) == (3, 0)


def test_next_mirror_after_a_refused_connection(
    second: Mirror, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """Nobody listens on the first URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}/"
    monkeypatch.setenv("RCDT_DATASET_URL", f"{closed} {second.url}")
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    second.statuses = [404]
    with pytest.raises(DownloadError, match=rf"{closed}other\.hdf5: .*refused"):
        download_dataset("other.hdf5", progress=False)


def test_mirrors_are_not_mixed(
    first: Mirror, second: Mirror, cache: Path, payload_v2: bytes
) -> None:
    """Bytes of one mirror are not continued by another, even under the same ETag."""
    first.sends, second.content = [CUT, 0], payload_v2
    assert download_dataset(NAME, progress=False).read_bytes() == payload_v2
    assert second.asked == [None]
    assert files(cache) == [NAME]


def test_partial_survives_a_mirror_that_is_gone(
    first: Mirror, second: Mirror, cache: Path, payload: bytes
) -> None:
    """A failing first mirror does not cost the second one's partial."""
    first.statuses, second.sends = [404], [CUT, 0]
    fail(cache)
    second.sends, second.asked = [], []
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert second.asked == ["bytes=1000-"]


def test_error_when_every_mirror_fails(first: Mirror, second: Mirror, cache: Path) -> None:
    """The text says what was tried and what to do."""
    first.statuses, second.statuses = [404], [403]
    assert fail(cache).splitlines() == [
        f"Could not download {NAME}:",
        f"  {first.url}{NAME}: HTTP 404 Not Found",
        f"  {second.url}{NAME}: HTTP 403 Forbidden",
        f"Put {NAME} into {cache}, give a file from elsewhere (`dataset=`, `--dataset`), or set "
        "RCDT_DATASET_URL to a base URL that serves it.",
    ]
    assert files(cache) == []


def test_default_mirrors(
    first: Mirror, second: Mirror, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """Used in order when the environment names none; an empty variable names none."""
    assert MIRRORS == (
        "https://huggingface.co/datasets/YYY-45/DSRL/resolve/main/",
        "https://hf-mirror.com/datasets/YYY-45/DSRL/resolve/main/",
    )
    monkeypatch.setattr(download, "MIRRORS", (first.url, second.url))
    monkeypatch.setenv("RCDT_DATASET_URL", " ")
    first.statuses = [404]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert (first.asked, second.asked) == ([None], [None])


def test_environment_replaces_the_mirrors(
    first: Mirror, second: Mirror, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """Only the named URL is asked; its last slash may be missing."""
    monkeypatch.setattr(download, "MIRRORS", (first.url,))
    monkeypatch.setenv("RCDT_DATASET_URL", second.url.rstrip("/"))
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert (first.asked, second.asked) == ([], [None])


@pytest.mark.parametrize(
    "base",
    [
        "ftp://example.org/",
        "file:///etc/",
        "example.org/data",
        "http://",
        "http://[",
        "http://h:port/",
        "https://user:word@example.org/",
        "http://exämple.org/",
    ],
)
def test_rejects_other_urls(
    first: Mirror, monkeypatch: pytest.MonkeyPatch, cache: Path, base: str
) -> None:
    """One bad URL among good ones is named before anything is asked."""
    monkeypatch.setenv("RCDT_DATASET_URL", f"{first.url} {base}")
    with pytest.raises(InvalidArgumentError) as caught:
        download_dataset(NAME, progress=False)
    assert str(caught.value).startswith("`RCDT_DATASET_URL` must hold http:// or https://")
    assert repr(base) in str(caught.value)
    assert first.asked == []
    assert not cache.exists()


# --- what arrives is not the dataset ---


@pytest.mark.parametrize("kind", ["garbage", "empty", "truncated", "no costs", "group"])
def test_bad_content_is_deleted(
    first: Mirror, second: Mirror, cache: Path, tmp_path: Path, payload: bytes, kind: str
) -> None:
    """Complete over HTTP, useless as a dataset: never renamed, and the next mirror is asked."""
    lacking = dsrl_file(tmp_path / "lacking.hdf5", seed=1, leave_out="costs")
    with h5py.File(tmp_path / "lacking.hdf5", "a") as file:
        file.create_group("costs")
    first.content, reason = {
        "garbage": (b"<html>Please log in</html>" * 100, "not readable as HDF5"),
        "empty": (b"", "not readable as HDF5"),
        "truncated": (payload[: len(payload) // 2], "truncated file"),
        "no costs": (lacking, "lacks the DSRL datasets costs"),
        "group": ((tmp_path / "lacking.hdf5").read_bytes(), "lacks the DSRL datasets costs"),
    }[kind]
    second.statuses = [404]
    text = fail(cache)
    assert f"{first.url}{NAME}: what it sent is no DSRL file (" in text
    assert reason in text
    assert "and was deleted" in text
    assert files(cache) == []
    assert first.asked == [None]
    second.statuses = []
    assert download_dataset(NAME, progress=False).read_bytes() == payload


@pytest.mark.parametrize("announce", [True, False])
def test_unexpected_size(
    first: Mirror, second: Mirror, cache: Path, payload: bytes, announce: bool
) -> None:
    """Refused by the announced size, or by the size that arrived."""
    first.announce, second.statuses = announce, [404]
    early = "offers " if announce else r"no DSRL file \("
    with pytest.raises(DownloadError, match=f"{early}{len(payload)} bytes instead of 77"):
        download_dataset(NAME, progress=False, expected_size=77)
    assert files(cache) == []
    assert len(download_dataset(NAME, expected_size=len(payload)).read_bytes()) == len(payload)


# --- a file is in the cache already ---


def test_damaged_cache_is_replaced(first: Mirror, cache: Path, payload: bytes) -> None:
    """A truncated cached file gives way to the verified download."""
    cache.mkdir(parents=True)
    (cache / NAME).write_bytes(payload[:5000])
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None]
    assert files(cache) == [NAME]


@pytest.mark.parametrize("way", ["missing", "cut", "garbage"])
def test_damaged_cache_is_kept_on_failure(
    first: Mirror, second: Mirror, cache: Path, payload: bytes, way: str
) -> None:
    """When no good replacement comes, the cached file stays and the error says it is damaged."""
    cache.mkdir(parents=True)
    (cache / NAME).write_bytes(payload[:5000])
    first.statuses = [404] if way == "missing" else []
    first.sends = [CUT, 0] if way == "cut" else []
    first.content = b"garbage" if way == "garbage" else payload
    second.statuses = [404]
    with pytest.raises(DownloadError, match="truncated file") as caught:
        download_dataset(NAME, progress=False)
    assert f"The cached file {cache / NAME} is damaged" in str(caught.value)
    assert (cache / NAME).read_bytes() == payload[:5000]


def test_cached_file_of_another_size(first: Mirror, cache: Path, payload: bytes) -> None:
    """`expected_size` holds for the cache too."""
    cache.mkdir(parents=True)
    dsrl_file(cache / NAME, seed=5, leave_out="costs")
    assert download_dataset(NAME, expected_size=len(payload)).read_bytes() == payload
    assert first.asked == [None]


def test_cached_file_needs_no_valid_url(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Nothing to ask, nothing to complain about."""
    cache.mkdir(parents=True)
    dsrl_file(cache / NAME, seed=5)
    monkeypatch.setenv("RCDT_DATASET_URL", "nonsense")
    assert download_dataset(NAME) == cache / NAME


# --- arguments and folders ---


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x.hdf5", "a/b.hdf5", "/x.hdf5", "a\\b.hdf5", "C:x", "x\0", "a..b"]
)
def test_rejects_unsafe_names(first: Mirror, cache: Path, name: str) -> None:
    """Names that could leave the folder."""
    with pytest.raises(InvalidArgumentError, match="`filename` must be a plain") as caught:
        download_dataset(name)
    assert f"got {name!r}." in str(caught.value)
    assert first.asked == []
    assert not cache.exists()


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_rejects_timeouts(timeout: float) -> None:
    """A timeout of zero would never connect."""
    with pytest.raises(InvalidArgumentError, match=f"`timeout` must be > 0, got {timeout}"):
        download_dataset(NAME, timeout=timeout)


def test_quotes_names(first: Mirror, cache: Path, payload: bytes) -> None:
    """Characters that mean something in a URL are sent as themselves."""
    path = download_dataset("my data#1.hdf5", progress=False)
    assert path.read_bytes() == payload
    assert first.paths == ["/a/my%20data%231.hdf5"]
    assert files(cache) == ["my data#1.hdf5"]


def test_folder_cannot_be_made(first: Mirror, tmp_path: Path) -> None:
    """A file is in the way."""
    (tmp_path / "file").write_text("x")
    folder = tmp_path / "file" / "datasets"
    with pytest.raises(DownloadError) as caught:
        download_dataset(NAME, directory=folder, progress=False)
    assert f"cannot write to {folder}: " in str(caught.value)
    assert f"Put {NAME} into {folder}" in str(caught.value)
    assert first.asked == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full(first: Mirror, second: Mirror, cache: Path) -> None:
    """No space left: said at once, without asking the next mirror."""
    cache.mkdir(parents=True)
    partial(cache).symlink_to("/dev/full")
    text = fail(cache)
    assert f"cannot write to {cache}: [Errno 28] No space left on device" in text
    assert (len(first.asked), len(second.asked)) == (1, 0)


def test_read_only_folder(first: Mirror, payload: bytes) -> None:
    """It serves what it holds and says so when it cannot take more."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / NAME).write_bytes(payload)
        folder.chmod(0o555)
        if user == 0:  # root may write everywhere: be somebody else for a moment
            os.seteuid(65534)
        try:
            assert download_dataset(NAME, directory=folder, progress=False) == folder / NAME
            with pytest.raises(DownloadError, match=f"to {folder}: .*Permission denied"):
                download_dataset("other.hdf5", directory=folder, progress=False)
        finally:
            os.seteuid(user)
            folder.chmod(0o755)
    assert first.asked == []


# --- several at once, and processes that die ---


def test_eight_threads_make_one_request(first: Mirror, cache: Path, payload: bytes) -> None:
    """The others wait for the first and take its file."""
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(download_dataset(NAME, progress=False)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [cache / NAME] * 8
    assert paths[0].read_bytes() == payload
    assert first.asked == [None]
    assert files(cache) == [NAME]


def test_lock_file_without_owner(cache: Path, payload: bytes) -> None:
    """What a killed process leaves behind does not block."""
    cache.mkdir(parents=True)
    (cache / f"{NAME}.partial.lock").touch()
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert files(cache) == [NAME]


def spawn(log: Path) -> subprocess.Popen[bytes]:
    """Download `NAME` in another process, whose log goes to a file."""
    code = (
        "import logging, signal; logging.basicConfig(level=logging.INFO)\n"
        # A shell starts its background jobs, and so their children, with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rcdt_agent.tasks.download import download_dataset\n"
        f"print(download_dataset({NAME!r}, progress=False))"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stderr=stream,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_resumes_after_a_killed_process(
    first: Mirror, cache: Path, tmp_path: Path, payload: bytes, name: str
) -> None:
    """Killed in the middle, or stopped with Ctrl-C: the next call goes on from there."""
    half = len(payload) // 2
    first.sends, first.gate = [half, None], threading.Event()
    with spawn(tmp_path / "log") as process:
        # The writer's buffer may hold back the last few kilobytes until the file is closed.
        wait_for(lambda: partial(cache).exists() and partial(cache).stat().st_size > half - 8192)
        process.send_signal(signal.Signals[name])
        assert process.wait(10) != 0
    assert not (cache / NAME).exists()
    kept = partial(cache).stat().st_size
    assert half - 8192 < kept <= half
    assert partial(cache).read_bytes() == payload[:kept]
    assert download_dataset(NAME, progress=False).read_bytes() == payload
    assert first.asked == [None, f"bytes={kept}-"]
    assert files(cache) == [NAME]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_waiting_process_takes_over(
    first: Mirror, cache: Path, tmp_path: Path, payload: bytes
) -> None:
    """Two processes at once; the one at work is killed and the other resumes its partial."""
    half = len(payload) // 2
    first.sends, first.gate = [half, None], threading.Event()
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    with spawn(logs[0]) as one, spawn(logs[1]) as two:
        wait_for(lambda: any("waiting for another" in log.read_text() for log in logs))
        wait_for(lambda: partial(cache).exists() and partial(cache).stat().st_size > half - 8192)
        works, waits = (two, one) if "waiting" in logs[0].read_text() else (one, two)
        assert len(first.asked) == 1
        works.kill()
        assert works.wait(10) == -signal.SIGKILL
        assert waits.wait(10) == 0
    assert (cache / NAME).read_bytes() == payload
    assert len(first.asked) == 2
    assert (first.asked[1] or "").startswith("bytes=")
    assert files(cache) == [NAME]
