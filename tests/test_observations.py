"""Observations other than one flat array: laid out, recorded, learned from, acted on."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import gymnasium as gym
import h5py
import numpy as np
import pytest
from conftest import small_settings
from stable_baselines3.common.vec_env import DummyVecEnv

from rcdt_agent import RCDT, TrajectoryDataset, VectorReturnCostTokens
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.collect import TrajectoryRecorder
from rcdt_agent.errors import DatasetError, InvalidArgumentError, StateError
from rcdt_agent.experiments.evaluate import predict_latency
from rcdt_agent.observations import ObservationLayout
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers

S = gym.spaces
KINDS = [
    (S.Discrete(3, start=1), 2, [0, 1, 0]),
    (S.MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0]),
    (S.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
    (S.Tuple((S.Discrete(2), S.Box(0, 9, (2,)))), (1, [3.5, 4.0]), [0, 1, 3.5, 4]),
    (
        S.Dict({"b": S.Box(0, 255, (1, 2), np.uint8), "a": S.Discrete(2)}),
        {"b": np.array([[7, 8]], np.uint8), "a": 0},
        [1, 0, 7, 8],
    ),
    (
        S.Dict(OrderedDict(z=S.Box(-9, 9, ()), a=S.Dict({"flag": S.MultiBinary(1)}))),
        {"a": {"flag": [True]}, "z": -2.5},
        [-2.5, 1],
    ),
]
DRIVER = S.Dict(
    {
        "speed": S.Box(0, 30, (), np.float32),
        "limit": S.Box(0, 30, (1,), np.float32),
        "zone": S.Discrete(2),
        "time": S.Box(-1, 1, (2,), np.float32),
    }
)


def split(obs):
    """SpeedLimit's four numbers as a Dict with a discrete part."""
    obs = np.asarray(obs, np.float32)
    return {
        "speed": obs[..., 0],
        "limit": obs[..., 1:2],
        "zone": (obs[..., 2] > 0).astype(np.int64),
        "time": obs[..., 2:4],
    }


class DictDriver(gym.ObservationWrapper):
    """SpeedLimit with a Dict observation."""

    def __init__(self):
        super().__init__(gym.make(ENV_ID))
        self.observation_space = DRIVER

    def observation(self, observation):
        return split(observation)


def record(n=60, seed=1):
    arrays = record_drivers(n, seed=seed)
    for key in ("observations", "next_observations"):
        arrays[key] = split(arrays[key])
    return TrajectoryDataset.from_arrays(**arrays, observation_space=DRIVER, name="drivers")


@pytest.fixture(scope="module")
def data():
    return record()


@pytest.fixture(scope="module")
def agent(data):
    return RCDT(DictDriver(), **small_settings("rcdt")).learn(data, 6)


@pytest.mark.parametrize(("space", "value", "row"), KINDS, ids=lambda x: type(x).__name__)
def test_row_by_hand_and_as_gymnasium_flattens(space, value, row):
    layout = ObservationLayout(space)
    found, single = layout.rows(value)
    assert single and found.dtype == np.float32 and found.tolist() == [row]
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    flat = np.stack([S.utils.flatten(space, one) for one in samples]).astype(np.float32)
    batch = gym.vector.utils.create_empty_array(space, 5)
    batch = gym.vector.utils.concatenate(space, samples, batch)
    found, single = layout.rows(batch)
    assert not single
    np.testing.assert_array_equal(found, flat)
    np.testing.assert_array_equal(layout.rows(flat)[0], flat)  # rows stay rows
    again = ObservationLayout.from_json(layout.to_json(), len(row))
    assert again == layout and again.space == space
    assert layout.flat_space.contains(flat[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sped": 1.0}, "keys limit, speed, time, zone: sped unknown"),
        ({"zone": None}, "zone missing"),
        ({"zone": 2}, r"`zone` of the observation must be in Discrete\(2\), got 2"),
        ({"limit": [1.0, 2.0]}, r"`limit` .* shape \(1,\), or \(N, 1\)"),
        ({"speed": np.nan}, "`speed` .* finite"),
        ({"speed": "fast"}, "`speed` .* numbers"),
        ({"zone": [0, 1]}, "`zone` .* 2, but `limit` has one"),
    ],
)
def test_what_does_not_fit_is_named(agent, change, words):
    obs = {**split([1.0, 2.0, 0.5, 0.5]), **change}
    obs = {key: value for key, value in obs.items() if value is not None}
    with pytest.raises(InvalidArgumentError, match=words):
        agent.predict(obs)


def test_the_agent_holds_the_episode(agent):
    """`reset` and `act` with a dict of the environment's own, as with `predict` and a state."""
    obs = [split([1.0 + i, 2.0, 0.5, 0.5]) for i in range(3)]
    expected, state = [], agent.begin()
    for i in range(3):
        action, state = agent.predict(obs[i], state)
        state = state.observe(1.0, 0.5)
        expected.append(action)
    agent.reset()
    found = [agent.act(obs[0]), agent.act(obs[1], 1.0, 0.5), agent.act(obs[2], 1.0, 0.5)]
    np.testing.assert_array_equal(found, expected)
    assert agent.episode.cost_to_go == agent.cost_budget - 1.0
    with pytest.raises(StateError, match="must be told"):
        agent.act(obs[0])


def test_what_was_refused_is_not_part_of_the_episode(agent):
    obs = [split([1.0 + i, 2.0, 0.5, 0.5]) for i in range(3)]
    _, state = agent.predict(obs[0], agent.begin())
    state = state.observe(1.0, 2.0)
    expected, _ = agent.predict(obs[1], state)
    for wrong in ({**obs[1], "sped": 1.0}, {"speed": 1.0}, [1.0, 2.0]):
        with pytest.raises(InvalidArgumentError):
            agent.predict(wrong, state)
    action, after = agent.predict(obs[1], state)
    np.testing.assert_array_equal(action, expected)
    assert after.total_cost.tolist() == [2.0] and after.steps.tolist() == [2]


def test_spaces_without_numbers_are_refused():
    with pytest.raises(InvalidArgumentError, match="`observation_space` must be a Box.*`words`"):
        RCDT(observation_space=S.Dict({"words": S.Text(3)}))


def drive(agent, env, n=5):
    wrapped = "cost_budget" in env.observation_space.spaces
    obs, _ = env.reset(seed=3)
    state, taken = None, []
    for _ in range(n):
        action, state = agent.predict(obs, state)
        taken.append(action)
        obs, reward, _, _, info = env.step(action)
        state = state if wrapped else state.observe(reward, info["cost"])
    return np.array(taken)


def test_wrapped_unwrapped_and_loaded_agents_act_the_same(agent, tmp_path):
    agent.set_cost_budget(10)
    plain = drive(agent, DictDriver())
    np.testing.assert_array_equal(drive(agent, agent.wrap(DictDriver())), plain)
    agent.save(tmp_path / "a.zip")
    loaded = RCDT.load(tmp_path / "a.zip")
    assert loaded.observation_space == DRIVER
    np.testing.assert_array_equal(drive(loaded, DictDriver()), plain)
    env = DictDriver()
    env.observation_space = S.Dict({"x": S.Box(-1, 1, (6,))})
    with pytest.raises(InvalidArgumentError, match="parts"):
        loaded.set_env(env)


@pytest.mark.parametrize("kind", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_vector_environments(agent, kind):
    agent.set_cost_budget(10)
    env = kind([DictDriver] * 2)
    try:
        obs, _ = env.reset(seed=[3, 4])
        actions, _ = agent.predict(obs, agent.begin(2))
        facts, _ = VectorReturnCostTokens(env).reset(seed=[3, 4])
        rows, _ = ObservationLayout(DRIVER).rows(obs)
        np.testing.assert_array_equal(facts["observation"], rows)
        np.testing.assert_array_equal(agent.predict(facts, agent.begin(2))[0], actions)
    finally:
        env.close()
    for seed, action in zip((3, 4), actions, strict=True):
        single = agent.predict(DictDriver().reset(seed=seed)[0], agent.begin())[0]
        np.testing.assert_allclose(single, action, atol=1e-6)


@pytest.mark.parametrize("wrap", [True, False])
def test_stable_baselines3_vector_environments(agent, wrap):
    make = (lambda: agent.wrap(DictDriver())) if wrap else DictDriver
    venv = DummyVecEnv([make, make])
    venv.seed(3)
    obs = venv.reset()
    actions, _ = agent.predict(obs, agent.begin(2))
    for seed, action in zip((3, 4), actions, strict=True):
        single = agent.predict(DictDriver().reset(seed=seed)[0], agent.begin())[0]
        np.testing.assert_allclose(single, action, atol=1e-6)
    agent.set_env(venv)


@pytest.mark.parametrize("subprocesses", [False, True])
def test_evaluation_wrapped_or_not(agent, subprocesses):
    run = partial(agent.evaluate, budgets=[10], n_episodes=2, subprocesses=subprocesses)
    report = run(DictDriver)
    if not subprocesses:
        assert run(lambda: agent.wrap(DictDriver())).results == report.results
    assert len(report.results[0].returns) == 2


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm(name, data):
    agent = get_algorithm(name)(DictDriver(), **small_settings(name)).learn(data, 2)
    action, _ = agent.predict(DictDriver().reset(seed=0)[0])
    assert action.shape == (1,)


def test_resume_is_bit_exact(data, tmp_path):
    settings = small_settings("rcdt")
    whole = RCDT(DictDriver(), **settings).learn(data, 6)
    half = RCDT(DictDriver(), **settings)
    half.learn(data, 6, callback=lambda *_: half.num_timesteps < 3)
    half.save(tmp_path / "half.zip")
    again = RCDT.load(tmp_path / "half.zip").learn(data, resume=True)
    assert again.num_timesteps == 6
    for key, value in whole.policy.state_dict().items():
        np.testing.assert_array_equal(again.policy.state_dict()[key], value)


def same(a, b):
    assert a.layout == b.layout and a.layout is not None
    for key in ("observations", "final_observations", "actions", "offsets"):
        np.testing.assert_array_equal(getattr(a, key), getattr(b, key))


def test_files_keep_the_layout(data, tmp_path):
    assert data.layout.parts == {"limit": 1, "speed": 1, "time": 2, "zone": 2}
    data.to_hdf5(tmp_path / "d.hdf5")
    same(TrajectoryDataset.from_hdf5(tmp_path / "d.hdf5"), data)
    data.to_npy(tmp_path / "d.npy")
    same(TrajectoryDataset.from_npy(tmp_path / "d.npy"), data)
    part = data.filter(max_cost=20)
    same(part, data.select(np.flatnonzero(data.episode_costs <= 20)))
    with h5py.File(tmp_path / "d.hdf5", "a") as file:
        file["observations"].attrs["observation_space"] = '{"discrete": 3, "start": 0}'
    with pytest.raises(DatasetError, match="layout is of size 3, the observations of 6"):
        TrajectoryDataset.from_hdf5(tmp_path / "d.hdf5")


def arrays(n=4):
    rest = {"actions": np.zeros((n, 1)), "rewards": np.ones(n), "costs": np.zeros(n)}
    lidar, speed = np.arange(2 * n, dtype=np.float32).reshape(n, 2), np.arange(n) > 1
    return {"speed": speed, "lidar": lidar}, {**rest, "timeouts": np.arange(n) == n - 1}


def test_arrays_groups_and_episodes(tmp_path):
    seen, rest = arrays()
    data = TrajectoryDataset.from_arrays(observations=seen, **rest)
    expected = [[0, 1, 0], [2, 3, 0], [4, 5, 1], [6, 7, 1]]  # lidar before speed: by name
    assert data.observations.tolist() == expected
    pair = TrajectoryDataset.from_arrays(observations=(seen["lidar"], seen["speed"]), **rest)
    assert pair.observations.tolist() == expected
    with h5py.File(tmp_path / "g.hdf5", "w") as file:
        for key, values in {**rest, "terminals": np.zeros(4)}.items():
            file[key] = values
        for key, values in seen.items():
            file[f"observations/{key}"] = values
    assert TrajectoryDataset.from_hdf5(tmp_path / "g.hdf5").observations.tolist() == expected
    steps = {key: values[:3] for key, values in rest.items() if key != "timeouts"}
    listed = [{key: values[i] for key, values in seen.items()} for i in range(4)]
    for form in (seen, listed, (seen["lidar"], seen["speed"])):
        made = TrajectoryDataset.from_episodes([{"observations": form, **steps}] * 2)
        assert made.observations.tolist() == expected[:3] * 2
        assert made.final_observations.tolist() == [expected[3]] * 2
    for keys, message in (
        ({"lidar": seen["lidar"]}, "keys lidar, speed: speed missing"),
        ({**seen, "sped": seen["speed"]}, "keys lidar, speed: sped unknown"),
    ):
        space = S.Dict({"lidar": S.Box(-9, 9, (2,)), "speed": S.MultiBinary(1)})
        with pytest.raises(DatasetError, match=message):
            TrajectoryDataset.from_arrays(observations=keys, observation_space=space, **rest)
        with pytest.raises(DatasetError, match=message):
            TrajectoryDataset.from_arrays(observations=seen, next_observations=keys, **rest)
        with pytest.raises(DatasetError, match=f"episode 1.*{message}"):
            TrajectoryDataset.from_episodes([{"observations": o, **steps} for o in (seen, keys)])
    with pytest.raises(DatasetError, match="`speed` .* shape"):
        TrajectoryDataset.from_arrays(observations={**seen, "speed": np.zeros(3)}, **rest)
    unlike = S.Dict({"lidar": S.Box(-9, 9, (2,)), "speed": S.Discrete(2)})
    with pytest.raises(DatasetError, match="'speed': 1.*'speed': 2.*`observation_space`"):
        RCDT(observation_space=unlike, **small_settings("rcdt")).learn(data, 1)


def test_recorder():
    env = TrajectoryRecorder(DictDriver())
    obs, _ = env.reset(seed=0)
    rows, done = [ObservationLayout(DRIVER).row(obs)], False
    while not done:
        obs, _, _, done, _ = env.step(np.array([0.3], np.float32))
        rows.append(ObservationLayout(DRIVER).row(obs))
    data = env.dataset()
    assert data.layout == ObservationLayout(DRIVER)
    np.testing.assert_array_equal(data.observations, rows[:-1])
    np.testing.assert_array_equal(data.final_observations, rows[-1:])


@pytest.mark.slow
def test_cost_follows_the_budget():
    agent = RCDT(DictDriver(), preset="tiny", seed=0).learn(record(600, seed=0), 1_000)
    report = agent.evaluate(DictDriver, budgets=[5, 10, 20], n_episodes=20)
    print(report.as_table())
    assert report.passed
    costs = [result.mean_cost for result in report.results]
    assert costs[0] < costs[1] < costs[2]


def test_latency_of_an_agent_with_dict_observations(agent):
    median, slowest = predict_latency(agent, 10)
    assert 0 < median <= slowest
