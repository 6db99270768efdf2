"""Trajectories in the forms that people have them in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from conftest import QUICK, random_arrays

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError

LENGTHS, TERMINATED = [4, 1, 6], [True, False, True]


@pytest.fixture
def arrays():
    return random_arrays(LENGTHS, terminated=TERMINATED)


@pytest.fixture
def expected(arrays):
    return TrajectoryDataset.from_arrays(**arrays)


def episodes_of(arrays, *, keys=("observations", "actions", "rewards", "costs")):
    bounds = np.cumsum([0, *LENGTHS])
    return [{key: arrays[key][first:end] for key in keys} for first, end in pairwise(bounds)]


def frame_of(arrays):
    columns = {f"obs_{i}": arrays["observations"][:, i] for i in range(3)}
    columns |= {f"action_{i}": arrays["actions"][:, i] for i in range(2)}
    columns |= {"reward": arrays["rewards"], "cost": arrays["costs"]}
    names = np.repeat(["first", "second", "a third"], LENGTHS)  # not in alphabetical order
    return pd.DataFrame({"episode": names, **columns, "terminated": arrays["terminals"]})


def assert_same(one, two, *, finals=True):
    for key in ("observations", "actions", "rewards", "costs", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(one, key), getattr(two, key), key)
    np.testing.assert_array_equal(one.truncated, two.truncated)
    assert one.fingerprint == two.fingerprint
    if finals:
        np.testing.assert_array_equal(one.final_observations, two.final_observations)
        np.testing.assert_array_equal(one.final_known, two.final_known)


def test_episodes(arrays, expected):
    episodes = episodes_of(arrays)
    for i, episode in enumerate(episodes):
        episode["observations"] = np.vstack(
            [episode["observations"], expected.final_observations[i]]
        )
        episode["rewards"] = episode["rewards"][:, None]
        episode["terminated"] = TERMINATED[i]
    data = TrajectoryDataset.from_episodes(episodes)
    assert_same(data, expected)
    assert data.final_known.all()


def test_episodes_with_the_flags_and_next_observations_of_arrays(arrays, expected):
    keys = tuple(arrays)
    assert_same(TrajectoryDataset.from_episodes(episodes_of(arrays, keys=keys)), expected)
    unknown = TrajectoryDataset.from_episodes(
        episodes_of(arrays, keys=(*keys[:1], *keys[2:]))  # without next_observations
    )
    assert_same(unknown, expected, finals=False)
    assert not unknown.final_known.any()


def test_bad_episodes(arrays):
    episodes = episodes_of(arrays)
    del episodes[1]["costs"]
    with pytest.raises(DatasetError, match=r"episode 1 lacks \['costs'\]; it holds \['actions'"):
        TrajectoryDataset.from_episodes(episodes)
    episodes = episodes_of(arrays)
    episodes[2]["rewards"] = episodes[2]["rewards"][:-1]
    with pytest.raises(DatasetError, match="episode 2 has 5 rows of `rewards`, but 6 actions"):
        TrajectoryDataset.from_episodes(episodes)
    episodes = episodes_of(arrays)
    episodes[0]["observations"] = np.zeros((5, 3))
    with pytest.raises(DatasetError, match="in 1 of 3 episodes; give it in all or in none"):
        TrajectoryDataset.from_episodes(episodes)
    episodes[0]["observations"] = np.zeros((4, 2))
    with pytest.raises(DatasetError, match="episodes of different shapes"):
        TrajectoryDataset.from_episodes(episodes)
    with pytest.raises(DatasetError, match="there is no episode"):
        TrajectoryDataset.from_episodes([])


def test_data_frame(arrays, expected):
    frame = frame_of(arrays)
    assert_same(TrajectoryDataset.from_dataframe(frame), expected, finals=False)
    shuffled = pd.concat([frame.iloc[[0, 4]], frame.iloc[1:4], frame.iloc[5:]])  # mixed episodes
    assert_same(TrajectoryDataset.from_dataframe(shuffled), expected, finals=False)
    own = frame.rename(columns={"reward": "earned", "episode": "run", "terminated": "crashed"})
    data = TrajectoryDataset.from_dataframe(
        own, reward="earned", episode="run", terminated="crashed", observations=["obs_2", "obs_0"]
    )
    np.testing.assert_array_equal(data.observations, expected.observations[:, [2, 0]])
    np.testing.assert_array_equal(data.terminated, TERMINATED)
    with pytest.raises(DatasetError, match="columns missing: reward, episode; there are run, obs_"):
        TrajectoryDataset.from_dataframe(own)
    with pytest.raises(DatasetError, match="columns missing: of `actions`"):
        TrajectoryDataset.from_dataframe(frame.drop(columns=["action_0", "action_1"]))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([0.0, np.nan, 1.0], "row 1"),
        (["", "", "x"], "row 0 is ''|must be numbers"),
        ([0, None, 1], "row 1 is None"),
        (["False", False, True], "row 0 is 'False'|must be numbers .*'False'"),
        ([False, pd.NA, True], "row 1 is <NA>"),
    ],
)
def test_flags_that_are_no_answer(arrays, flags, words):
    """A blank is not True, and neither is the word False."""
    frame = frame_of(arrays)
    frame["terminated"] = [*flags, *[False] * (len(frame) - 3)]
    with pytest.raises(DatasetError, match=words):
        TrajectoryDataset.from_dataframe(frame)
    n = len(arrays["rewards"])
    plain = {key: arrays[key] for key in ("observations", "actions", "rewards", "costs")}
    with pytest.raises(DatasetError, match=words):
        TrajectoryDataset.from_arrays(**plain, dones=[*flags, *[False] * (n - 3)])


def test_blank_episodes(arrays):
    frame = frame_of(arrays)
    frame.loc[2, "episode"] = None
    with pytest.raises(DatasetError, match="`episode` is blank in row 2"):
        TrajectoryDataset.from_dataframe(frame)


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("reward", "n/a", "column `reward` must hold numbers, row 2 is 'n/a'. Convert the column"),
        ("obs_1", "auto", "column `obs_1` must hold numbers, row 2 is 'auto'"),
        ("action_0", "0,25", r"column `action_0` .* row 2 is '0,25'. Decimal commas: `pandas"),
        ("cost", pd.NA, "column `cost` must hold numbers, row 2 is <NA>"),
        ("cost", pd.Timestamp("2024-01-01"), "column `cost` must hold numbers, row 2 is Timestamp"),
        ("cost", None, "`costs` must be finite, row 2 is nan"),
    ],
)
def test_cells_that_are_no_numbers(arrays, column, cell, words):
    frame = frame_of(arrays).astype({column: object})
    frame.loc[2, column] = cell
    with pytest.raises(DatasetError, match=words):
        TrajectoryDataset.from_dataframe(frame)


def test_columns_of_dates_and_of_numbers_as_text(arrays, expected):
    frame = frame_of(arrays)
    text = frame.assign(reward=[repr(float(value)) for value in frame["reward"]])
    assert_same(TrajectoryDataset.from_dataframe(text), expected, finals=False)
    frame["obs_0"] = pd.date_range("2024-01-01", periods=len(frame))
    with pytest.raises(DatasetError, match=r"column `obs_0` must hold numbers, row 0 is .*2024"):
        TrajectoryDataset.from_dataframe(frame)
    frame["obs_0"] = [np.zeros(2), *[np.zeros(3)] * (len(frame) - 1)]
    with pytest.raises(DatasetError, match="column `obs_0` holds vectors of different sizes"):
        TrajectoryDataset.from_dataframe(frame, observations="obs_0")


def test_a_column_of_ends_that_was_asked_for_is_not_optional(arrays):
    """Misspelt, it would turn every crash into a time limit without a word."""
    with pytest.raises(DatasetError, match="columns missing: crashd; there are episode, obs_0"):
        TrajectoryDataset.from_dataframe(frame_of(arrays), terminated="crashd")


def test_arguments_that_from_dataframe_has_not(arrays):
    with pytest.raises(InvalidArgumentError, match=r"reward, cost, .*, not as rewards"):
        TrajectoryDataset.from_dataframe(frame_of(arrays), rewards="reward")
    with pytest.raises(InvalidArgumentError, match=r"got 'log.csv'. Read .*`pandas.read_csv"):
        TrajectoryDataset.from_dataframe("log.csv")


def test_data_frame_with_vectors_in_cells(arrays, expected):
    frame = frame_of(arrays)
    frame = frame.drop(columns=["obs_0", "obs_1", "obs_2", "terminated"])
    frame["observations"] = list(arrays["observations"])
    data = TrajectoryDataset.from_dataframe(frame)
    np.testing.assert_array_equal(data.observations, expected.observations)
    assert not data.terminated.any() and data.truncated.all()  # nothing says otherwise


def test_dones(arrays, expected):
    terminals, timeouts = arrays.pop("terminals"), arrays.pop("timeouts")
    dones = terminals | timeouts
    for flags in ({"terminals": terminals}, {"timeouts": timeouts}):
        assert_same(TrajectoryDataset.from_arrays(**arrays, **flags, dones=dones), expected)
    alone = TrajectoryDataset.from_arrays(**arrays, dones=dones[:, None])
    np.testing.assert_array_equal(alone.offsets, expected.offsets)
    assert not alone.terminated.any() and alone.truncated.all()
    assert not alone.final_known.any()  # nobody knows whether anything followed
    with pytest.raises(DatasetError, match="must say where episodes end"):
        TrajectoryDataset.from_arrays(**arrays)
    with pytest.raises(DatasetError, match="flags of different shapes"):
        TrajectoryDataset.from_arrays(**arrays, dones=dones, timeouts=timeouts[:-1])


def test_one_kind_of_end_is_enough(arrays, expected):
    arrays["timeouts"] = arrays["timeouts"] | arrays.pop("terminals")
    data = TrajectoryDataset.from_arrays(**arrays)
    np.testing.assert_array_equal(data.offsets, expected.offsets)
    assert data.truncated.all() and data.final_known.all()


def test_rewards_and_costs_in_one_column(arrays, expected):
    for key in ("rewards", "costs", "terminals", "timeouts"):
        arrays[key] = arrays[key][:, None]
    assert_same(TrajectoryDataset.from_arrays(**arrays), expected)


def test_learn_takes_each_of_them(drivers):
    last = drivers.offsets[1:] - 1
    dones = np.zeros(drivers.n_transitions, dtype=bool)
    dones[last] = True
    keys = ("observations", "actions", "rewards", "costs")
    flat = {key: getattr(drivers, key) for key in keys}
    episodes = [
        {key: value[first:end] for key, value in flat.items()}
        for first, end in pairwise(drivers.offsets)
    ]
    frame = pd.DataFrame(drivers.observations, columns=[f"obs_{i}" for i in range(4)])
    frame = frame.assign(action=drivers.actions[:, 0], reward=drivers.rewards, cost=drivers.costs)
    frame["episode"] = np.repeat(np.arange(len(drivers)), drivers.lengths)
    for data in ({**flat, "dones": dones}, episodes, frame):
        agent = RCDT(**QUICK).learn(data, 2)
        assert agent.num_timesteps == 2
        np.testing.assert_array_equal(agent.dataset.offsets, drivers.offsets)
        np.testing.assert_array_equal(agent.dataset.observations, drivers.observations)


@pytest.mark.parametrize("data", [np.zeros((5, 3)), [np.zeros(3)], object()])
def test_what_does_not_say_what_it_is(data):
    with pytest.raises(InvalidArgumentError, match=r"`dataset` must be.*`from_episodes`"):
        RCDT(**QUICK).learn(data, 2)


def test_a_dict_of_something_else(arrays):
    arrays["rewrads"] = arrays.pop("rewards")
    with pytest.raises(DatasetError, match=r"must hold observations.*got \['actions'.*'rewrads'"):
        RCDT(**QUICK).learn(arrays, 2)
