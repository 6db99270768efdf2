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


def test_mutated_npy_folders(tmp_path):
    """Names of costs and parts of observations included: our error or a sound dataset."""
    import shutil

    import numpy as np

    from rcdt_agent.errors import DatasetError

    arrays = random_arrays([4, 1, 7])
    seen = arrays.pop("observations")
    arrays.pop("next_observations")
    costs = arrays.pop("costs")
    data = TrajectoryDataset.from_arrays(
        **arrays,
        observations={"a": seen[:, :1], "b": seen[:, 1:]},
        costs={"one": costs, "two": 2 * costs},
    )
    data.to_npy(tmp_path / "base")
    names = sorted(path.name for path in (tmp_path / "base").iterdir())
    assert {"observation_space.npy", "cost_names.npy"} <= set(names)
    refused, messages = 0, []
    for number in range(400):
        rng = np.random.default_rng([int(SEED), number])
        folder = tmp_path / "mutant"
        shutil.copytree(tmp_path / "base", folder)
        path = folder / names[number % len(names)]
        path.write_bytes(fuzzing.mutate_bytes(path.read_bytes(), rng))
        try:
            read = TrajectoryDataset.from_npy(folder)
            assert len(read) >= 1 and np.isfinite(read.episode_costs).all()
        except DatasetError as error:
            refused += 1
            messages.append(str(error))
        shutil.rmtree(folder)
    assert 100 < refused < 400
    assert all(message.startswith(str(tmp_path / "mutant")) for message in messages)
