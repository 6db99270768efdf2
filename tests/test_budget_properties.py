"""Random scripts: the token is always the budget in force minus what was really spent."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vector_envs import MinimalVector, Toll

from rcdt_agent import RCDT, VectorReturnCostTokens

N = 3


@pytest.fixture(scope="module")
def driver(trained):
    return RCDT.load(io.BytesIO(trained))


class WrappedVector:
    """A vector environment in one of Gymnasium's reset modes, within the vector wrapper."""

    def __init__(self, driver, mode, seed):
        makers = [lambda i=i: Toll(seed + i) for i in range(N)]
        inner = MinimalVector(makers, mode)
        self.driver, self.envs, self.mode = driver, inner.envs, mode
        self.venv, self.inner, self.state = VectorReturnCostTokens(inner), inner, None
        self.obs, _ = self.venv.reset(seed=seed)

    def predict(self):
        self.actions, self.state = self.driver.predict(self.obs, self.state)
        return self.state

    def step(self):
        self.obs, *_ = self.venv.step(self.actions)
        if self.mode == "disabled" and self.inner.ended.any():
            self.reset(self.inner.ended.copy())

    def reset(self, mask):
        options = {"reset_mask": mask} if self.mode == "disabled" else None
        self.obs, _ = self.venv.reset(options=options)


class WrappedSingle:
    def __init__(self, driver, mode, seed):
        self.envs = [Toll(seed)]
        self.driver, self.env, self.state = driver, driver.wrap(self.envs[0]), None
        self.obs, _ = self.env.reset(seed=seed)

    def predict(self):
        self.action, self.state = self.driver.predict(self.obs, self.state)
        return self.state

    def step(self):
        self.obs, _, _, ended, _ = self.env.step(self.action)
        if ended:
            self.reset(None)

    def reset(self, mask):
        self.obs, _ = self.env.reset()


class PlainVector:
    """Plain environments: `observe` after each step, `episode_start` where one was reset."""

    def __init__(self, driver, mode, seed):
        self.driver, self.envs = driver, [Toll(seed + i) for i in range(N)]
        self.obs = np.stack([env.reset(seed=seed)[0] for env in self.envs])
        self.state, self.starts = None, np.ones(N, dtype=bool)

    def predict(self):
        self.actions, self.state = self.driver.predict(self.obs, self.state, self.starts)
        self.starts = np.zeros(N, dtype=bool)
        return self.state

    def step(self):
        steps = [env.step(action) for env, action in zip(self.envs, self.actions, strict=True)]
        self.obs = np.stack([step[0] for step in steps])
        self.state = self.state.observe([s[1] for s in steps], [s[4]["cost"] for s in steps])
        self.reset(np.array([step[3] for step in steps]))

    def reset(self, mask):
        for i in np.flatnonzero(mask):
            self.obs[i], _ = self.envs[i].reset()
        self.starts |= mask


class HeldByTheAgent:
    """`agent.reset()` and `agent.act(obs, reward, cost)`."""

    def __init__(self, driver, mode, seed):
        self.driver, self.envs = driver, [Toll(seed)]
        self.reset(None)

    def predict(self):
        self.action = self.driver.act(self.obs, *self.outcome)
        return self.driver.episode

    def step(self):
        self.obs, reward, _, ended, info = self.envs[0].step(self.action)
        self.outcome = reward, info["cost"]
        if ended:
            self.reset(None)

    def reset(self, mask):
        self.obs, _ = self.envs[0].reset()
        self.outcome = ()
        self.driver.reset()


LOOPS = {
    "same": WrappedVector,
    "same-dict": WrappedVector,
    "next": WrappedVector,
    "disabled": WrappedVector,
    "single": WrappedSingle,
    "plain": PlainVector,
    "act": HeldByTheAgent,
}
SCRIPT = st.lists(
    st.one_of(
        st.just("step"),
        st.just("step"),
        # A step, and a reset of these.
        st.lists(st.booleans(), min_size=N, max_size=N).map(np.array),
        st.floats(0, 60),  # a new budget, and a step
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("mode", LOOPS)
@given(script=SCRIPT, seed=st.integers(0, 1000))
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_token_is_the_budget_in_force_minus_what_was_spent(driver, mode, script, seed):
    budget = 20.0
    driver.set_cost_budget(budget)
    loop = LOOPS[mode](driver, mode, seed)
    for item in script:
        state = loop.predict()
        spent = np.array([env.spent for env in loop.envs])
        earned = np.array([env.earned for env in loop.envs])
        np.testing.assert_allclose(state.cost_to_go, budget - spent, atol=1e-4)
        np.testing.assert_allclose(
            state.return_to_go, driver.target_return - earned, rtol=1e-5, atol=1e-4
        )
        newest = state.ctg[np.arange(state.n_envs), state.position]  # as the network is asked
        np.testing.assert_allclose(newest, budget - spent, atol=1e-4)
        if isinstance(item, float):
            driver.set_cost_budget(item)
            budget = item
        loop.step()
        if isinstance(item, np.ndarray):
            loop.reset(item)


@pytest.mark.parametrize("mode", LOOPS)
@given(
    pairs=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
)
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_lowered_budget_never_raises_a_token(driver, mode, pairs, seed):
    """Of two runs that differ in their last budget alone, the smaller has the smaller token."""
    tokens = []
    for last in (min, max):
        loop = LOOPS[mode](driver, mode, seed)
        for budgets in pairs:
            driver.set_cost_budget(last(budgets))
            state = loop.predict()
            loop.step()
        tokens.append(state.cost_to_go)
    assert (tokens[0] <= tokens[1]).all()
