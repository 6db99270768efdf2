"""Atomic writes, file locks, worker processes and versions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rcdt_agent import _io
from rcdt_agent._io import atomic_write, file_lock, read_json, versions, write_json, write_text
from rcdt_agent.errors import DatasetError
from rcdt_agent.version import __version__


def test_an_atomic_write_replaces_the_file_at_its_end(tmp_path):
    target = tmp_path / "new" / "file.bin"
    for content in (b"one", b"two"):
        before = target.read_bytes() if target.exists() else None
        with atomic_write(target, DatasetError) as partial:
            partial.write_bytes(content)
            assert (target.read_bytes() if target.exists() else None) == before
        assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt(), ValueError("bad")])
def test_a_failed_write_leaves_the_old_file(tmp_path, failure):
    target = tmp_path / "file.txt"
    target.write_text("old")
    expected = DatasetError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected), atomic_write(target, DatasetError) as partial:
        _write_half(partial, failure)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def _write_half(path: Path, failure: BaseException) -> None:
    path.write_text("half")
    raise failure


def test_text_and_json_round_trip(tmp_path):
    assert read_json(tmp_path / "absent.json") is None
    values = {"task": "Zürich", "budgets": [1.0, 2.5], "none": None}
    write_json(tmp_path / "deep" / "a.json", values)
    assert read_json(tmp_path / "deep" / "a.json") == values
    write_text(tmp_path / "deep" / "a.txt", "± 0\n")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "± 0\n"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["a.json", "a.txt"]


def test_a_held_lock_is_refused_or_waited_for(tmp_path):
    path = tmp_path / "new" / "lock"
    order = []

    def wait_for_it():
        with file_lock(path) as held:
            order.append(("waited", held))

    with file_lock(path) as held:
        assert held
        with file_lock(path, wait=False) as again:
            assert not again
        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        time.sleep(0.3)
        order.append(("released", True))
    waiter.join()
    assert order == [("released", True), ("waited", True)]
    assert not path.exists()
    with file_lock(path, wait=False) as held:
        assert held


HOLD = """
import sys, time
from pathlib import Path
from rcdt_agent._io import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_does_not_block(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with file_lock(path, wait=False) as held:
            assert not held
        holder.kill()
    assert path.exists()  # left behind
    with file_lock(path, wait=False) as held:
        assert held


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove an open file")
def test_lock_on_a_removed_file_is_no_lock(tmp_path):
    """The last holder may remove the file between our open and our lock."""
    path = tmp_path / "lock"

    def taken(file):
        return _io._try_lock(file.fileno()) and _io._is_current(file.fileno(), path)

    with path.open("ab") as late:
        path.unlink()
        assert not taken(late)
        with path.open("ab") as new:
            assert not taken(late)
            assert taken(new)
            with path.open("ab") as other:
                assert not taken(other)


PARENT = """
import multiprocessing, sys, time
from rcdt_agent._io import die_with_parent

def work(pipe):
    die_with_parent()
    pipe.send(multiprocessing.current_process().pid)
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    context.Process(target=work, args=(theirs,)).start()
    print(ours.recv(), flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_dies_with_its_killed_parent(tmp_path, method):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), method]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)  # it runs
        parent.kill()
    for _ in range(100):
        if not _runs(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


def _runs(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_main_process_has_no_parent_to_die_with():
    assert multiprocessing.parent_process() is None  # pytest's workers are not of multiprocessing
    before = threading.active_count()
    _io.die_with_parent()
    assert threading.active_count() == before


def test_versions():
    found = versions()
    assert found["rcdt_agent"] == __version__
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(isinstance(value, str) for value in found.values())
