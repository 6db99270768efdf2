"""FISOR: its equations by hand, what each loss moves, and SpeedLimit without violations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rcdt_agent import FISOR, TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.networks import twin_values
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers
from rcdt_agent.weighted_losses import feasibility_target, feasibility_weights

SMALL = {"preset": "tiny", "seed": 1, "batch_size": 32, "critic_batch_size": 16, "width": 16}


def test_feasibility_target_by_hand():
    violations = torch.tensor([-1.0, -1.0, 25.0, 25.0])
    next_values = torch.tensor([-1.0, 9.0, -1.0, -1.0])
    ends = torch.tensor([False, False, False, True])
    target = feasibility_target(violations, next_values, ends, 0.9)
    # 0.1 * -1 + 0.9 * -1, 0.1 * -1 + 0.9 * 9, 0.1 * 25 + 0.9 * 25, and h itself at an end
    torch.testing.assert_close(target, torch.tensor([-1.0, 8.0, 25.0, 25.0]))


def test_feasibility_weights_by_hand():
    advantages = torch.tensor([0.5, 0.5, 9.0, 0.5, 0.5])
    q_h = torch.tensor([-1.0, 2.0, -0.5, 1.0, 0.0])
    v_h = torch.tensor([-1.0, -1.0, -1.0, 1.2, 9.0])
    weights = feasibility_weights(
        advantages, q_h, v_h, temperatures=(3.0, 5.0), caps=(100.0, 150.0)
    )
    # kept, leaves the region, capped, the way back, capped
    expected = [math.exp(1.5), 0.0, 100.0, math.exp(1.0), 150.0]
    torch.testing.assert_close(weights, torch.tensor(expected))


def test_pessimism_is_less_reward_and_more_violation():
    q, q_h = twin_values(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    assert q.item() == 1.0 and q_h.item() == 4.0


def state(agent):
    """Copies of all parameters by module."""
    modules = {"acting": agent.policy.actor, "targets": agent.policy.critics}
    modules |= agent.training.modules
    return {
        name: torch.cat([p.detach().flatten().clone() for p in module.parameters()])
        for name, module in modules.items()
    }


def test_each_update_moves_what_it_should(drivers):
    agent = FISOR(**SMALL).learn(drivers, 2)
    before = state(agent)
    batch = agent.sampler.sample_transitions()
    agent._update_actor(batch)
    after = state(agent)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "actor", "acting",
    }  # fmt: skip
    moved = (after["acting"] - before["acting"]) / (after["actor"] - before["acting"])
    assert moved.nanmedian().item() == pytest.approx(agent.config.ema_rate, rel=1e-2)
    agent._update_critics(batch)
    last = state(agent)
    assert {name for name in after if not torch.equal(after[name], last[name])} == {
        "critics", "values", "targets",
    }  # fmt: skip


def test_a_timeout_ends_only_as_published():
    """One step an episode, always violated at the end: h = 25 is learned if the end counts."""
    n = 64
    data = TrajectoryDataset.from_arrays(
        observations=np.zeros((n, 1)),
        actions=np.zeros((n, 1)),
        rewards=np.arange(n, dtype=float),
        costs=np.zeros(n),
        next_observations=np.zeros((n, 1)),
        terminals=np.zeros(n),
        timeouts=np.ones(n),
    )
    found = {}
    for flag in (False, True):
        agent = FISOR(**SMALL, as_published=flag, discount=0.5).learn(data, 300)
        inputs = torch.zeros(1, 1), torch.zeros(1, 1)
        found[flag] = agent.critics(*inputs)[:2].mean().item()
    mean = float(data.rewards.mean()) / 63  # rewards are scaled by episode length / range
    assert found[True] == pytest.approx(mean, abs=0.25)  # one reward
    assert found[False] == pytest.approx(2 * mean, abs=0.5)  # and the next, and the next ...


def test_deterministic_actions_depend_on_the_observation_alone(drivers):
    agent = FISOR(**SMALL).learn(drivers, 20)
    obs = drivers.observations[:6]
    alone = np.concatenate([agent.predict(row[None])[0] for row in obs])
    together, _ = agent.predict(obs)
    np.testing.assert_allclose(alone, together, atol=1e-6)
    np.testing.assert_array_equal(agent.predict(obs)[0], together)
    drawn = [agent.predict(obs, deterministic=False)[0] for _ in range(2)]
    assert not np.array_equal(*drawn)


def test_it_knows_no_budget_and_refuses_bad_settings():
    with pytest.raises(InvalidArgumentError, match="FISOR serves no cost budget"):
        FISOR(preset="tiny").set_cost_budget(5.0)
    for field, value in (
        ("critic_batch_size", 0), ("actor_updates", 0), ("violation", 0.0), ("expectile", 0.3),
        ("violation_expectile", 1.0), ("diffusion_steps", 0), ("n_candidates", 0),
        ("ema_rate", 0.0), ("discount", 1.0), ("dropout", -0.1), ("reward_cap", 0.0),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
            FISOR(preset="tiny", **{field: value})


@pytest.mark.slow
def test_hardly_any_cost_on_speed_limit():
    data = TrajectoryDataset.from_arrays(**record_drivers(300, seed=0))
    assert data.episode_costs.mean() > 10
    agent = FISOR(preset="tiny", seed=0).learn(data)
    result = agent.evaluate(ENV_ID, [2.0], n_episodes=20, n_envs=20).results[0]
    assert result.mean_cost < 0.5
    assert result.mean_return > 15  # it drives
