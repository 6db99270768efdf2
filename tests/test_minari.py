"""Minari in and out, with the library itself in a folder of its own."""

from __future__ import annotations

from itertools import pairwise

import minari
import numpy as np
import pytest
from commands import rcdt
from conftest import random_arrays
from gymnasium.spaces import Box
from test_hdf5 import assert_same

from rcdt_agent import TrajectoryDataset
from rcdt_agent.errors import DatasetError


@pytest.fixture
def arrays():
    return random_arrays([4, 1, 7], terminated=[True, False, True])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # it would like more metadata
def test_reading_what_minari_wrote(arrays):
    """A dataset written by Minari itself, cost in the infos (whose first entry is reset's)."""
    expected = TrajectoryDataset.from_arrays(**arrays)
    buffers = []
    for m, (start, end) in enumerate(pairwise(expected.offsets)):
        rows = slice(start, end)
        final = expected.final_observations[m : m + 1]
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=list(np.concatenate((expected.observations[rows], final))),
                actions=list(expected.actions[rows]),
                rewards=list(expected.rewards[rows]),
                terminations=list(arrays["terminals"][rows]),
                truncations=list(arrays["timeouts"][rows]),
                infos={"cost": [0.0, *expected.costs[rows]]},
            )
        )
    minari.create_dataset_from_buffers(
        "mine/test-v0", buffers, observation_space=Box(-9, 9, (3,)), action_space=Box(-1, 1, (2,)),
        algorithm_name="random", author="us", author_email="us@us.invalid",
        code_permalink="https://none.invalid", description="test", eval_env=None,
    )  # fmt: skip
    data = TrajectoryDataset.from_minari("mine/test-v0")
    assert_same(data, expected)
    assert data.name == "mine/test-v0"


def test_round_trip(arrays):
    data = TrajectoryDataset.from_arrays(**arrays)
    written = data.to_minari("robot/pick-v0", description="twelve steps", author="us")
    assert_same(TrajectoryDataset.from_minari("robot/pick-v0"), data)
    assert_same(TrajectoryDataset.from_minari(written), data)


def test_minari_reads_what_we_wrote(arrays):
    """As any other program would: its episodes, its infos, its spaces."""
    TrajectoryDataset.from_arrays(**arrays).to_minari("robot/pick-v0")
    theirs = minari.load_dataset("robot/pick-v0")
    assert (theirs.total_episodes, theirs.total_steps) == (3, 12)
    assert theirs.spec.observation_space.shape == (3,)
    assert theirs.spec.action_space == Box(-1, 1, (2,))
    third = theirs[2]
    assert third.observations.shape == (8, 3)
    np.testing.assert_array_equal(third.observations[:-1], arrays["observations"][5:])
    np.testing.assert_array_equal(third.observations[-1], arrays["next_observations"][-1])
    np.testing.assert_array_equal(third.rewards, arrays["rewards"][5:])
    np.testing.assert_array_equal(third.infos["cost"], [0.0, *arrays["costs"][5:]])
    assert third.terminations.tolist() == [False] * 6 + [True]
    assert not third.truncations.any()
    assert theirs[1].truncations.tolist() == [True]


def test_spaces_of_another_shape(arrays):
    data = TrajectoryDataset.from_arrays(**arrays)
    data.to_minari(
        "robot/pick-v0",
        observation_space=Box(-9, 9, (1, 3)),
        action_space=Box(-2, 2, (2, 1)),
    )
    assert minari.load_dataset("robot/pick-v0")[0].observations.shape == (5, 1, 3)
    assert_same(TrajectoryDataset.from_minari("robot/pick-v0"), data)


def test_what_is_refused(arrays):
    data = TrajectoryDataset.from_arrays(**arrays)
    data.to_minari("robot/pick-v0")
    with pytest.raises(DatasetError, match="robot/pick-v0: this Minari dataset exists already"):
        data.to_minari("robot/pick-v0")
    with pytest.raises(DatasetError, match="no version: could not be written"):
        data.to_minari("no version")
    with pytest.raises(DatasetError, match="`actions` have size 2, but .* size 5"):
        data.to_minari("robot/other-v0", action_space=Box(-1, 1, (5,)))
    with pytest.raises(DatasetError, match="robot/absent-v0: no such Minari dataset"):
        TrajectoryDataset.from_minari("robot/absent-v0")
    del arrays["next_observations"]
    with pytest.raises(DatasetError, match="not known for 3 of 3 trajectories"):
        TrajectoryDataset.from_arrays(**arrays).to_minari("robot/other-v0")
    assert list(minari.list_local_datasets()) == ["robot/pick-v0"]


def test_convert(arrays, folder):
    """HDF5 to Minari and back, by command."""
    data = TrajectoryDataset.from_arrays(**arrays)
    data.to_hdf5(folder / "in.hdf5")
    result = rcdt("convert", str(folder / "in.hdf5"), "robot/pick-v0")
    assert result.returncode == 0, result.stderr
    assert "3 trajectories, 12 steps: robot/pick-v0" in result.stdout
    assert rcdt("convert", "robot/pick-v0", str(folder / "out.hdf5")).returncode == 0
    assert_same(TrajectoryDataset.from_hdf5(folder / "out.hdf5"), data)
    again = rcdt("convert", str(folder / "in.hdf5"), "robot/pick-v0")
    assert again.returncode == 2
    assert "exists already" in again.stderr
