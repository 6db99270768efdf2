"""Long and heavy use: 200,000 steps of many environments; `predict` from threads and processes."""

from __future__ import annotations

import gc
import io
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rcdt_agent import RCDT, VectorReturnCostTokens
from rcdt_agent.tasks.speed_limit import GRID, HORIZON, drive, limit_at, observe

N_ENVS, STEPS = 1_000, 200
PAGE = 4096


def resident_megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


class ManyRoads(gym.vector.VectorEnv):
    """SpeedLimit's cars side by side in numpy; a trip is over after 20 to 60 steps.

    `spent` and `earned` are the truth, in double precision, of the trips under way.
    """

    metadata = {"autoreset_mode": "SameStep"}  # noqa: RUF012

    def __init__(self, n):
        single = gym.make("rcdt_agent/SpeedLimit-v0")
        spaces = single.observation_space, single.action_space
        if hasattr(gym.vector, "VectorEnvWrapper"):  # gymnasium < 1.0
            super().__init__(n, *spaces)
        self.num_envs = n
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (
            gym.vector.utils.batch_space(space, n) for space in spaces
        )
        self.rng = np.random.default_rng(0)
        self.lengths = self.rng.integers(20, HORIZON + 1, n)
        self.steps = self.rng.integers(0, 20, n)  # trips end at different times
        self.speeds, self.zones = np.full(n, 0.4), np.full(n, 20)
        self.earned, self.spent = np.zeros((2, n))
        self.n_ended = 0

    def _observe(self):
        rows = [
            observe(s, t, z) for s, t, z in zip(self.speeds, self.steps, self.zones, strict=True)
        ]
        return np.stack(rows)

    def reset(self, *, seed=None, options=None):
        return self._observe(), {}

    def step(self, actions):
        limits = limit_at(self.steps, self.zones)
        self.speeds, costs = drive(self.speeds, actions[:, 0], limits)
        self.steps += 1
        rewards = self.speeds.copy()
        self.earned += rewards
        self.spent += costs
        ended = self.steps >= self.lengths
        self.n_ended += int(ended.sum())
        every = np.ones(self.num_envs, dtype=bool)
        infos = {"cost": costs, "_cost": every}
        if ended.any():
            self.steps[ended], self.speeds[ended] = 0, GRID
            self.earned[ended] = self.spent[ended] = 0.0
        return self._observe(), rewards, np.zeros_like(ended), ended, infos


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "rolling budget, no resets"])
def test_200_000_steps_leave_memory_flat_and_counters_right(agent, wrapped):
    env = ManyRoads(N_ENVS)
    window = 25
    if wrapped:
        env_in_use = VectorReturnCostTokens(env)
        agent.set_cost_budget(10)
    else:
        env_in_use = env
        env.lengths[:] = 10**9  # nothing ever ends
        env.zones[:] = 10**9
        agent.set_cost_budget(2, per=window)
    obs, _ = env_in_use.reset()
    state, recent, sizes, objects = agent.begin(N_ENVS), [], [], []
    for step in range(STEPS):
        actions, state = agent.predict(obs, state)
        before = env.spent.copy()
        obs, rewards, _, _, infos = env_in_use.step(actions)
        recent = [*recent, env.spent - before][-window:]
        if not wrapped:
            state = state.observe(rewards, infos["cost"])
        if step % 20 == 19:
            gc.collect()
            sizes.append(resident_megabytes())
            objects.append(len(gc.get_objects()))
    assert state.n_envs * STEPS == 200_000
    if wrapped:
        assert env.n_ended > 2_000
        np.testing.assert_allclose(obs["episode_cost"][:, 0], env.spent, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(obs["episode_return"][:, 0], env.earned, rtol=1e-6, atol=1e-6)
    else:
        assert (state.episode_steps == STEPS).all()
        np.testing.assert_allclose(state.total_cost, env.spent, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(state.cost_to_go, 2 - np.sum(recent, axis=0), atol=1e-4)
    half = len(sizes) // 2
    assert max(sizes[half:]) - max(sizes[:half]) < 16, sizes  # megabytes
    assert max(objects[half:]) - max(objects[:half]) < 500, objects


def test_a_rolling_budget_counts_rightly_after_months(agent):
    """1e8 are spent in 231 days of 50 steps a second at 0.1 each: sums must not stand still.

    The window holds the present step, whose cost is not known, and the four before it.
    """
    agent.set_cost_budget(2, per=5)
    agent.reset()
    agent.act(np.zeros(4))
    agent.act(np.zeros(4), 1.0, 1e8)
    for _ in range(6):
        agent.act(np.zeros(4), 1.0, 0.1)
    assert agent.episode.cost_to_go == pytest.approx([2 - 4 * 0.1], abs=1e-5)


# ------------------------------------------------------------ load


def episode(agent, seed, steps=25):
    """Actions of some environments over some steps, with budgets of their own."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    state = agent.begin(n, cost_budget=rng.uniform(1, 30, n))
    actions = []
    for _ in range(steps):
        action, state = agent.predict(rng.normal(size=(n, 4)).astype(np.float32), state)
        state = state.observe(rng.normal(size=n), rng.uniform(0, 1, n))
        actions.append(action)
    return np.concatenate(actions)


def episodes_of_a_file(content, seeds):
    agent = RCDT.load(io.BytesIO(content), device="cpu")
    return [episode(agent, seed) for seed in seeds]


def test_predict_from_many_threads_is_predict_from_one(agent):
    expected = [episode(agent, seed) for seed in range(48)]
    together = threading.Barrier(16)

    def work(first):
        together.wait()
        return [episode(agent, seed) for seed in range(first, 48, 16)]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(work, range(16)))
    for first, results in enumerate(found):
        for seed, actions in zip(range(first, 48, 16), results, strict=True):
            np.testing.assert_array_equal(actions, expected[seed])


@pytest.mark.slow
def test_predict_in_several_processes_is_predict_in_one(agent, trained):
    seeds = [range(first, 12, 3) for first in range(3)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=spawn) as pool:
        found = list(pool.map(episodes_of_a_file, [trained] * 3, seeds))
    for several, results in zip(seeds, found, strict=True):
        for seed, actions in zip(several, results, strict=True):
            np.testing.assert_array_equal(actions, episode(agent, seed))
