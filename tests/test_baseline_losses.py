"""Every equation of the baselines against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from rcdt_agent import baseline_losses as losses


def test_gaussian_kl_by_hand():
    """Of N(1, e^2) and N(0, 1): (1 + e^2 - 1 - 2) / 2 and 0; their mean."""
    mean, log_std = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    by_hand = (math.e**2 - 2) / 2 / 2
    assert losses.gaussian_kl(mean, log_std).item() == pytest.approx(by_hand)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, log_std.exp()), normal(0.0, 1.0))
    torch.testing.assert_close(losses.gaussian_kl(mean, log_std), expected.mean(-1))


def test_vae_loss_by_hand():
    reconstructed, actions = torch.tensor([[0.5, 0.0]]), torch.tensor([[0.0, 1.0]])
    mean, log_std = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)
    # Squared errors .25 and 1; KL 2 and 0, whose mean 1 counts half.
    loss = losses.vae_loss(reconstructed, actions, mean, log_std, 0.5)
    assert loss.item() == pytest.approx(0.625 + 0.5 * 1.0)


def test_ensemble_td_loss_by_hand():
    values = torch.tensor([[1.0, 3.0], [0.0, 2.0]], requires_grad=True)
    target = torch.tensor([1.0, 1.0], requires_grad=True)
    loss = losses.ensemble_td_loss(values, target)
    assert loss.item() == (0 + 4) / 2 + (1 + 1) / 2
    loss.backward()
    assert target.grad is None
    assert values.grad.tolist() == [[0.0, 2.0], [-1.0, 1.0]]


def test_mixed_value_by_hand():
    """Groups (4, 6) and (1, 9): minima 4 and 1, maxima 6 and 9."""
    values = torch.tensor([[[4.0], [6.0]], [[1.0], [9.0]]])
    assert losses.mixed_value(values, 0.75, pessimism="low").item() == 0.75 * 1 + 0.25 * 4
    assert losses.mixed_value(values, 0.75, pessimism="high").item() == 0.75 * 9 + 0.25 * 6


def test_lagrangian_loss_by_hand():
    q, cost = torch.tensor([1.0, 3.0]), torch.tensor([4.0, 8.0])
    lmbda = torch.tensor(0.5, requires_grad=True)
    loss = losses.lagrangian_loss(q.requires_grad_(), cost.requires_grad_(), lmbda, 2.0)
    assert loss.item() == -2.0 + 0.5 * (6.0 - 2.0)
    loss.backward()
    assert lmbda.grad is None
    assert (q.grad.tolist(), cost.grad.tolist()) == ([-0.5, -0.5], [0.25, 0.25])


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd_by_hand(kernel):
    """One point at 0 and one at (3, 4): squared distance 25, sum of differences 7."""
    x, y = torch.zeros(1, 1, 2), torch.tensor([[[3.0, 4.0]]])
    distance = {"gaussian": 25.0, "laplacian": 7.0}[kernel]
    by_hand = math.sqrt(1 + 1 - 2 * math.exp(-distance / (2 * 10.0)) + 1e-6)
    assert losses.mmd(x, y, 10.0, kernel).item() == pytest.approx(by_hand)
    same = torch.randn(3, 4, 2)
    torch.testing.assert_close(losses.mmd(same, same, 10.0, kernel), torch.full((3,), 1e-3))


def test_mmd_pulls_a_sample_towards_the_other():
    x, y = torch.zeros(1, 5, 1), torch.full((1, 5, 1), 2.0, requires_grad=True)
    losses.mmd(x, y, 10.0).sum().backward()
    assert (y.grad > 0).all()  # descending moves y towards x


def test_penalised_value_by_hand():
    q = torch.tensor([5.0, 7.0, -2.0], requires_grad=True)
    cost = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    value = losses.penalised_value(q, cost, 2.0)
    assert value.tolist() == [5.0, 0.0, -2.0]
    value.sum().backward()
    assert q.grad.tolist() == [1.0, 0.0, 1.0]
    assert cost.grad is None


def test_out_of_distribution_by_hand():
    divergence = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    found = losses.out_of_distribution(divergence, 0.8)
    assert found.tolist() == [[False, False, False], [False, True, True]]
    cost = torch.arange(6.0).view(2, 3)
    assert losses.ood_cost(cost, found).item() == 4.5
    assert losses.ood_cost(cost, found, zeros_included=True).item() == pytest.approx(9 / 6)


def test_soft_chi_square_by_hand():
    x = torch.tensor([0.0, 0.5, 1.0, 3.0])
    by_hand = [1.0, 0.5 * math.log(0.5) + 0.5, 0.0, 2.0]
    assert losses.soft_chi_square(x).tolist() == pytest.approx(by_hand)
    y = torch.tensor([-1.0, 0.0, 2.0])
    assert losses.soft_chi_square_weight(y).tolist() == pytest.approx([math.exp(-1), 1.0, 3.0])
    # It is the inverse of the derivative.
    weights = torch.tensor([0.2, 0.9, 1.0, 2.5], requires_grad=True)
    (slope,) = torch.autograd.grad(losses.soft_chi_square(weights).sum(), weights)
    torch.testing.assert_close(losses.soft_chi_square_weight(slope), weights.detach())


def test_dice_advantage_and_nu_loss_by_hand():
    one = torch.ones(1)
    advantage = losses.dice_advantage(3 * one, 2 * one, 4 * one, 2.5 * one, 0.5)
    assert advantage.item() == 3 - 0.5 * 2 + 2.5 - 4
    # e = .5, alpha = .5: w = e / alpha + 1 = 2, f(w) = .5.
    loss = losses.dice_nu_loss(torch.tensor([10.0]), advantage, 0.5, 0.9)
    assert loss.item() == pytest.approx(0.1 * 10 + 2 * 0.5 - 0.5 * 0.5)
    assert losses.dice_advantage(one, one, one, 0 * one, 1.0).item() == -1.0


def test_the_weights_maximise_the_nu_loss():
    """Their own gradient vanishes: descending nu needs none through them."""
    advantage = torch.tensor([-2.0, 0.3, 1.5], requires_grad=True)
    losses.dice_nu_loss(torch.zeros(1), advantage, 0.5, 0.9).backward()
    weights = losses.soft_chi_square_weight(advantage.detach() / 0.5)
    torch.testing.assert_close(advantage.grad, weights / 3)


def test_dice_cost_bound_by_hand():
    one, weights = torch.ones(1), torch.full((1,), 2.0, requires_grad=True)
    chi = torch.full((1,), 3.0, requires_grad=True)
    ell = losses.dice_cost_term(10 * one, weights, one, chi, 1.5 * one, 0.9)
    assert ell.item() == pytest.approx(0.1 * 10 + 2 * (1 + 1.5 - 3))
    ell.backward()
    assert chi.grad.item() == -2.0 and weights.grad is None
    tau = torch.tensor(0.5, requires_grad=True)
    tilt = losses.dice_cost_weights(torch.tensor([0.0, 0.5 * math.log(3.0)]), tau)
    assert tilt.tolist() == pytest.approx([0.5, 1.5])
    divergence = (0.5 * math.log(0.5) + 1.5 * math.log(1.5)) / 2
    assert losses.dice_divergence(tilt).item() == pytest.approx(divergence, rel=1e-5)
    assert losses.dice_divergence(torch.ones(4)).item() == 0.0


def test_normal_log_prob_by_hand():
    actions, mean = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]])
    log_std = torch.tensor([[0.0, math.log(2.0)]])
    by_hand = -0.5 - math.log(2.0) - math.log(2 * math.pi)
    assert losses.normal_log_prob(actions, mean, log_std).item() == pytest.approx(by_hand)
