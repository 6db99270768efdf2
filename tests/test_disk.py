"""A save that the disk refuses: the old file stays, nothing is left beside it, our error is raised.

The refusals are real: the operating system's limit on the size of a file stands for a full disk (it
fails in the same place, in the middle of a write), and folders are truly read-only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import QUICK

from rcdt_agent import RCDT
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.errors import CheckpointError, DatasetError

# A child without root's rights (where the tests have them) and with small files only.
CHILD = """
import json, os, resource, sys
from pathlib import Path

kind, source, jobs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.errors import RCDTError

if kind == "agent":
    save = RCDT.load(Path(source)).save
else:
    save = TrajectoryDataset.from_hdf5(source).to_hdf5
if os.geteuid() == 0:
    os.setuid(65534)
for target, limit in jobs:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save(Path(target))
        print("saved", flush=True)
    except RCDTError as error:
        print(type(error).__name__, error, flush=True)
"""
ERRORS = {"agent": "CheckpointError", "dataset": "DatasetError"}


@pytest.fixture(scope="module")
def sources(trained, drivers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "agent.zip").write_bytes(trained)
    drivers.to_hdf5(folder / "data.hdf5")
    return {"agent": folder / "agent.zip", "dataset": folder / "data.hdf5"}


@pytest.fixture
def place():
    """A folder that a user without rights may write to, with an old file in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "old.zip").write_text("precious")
        yield folder
        folder.chmod(0o777)


def save(kind, sources, *jobs):
    """What the child says to each (target, largest size of a file)."""
    jobs = json.dumps([(str(target), limit) for target, limit in jobs])
    result = subprocess.run(
        [sys.executable, "-c", CHILD, kind, str(sources[kind]), jobs],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("kind", ["agent", "dataset"])
def test_full_disk(kind, sources, place):
    size, target = sources[kind].stat().st_size, place / "old.zip"
    limits = [0, 100, size // 2, size - 10]
    said = save(kind, sources, *((target, limit) for limit in limits))
    assert len(said) == len(limits)
    for line in said:
        assert line.startswith(f"{ERRORS[kind]} {target}: could not be written (")
        assert "File too large" in line
        assert line.endswith("an older file there is untouched.")
    assert target.read_text() == "precious"
    assert [path.name for path in place.iterdir()] == ["old.zip"]
    # With room, the same child saves: it is the disk that this test is about.
    assert save(kind, sources, (target, 2 * size)) == ["saved"]
    assert target.stat().st_size == pytest.approx(size, rel=0.01)
    assert [path.name for path in place.iterdir()] == ["old.zip"]


@pytest.mark.parametrize("kind", ["agent", "dataset"])
def test_read_only_folder(kind, sources, place):
    place.chmod(0o555)
    targets = [place / "old.zip", place / "new" / "file.zip"]
    said = save(kind, sources, *((target, -1) for target in targets))
    for line, target in zip(said, targets, strict=True):
        assert line.startswith(f"{ERRORS[kind]} {target}: could not be written (")
        assert "Permission denied" in line
    assert (place / "old.zip").read_text() == "precious"
    assert [path.name for path in place.iterdir()] == ["old.zip"]


def test_a_folder_in_the_files_place(agent, drivers, tmp_path):
    target = tmp_path / "taken.zip"
    (target / "inner").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"{target}: could not be written"):
        agent.save(target)
    with pytest.raises(DatasetError, match=f"{target}: could not be written"):
        drivers.to_hdf5(target)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.zip"]
    with pytest.raises(CheckpointError, match="could not be written"):
        agent.save("/proc/agent.zip")  # the kernel's own, where not even root makes files
    (tmp_path / "file").write_text("precious")
    with pytest.raises(CheckpointError, match="could not be written"):
        agent.save(tmp_path / "file" / "agent.zip")
    assert (tmp_path / "file").read_text() == "precious"


def test_training_that_cannot_save_says_so(drivers, tmp_path):
    """The error of a checkpoint callback is not mistaken for a training that diverges."""
    agent = RCDT(**QUICK)
    (tmp_path / "last.zip").mkdir()
    with pytest.raises(CheckpointError, match="could not be written"):
        agent.learn(drivers, 40, callback=LatestCheckpoint(tmp_path / "last.zip", 5))
    assert agent.num_timesteps == 5
