"""The diffusion policy: schedule, noise and denoising by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rcdt_agent.diffusion import (
    DiffusionActor,
    NoiseNetwork,
    add_noise,
    denoising_loss,
    variance_preserving_betas,
)


def test_schedule_by_hand():
    betas = variance_preserving_betas(2)
    # 0.1 / 2 + 9.9 (2 n - 1) / 8 for n = 1, 2
    expected = [1 - math.exp(-(0.05 + 9.9 / 8)), 1 - math.exp(-(0.05 + 3 * 9.9 / 8))]
    torch.testing.assert_close(betas, torch.tensor(expected))
    kept = torch.cumprod(1 - variance_preserving_betas(5), 0)[-1]
    assert kept.item() == pytest.approx(math.exp(-(0.1 + 10) / 2), rel=1e-4)  # nearly all noise


def test_added_noise_by_hand():
    noisy = add_noise(torch.tensor([[2.0]]), torch.tensor([[10.0]]), torch.tensor([0.36]))
    assert noisy.item() == pytest.approx(0.6 * 2 + 0.8 * 10)


def test_denoising_loss_by_hand():
    predicted = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    noise = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    loss = denoising_loss(predicted, noise, torch.tensor([2.0, 0.5]))
    assert loss.item() == pytest.approx((2 * (1 + 4) + 0.5 * 9) / 2)


class _Known(nn.Module):
    """Knows the noise of an action that should be 0.3 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.cumprod(1 - variance_preserving_betas(5), 0)

    def forward(self, actions, obs, step):
        kept = self.kept[step][:, None]
        return (actions - kept.sqrt() * 0.3) / (1 - kept).sqrt()


def test_denoising_finds_the_action_that_the_network_knows():
    actor = DiffusionActor(_Known(), 5)
    noise = torch.randn(6, 200, 2, generator=torch.Generator().manual_seed(0))
    actions = actor.denoise(torch.zeros(200, 3), noise)
    torch.testing.assert_close(actions, torch.full((200, 2), 0.3), atol=1e-5, rtol=0)


def test_denoised_actions_are_within_bounds_and_depend_on_the_observation():
    torch.manual_seed(0)
    network = NoiseNetwork(3, 2, width=16, n_blocks=2, dropout=0.5).eval()
    actor = DiffusionActor(network, 5).eval()
    noise = torch.randn(6, 50, 2)
    at_zero, at_one = (actor.denoise(torch.full((50, 3), x), noise) for x in (0.0, 3.0))
    assert at_zero.abs().max() <= 1 and not torch.equal(at_zero, at_one)
    step = torch.zeros(50, dtype=torch.long)
    early = network(noise[0], torch.zeros(50, 3), step)
    late = network(noise[0], torch.zeros(50, 3), step + 4)
    assert not torch.allclose(early, late)


def test_a_diffusion_policy_learns_two_modes():
    torch.manual_seed(1)
    actor = DiffusionActor(NoiseNetwork(1, 1, width=32, n_blocks=2, dropout=0.0), 5)
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
    for _ in range(400):
        actions = torch.where(torch.rand(256, 1) < 0.5, -0.7, 0.7)
        noise, step = torch.randn(256, 1), torch.randint(5, (256,))
        predicted = actor(actions, torch.zeros(256, 1), step, noise)
        loss = denoising_loss(predicted, noise, torch.ones(256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        drawn = actor.denoise(torch.zeros(500, 1), torch.randn(6, 500, 1)).flatten()
    assert 0.3 < (drawn > 0).float().mean() < 0.7  # both, not their mean
    assert (drawn.abs() > 0.3).float().mean() > 0.75
