"""Minari in and out, with the library itself in a folder of its own."""

from __future__ import annotations

from itertools import pairwise

import minari
import numpy as np
import pytest
from commands import rcdt
from conftest import random_arrays
from gymnasium.spaces import Box, Dict, Discrete
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


def buffers(observations, actions, costs, rows=((0, 3), (3, 5))):
    """Two episodes, of three steps and of two; observations are one longer each."""
    return [
        minari.data_collector.EpisodeBuffer(
            observations=observations[m],
            actions=actions[first:end],
            rewards=np.arange(first, end, dtype=np.float32),
            terminations=[False] * (end - first),
            truncations=[False] * (end - first - 1) + [True],
            infos={"cost": costs[m]},
        )
        for m, (first, end) in enumerate(rows)
    ]


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_dicts_and_options_as_minari_wrote_them():
    space = Dict({"gear": Discrete(3), "speed": Box(0, 9, (1,), np.float32)})
    seen = [
        {"gear": np.array([0, 2, 1, 1]), "speed": np.arange(4, dtype=np.float32)[:, None]},
        {"gear": np.array([1, 0, 0]), "speed": np.arange(3, dtype=np.float32)[:, None]},
    ]
    actions, costs = np.array([0, 3, 1, 2, 3]), [np.zeros(4), np.ones(3)]
    minari.create_dataset_from_buffers(
        "mine/dict-v0", buffers(seen, actions, costs), observation_space=space,
        action_space=Discrete(4),
    )  # fmt: skip
    data = TrajectoryDataset.from_minari("mine/dict-v0")
    assert data.layout.space == space
    assert data.observations.tolist() == [
        [1, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 2], [0, 1, 0, 0], [1, 0, 0, 1],
    ]  # fmt: skip
    assert data.final_observations.tolist() == [[0, 1, 0, 3], [1, 0, 0, 2]]
    assert data.actions.dtype == np.int64 and data.actions.tolist() == [[0], [3], [1], [2], [3]]
    assert data.episode_costs.tolist() == [0, 2]
    with pytest.raises(DatasetError, match="`observation_space` must be a Box"):
        data.to_minari("mine/other-v0", observation_space=space)
    data.to_minari("mine/other-v0")
    again = TrajectoryDataset.from_minari("mine/other-v0")
    assert again.actions.dtype == np.int64
    np.testing.assert_array_equal(again.observations, data.observations)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_states_that_are_options_are_one_hot():
    costs = [np.zeros(4), np.ones(3)]
    minari.create_dataset_from_buffers(
        "mine/cliff-v0", buffers([np.array([0, 2, 1, 1]), np.array([1, 0, 0])], np.zeros(5), costs),
        observation_space=Discrete(3), action_space=Discrete(1),
    )  # fmt: skip
    data = TrajectoryDataset.from_minari("mine/cliff-v0")
    assert data.observations.argmax(1).tolist() == [0, 2, 1, 1, 0]
    assert data.observations.shape == (5, 3) and (data.observations.sum(1) == 1).all()


def test_several_costs_by_name(arrays):
    costs = {"crash": arrays["costs"], "speed": np.linspace(0, 9, 12, dtype=np.float32)}
    data = TrajectoryDataset.from_arrays(**{**arrays, "costs": costs})
    again = TrajectoryDataset.from_minari(data.to_minari("robot/pick-v0"))
    assert again.cost_names == ("crash", "speed")
    np.testing.assert_array_equal(again.costs, data.costs)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_costs_in_columns_and_costs_that_do_not_fit():
    seen = [np.zeros((4, 1), np.float32), np.zeros((3, 1), np.float32)]
    first = np.column_stack([np.arange(4.0), 10 * np.arange(4.0)])

    def read(dataset_id, *costs):
        minari.create_dataset_from_buffers(
            dataset_id, buffers(seen, np.zeros((5, 1), np.float32), costs),
            observation_space=Box(-1, 1, (1,)), action_space=Box(-1, 1, (1,)),
        )  # fmt: skip
        return TrajectoryDataset.from_minari(dataset_id)

    data = read("mine/columns-v0", first, first[:3])
    assert data.costs.tolist() == [[1, 10], [2, 20], [3, 30], [1, 10], [2, 20]]
    with pytest.raises(DatasetError, match="mine/number-v0: every episode must have the same"):
        read("mine/number-v0", first, np.zeros(3))
    with pytest.raises(DatasetError, match="as long as its 3 steps, or one longer, got shape .2,"):
        read("mine/short-v0", np.zeros(2), np.zeros(3))


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
