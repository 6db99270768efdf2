"""Data in memory-mapped arrays: the same batches, and more of them than memory holds."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import random_arrays, small_settings

from rcdt_agent import TrajectoryDataset
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.cli import run_command
from rcdt_agent.data.mapped import hdf5_to_npy, is_mapped
from rcdt_agent.errors import DatasetError

FIELDS = [
    "observations", "actions", "rewards", "costs", "offsets", "terminated", "truncated",
    "final_observations", "final_known",
]  # fmt: skip


def test_a_folder_holds_what_the_file_held(dataset, tmp_path):
    dataset.to_hdf5(tmp_path / "data.hdf5")
    hdf5_to_npy(tmp_path / "data.hdf5", tmp_path / "copied.npy")
    dataset.to_npy(tmp_path / "written.npy")
    for name in ("copied.npy", "written.npy"):
        read = TrajectoryDataset.from_npy(tmp_path / name)
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(read, field), getattr(dataset, field))
        assert read.fingerprint == dataset.fingerprint
        assert is_mapped(read.observations) and is_mapped(read.actions[1:3])
        assert not is_mapped(read.rewards) and not is_mapped(dataset.observations)
    with pytest.raises(DatasetError, match="exists already"):
        dataset.to_npy(tmp_path / "written.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "copied.npy", "data.hdf5", "written.npy",
    ]  # fmt: skip


def test_what_is_wrong_with_a_folder_is_said(dataset, tmp_path):
    folder = tmp_path / "data.npy"
    with pytest.raises(DatasetError, match="observations.npy: cannot be read"):
        TrajectoryDataset.from_npy(folder)
    dataset.to_npy(folder)
    for key, values, message in (
        ("offsets", dataset.offsets[::-1].copy(), "`offsets` must rise from 0 to 27"),
        ("terminated", dataset.terminated[1:], "`terminated` has 4 rows"),
        ("rewards", dataset.rewards.astype(np.float64), "must hold float32 of rank 1"),
        ("costs", -dataset.costs, "`costs` must be >= 0"),
        ("actions", np.full_like(dataset.actions, np.nan), "`actions` must be finite"),
        ("costs", np.array([{}], dtype=object), "allow_pickle=False"),
        ("observations", np.array([{}], dtype=object), "Python objects in dtype"),
    ):
        good = (folder / f"{key}.npy").read_bytes()
        np.save(folder / f"{key}.npy", values, allow_pickle=True)
        with pytest.raises(DatasetError, match=message):
            TrajectoryDataset.from_npy(folder)
        (folder / f"{key}.npy").write_bytes(good)
    (folder / "observations.npy").write_bytes(good[: len(good) // 2])
    with pytest.raises(DatasetError, match="cannot be read"):
        TrajectoryDataset.from_npy(folder)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_from_a_folder_equals_training_in_memory(drivers, tmp_path, name):
    drivers.to_npy(tmp_path / "drivers.npy")
    agents = [
        get_algorithm(name)(**small_settings(name)).learn(data, 5)
        for data in (drivers, tmp_path / "drivers.npy")
    ]
    expected, found = (agent.policy.state_dict() for agent in agents)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_the_command_line_takes_folders(drivers, tmp_path):
    file, folder, run = tmp_path / "drivers.hdf5", tmp_path / "drivers.npy", tmp_path / "run"
    drivers.to_hdf5(file)
    assert run_command(["convert", str(file), str(folder)]) == 0
    words = ["--algorithm", "bc", "--preset", "tiny", "--total-steps", "3", "--no-evaluate"]
    assert run_command(["train", str(folder), *words, "--output", str(run)]) == 0
    assert (run / "agent.zip").is_file()


# Both algorithms on 2.5 GiB of data in a process that may allocate 490 MiB, libraries included.
LIMITED = """
import resource, sys
from pathlib import Path
LIMIT = 490 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
import numpy as np
from rcdt_agent import BC, RCDT, TrajectoryDataset
folder = Path(sys.argv[1])
size = sum(path.stat().st_size for path in folder.iterdir())
assert size >= 5 * LIMIT, size
try:
    np.fromfile(folder / "observations.npy", dtype=np.uint8)
except MemoryError:
    print("does not fit")
data = TrajectoryDataset.from_npy(folder)
agent = BC(preset="tiny", seed=0).learn(data, 20)
agent = RCDT(preset="tiny", variant="rcdt", seed=0, batch_size=16, critic_start=0.2)
agent.learn(data, 20)
print("trained", agent.num_timesteps)
"""


@pytest.mark.slow
def test_data_of_five_times_the_allowed_memory_train(tmp_path):
    folder, n_trajectories, length, size = tmp_path / "big.npy", 8_800, 125, 600
    part = TrajectoryDataset.from_arrays(**random_arrays([length] * 20, observation_size=size))
    part.to_npy(folder)
    n_steps = n_trajectories * length
    for name, width in (("observations", size), ("actions", 2)):
        rows = np.lib.format.open_memmap(
            folder / f"{name}.npy", "w+", dtype=np.float32, shape=(n_steps, width)
        )
        for start in range(0, n_steps, 20 * length):
            rows[start : start + 20 * length] = getattr(part, name)
        del rows
    for name in (
        "rewards",
        "costs",
        "terminated",
        "truncated",
        "final_observations",
        "final_known",
    ):
        values = getattr(part, name)
        repeats = (n_trajectories // 20, *(1 for _ in values.shape[1:]))
        np.save(folder / f"{name}.npy", np.tile(values, repeats))
    np.save(folder / "offsets.npy", np.arange(0, n_steps + 1, length))
    command = [sys.executable, "-c", LIMITED, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout == "does not fit\ntrained 20\n"
