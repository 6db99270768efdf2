"""AgentState: the window of a recorded episode, tokens that move, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rcdt_agent.data import WindowSampler
from rcdt_agent.deploy import AgentState
from rcdt_agent.errors import InvalidArgumentError, StateError


def begin(n=1, k=4, target_return=10.0, cost_budget=5.0):
    return AgentState.begin(
        n, context_length=k, observation_size=3, action_size=2, target_return=target_return,
        cost_budget=cost_budget,
    )  # fmt: skip


def test_the_window_equals_the_samplers_slice(dataset):
    """Replaying a recorded episode gives, at every step, the window the sampler would cut."""
    k = 4
    sampler = WindowSampler(dataset, context_length=k, batch_size=1, generator=torch.Generator())
    for m in (2, 3):  # 7 and 12 steps: shorter and longer than the window
        rows = slice(dataset.offsets[m], dataset.offsets[m + 1])
        state = begin(
            k=k, target_return=dataset.episode_returns[m], cost_budget=dataset.episode_costs[m]
        )
        columns = (
            dataset.observations, dataset.actions, dataset.rewards, dataset.costs,
        )  # fmt: skip
        steps = zip(*(column[rows] for column in columns), strict=True)
        for t, (obs, action, reward, cost) in enumerate(steps):
            state = state.push(obs[None])
            start = max(0, t - k + 1)
            batch = sampler.windows(torch.tensor([m]), torch.tensor([start]))
            real = t - start + 1
            assert int(state.position[0]) == real - 1
            for ours, theirs in (
                (state.obs, batch.obs), (state.rtg, batch.rtg), (state.ctg, batch.ctg),
                (state.timesteps, batch.timesteps),
            ):  # fmt: skip
                np.testing.assert_allclose(ours[0, :real], theirs[0, :real], atol=1e-5)
                assert not ours[0, real:].any()  # padded as the sampler pads
            window = state.window(state.target_return, state.cost_budget, torch.device("cpu"))
            for name in ("obs", "rtg", "ctg", "timesteps", "mask"):
                torch.testing.assert_close(
                    getattr(window, name), getattr(batch, name)[:, :real], rtol=0, atol=1e-5
                )
            state = state.with_action(action[None])
            np.testing.assert_allclose(state.actions[0, :real], batch.actions[0, :real], atol=1e-6)
            state = state.observe(reward, cost)


def test_tokens_go_down_by_what_happened():
    state = begin(2, target_return=[10.0, 20.0], cost_budget=[5.0, 1.0])
    state = state.push(np.zeros((2, 3))).with_action(np.zeros((2, 2)))
    state = state.observe([1.5, 2.0], [1.0, 3.0])
    assert state.return_to_go.tolist() == [8.5, 18.0]
    assert state.cost_to_go.tolist() == [4.0, -2.0]  # overspent, and not hidden


def test_a_state_is_never_changed():
    first = begin()
    second = first.push(np.ones((1, 3)))
    third = second.with_action(np.ones((1, 2)))
    third.observe(1.0, 1.0)
    assert not first.obs.any() and first.steps[0] == 0
    assert not second.actions.any() and not second.awaiting[0]
    assert third.awaiting[0] and third.total_return[0] == 0


def test_predicting_without_feedback_raises():
    state = begin().push(np.zeros((1, 3))).with_action(np.zeros((1, 2)))
    with pytest.raises(StateError, match=r"state.observe\(reward, cost\)"):
        state.push(np.zeros((1, 3)))


def test_feedback_without_an_action_raises():
    with pytest.raises(StateError, match="without an action waiting"):
        begin().observe(1.0, 0.0)
    state = begin().push(np.zeros((1, 3))).with_action(np.zeros((1, 2))).observe(1.0, 0.0)
    with pytest.raises(StateError):
        state.observe(1.0, 0.0)  # twice


@pytest.mark.parametrize(
    ("reward", "cost", "message"),
    [
        (np.nan, 0.0, "`reward` must be finite"),
        (1.0, np.inf, "`cost` must be finite"),
        (1.0, -0.1, "`cost` must be >= 0, got -0.1"),
        ([1.0, 2.0, 3.0], 0.0, r"`reward` must be a number or have shape \(2,\)"),
    ],
)
def test_bad_feedback(reward, cost, message):
    state = begin(2).push(np.zeros((2, 3))).with_action(np.zeros((2, 2)))
    with pytest.raises(InvalidArgumentError, match=message):
        state.observe(reward, cost)


def test_restart_clears_one_environment_only():
    state = begin(2)
    for _ in range(6):
        state = state.push(np.ones((2, 3))).with_action(np.ones((2, 2))).observe(1.0, 1.0)
    state = state.restart([True, False])
    assert state.steps.tolist() == [0, 6]
    assert not state.obs[0].any() and state.obs[1].all()
    assert state.return_to_go.tolist() == [10.0, 4.0]
    assert state.cost_to_go.tolist() == [5.0, -1.0]
    state = state.push(np.full((2, 3), 2.0))
    assert state.timesteps[0].tolist() == [0, 0, 0, 0]
    assert state.timesteps[1].tolist() == [3, 4, 5, 6]


def test_another_budget_moves_the_whole_window():
    state = begin()
    for _ in range(3):
        state = state.push(np.ones((1, 3))).with_action(np.ones((1, 2))).observe(1.0, 1.0)
    state = state.push(np.ones((1, 3)))
    assert state.ctg[0].tolist() == [5, 4, 3, 2]
    moved = state.with_targets(target_return=20.0, cost_budget=8.0)
    assert moved.ctg[0].tolist() == [8, 7, 6, 5]  # as if it had been so from the start
    assert moved.rtg[0].tolist() == [20, 19, 18, 17]


def test_environments_at_different_places_are_like_each_alone():
    """One window full, one not, one just begun: each as if it were the only one."""
    rng = np.random.default_rng(0)
    together = begin(3, k=3)
    alone = [begin(1, k=3) for _ in range(3)]
    for t in range(8):
        restarted = np.array([False, t == 4, t in (2, 6)])
        together = together.restart(restarted)
        obs, actions = rng.normal(size=(3, 3)), rng.normal(size=(3, 2))
        rewards, costs = rng.normal(size=3), rng.random(3)
        together = together.push(obs.astype(np.float32)).with_action(actions.astype(np.float32))
        for i in range(3):
            one = alone[i].restart(restarted[i : i + 1]).push(obs[i : i + 1].astype(np.float32))
            alone[i] = one.with_action(actions[i : i + 1].astype(np.float32))
            for name in ("obs", "actions", "earned", "spent", "steps", "rtg", "ctg", "timesteps"):
                np.testing.assert_array_equal(
                    getattr(together, name)[i], getattr(alone[i], name)[0], err_msg=f"{t} {name}"
                )
        together = together.observe(rewards, costs)
        alone = [one.observe(rewards[i : i + 1], costs[i : i + 1]) for i, one in enumerate(alone)]
