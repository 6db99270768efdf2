"""CAPS: heads and switch by hand, what each loss moves, budgets in every kind of loop."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from rcdt_agent import CAPS, TrajectoryDataset, load_agent
from rcdt_agent.errors import InvalidArgumentError, StateError
from rcdt_agent.networks import twin_values
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers
from rcdt_agent.weighted_losses import advantage_weights, choose_head, head_weights

SMALL = {"preset": "tiny", "seed": 1, "width": 16, "batch_size": 32, "cost_budget": 10.0}


def test_weights_by_hand():
    weights = advantage_weights(torch.tensor([0.0, -1.0, 9.0]), 3.0, 100.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, math.exp(-3), 100.0]))


def test_head_weights_by_hand():
    w_r, w_c = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 30.0])
    torch.testing.assert_close(head_weights(w_r, w_c, 2), torch.stack((w_r, w_c)))
    # Four heads: shares 1 / 1.5 and 2 / 1.5 of the cost's weights between.
    expected = [w_r, w_r + w_c / 1.5, w_r + 2 * w_c / 1.5, w_c]
    torch.testing.assert_close(head_weights(w_r, w_c, 4), torch.stack(expected))


def test_switch_by_hand():
    reward = torch.tensor([[9.0, 9.0, 9.0], [5.0, 5.0, 5.0], [1.0, 1.0, 1.0]])
    cost = torch.tensor([[8.0, 8.0, 8.0], [4.0, 4.0, 4.0], [2.0, 2.0, 2.0]])
    # All allowed: most reward. Two allowed: the better of them. None: the least cost.
    heads = choose_head(reward, cost, torch.tensor([8.0, 5.0, 1.0]))
    assert heads.tolist() == [0, 1, 2]


def test_pessimism_is_less_reward_and_more_cost():
    reward, cost = twin_values(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    assert reward.item() == 1.0 and cost.item() == 4.0


def test_allowance_is_what_is_left_spread_over_the_steps_left(drivers):
    policy = CAPS(**SMALL).learn(drivers, 1).policy
    assert policy.episode_length == 60
    left, steps = torch.tensor([10.0, 10.0, -3.0]), torch.tensor([2, 1, 5])
    # 5 a step: 5 (1 + 0.99); 10 at once; nothing
    torch.testing.assert_close(policy.allowance(left, steps), torch.tensor([9.95, 10.0, 0.0]))


def snapshot(agent):
    """Copies of all parameters by part."""
    parts = {
        "heads": [*agent.policy.network.parameters(), agent.policy.log_std],
        "targets": agent.policy.critics.parameters(),
        "critics": agent.critics.parameters(),
        "values": agent.values.parameters(),
    }
    return {name: torch.cat([p.detach().flatten() for p in part]) for name, part in parts.items()}


def test_each_loss_reaches_its_own_networks_only(drivers):
    agent = CAPS(**SMALL).learn(drivers, 3)
    batch = agent.sampler.sample_transitions()
    obs, actions = agent.policy.normalizer.obs(batch.obs), batch.actions
    advantages = torch.randn(len(obs))
    before = snapshot(agent)
    loss, _ = agent._imitation(obs, actions, advantages, -advantages)
    agent.minimize("policy", loss)
    after = snapshot(agent)
    assert {n for n in before if not torch.equal(before[n], after[n])} == {"heads"}
    agent.step()
    last = snapshot(agent)
    assert all(not torch.equal(after[n], last[n]) for n in after)


def test_a_weight_of_zero_silences_an_action(drivers):
    agent = CAPS(**SMALL, n_heads=2).learn(drivers, 1)
    obs = agent.policy.normalizer.obs(torch.from_numpy(drivers.observations[:2]))
    actions = torch.tensor([[1.0], [-1.0]])
    dear = torch.tensor([0.0, -1e4])  # the second costs far more than the state's value
    loss, _ = agent._imitation(obs, actions, torch.zeros(2), dear)
    agent.training.optimizers["policy"].zero_grad()
    loss.backward()
    careful = agent.policy.log_std.grad[1].item()
    means = agent.policy(obs).detach()[1, 0]
    z = (1.0 - means) * torch.exp(-agent.policy.log_std.detach()[1])
    # of d/d log_std (z^2 / 2 + log_std) only the first action is left, and all are averaged
    assert careful == pytest.approx(float((1 - z.square()) / 4), rel=1e-4)


def test_the_budget_acts_in_plain_wrapped_and_vector_loops(drivers, tmp_path):
    agent = CAPS(**SMALL).learn(drivers, 150)
    agent.set_cost_budget(4.0)
    report = agent.evaluate(ENV_ID, [4.0], n_episodes=3, seed=5, n_envs=3).results[0]
    for episode, (earned, spent) in enumerate(zip(report.returns, report.costs, strict=True)):
        plain = run(agent, gym.make(ENV_ID), episode + 5, wrapped=False)
        wrapped = run(agent, agent.wrap(gym.make(ENV_ID)), episode + 5, wrapped=True)
        assert plain == pytest.approx((earned, spent), abs=1e-3)
        assert wrapped == pytest.approx((earned, spent), abs=1e-3)
    agent.save(tmp_path / "caps")
    loaded = load_agent(tmp_path / "caps.zip")
    assert type(loaded) is CAPS and loaded.cost_budget == 4.0
    assert run(loaded, gym.make(ENV_ID), 5, wrapped=False) == pytest.approx(
        (report.returns[0], report.costs[0]), abs=1e-3
    )


def run(agent, env, seed, *, wrapped):
    """Return and cost of one episode."""
    obs, _ = env.reset(seed=seed)
    state, done, total = agent.begin(), False, np.zeros(2)
    while not done:
        action, state = agent.predict(obs, state)
        obs, reward, terminated, truncated, info = env.step(action)
        if not wrapped:
            state = state.observe(reward, info["cost"])
        total += reward, info["cost"]
        done = terminated or truncated
    return tuple(total)


def test_the_spent_budget_switches_to_the_careful_head(drivers):
    agent = CAPS(**SMALL).learn(drivers, 300)
    obs = drivers.observations[drivers.observations[:, 0] > 0.9][:50]
    n = len(obs)
    rich, _ = agent.predict(obs, agent.begin(n, cost_budget=1e4, target_return=0.0))
    poor, _ = agent.predict(obs, agent.begin(n, cost_budget=0.0, target_return=0.0))
    critics = agent.policy.critics
    rows = agent.policy.normalizer.obs(torch.from_numpy(obs))
    reward_rich, cost_rich = twin_values(critics(rows, torch.from_numpy(rich)))
    reward_poor, cost_poor = twin_values(critics(rows, torch.from_numpy(poor)))
    assert (cost_poor <= cost_rich + 1e-5).all() and (reward_rich >= reward_poor - 1e-5).all()
    assert (rich - poor).mean() > 0.2  # it brakes
    # Without an episode nothing is known to be left: the least costly head, too.
    with torch.no_grad():
        alone = agent.policy.act(
            torch.from_numpy(obs), generator=torch.Generator(), deterministic=True
        )
    least = critics(rows.expand(4, -1, -1), agent.policy(rows))[2:].amax(0).amin(0)
    torch.testing.assert_close(twin_values(critics(rows, alone))[1], least)


def test_dropped_states_uncovered_budgets_and_bad_settings(drivers):
    agent = CAPS(**SMALL).learn(drivers, 2)
    agent.predict(drivers.observations[0])
    with pytest.raises(StateError, match="was never used"):
        agent.predict(drivers.observations[1])
    with pytest.warns(UserWarning, match="above .*, the largest cost"):
        agent.set_cost_budget(1e6)
    agent.set_cost_budget(1e6)  # said once
    with pytest.raises(InvalidArgumentError, match="`target_return` must be 'auto'"):
        agent.set_cost_budget(10.0, target_return=5.0)
    for field, value in (
        ("n_heads", 1), ("expectile", 0.4), ("cost_expectile", 1.0), ("temperature", 0.0),
        ("weight_cap", -1.0), ("discount", 1.0), ("target_rate", 0.0), ("reward_scale", 0.0),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
            CAPS(preset="tiny", **{field: value})
    with pytest.raises(InvalidArgumentError, match="CAPS has no variants"):
        CAPS(variant="cdt")


@pytest.mark.slow
def test_one_model_follows_the_budget_that_it_is_asked_for():
    data = TrajectoryDataset.from_arrays(**record_drivers(300, seed=0))
    agent = CAPS(preset="tiny", seed=0, cost_budget=10.0).learn(data)
    budgets = (2.0, 10.0, 40.0)
    report = agent.evaluate(ENV_ID, budgets, n_episodes=20, n_envs=60)
    costs = [result.mean_cost for result in report.results]
    assert report.passed
    assert costs[0] < 2.0 < costs[1] < 10.0 < costs[2]
    returns = [result.mean_return for result in report.results]
    assert returns[0] > 45 and returns[0] < returns[1] < returns[2]
