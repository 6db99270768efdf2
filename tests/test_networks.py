"""Shared parts of the baselines: critics, VAE, actor and multipliers, against hand-made values."""

from __future__ import annotations

import math

import pytest
import torch

from rcdt_agent.algorithms.markov import frozen
from rcdt_agent.algorithms.multipliers import LogMultiplier, PIDLagrangian
from rcdt_agent.critics import target_network, update_target
from rcdt_agent.networks import CPU_ROWS, VAE, CriticEnsemble, SquashedGaussian, mlp, repeat


@pytest.mark.parametrize("rows", [5, CPU_ROWS])  # in one product, and member by member
def test_each_member_of_an_ensemble_is_an_mlp(rows):
    torch.manual_seed(0)
    ensemble = CriticEnsemble(3, 4, 8, n_layers=3)
    obs, actions = torch.randn(rows, 7, 3), torch.randn(rows, 7, 1)
    values = ensemble(obs, actions)
    assert values.shape == (3, rows, 7)
    for i in range(3):
        single = mlp(4, 8, 3, 1)
        for linear, layer in zip(single[::2], ensemble.layers, strict=True):
            linear.weight.data = layer.weight[i].T
            linear.bias.data = layer.bias[i, 0]
        expected = single(torch.cat((obs, actions), -1))[..., 0]
        torch.testing.assert_close(values[i], expected, rtol=1e-4, atol=1e-5)


def test_a_target_network_follows_and_is_not_trained():
    ensemble = CriticEnsemble(1, 2, 4)
    target = target_network(ensemble)
    with torch.no_grad():
        ensemble.layers[0].bias += 1.0
    before = target.layers[0].bias.clone()
    update_target(target, ensemble, 0.25)
    torch.testing.assert_close(target.layers[0].bias, before + 0.25)
    assert not any(p.requires_grad for p in target.parameters())


def test_vae_encodes_clamps_and_decodes():
    torch.manual_seed(0)
    vae = VAE(3, 2, 16)
    obs, actions, noise = torch.randn(5, 3), torch.rand(5, 2), torch.randn(5, 4)
    decoded, mean, log_std = vae(obs, actions, noise)
    assert vae.latent_size == 4
    torch.testing.assert_close(decoded, vae.decode(obs, mean + log_std.exp() * noise))
    torch.testing.assert_close(
        decoded, torch.tanh(vae.decode_raw(obs, mean + log_std.exp() * noise))
    )
    with torch.no_grad():
        vae.encoder[-1].bias[4:] = 1e3
    assert (vae.encode(obs, actions)[1] == 15.0).all()
    with torch.no_grad():
        vae.encoder[-1].bias[4:] = -1e3
    assert (vae.encode(obs, actions)[1] == -4.0).all()


def test_squashed_gaussian_draws_and_mode():
    torch.manual_seed(0)
    actor = SquashedGaussian(3, 2, 16, 3)
    obs, noise = torch.randn(6, 3), torch.randn(6, 2)
    mean, log_std = actor(obs)
    torch.testing.assert_close(actor.sample(obs, noise), torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(actor.mode(obs), torch.tanh(mean))
    with torch.no_grad():
        actor.network[-1].bias[2:] = 50.0
    assert (actor(obs)[1] == 2.0).all()


def test_rows_are_repeated_without_a_copy():
    obs = torch.randn(4, 3)
    repeated = repeat(obs, 10)
    assert repeated.shape == (4, 10, 3)
    assert repeated.data_ptr() == obs.data_ptr()
    assert torch.equal(repeated[:, 7], obs)


def test_frozen_modules_pass_gradients_on_but_get_none():
    critic, actions = CriticEnsemble(2, 1, 4), torch.zeros(3, 1, requires_grad=True)
    with frozen(critic):
        critic(actions).sum().backward()
    assert actions.grad.abs().sum() > 0
    assert all(p.grad is None and p.requires_grad for p in critic.parameters())


# ------------------------------------------------------------ multipliers


def test_pid_by_hand():
    """K_P 1, K_I 0.5, K_D 2: violations 2, 3, -4, -4."""
    pid = PIDLagrangian((1.0, 0.5, 2.0), None)
    found = [pid.update(torch.tensor(e)).item() for e in (2.0, 3.0, -4.0, -4.0)]
    assert found == pytest.approx(
        [
            2 + 0.5 * 2 + 2 * 2,
            3 + 0.5 * 5 + 2 * 1,
            0.5 * 1,  # integral 5 - 4; no proportional part, no rise
            0.0,
        ]
    )
    assert (pid.integral.item(), pid.previous.item()) == (0.0, -4.0)


def test_pid_is_capped_and_does_not_wind_up():
    pid, free = PIDLagrangian((0.1, 0.01, 0.0), 2.0), PIDLagrangian((0.1, 0.01, 0.0), None)
    for _ in range(1000):
        pid.update(torch.tensor(5.0))
        free.update(torch.tensor(5.0))
    assert pid.lmbda.item() == 2.0
    assert free.lmbda.item() == pytest.approx(0.5 + 0.01 * 5000)
    assert pid.integral.item() == pytest.approx(200.0)  # 2 / 0.01
    for _ in range(41):
        pid.update(torch.tensor(-5.0))
    assert pid.lmbda.item() == 0.0  # free from the cap within its own 40 steps
    assert free.lmbda.item() > 40


def test_pid_state_is_saved():
    pid = PIDLagrangian((0.1, 0.003, 0.001), 10.0)
    for violation in (3.0, 1.0):
        pid.update(torch.tensor(violation))
    other = PIDLagrangian((0.1, 0.003, 0.001), 10.0)
    other.load_state_dict(pid.state_dict())
    assert set(pid.state_dict()) == {"lmbda", "integral", "previous"}
    ours, theirs = pid.update(torch.tensor(2.0)), other.update(torch.tensor(2.0))
    assert ours.item() == theirs.item() == pytest.approx(0.1 * 2 + 0.003 * 6 + 0.001 * 1)


def test_log_multiplier_by_hand():
    alpha = LogMultiplier(0.5)
    alpha.ascend(torch.tensor(2.0))
    assert alpha.log_value.item() == pytest.approx(1.0)
    alpha.ascend(torch.tensor(-1.0))
    assert alpha.log_value.item() == pytest.approx(1.0 - 0.5 * math.e)
    for _ in range(50):
        alpha.ascend(torch.tensor(9.0))
    assert alpha.value.item() == pytest.approx(math.exp(5.0))
    assert set(alpha.state_dict()) == {"log_value"}
