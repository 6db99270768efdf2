"""Files: round trips, DSRL's own reader, and damaged input."""

from __future__ import annotations

import subprocess
import sys

import h5py
import numpy as np
import pytest
from conftest import random_arrays

from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.errors import DatasetError

READ_WITH_DSRL = """
import sys, warnings
import numpy as np
from dsrl.offline_env import OfflineEnv

class Env(OfflineEnv):
    def __init__(self):
        super().__init__(max_episode_reward=1, min_episode_reward=0, max_episode_cost=1,
                         min_episode_cost=0, dataset_url=None)
        import gymnasium as gym
        self.observation_space = gym.spaces.Box(-9, 9, (3,))
        self.action_space = gym.spaces.Box(-1, 1, (2,))

data = Env().get_dataset(h5path=sys.argv[1])
np.savez(sys.argv[2], **data)
"""


def write(path, arrays):
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    return path


@pytest.fixture
def arrays():
    return random_arrays([4, 1, 7], terminated=[True, False, True])


def assert_same(one, two):
    for name in (
        "observations", "actions", "rewards", "costs", "offsets", "terminated",
        "truncated", "final_observations", "final_known",
    ):  # fmt: skip
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_round_trip(arrays, tmp_path):
    data = TrajectoryDataset.from_arrays(**arrays)
    data.to_hdf5(tmp_path / "new" / "data.hdf5")
    assert_same(TrajectoryDataset.from_hdf5(tmp_path / "new" / "data.hdf5"), data)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data.hdf5"]


def test_round_trip_without_final_observations(arrays, tmp_path):
    del arrays["next_observations"]
    data = TrajectoryDataset.from_arrays(**arrays)
    data.to_hdf5(tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert "next_observations" not in file  # nothing is made up
    assert_same(TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5"), data)


def test_float64_and_column_shapes_are_accepted(arrays, tmp_path):
    wide = {key: np.asarray(value, dtype=np.float64) for key, value in arrays.items()}
    for key in ("rewards", "costs", "terminals", "timeouts"):
        wide[key] = wide[key][:, None]
    loaded = TrajectoryDataset.from_hdf5(write(tmp_path / "wide.hdf5", wide))
    assert_same(loaded, TrajectoryDataset.from_arrays(**arrays))
    assert loaded.observations.dtype == np.float32


@pytest.mark.simulator  # dsrl comes with them
def test_dsrl_reads_our_files(arrays, tmp_path):
    TrajectoryDataset.from_arrays(**arrays).to_hdf5(tmp_path / "data.hdf5")
    subprocess.run(
        [sys.executable, "-c", READ_WITH_DSRL, tmp_path / "data.hdf5", tmp_path / "out.npz"],
        check=True,
        capture_output=True,
    )
    theirs = np.load(tmp_path / "out.npz")
    for key, values in arrays.items():
        np.testing.assert_array_equal(theirs[key], values)


@pytest.mark.parametrize(
    "key", ["observations", "actions", "rewards", "costs", "terminals", "timeouts"]
)
def test_missing_key(arrays, tmp_path, key):
    del arrays[key]
    path = write(tmp_path / "data.hdf5", arrays)
    with pytest.raises(DatasetError, match=f"{path}: key `{key}` is missing; found"):
        TrajectoryDataset.from_hdf5(path)


def test_bad_values_name_file_key_and_row(arrays, tmp_path):
    arrays["costs"][3] = np.nan
    path = write(tmp_path / "data.hdf5", arrays)
    with pytest.raises(DatasetError, match=f"{path}: `costs` must be finite, row 3 is nan"):
        TrajectoryDataset.from_hdf5(path)


def test_text_is_not_numeric(arrays, tmp_path):
    arrays["rewards"] = np.array([b"one"] * 12)
    with pytest.raises(DatasetError, match="`rewards` must be numeric"):
        TrajectoryDataset.from_hdf5(write(tmp_path / "data.hdf5", arrays))


def test_files_that_are_none(tmp_path, arrays):
    with pytest.raises(DatasetError, match="there is no such file"):
        TrajectoryDataset.from_hdf5(tmp_path / "absent.hdf5")
    text = tmp_path / "text.hdf5"
    text.write_text("hello")
    with pytest.raises(DatasetError, match="not an HDF5 file"):
        TrajectoryDataset.from_hdf5(text)
    whole = write(tmp_path / "data.hdf5", arrays).read_bytes()
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=f"{cut}"):
        TrajectoryDataset.from_hdf5(cut)


@pytest.mark.parametrize(
    ("suffix", "how"),
    [
        (".csv", r"`TrajectoryDataset.from_dataframe\(pandas.read_csv\(path\), episode="),
        (".parquet", r"from_dataframe\(pandas.read_parquet\(path\)"),
        (".npz", r"`TrajectoryDataset.from_arrays\(\*\*numpy.load\(path\)\)`"),
    ],
)
def test_other_tables_are_refused_with_what_reads_them(tmp_path, suffix, how):
    path = tmp_path / f"log{suffix}"
    path.write_text("episode,reward\n1,2\n")
    with pytest.raises(DatasetError, match=f"not an HDF5 file.*{how}.*to_hdf5.*own_data.md"):
        TrajectoryDataset.from_hdf5(path)
