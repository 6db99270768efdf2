"""The networks: causality, padding, and shortcuts that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rcdt_agent.networks import PolicyTransformer, TwinCritic
from rcdt_agent.networks.critics import mish, soft_update

B, T, OBS, ACT = 3, 5, 4, 2


def make_policy(**kwargs):
    torch.manual_seed(0)
    settings = {"n_timesteps": 20, "n_layers": 2, "n_heads": 2, "width": 16, "dropout": 0.0}
    policy = PolicyTransformer(OBS, ACT, **{**settings, "attention_dropout": 0.0, **kwargs})
    for parameter in policy.parameters():  # larger than at birth, so that tokens really interact
        torch.nn.init.normal_(parameter, std=0.4)
    return policy


def make_inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "obs": draw(B, T, OBS),
        "actions": draw(B, T, ACT),
        "rtg": draw(B, T),
        "ctg": draw(B, T),
        "timesteps": torch.arange(T).expand(B, T).clone(),
    }


@pytest.mark.parametrize("cost_token", [True, False])
@pytest.mark.parametrize("name", ["obs", "actions", "rtg", "ctg", "timesteps"])
def test_a_later_token_never_changes_an_earlier_action(cost_token, name):
    policy, inputs = make_policy(cost_token=cost_token), make_inputs()
    before = torch.cat(policy(**inputs), dim=-1)
    t = 2
    changed = {key: value.clone() for key, value in inputs.items()}
    changed[name][:, t] += 3
    after = torch.cat(policy(**changed), dim=-1)
    # A state, RTG or CTG token acts from its own step on, an action from the next.
    first = t + 1 if name == "actions" else t
    torch.testing.assert_close(after[:, :first], before[:, :first], rtol=0, atol=0)
    if name == "ctg" and not cost_token:
        torch.testing.assert_close(after, before, rtol=0, atol=0)
    else:
        for later in range(first, T):
            assert not torch.allclose(after[:, later], before[:, later], atol=1e-4)


def test_padding_changes_neither_output_nor_gradient():
    policy, inputs = make_policy(), make_inputs()
    real = 3

    def run(garbage):
        padded = {key: value.clone() for key, value in inputs.items()}
        for key in padded:
            padded[key][:, real:] = garbage if key != "timesteps" else int(garbage)
        policy.zero_grad()
        mean, log_std = (out[:, :real] for out in policy(**padded))
        (mean.square().sum() + log_std.sum()).backward()
        return mean.detach(), [p.grad.clone() for p in policy.parameters()]

    mean, gradients = run(0.0)
    other_mean, other_gradients = run(7.0)
    torch.testing.assert_close(other_mean, mean, rtol=0, atol=0)
    for one, two in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_the_last_block_answers_as_a_full_one():
    policy = make_policy()
    block, x = policy.blocks[-1], torch.randn(B, 4 * T, 16)
    torch.testing.assert_close(block(x, first=2, every=4), block(x)[:, 2::4], rtol=1e-5, atol=1e-5)


def test_late_timesteps_use_the_last_row():
    policy, inputs = make_policy(n_timesteps=8), make_inputs()
    inputs["timesteps"][:] = 7
    expected, _ = policy(**inputs)
    inputs["timesteps"][:] = 1000
    torch.testing.assert_close(policy(**inputs)[0], expected, rtol=0, atol=0)


def test_log_std_is_bounded():
    policy = make_policy(log_std_range=(-1.0, -0.5))
    _, log_std = policy(**make_inputs())
    assert (log_std >= -1.0).all() and (log_std <= -0.5).all()


def test_twins_are_two_independent_networks():
    critic = TwinCritic(OBS, ACT, width=8, n_layers=4, scale=3.0)
    obs, actions = torch.randn(5, 7, OBS), torch.randn(5, 7, ACT)
    values = critic(obs, actions)
    assert values.shape == (2, 5, 7)
    assert len(critic.layers) == 4
    for twin in range(2):
        x = torch.cat((obs, actions), dim=-1)
        for i, layer in enumerate(critic.layers):
            x = x @ layer.weight[twin] + layer.bias[twin]
            if i < 3:
                x = F.mish(x)
        torch.testing.assert_close(values[twin], 3.0 * x[..., 0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(values[0], values[1])


def test_mish_is_mish():
    x = torch.linspace(-30, 90, 1201, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(mish(x), F.mish(x), rtol=1e-7, atol=1e-10)
    ours, theirs = (torch.autograd.grad(f(x).sum(), x)[0] for f in (mish, F.mish))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    single = torch.linspace(-30, 90, 1201)
    torch.testing.assert_close(mish(single), F.mish(single), rtol=1e-5, atol=1e-6)


def test_soft_update():
    source, target = TwinCritic(OBS, ACT, width=4), TwinCritic(OBS, ACT, width=4)
    old = [p.clone() for p in target.parameters()]
    soft_update(target, source, 0.25)
    for now, before, goal in zip(target.parameters(), old, source.parameters(), strict=True):
        np.testing.assert_allclose(
            now.detach(), (0.75 * before + 0.25 * goal).detach(), rtol=1e-5, atol=1e-7
        )
