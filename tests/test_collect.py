"""Collection: recorder, store, balance, behaviours, and real, small collections."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rcdt_agent.collect import (
    TrajectoryRecorder,
    TrajectoryStore,
    balanced_rows,
    collect_dataset,
    default_behaviour,
    make_controller,
    read_parts,
)
from rcdt_agent.collect.behaviours import reach_for
from rcdt_agent.collect.driving import affordable_speed
from rcdt_agent.collect.navigation import around, radius_of_pass, share_of_pass
from rcdt_agent.collect.rounding import round_mantissa
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.tasks.registry import get_task

ROOT = Path(__file__).resolve().parent.parent
ARRAYS = (
    "observations", "actions", "rewards", "costs", "offsets", "terminated", "truncated",
    "final_observations", "final_known",
)  # fmt: skip

READ_WITH_DSRL = """
import sys
import gymnasium as gym
import h5py
import numpy as np
from dsrl.offline_env import OfflineEnv

class Env(OfflineEnv):
    def __init__(self, path):
        super().__init__(max_episode_reward=1, min_episode_reward=0, max_episode_cost=1,
                         min_episode_cost=0, dataset_url=None)
        with h5py.File(path) as file:
            sizes = file["observations"].shape[1], file["actions"].shape[1]
        self.observation_space = gym.spaces.Box(-9, 9, (sizes[0],))
        self.action_space = gym.spaces.Box(-1, 1, (sizes[1],))

data = Env(sys.argv[1]).get_dataset(h5path=sys.argv[1])
np.savez(sys.argv[2], **data)
"""


class Line(gym.Env):
    """Walk on a line: x grows by the action, reward 10 a, cost |x|; ends at x >= 3 or after 5."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), dtype=np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)

    def __init__(self, values=5, key="cost", delay=0.0):
        self.values, self.key, self.delay = values, key, delay
        self.buffer = np.zeros(2)  # one array for all observations, as some simulators do

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[:] = self.np_random.integers(0, 2) if seed is not None else 0, 0
        return self.buffer, {}

    def step(self, action):
        time.sleep(self.delay)
        self.buffer += action[0], 1
        x, t = self.buffer
        ends = bool(x >= 3), bool(t == 5)
        if self.values == 6:
            return self.buffer, 10 * action[0], abs(x), *ends, {}
        return self.buffer, 10 * action[0], *ends, {self.key: abs(x)}


def walk(env, actions):
    env.reset()
    for action in actions:
        result = env.step(np.array([action], dtype=np.float32))
    return result


def assert_same(one, two):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


# Recorder


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (5, {}),
        (6, {}),
        (5, {"cost_key": "danger"}),
        (5, {"cost_fn": lambda obs, action, following, info: abs(following[0])}),
    ],
)
def test_recorder_stores_exact_values(values, options):
    env = TrajectoryRecorder(Line(values, options.get("cost_key", "cost")), **options)
    walk(env, [0.5, -1.0, 0.25, 0.25, 0.5])  # truncated at step 5
    result = walk(env, [1.0, 1.0, 1.0])  # terminated at x = 3
    assert len(result) == 5
    assert result[4]["cost"] == 3.0
    assert result[4]["trajectory"] is env.trajectories[1]
    data = env.dataset()
    walked = [[0, 0], [0.5, 1], [-0.5, 2], [-0.25, 3], [0, 4], [0, 0], [1, 1], [2, 2]]
    np.testing.assert_array_equal(data.observations, walked)
    np.testing.assert_array_equal(data.actions[:, 0], [0.5, -1, 0.25, 0.25, 0.5, 1, 1, 1])
    np.testing.assert_array_equal(data.rewards, [5, -10, 2.5, 2.5, 5, 10, 10, 10])
    np.testing.assert_array_equal(data.costs, [0.5, 0.5, 0.25, 0, 0.5, 1, 2, 3])
    np.testing.assert_array_equal(data.offsets, [0, 5, 8])
    np.testing.assert_array_equal(data.final_observations, [[0.5, 5], [3, 3]])
    assert data.terminated.tolist() == [False, True]
    assert data.truncated.tolist() == [True, False]
    assert data.final_known.all()


def test_unfinished_episodes_are_not_stored(tmp_path):
    env = TrajectoryRecorder(Line())
    walk(env, [1.0, 1.0])  # given up
    with pytest.raises(DatasetError, match="no episode has run to its end"):
        env.dataset()
    walk(env, [1.0, 1.0, 1.0])
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.array([1.0]))
    walk(env, [0.5])  # in flight
    env.save(tmp_path / "data.hdf5")
    data = TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5")
    assert len(data) == 1
    np.testing.assert_array_equal(data.costs, [1, 2, 3])


def test_recorder_refuses_what_it_cannot_store():
    with pytest.raises(InvalidArgumentError, match="`cost_key` is 'cost', `info` holds \\['harm'"):
        walk(TrajectoryRecorder(Line(key="harm")), [1.0])
    with pytest.raises(InvalidArgumentError, match="cost of a step must be finite and >= 0, got -"):
        walk(TrajectoryRecorder(Line(), cost_fn=lambda *_: -1.0), [1.0])
    env = Line()
    env.action_space = gym.spaces.Text(3)
    with pytest.raises(InvalidArgumentError, match="action space that is a Box of rank 1"):
        TrajectoryRecorder(env)


def test_a_trajectory_with_nan_is_left_out():
    class Broken(Line):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, np.nan if obs[0] == 2 else reward, *rest

    env = TrajectoryRecorder(Broken())
    with pytest.warns(UserWarning, match="3 steps is left out: `rewards` is not finite"):
        result = walk(env, [1.0] * 3)
    assert result[2] is True and "trajectory" not in result[4]
    assert env.trajectories == []
    with pytest.raises(DatasetError, match="all 1 episodes .* were left out: `rewards` is not fin"):
        env.dataset()


# Store


def test_store_keeps_parts_and_resumes(tmp_path):
    output = tmp_path / "data.hdf5"
    store = TrajectoryStore(output, options={"seed": 1}, seconds=0.0)  # a part for each
    env = TrajectoryRecorder(Line(), store.append)
    walk(env, [1.0, 1.0, 1.0])
    assert len(TrajectoryDataset.from_hdf5(output)) == 1  # readable at once
    walk(env, [0.5] * 5)
    store.begin_run(3)
    walk(env, [0.0] * 5)
    names = sorted(path.name for path in store.folder.glob("*.hdf5"))
    ranges = ("000-00000000-00000001", "000-00000001-00000002", "003-00000000-00000001")
    assert names == [f"{name}.hdf5" for name in ranges]

    with pytest.raises(InvalidArgumentError, match="continue it with `resume`"):
        TrajectoryStore(output, options={"seed": 1})
    with pytest.raises(InvalidArgumentError, match="`seed` must be 1 to resume .*, got 2"):
        TrajectoryStore(output, options={"seed": 2}, resume=True)
    again = TrajectoryStore(output, options={"seed": 1}, resume=True)
    assert (len(again), again.count(0), again.count(3), again.last_run) == (3, 2, 1, 3)
    assert read_parts(again.folder).episode_returns.tolist() == [30.0, 25.0, 0.0]
    data = again.finish()
    assert_same(TrajectoryDataset.from_hdf5(output), data)
    assert [path.name for path in tmp_path.iterdir()] == ["data.hdf5"]
    with pytest.raises(InvalidArgumentError, match="it is complete"):
        TrajectoryStore(output, resume=True)


def test_a_part_that_was_cut_short_never_counts(tmp_path):
    store = TrajectoryStore(tmp_path / "data.hdf5", seconds=0.0)
    walk(TrajectoryRecorder(Line(), store.append), [1.0] * 3)
    (store.folder / ".000-00000001-00000002.hdf5.12345678.partial").write_bytes(b"half")
    again = TrajectoryStore(tmp_path / "data.hdf5", resume=True)
    assert len(again) == len(again.read()) == 1


# Balance


def test_balance_by_hand():
    # Two by two cells, borders at return 5 and cost 2; five trajectories in the lower left one.
    returns = np.array([0, 1, 2, 3, 4, 10, 9, 0.0])
    costs = np.array([0, 0, 1, 1, 1, 4, 0, 3.0])
    chosen = {}
    for seed in range(20):
        rows = balanced_rows(
            returns, costs, per_cell=2, return_cells=2, cost_cells=2, seed=seed
        ).tolist()
        assert rows[2:] == [5, 6, 7]
        assert len(rows) == 5 and set(rows[:2]) < {0, 1, 2, 3, 4}
        assert rows == sorted(rows)
        chosen[seed] = tuple(rows[:2])
    assert len(set(chosen.values())) > 5  # drawn at random
    again = balanced_rows(returns, costs, per_cell=2, return_cells=2, cost_cells=2, seed=7)
    assert tuple(again[:2]) == chosen[7]
    assert balanced_rows(returns, costs, per_cell=9).tolist() == list(range(8))
    assert balanced_rows(np.ones(4), np.ones(4), per_cell=1).size == 1


def test_balance_refuses():
    with pytest.raises(InvalidArgumentError, match="`per_cell` must be >= 1, got 0"):
        balanced_rows([1.0], [1.0], per_cell=0)
    with pytest.raises(InvalidArgumentError, match="must be of one shape"):
        balanced_rows([1.0], [1.0, 2.0], per_cell=1)


# Rounding


def test_rounding_by_hand():
    # Three bits after the leading one: steps of 1/8 in [1, 2), of 1/4 in [2, 4).
    values = np.array([0.0, 1.0, -1.07, 1.2, 2.1, 2.2, 1.99], dtype=np.float32)
    expected = [0.0, 1.0, -1.125, 1.25, 2.0, 2.25, 2.0]
    rounded = round_mantissa(values, 3)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, np.array(expected, dtype=np.float32))
    many = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert (np.abs(round_mantissa(many, 8) - many) <= 2.0**-9 * np.abs(many)).all()
    np.testing.assert_array_equal(round_mantissa(many, 23), many)


def test_a_rounded_collection_differs_in_its_observations_alone(tmp_path):
    class Noisy(Line):
        def step(self, action):
            obs, *rest = super().step(action)
            obs[0] += 0.1 * self.np_random.normal()
            return obs, *rest

    settings = {"steps": 2000, "behaviour": "random", "per_cell": None}
    exact = collect_dataset(Noisy, tmp_path / "a.hdf5", **settings)
    data = collect_dataset(Noisy, tmp_path / "b.hdf5", round_observations=6, **settings)
    for name in ("observations", "final_observations"):
        np.testing.assert_array_equal(getattr(data, name), round_mantissa(getattr(exact, name), 6))
    for name in ("actions", "rewards", "costs", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(data, name), getattr(exact, name))
    assert not np.array_equal(data.observations, exact.observations)
    assert_same(TrajectoryDataset.from_hdf5(tmp_path / "b.hdf5"), data)
    sizes = [(tmp_path / name).stat().st_size for name in ("a.hdf5", "b.hdf5")]
    assert sizes[1] < 0.8 * sizes[0]


# Collection in an environment of one's own


def test_same_seed_same_dataset_in_any_number_of_processes(tmp_path):
    settings = {"steps": 60, "behaviour": "random", "per_cell": None}
    one = collect_dataset(Line, tmp_path / "a.hdf5", seed=3, **settings)
    two = collect_dataset(Line, tmp_path / "b.hdf5", seed=3, **settings)
    far = collect_dataset(Line, tmp_path / "c.hdf5", seed=3, n_envs=2, **settings)
    other = collect_dataset(Line, tmp_path / "d.hdf5", seed=4, **settings)
    assert 60 <= one.n_transitions < 65
    assert_same(one, two)
    assert_same(one, far)
    assert one.fingerprint != other.fingerprint
    assert_same(TrajectoryDataset.from_hdf5(tmp_path / "a.hdf5"), one)


def test_resume_continues_as_if_nothing_had_happened(tmp_path):
    class Failing(Line):
        episodes = 0

        def reset(self, **kwargs):
            Failing.episodes += 1
            if Failing.episodes == 5:
                raise KeyboardInterrupt
            return super().reset(**kwargs)

    settings = {"steps": 60, "behaviour": "random", "per_cell": 3, "max_trajectories": 8}
    with pytest.raises(KeyboardInterrupt, match="4 complete trajectories are kept"):
        collect_dataset(Failing, tmp_path / "a.hdf5", **settings)
    assert len(TrajectoryDataset.from_hdf5(tmp_path / "a.hdf5")) == 4
    resumed = collect_dataset(Failing, tmp_path / "a.hdf5", resume=True, **settings)
    whole = collect_dataset(Line, tmp_path / "b.hdf5", **settings)
    assert_same(resumed, whole)
    assert len(whole) == 8


def test_penalties_reach_ppo_but_not_the_data(tmp_path, monkeypatch):
    from stable_baselines3.common.buffers import RolloutBuffer

    seen = []
    add = RolloutBuffer.add
    monkeypatch.setattr(
        RolloutBuffer,
        "add",
        lambda self, obs, action, reward, *rest: (
            seen.append((obs.copy(), action.copy(), reward.copy())),
            add(self, obs, action, reward, *rest),
        )[1],
    )
    settings = {"behaviour": "ppo", "steps": 128, "per_cell": None, "n_envs": 2}
    data = collect_dataset(Line, tmp_path / "a.hdf5", penalties=(7.0,), **settings)
    for obs, action, reward in seen:
        action = np.clip(action, -1, 1)
        costs = np.abs(obs[:, 0] + action[:, 0])
        truncated = obs[:, 1] == 4  # where stable-baselines3 adds the value that would follow
        expected = 10 * action[:, 0] - 7.0 * costs
        np.testing.assert_allclose(reward[~truncated], expected[~truncated], rtol=1e-4)
    np.testing.assert_allclose(data.rewards, 10 * data.actions[:, 0], rtol=1e-5)
    assert 100 <= data.n_transitions <= 128
    again = collect_dataset(Line, tmp_path / "b.hdf5", penalties=(7.0,), **settings)
    assert_same(data, again)


def test_ppo_resumes_without_repeating_itself(tmp_path):
    class Noisy(Line):
        """Each seed has its own start, so that a repeated episode would show."""

        fail_at = 30
        episodes = 0

        def reset(self, *, seed=None, options=None):
            Noisy.episodes += 1
            if Noisy.episodes == Noisy.fail_at:
                raise KeyboardInterrupt
            super().reset(seed=seed)
            self.buffer[:] = self.np_random.normal(), 0
            return self.buffer, {}

    settings = {"behaviour": "ppo", "steps": 200, "penalties": (0.0, 1.0), "per_cell": None}
    with pytest.raises(KeyboardInterrupt, match="complete trajectories are kept"):
        collect_dataset(Noisy, tmp_path / "a.hdf5", **settings)
    before = TrajectoryDataset.from_hdf5(tmp_path / "a.hdf5")
    data = collect_dataset(Noisy, tmp_path / "a.hdf5", resume=True, **settings)
    assert len(data) > len(before)
    assert_same(data.select(range(len(before))), before)
    starts = data.observations[data.offsets[:-1], 0]
    assert len(np.unique(starts)) == len(starts)
    assert 180 <= data.n_transitions <= 210


def test_ppo_continues_from_its_policy_and_unpickles_nothing(tmp_path, monkeypatch):
    import torch
    from stable_baselines3 import PPO

    from rcdt_agent.checkpoint import read_checkpoint
    from rcdt_agent.collect.ppo import train_ppo
    from rcdt_agent.errors import CheckpointError

    monkeypatch.setattr("rcdt_agent.collect.ppo.ROLLOUT", 16)  # the policy is saved after each
    store = TrajectoryStore(tmp_path / "data.hdf5")

    def run():
        train_ppo(
            Line, store, penalty=0.0, steps=64, seed=0, n_envs=1, subprocesses=False,
            record=store.append,
        )  # fmt: skip

    run()
    path = store.folder / "policy-000.zip"
    _, saved = read_checkpoint(path, "PPO")
    weights = {k.removeprefix("policy/"): v for k, v in saved.items() if k.startswith("policy/")}
    seen = {}
    monkeypatch.setattr(PPO, "learn", lambda self, *_, **__: seen.update(self.policy.state_dict()))
    run()
    assert set(seen) == set(weights)
    assert all(torch.equal(seen[name], value) for name, value in weights.items())
    torch.save({"a pickle": 1}, path)
    with pytest.raises(CheckpointError, match="not an rcdt_agent checkpoint"):
        run()


def test_arguments_are_checked(tmp_path):
    path = tmp_path / "data.hdf5"
    for wrong, message in (
        ({"steps": 0}, "`steps` must be >= 1, got 0"),
        ({"penalties": (0.0, -1.0)}, "`penalties` must be one or more finite numbers >= 0, got"),
        ({"penalties": ()}, "`penalties` must be"),
        ({"seed": -1}, "`seed` must be >= 0, got -1"),
        ({"per_cell": 0}, "`per_cell` must be >= 1, got 0"),
        ({"round_observations": 0}, "`round_observations` must be 1 .. 23, got 0"),
        ({"round_observations": 24}, "`round_observations` must be 1 .. 23, got 24"),
        ({"behaviour": "idm"}, "idm drives MetaDrive's tasks only, not an environment of your own"),
        ({"behaviour": "magic"}, "`behaviour` must be one of .*, got 'magic'"),
        ({"behaviour": "scripted"}, "scripted drives BallRun, .*, not an environment"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            collect_dataset(Line, path, **wrong)
    with pytest.raises(InvalidArgumentError, match="must end its episodes, but one has run for 4"):
        collect_dataset(Line, path, steps=4, behaviour="random")
    with pytest.raises(DatasetError, match="no episode has run to its end"):
        collect_dataset(Line, tmp_path / "b.hdf5", steps=2, behaviour="ppo", penalties=(0.0,))
    assert not path.exists()


def test_default_behaviours():
    names = {"BallRun": "scripted", "CarCircle": "scripted", "DroneRun": "ppo", "easymean": "idm"}
    for name, behaviour in (
        names | {"HopperVelocity": "ppo", "PointPush1": "ppo", "CarGoal2": "scripted"}
    ).items():
        assert default_behaviour(get_task(name)) == behaviour
    assert default_behaviour(None) == "ppo"
    with pytest.raises(InvalidArgumentError, match="scripted drives .*, not DroneRun: use ppo"):
        make_controller("scripted", get_task("DroneRun"))


def test_the_way_around_a_circle_by_hand():
    settings = {"speed": 2.0, "radius": 5.0, "braking": 0.5}
    for clockwise, x in ((True, 2.0), (False, -2.0)):  # at the top: right is clockwise
        wish = around(np.array([0.0, 5.0]), walls=(9, 9), clockwise=clockwise, **settings)
        np.testing.assert_allclose(wish, [x, 0.0], atol=1e-12)
    # Far inside: 1.5 * (5 - 1) outwards and 2 along, brought to the speed of 2.
    wish = around(np.array([1.0, 0.0]), walls=(9, 9), clockwise=True, **settings)
    np.testing.assert_allclose(wish, 2.0 * np.array([6.0, -2.0]) / np.sqrt(40.0))
    # One metre before the wall at x = 2: sqrt(2 * 0.5 * 1); half a metre beyond it: 2 * 0.5 back.
    wish = around(np.array([1.0, 0.0]), walls=(2, 9), clockwise=True, **settings)
    np.testing.assert_allclose(wish, [1.0, -2.0 * 2.0 / np.sqrt(40.0)])
    wish = around(np.array([-2.5, 0.0]), walls=(2, np.inf), clockwise=True, **settings)
    assert wish[0] == 1.0


def test_an_allowance_is_divided_among_the_passes_to_come():
    # 2 pi metres a round at 2 pi metres a second: 3 rounds and 6 passes in 3 seconds.
    settings = {"speed": 2.0 * np.pi, "radius": 1.0, "walls": 2}
    assert share_of_pass(30.0, seconds=3.0, **settings) == pytest.approx(5.0)
    assert share_of_pass(30.0, seconds=0.1, **settings) == 30.0  # the last pass may spend it all
    # Out and back in 20 steps of 0.1 s: 1 s each way at 4 m/s^2 is 2 m.
    assert reach_for(20.0, braking=4.0, step_seconds=0.1) == pytest.approx(2.0)


def test_a_wider_round_lies_longer_beyond_the_wall():
    # A wall at half the radius: beyond it are 2 * 60 degrees, a third of 2 pi * 2 metres, which
    # at 1 m/s takes 4 pi / 3 seconds.
    settings = {"wall": 1.0, "speed": 1.0, "step_seconds": 0.1}
    assert radius_of_pass(40.0 * np.pi / 3.0, **settings) == pytest.approx(2.0)
    assert radius_of_pass(0.0, **settings) == 1.0


def test_drivers_of_a_small_allowance_are_slow():
    # 20 over 500 steps is 0.04 a step, 4 km/h above the free 10; at three times the haste 12.
    assert affordable_speed(20.0, 500) == pytest.approx(14.0)
    assert affordable_speed(20.0, 500, haste=3.0) == pytest.approx(22.0)
    assert affordable_speed(-3.0, 500) == 10.0
    assert affordable_speed(20.0, 1) == 80.0


def test_example(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("own", ROOT / "examples" / "collect_own_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(episodes=10, output=tmp_path / "drone.hdf5")
    assert "drone.hdf5: 10 trajectories of 50 steps, 500 transitions" in capsys.readouterr().out
    assert TrajectoryDataset.from_hdf5(tmp_path / "drone.hdf5").episode_costs.max() > 0


# Real simulators, by the command, in processes of their own


def start(folder, *words):
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "rcdt_agent", "collect", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, preexec_fn=heed, **pipes
    )


def collect(folder, *words):
    process = start(folder, *words)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


def assert_dsrl_reads(path, data):
    out = path.with_suffix(".npz")
    subprocess.run(
        [sys.executable, "-c", READ_WITH_DSRL, path, out], check=True, capture_output=True
    )
    theirs = np.load(out)
    np.testing.assert_array_equal(theirs["observations"], data.observations)
    np.testing.assert_array_equal(theirs["rewards"], data.rewards)
    np.testing.assert_array_equal(theirs["costs"], data.costs)
    last = data.offsets[1:] - 1
    np.testing.assert_array_equal(theirs["next_observations"][last], data.final_observations)
    np.testing.assert_array_equal(theirs["terminals"][last], data.terminated)


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.parametrize(
    ("task", "length", "best_return", "most_cost"),
    [("BallRun", 100, 700, 60), ("BallCircle", 200, 500, 50), ("CarRun", 200, 500, 50)],
)
def test_scripted_drivers_span_the_plane(tmp_path, task, length, best_return, most_cost):
    collect(tmp_path, task, "--output", "data.hdf5", "--steps", 20 * length, "--per-cell", 20)
    data = TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5")
    assert data.lengths.tolist() == [length] * 20
    assert data.truncated.all() and not data.terminated.any()
    assert data.episode_costs.min() == 0 and data.episode_costs.max() > most_cost
    assert data.episode_returns.max() > best_return
    assert (
        data.episode_returns.max() > data.episode_returns[data.episode_costs <= 10].max() + 50
    )  # risk pays
    assert np.abs(data.actions).max() <= 1.0
    assert_dsrl_reads(tmp_path / "data.hdf5", data)
    record = json.loads((tmp_path / "data.hdf5.json").read_text())
    assert record["command"].startswith(
        f"rcdt collect Offline{task}-v0 --output data.hdf5 --steps {20 * length} --behaviour "
        f"scripted --n-envs 1 --seed 0 --per-cell 20"
    )
    assert record["summary"]["trajectories"] == 20
    assert record["versions"]["pybullet"]


@pytest.mark.slow
@pytest.mark.simulator
def test_skilled_drivers_spend_what_they_are_allowed():
    from rcdt_agent.tasks.simulators import make_env

    env, controller = (
        TrajectoryRecorder(make_env("BallCircle")),
        make_controller("scripted", get_task("BallCircle")),
    )
    returns = {}
    for allowance in (0.0, 20.0, 40.0):
        obs, _ = env.reset(seed=1)
        controller.begin(env, np.random.default_rng(1))
        controller._skilled, controller._allowance, controller._noise = True, allowance, 0.0
        controller._habits = controller._draw_habits()
        for _ in range(200):
            obs, _, _, _, info = env.step(controller.act(obs))
        assert abs(info["trajectory"].episode_cost - allowance) <= 4
        returns[allowance] = info["trajectory"].episode_return
    env.close()
    assert returns[0.0] + 20 < returns[20.0] < returns[40.0] - 20


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_navigation_with_scripted_drivers(tmp_path):
    collect(tmp_path, "PointCircle1", "--output", "data.hdf5", "--steps", 2000, "--per-cell", 9)
    data = TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5")
    assert data.lengths.tolist() == [500] * 4
    assert (data.observation_size, data.action_size) == (28, 2)
    assert data.episode_costs.min() <= 10 and data.episode_costs.max() > 80
    assert data.episode_returns.max() > 35
    assert_dsrl_reads(tmp_path / "data.hdf5", data)


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.safety_gymnasium
@pytest.mark.parametrize("name", ["PointCircle1", "PointCircle2", "CarCircle1", "CarCircle2"])
def test_drivers_of_the_circle_spend_their_allowance(name):
    """Episodes 0, 4 and 14 of seed 0: skilled drivers with an allowance of 2, 79 and 234."""
    from rcdt_agent.tasks.simulators import make_env

    env = TrajectoryRecorder(make_env(name))
    controller = make_controller("scripted", get_task(name))
    drives = []
    for episode in (0, 4, 14):
        rng = np.random.default_rng([0, episode, 0])
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        controller.begin(env, rng)
        assert controller._skilled
        for _ in range(500):
            obs, _, _, _, info = env.step(controller.act(obs))
        trajectory = info["trajectory"]
        drives.append((trajectory.episode_cost, trajectory.episode_return))
    env.close()
    (least, low), (middle, more), (most, high) = drives
    assert least <= 2 and 50 <= middle <= 85 and 190 <= most <= 240
    assert 1.05 * low < more < 0.95 * high


@pytest.mark.slow
@pytest.mark.simulator
def test_ppo_in_other_processes_records_the_same(tmp_path):
    settings = {"behaviour": "ppo", "steps": 800, "penalties": (0.0, 1.0), "n_envs": 2}
    here = collect_dataset("BallRun", tmp_path / "a.hdf5", per_cell=None, **settings)
    there = collect_dataset(
        "BallRun", tmp_path / "b.hdf5", per_cell=None, subprocesses=True, **settings
    )
    assert here.lengths.tolist() == [100] * 8
    assert_same(here, there)


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_velocity_task_with_ppo(tmp_path):
    words = ("--steps", 4000, "--penalties", 0, 2, "--n-envs", 2, "--per-cell", 100)
    collect(tmp_path, "HopperVelocity", "--output", "data.hdf5", *words)
    data = TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5")
    assert (data.observation_size, data.action_size) == (11, 3)
    assert 3500 <= data.n_transitions <= 4000
    assert data.terminated.mean() > 0.9  # a hopper that learns falls
    assert data.episode_costs.max() > 0
    assert_dsrl_reads(tmp_path / "data.hdf5", data)


@pytest.mark.slow
@pytest.mark.simulator
def test_metadrive_with_idm(tmp_path):
    words = ("--steps", 1001, "--n-envs", 1, "--per-cell", 100, "--seed", 3)
    collect(tmp_path, "easysparse", "--output", "data.hdf5", *words)
    data = TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5")
    assert (data.observation_size, data.action_size) == (259, 2)
    assert len(data) >= 2
    assert data.episode_returns.max() > 100  # it gets somewhere
    assert_dsrl_reads(tmp_path / "data.hdf5", data)


PLANNED = """
import numpy as np
from rcdt_agent.collect import TrajectoryRecorder, make_controller
from rcdt_agent.tasks.registry import get_task
from rcdt_agent.tasks.simulators import make_env

env = TrajectoryRecorder(make_env("easysparse"))
controller = make_controller("idm", get_task("easysparse"))
for allowance in (5.0, 30.0):
    obs, _ = env.reset(seed=1)
    controller.begin(env, np.random.default_rng(1))
    controller._plans, controller._allowance, controller._noise = True, allowance, np.zeros(2)
    controller._awake = 1000
    done = False
    while not done:
        obs, _, terminated, truncated, info = env.step(controller.act(obs))
        done = terminated or truncated
    print(info["trajectory"].episode_cost, info["trajectory"].episode_return)
env.close()
"""


@pytest.mark.slow
@pytest.mark.simulator
def test_distance_has_its_price_in_metadrive():
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLANNED], check=True, capture_output=True, text=True
    ).stdout
    (low_cost, low_return), (high_cost, high_return) = [
        tuple(map(float, line.split())) for line in said.splitlines()[-2:]
    ]
    assert abs(low_cost - 5.0) < 1.0 and abs(high_cost - 30.0) < 1.0
    assert low_return + 50 < high_return  # 25 of cost are 2500 km/h steps, 69 m


def wait_for(path, process, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.parametrize(("how", "n_envs"), [(signal.SIGINT, 2), (signal.SIGKILL, 1)])
def test_interrupted_collection(tmp_path, how, n_envs):
    """Whatever ends it: only whole trajectories, readable, and a resumption that knows them."""
    output = tmp_path / "data.hdf5"
    words = ("BallRun", "--output", output, "--per-cell", 10_000, "--n-envs", n_envs)
    process = start(tmp_path, *words, "--steps", 10_000_000)
    wait_for(output, process)
    time.sleep(0.3)
    process.send_signal(how)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), said
    kept = TrajectoryDataset.from_hdf5(output)
    parts = read_parts(tmp_path / "data.hdf5.parts")
    assert set(kept.lengths) == set(parts.lengths) == {100}
    assert parts.truncated.all() and parts.final_known.all()
    if how == signal.SIGINT:
        assert f"Interrupted: {len(parts)} complete trajectories are kept" in said
        assert "`--resume` continues" in said
        assert_same(kept, parts)
    steps = 100 * (len(parts) + 5)
    collect(tmp_path, *words, "--steps", steps, "--resume")
    data = TrajectoryDataset.from_hdf5(output)
    assert len(data) == len(parts) + 5
    assert_same(data.select(range(len(parts))), parts)
    starts = [data.observations[a:b].tobytes() for a, b in pairwise(data.offsets)]
    assert len(set(starts)) == len(data)  # no trajectory twice
    assert not (tmp_path / "data.hdf5.parts").exists()
