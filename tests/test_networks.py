"""The networks: causality, padding, and shortcuts that change nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rcdt_agent.networks import PolicyTransformer, TwinCritic
from rcdt_agent.networks.block import Block
from rcdt_agent.networks.critics import critic_values, mish, soft_update
from rcdt_agent.networks.dropout import Masks, draw_seed, kept_scale

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


def plain_block(block, x, masks):
    """The block in textbook form; dropout masks in the order of the fast one."""
    size_b, length, width = x.shape
    head = width // block.n_heads

    def drop(values, probability):
        if masks is None or not probability:
            return values
        mask = masks.draw(values.shape, probability, values.dtype)
        return values * mask * kept_scale(probability)

    def heads(values):
        return values.view(size_b, length, block.n_heads, head).transpose(1, 2)

    normed = block.norm_attention(x)
    q = heads(block.query(normed))
    k, v = (heads(part) for part in block.key_value(normed).chunk(2, dim=-1))
    scores = q @ k.transpose(-1, -2) / head**0.5
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    weights = drop(weights.flatten(0, 1), block.attention_dropout).view(weights.shape)
    mixed = (weights @ v).transpose(1, 2).reshape(size_b, length, width)
    x = x + drop(block.out(mixed).flatten(0, 1), block.dropout).view(x.shape)
    wide = F.gelu(block.widen(block.norm_mlp(x)))
    return x + drop(block.narrow(wide).flatten(0, 1), block.dropout).view(x.shape)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("attention_dropout", [0.0, 0.2])
def test_the_fast_block_is_the_plain_one(dropout, attention_dropout):
    torch.manual_seed(0)
    block = Block(16, 2, dropout, attention_dropout).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(B, 4 * T, 16, dtype=torch.float64, requires_grad=True)
    cpu = torch.device("cpu")
    wanted = [x, *block.parameters()]
    for seed in (None, 7) if dropout or attention_dropout else (None,):
        fast = block(x, masks=None if seed is None else Masks(seed, cpu))
        plain = plain_block(block, x, None if seed is None else Masks(seed, cpu))
        torch.testing.assert_close(fast, plain)
        weights = torch.randn_like(fast)
        ours = torch.autograd.grad((fast * weights).sum(), wanted)
        theirs = torch.autograd.grad((plain * weights).sum(), wanted)
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two)
        with torch.no_grad():
            again = block(x, masks=None if seed is None else Masks(seed, cpu))
        torch.testing.assert_close(again, fast.detach())


def test_gradients_of_the_last_block():
    block = make_policy().double().blocks[-1]
    x = torch.randn(B, 4 * T, 16, dtype=torch.float64, requires_grad=True)
    fast, plain = block(x, first=2, every=4), plain_block(block, x, None)[:, 2::4]
    torch.testing.assert_close(fast, plain)
    weights = torch.randn_like(fast)
    wanted = [x, *block.parameters()]
    ours = torch.autograd.grad((fast * weights).sum(), wanted)
    theirs = torch.autograd.grad((plain * weights).sum(), wanted)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("cost_token", [True, False])
def test_the_fast_policy_is_the_plain_one(cost_token):
    policy = make_policy(cost_token=cost_token).double()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in make_inputs().items()}
    inputs["timesteps"][0] = 3  # the same row of the table several times

    def plain():
        parts = [policy.embed_rtg(inputs["rtg"][..., None])]
        if cost_token:
            parts.append(policy.embed_ctg(inputs["ctg"][..., None]))
        parts += [policy.embed_obs(inputs["obs"]), policy.embed_action(inputs["actions"])]
        time = policy.embed_time(inputs["timesteps"])
        x = torch.stack([part + time for part in parts], dim=2).flatten(1, 2)
        x = policy.norm_in(x)
        for block in policy.blocks:
            x = plain_block(block, x, None)
        x = policy.norm_out(x)[:, len(parts) - 2 :: len(parts)]
        return policy.mean(x), policy.log_std(x).clamp(*policy.log_std_range)

    fast, slow = policy(**inputs), plain()
    wanted = list(policy.parameters())
    for one, two in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, two)
    ours, theirs = (
        torch.autograd.grad(mean.square().sum() + log_std.sum(), wanted)
        for mean, log_std in (fast, slow)
    )
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


def test_masks_drop_with_their_probability_and_independently():
    probability, n = 0.1, 400_000
    masks = Masks(3, torch.device("cpu"))
    one, two = masks.draw((n,), probability), masks.draw((n,), probability)
    assert set(one.unique().tolist()) == {0.0, 1.0}
    spread = (probability * (1 - probability) / n) ** 0.5
    assert abs(one.mean() - 0.9) < 5 * spread
    assert abs((one * two).mean() - 0.81) < 5 * spread
    assert abs((one[1:] * one[:-1]).mean() - 0.81) < 5 * spread
    assert kept_scale(probability) * one.mean() == pytest.approx(1.0, abs=6 * spread)
    again = Masks(3, torch.device("cpu"))
    assert torch.equal(again.draw((n,), probability), one)
    assert not torch.equal(Masks(4, torch.device("cpu")).draw((n,), probability), one)


def test_dropout_follows_torchs_seed():
    policy, inputs = make_policy(dropout=0.1, attention_dropout=0.1), make_inputs()
    policy.train()

    def run():
        return torch.cat(policy(**inputs), dim=-1).detach()

    torch.manual_seed(5)
    one, two = run(), run()
    torch.manual_seed(5)
    assert torch.equal(run(), one)
    assert not torch.equal(one, two)
    policy.eval()
    assert torch.equal(run(), run())
    torch.manual_seed(5)
    seed = draw_seed()
    policy.train()
    assert torch.equal(
        policy.features(**inputs, dropout_seed=seed), policy.features(**inputs, dropout_seed=seed)
    )


@pytest.mark.parametrize("cost_token", [True, False])
@pytest.mark.parametrize("length", [1, T])
def test_the_last_state_alone_is_the_last_of_all(cost_token, length):
    policy = make_policy(cost_token=cost_token).double()
    inputs = {
        key: (value.double() if value.is_floating_point() else value)[:, :length]
        for key, value in make_inputs().items()
    }
    with torch.no_grad():
        last, every = policy.last_features(**inputs), policy.features(**inputs)
    torch.testing.assert_close(last, every[:, -1])


def test_the_last_state_follows_weights_that_change():
    policy, inputs = make_policy(), make_inputs()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, fused=True)

    def step():
        policy.train()
        policy(**inputs)[0].sum().backward()
        optimizer.step()

    other = make_policy(n_layers=2)
    torch.nn.init.normal_(other.blocks[0].query.weight)
    seen = []
    for change in (step, step, lambda: policy.load_state_dict(other.state_dict())):
        change()
        policy.eval()
        with torch.inference_mode():
            seen.append(policy.last_features(**inputs).clone())
            expected = policy.features(**inputs)[:, -1]
        torch.testing.assert_close(seen[-1], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(seen[0], seen[1], atol=1e-3)
    assert not torch.allclose(seen[1], seen[2], atol=1e-3)
    twin = copy.deepcopy(policy)
    with torch.inference_mode():
        torch.testing.assert_close(twin.last_features(**inputs), seen[-1])


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
    value, slope = mish(x.detach().clone(), True)
    torch.testing.assert_close(value, F.mish(x.detach()), rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(
        slope, torch.autograd.grad(F.mish(x).sum(), x)[0], rtol=1e-7, atol=1e-7
    )
    single = torch.linspace(-30, 90, 1201)
    torch.testing.assert_close(mish(single.clone(), False)[0], F.mish(single), rtol=1e-5, atol=1e-6)


def test_critics_together_are_the_critics_alone():
    critics = [TwinCritic(OBS, ACT, width=8, scale=scale) for scale in (3.0, 0.5)]
    obs, actions = torch.randn(5, 7, OBS), torch.randn(5, 7, ACT, requires_grad=True)
    alone = [critic(obs, actions) for critic in critics]
    together = critic_values(critics, obs, actions)
    wanted = [actions, *critics[0].parameters(), *critics[1].parameters()]

    def gradients(values):
        return torch.autograd.grad(values[0].square().sum() + values[1].sum(), wanted)

    for one, two in zip(together, alone, strict=True):
        torch.testing.assert_close(one, two)
    expected = gradients(alone)
    for one, two in zip(gradients(together), expected, strict=True):
        torch.testing.assert_close(one, two)
    frozen = critic_values(critics, obs, actions, frozen=True)
    loss = frozen[0].square().sum() + frozen[1].sum()
    torch.testing.assert_close(torch.autograd.grad(loss, actions, retain_graph=True), expected[:1])
    assert torch.autograd.grad(loss, wanted[1], allow_unused=True) == (None,)


def test_critic_gradients_by_automatic_differentiation():
    critic = TwinCritic(OBS, ACT, width=8, n_layers=4).double()
    obs, actions = torch.randn(6, OBS).double(), torch.randn(6, ACT).double().requires_grad_()

    def plain(twin):
        x = torch.cat((obs, actions), dim=-1)
        for layer in critic.layers[:-1]:
            x = F.mish(x @ layer.weight[twin] + layer.bias[twin])
        return (x @ critic.layers[-1].weight[twin] + critic.layers[-1].bias[twin])[:, 0]

    wanted = [actions, *critic.parameters()]
    ours = torch.autograd.grad(critic(obs, actions).square().sum(), wanted)
    theirs = torch.autograd.grad((plain(0).square() + plain(1).square()).sum(), wanted)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


def test_soft_update():
    source, target = TwinCritic(OBS, ACT, width=4), TwinCritic(OBS, ACT, width=4)
    old = [p.clone() for p in target.parameters()]
    soft_update(target, source, 0.25)
    for now, before, goal in zip(target.parameters(), old, source.parameters(), strict=True):
        np.testing.assert_allclose(
            now.detach(), (0.75 * before + 0.25 * goal).detach(), rtol=1e-5, atol=1e-7
        )


def test_places_in_the_window_know_nothing_of_the_episode():
    policy, inputs = make_policy(n_timesteps=T, absolute_times=False), make_inputs()
    later = {**inputs, "timesteps": inputs["timesteps"] + 7}
    with torch.no_grad():
        torch.testing.assert_close(policy.features(**later), policy.features(**inputs))
        every = policy.features(**inputs)
        torch.testing.assert_close(policy.last_features(**later), every[:, -1])
        # It is the place that counts, not nothing: the same step twice gives two answers.
        twice = {name: x[:, :1].expand(-1, T, *x.shape[2:]) for name, x in inputs.items()}
        policy.embed_time.weight[1] += 1.0
        first, second = policy.features(**twice)[:, :2].unbind(1)
    assert not torch.allclose(first, second)
    absolute = make_policy()
    with torch.no_grad():
        assert not torch.allclose(absolute.features(**later), absolute.features(**inputs))
