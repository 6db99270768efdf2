"""Every equation on hand-worked numbers, and Proposition 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from rcdt_agent import losses, schedules

MASK = torch.tensor([[True, True], [True, False]])


def test_returns_to_go():
    rewards = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0])
    ends = torch.tensor([False, False, True, False, True])
    assert losses.returns_to_go(rewards, ends).tolist() == [6, 5, 3, 30, 20]


def test_trajectory_weights():
    weights = losses.trajectory_weights(
        torch.tensor([0.0, 50.0, 100.0]),
        torch.tensor([20.0, 20.0, 30.0]),
        alpha=2.0,
        gamma=0.1,
        cost_limit=20.0,
    )
    expected = [0.5, np.exp(1.0) * 0.5, np.exp(2.0) / (1 + np.exp(1.0))]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    equal = losses.trajectory_weights(
        torch.ones(3), torch.zeros(3), alpha=1.0, gamma=0.1, cost_limit=0.0
    )
    np.testing.assert_allclose(equal, 0.5)  # equal returns: no division by zero


def test_frontier_weights_by_hand():
    """At the best: 1; halfway to the median: exp(-2); at the median: exp(-4); beyond: 1."""
    rtg = torch.tensor([10.0, 8.0, 6.0, 4.0, 50.0])
    weights = losses.frontier_weights(rtg, torch.tensor(10.0), torch.tensor(6.0), 4.0)
    expected = [1.0, math.exp(-2), math.exp(-4), math.exp(-6), 1.0]
    assert weights.tolist() == pytest.approx(expected)


def test_relative_excess_by_hand():
    excess, reference = torch.tensor(0.6), torch.tensor(0.5)
    assert float(losses.relative_excess(excess, reference, 0.8)) == pytest.approx(0.5)
    assert float(losses.relative_excess(torch.tensor(0.0), torch.tensor(0.0), 0.8)) == -1.0


def test_expert_weights():
    assert losses.expert_weights(torch.tensor([True, False]), 3.0).tolist() == [4.0, 1.0]


def test_masked_mean_ignores_padding():
    values = torch.tensor([[1.0, 2.0], [6.0, 1e9]])
    assert losses.masked_mean(values, MASK) == 3.0
    assert losses.masked_mean(values, torch.zeros_like(MASK)) == 0.0


def test_gaussian_log_prob_and_entropy():
    actions, mean = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]])
    log_std = torch.tensor([[0.0, math.log(2.0)]])
    half_log = 0.5 * math.log(2 * math.pi)
    by_hand = ((-0.5 - half_log) + (-math.log(2.0) - half_log)) / 2
    assert losses.gaussian_log_prob(actions, mean, log_std).item() == pytest.approx(by_hand)
    entropy = 0.5 * math.log(2.0) + 0.5 * math.log(2 * math.pi * math.e)
    assert losses.gaussian_entropy(log_std).item() == pytest.approx(entropy)


def test_weighted_nll():
    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, 1e9]])
    # -(2 * -1 + 2 * -2 + 5 * -3) / 3
    assert losses.weighted_nll(log_prob, torch.tensor([2.0, 5.0]), MASK).item() == 7.0


def test_effective_sample_size_by_hand():
    assert losses.effective_sample_size(torch.ones(8)).item() == 1.0
    assert losses.effective_sample_size(torch.tensor([4.0, 0.0, 0.0, 0.0])).item() == 0.25
    assert losses.effective_sample_size(torch.tensor([3.0, 1.0])).item() == pytest.approx(0.8)


def test_temperature_falls_where_the_entropy_is_above_its_target():
    temperature = torch.tensor(0.5, requires_grad=True)
    entropy = torch.tensor(-1.0, requires_grad=True)
    loss = losses.temperature_loss(temperature, entropy, -3.0)
    assert loss.item() == pytest.approx(0.5 * 2.0)
    loss.backward()
    assert temperature.grad.item() == pytest.approx(2.0)  # descent lowers it
    assert entropy.grad is None  # the policy is not moved by it


def test_q_guidance_is_scaled_by_the_other_twin():
    q_a = torch.tensor([[1.0, 2.0], [3.0, 1e9]], requires_grad=True)
    q_b = torch.tensor([[-4.0, 4.0], [4.0, 1e9]], requires_grad=True)
    value = losses.q_guidance(q_a, losses.q_scale(q_b, MASK), MASK)
    assert value.item() == pytest.approx(2.0 / 4.0)
    value.backward()
    assert q_b.grad is None
    np.testing.assert_allclose(q_a.grad, [[1 / 12, 1 / 12], [1 / 12, 0]])


def test_cost_penalty():
    assert losses.cost_penalty(torch.tensor([[3.0, 0.0], [6.0, 99.0]]), MASK).item() == 3.0


def test_cost_head_loss():
    logit = torch.tensor([[0.0, math.log(3.0)], [math.log(3.0), 99.0]])
    costs = torch.tensor([[0.5, 0.0], [2.0, 0.0]])
    by_hand = (math.log(2) + math.log(4) + math.log(4 / 3)) / 3
    assert losses.cost_head_loss(logit, costs, MASK).item() == pytest.approx(by_hand, rel=1e-5)


def test_td_target():
    target = losses.td_target(
        torch.tensor([1.0, 1.0]), torch.tensor([10.0, 10.0]), torch.tensor([False, True]), 0.9
    )
    assert target.tolist() == [10.0, 1.0]


def test_td_target_ignores_whatever_follows_a_terminal():
    target = losses.td_target(
        torch.tensor([1.0]), torch.tensor([float("nan")]), torch.tensor([True]), 0.9
    )
    assert target.tolist() == [1.0]


def test_td_loss_sums_twins_and_masks():
    values = torch.tensor([[[1.0, 0.0], [0.0, 9.0]], [[3.0, 0.0], [0.0, 9.0]]])
    target = torch.tensor([[2.0, 0.0], [0.0, 0.0]], requires_grad=True)
    # (1 + 1) / 3
    assert losses.td_loss(values, target, MASK).item() == pytest.approx(2 / 3)


def test_dual_ascent_is_projected_and_capped():
    def step(lmbda, cost):
        return losses.dual_ascent(
            torch.tensor(lmbda), torch.tensor(cost), kappa=10.0, step_size=0.1, maximum=5.0
        ).item()

    assert step(1.0, 12.0) == pytest.approx(1.2)
    assert step(1.0, 8.0) == pytest.approx(0.8)
    assert step(0.1, 0.0) == 0.0
    assert step(4.9, 100.0) == 5.0


def test_cost_allowance_by_hand():
    # 6 left over 3 steps: 2 a step, worth 2 (1 + 1/2 + 1/4) = 3.5; at the end, all of it.
    left, steps = torch.tensor([6.0, -1.0, 6.0]), torch.tensor([3, 3, 0])
    assert losses.cost_allowance(left, steps, 0.5).tolist() == [3.5, 0.0, 6.0]


def test_cost_allowance_of_a_critic_that_looks_beyond_the_episode():
    """A policy that spends its token evenly is worth exactly what its token allows."""
    to_go, steps, discount = torch.tensor([8.0]), torch.tensor([4]), 0.5
    evenly = sum(2.0 * discount**k for k in range(4))  # 2 a step for four steps
    for_ever = 2.0 / (1 - discount)
    assert losses.cost_allowance(to_go, steps, discount).item() == pytest.approx(evenly)
    beyond = losses.cost_allowance(to_go, steps, discount, finite=False)
    assert beyond.item() == pytest.approx(for_ever)


def test_pessimism_by_hand():
    twins = torch.tensor([[1.0, 5.0], [3.0, 4.0]])
    assert losses.pessimistic(twins, 0.0).tolist() == [2.0, 4.5]
    assert losses.pessimistic(twins, 0.5).tolist() == twins.amax(0).tolist()
    assert losses.pessimistic(twins, -0.5).tolist() == twins.amin(0).tolist()


def test_target_rate_lets_short_trainings_converge():
    """The share of the error that soft targets leave, (1 - tau (1 - discount)) ** steps."""
    for n_steps in (1_500, 9_000, 150_000):
        rate = schedules.target_rate(n_steps, 0.99)
        assert (1 - rate * 0.01) ** n_steps < 0.01
    assert schedules.target_rate(150_000, 0.99) == 0.01  # the paper's
    assert schedules.target_rate(9_000, 0.99) == pytest.approx(5 / 90)
    assert (1 - 0.01 * 0.01) ** 9_000 > 0.4  # what the paper's rate would leave there
    assert schedules.target_rate(10, 0.99) == 1.0


def test_cost_excess_counts_only_what_is_beyond():
    costs, allowed = torch.tensor([[3.0, 1.0, 9.0]]), torch.tensor([[1.0, 2.0, 0.0]])
    mask = torch.tensor([[True, True, False]])
    assert losses.cost_excess(costs, allowed, mask) == 1.0  # (2 + 0) / 2


def test_episode_cost_factor():
    # Two steps, discount 0.5: values 1.5 with two left, 1 with one left; mean 1.25 for a cost of 2.
    assert losses.episode_cost_factor(0.5, 2) == pytest.approx(2 / 1.25)
    assert losses.episode_cost_factor(0.0, 7) == 7.0
    # A mean critic value of kappa = 10 is an episode cost of about 110 over 1000 steps.
    assert 10 * losses.episode_cost_factor(0.99, 1000) == pytest.approx(111, abs=1)


def test_alignment_bound():
    assert losses.alignment_bound(0.01, 0.5, 10) == pytest.approx(0.01 * 4 * 100)
    assert losses.alignment_bound(0.01, 0.5, 10, constant=3.0) == pytest.approx(12.0)
    assert losses.alignment_bound(0.01, 0.0, 10) == np.inf
    assert losses.alignment_bound(0.0, 0.5, 10) == 0.0


def test_proposition_1_kl_is_a_weight():
    """The RDT objective with KL and the weighted NLL with W = 1 + alpha have the same gradient."""
    torch.manual_seed(0)
    alpha, std, size_a = 1.7, 0.3, 3
    obs, actions = torch.randn(6, 4, 5), torch.randn(6, 4, size_a)
    is_expert = torch.tensor([True, False, False, True, False, True])
    mask = torch.rand(6, 4) < 0.8
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, size_a))

    def gradient(loss):
        return torch.cat(
            [
                g.flatten()
                for g in torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
            ]
        )

    policy = torch.distributions.Normal(model(obs), std)
    expert = torch.distributions.Normal(actions, std)  # maximum likelihood on the expert's data
    nll = -policy.log_prob(actions).mean(-1)
    kl = torch.distributions.kl_divergence(policy, expert).mean(-1)
    rdt = losses.masked_mean(nll, mask) + alpha * losses.masked_mean(kl * is_expert[:, None], mask)
    log_prob = losses.gaussian_log_prob(
        actions, model(obs), torch.full_like(actions, math.log(std))
    )
    weighted = losses.weighted_nll(log_prob, losses.expert_weights(is_expert, alpha), mask)
    torch.testing.assert_close(gradient(rdt), gradient(weighted), rtol=1e-4, atol=1e-6)
    plain = losses.weighted_nll(log_prob, torch.ones(6), mask)
    assert not torch.allclose(gradient(plain), gradient(weighted), rtol=1e-2)


def test_cost_threshold_by_hand():
    """Budget 12 over 3 steps is 4 a step: 4 + 4 / 2 + 4 / 4 for a discount of one half."""
    assert losses.cost_threshold(12.0, 0.5, 3) == pytest.approx(7.0)
    assert losses.cost_threshold(12.0, 0.5, 3, normalised=True) == pytest.approx(3.5)
    # The published factors: budget 20 at 1000 steps, 10 at 300.
    assert losses.cost_threshold(20.0, 0.99, 1000) == pytest.approx(2.0, abs=1e-3)
    assert losses.cost_threshold(10.0, 0.99, 300) == pytest.approx(3.17, abs=5e-3)
    assert losses.cost_threshold(20.0, 0.99, 1000, normalised=True) == pytest.approx(0.02, abs=1e-5)
    assert losses.cost_threshold(0.0, 0.99, 1000) == 0.0


def test_expectile_loss_by_hand():
    difference = torch.tensor([2.0, -1.0])
    assert losses.expectile_loss(difference, 0.9).item() == pytest.approx((0.9 * 4 + 0.1) / 2)
    # The expectile .75 of 0 and 4 is 3: .25 (3 - 0) = .75 (4 - 3).
    estimate = torch.tensor(3.0, requires_grad=True)
    losses.expectile_loss(torch.tensor([0.0, 4.0]) - estimate, 0.75).backward()
    assert estimate.grad.item() == pytest.approx(0.0, abs=1e-6)


def test_learning_rate_by_hand():
    settings = {"peak": 2.0, "warmup_steps": 3, "total_steps": 100, "final_share": 0.1}
    assert schedules.learning_rate(0, **settings) == pytest.approx(2.0 / 4)
    assert schedules.learning_rate(50, **settings) == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert schedules.learning_rate(100, **settings) == pytest.approx(0.2)
    assert schedules.learning_rate(500, **settings) == pytest.approx(0.2)
    constant = {**settings, "final_share": 1.0}
    assert [schedules.learning_rate(s, **constant) for s in (3, 50, 500)] == [2.0] * 3


def test_early_averages_of_weights_forget_faster():
    assert schedules.ema_rate(0, 0.998) == pytest.approx(0.9)  # 1 - 1 / 10
    assert schedules.ema_rate(90, 0.998) == pytest.approx(0.09)  # 1 - 91 / 100
    assert schedules.ema_rate(1_000_000, 0.998) == pytest.approx(0.002)
