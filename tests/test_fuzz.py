"""The readers on mutated files: our errors or a sound result; no crash, no hang, no code run.

`RCDT_FUZZ_SECONDS=600 RCDT_FUZZ_SEED=7 pytest tests/test_fuzz.py` looks longer and elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fuzzing
import pytest
from conftest import QUICK, random_arrays

from rcdt_agent import BC, RCDT, TrajectoryDataset

SECONDS = float(os.environ.get("RCDT_FUZZ_SECONDS", "12"))
SEED = os.environ.get("RCDT_FUZZ_SEED", "0")
SMALL = {"n_layers": 1, "embedding_size": 8, "critic_width": 4, "critic_layers": 2}


def make_base(reader, drivers, path):
    """A sound file, as small as it gets: mutations should hit what matters."""
    if reader == "hdf5":
        arrays = random_arrays([4, 1, 7], terminated=[True, False, True])
        TrajectoryDataset.from_arrays(**arrays).to_hdf5(path)
    elif reader == "rcdt":
        RCDT(**{**QUICK, **SMALL, "total_steps": 4}).learn(drivers.select(range(10))).save(path)
    else:
        BC(width=8).learn(drivers, 5).save(path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["hdf5", "rcdt", "bc"])
def test_mutated_files(reader, drivers, tmp_path):
    base = tmp_path / ("base.hdf5" if reader == "hdf5" else "base.zip")
    make_base(reader, drivers, base)
    command = [sys.executable, fuzzing.__file__, reader, base, tmp_path, SEED, str(SECONDS)]
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=SECONDS + 400, check=False
    )
    under_way = (tmp_path / "now.json").read_text()
    assert result.returncode == 0, f"died at {under_way}: {result.returncode} {result.stderr}"
    *problems, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert problems == []
    assert summary["as it is: accepted"] == 1
    assert summary["refused"] >= 30 and summary["accepted"] >= 3
    tricks = fuzzing.HDF5_TRICKS if reader == "hdf5" else fuzzing.ZIP_TRICKS
    tried = {name.rsplit(":", 1)[0] for name in summary if ":" in name}
    assert set(tricks) <= tried
    assert not Path("/tmp/rcdt_fuzz_escaped").exists()


@pytest.mark.parametrize("event", ["exec", "subprocess.Popen"])
def test_the_watch_sees_code(event, monkeypatch):
    """The hook that the test above relies on notices what a pickle would do."""
    monkeypatch.setattr(fuzzing, "armed", True)
    monkeypatch.setattr(fuzzing, "seen", [])
    fuzzing.audit(event, ("os.system('true')",))
    fuzzing.audit("open", ("file",))
    assert fuzzing.seen == [f"{event} (\"os.system('true')\",)"]
