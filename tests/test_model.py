"""The transformer against its definition: causality, padding, last state, dropout; the critics."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

import pytest
import torch
from torch.nn import functional as F

from rcdt_agent.critics import TwinCritics, target_network, update_target
from rcdt_agent.model import Block, FourierTime, Gaussian, PolicyTransformer, Window

B, T, OBS, ACT = 3, 5, 4, 2


def make_policy(**kwargs):
    torch.manual_seed(0)
    settings = {"episode_length": 20, "n_layers": 2, "n_heads": 2, "width": 16, "dropout": 0.0}
    policy = PolicyTransformer(OBS, ACT, **{**settings, "attention_dropout": 0.0, **kwargs})
    for parameter in policy.parameters():  # larger than at birth, so that tokens really interact
        torch.nn.init.normal_(parameter, std=0.4)
    return policy


def make_window(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    return Window(
        obs=draw(B, T, OBS), actions=draw(B, T, ACT), rtg=draw(B, T, 1), ctg=draw(B, T, 1),
        timesteps=torch.arange(T).expand(B, T).clone(), mask=torch.ones(B, T, dtype=torch.bool),
    )  # fmt: skip


def answer(policy, window, **kwargs):
    distribution = policy(window, **kwargs)
    return torch.cat((distribution.mean, distribution.log_std), dim=-1)


@pytest.mark.parametrize("cost_token", [True, False])
@pytest.mark.parametrize("name", ["obs", "actions", "rtg", "ctg", "timesteps"])
def test_a_later_token_never_changes_an_earlier_action(cost_token, name):
    policy, window = make_policy(cost_token=cost_token), make_window()
    before = answer(policy, window)
    t, changed = 2, getattr(window, name).clone()
    changed[:, t] += 3
    after = answer(policy, replace(window, **{name: changed}))
    # A state, RTG or CTG token acts from its own step on, an action from the next.
    first = t + 1 if name == "actions" else t
    torch.testing.assert_close(after[:, :first], before[:, :first], rtol=0, atol=0)
    if name == "ctg" and not cost_token:
        torch.testing.assert_close(after, before, rtol=0, atol=0)
    else:
        for later in range(first, T):
            assert not torch.allclose(after[:, later], before[:, later], atol=1e-4)


def test_padding_changes_neither_output_nor_gradient():
    policy, window, real = make_policy(), make_window(), 3

    def run(garbage):
        padded = {field.name: getattr(window, field.name).clone() for field in fields(window)}
        for values in padded.values():
            values[:, real:] = garbage
        policy.zero_grad()
        out = answer(policy, Window(**padded))[:, :real]
        out.square().sum().backward()
        return out.detach(), [p.grad.clone() for p in policy.parameters()]

    out, gradients = run(0)
    other, other_gradients = run(7)
    torch.testing.assert_close(other, out, rtol=0, atol=0)
    for one, two in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def textbook_block(block, x):
    """The block written out: explicit scores, mask and softmax."""
    size_b, length, width = x.shape
    head = width // block.n_heads

    def heads(values):
        return values.view(size_b, length, block.n_heads, head).transpose(1, 2)

    normed = block.norm_attention(x)
    key_value = block.key_value(normed).chunk(2, dim=-1)
    q, k, v = (heads(part) for part in (block.query(normed), *key_value))
    scores = q @ k.transpose(-1, -2) / math.sqrt(head)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    x = x + block.out((weights @ v).transpose(1, 2).reshape(size_b, length, width))
    return x + block.mlp(block.norm_mlp(x))


@pytest.mark.parametrize(
    "queries", [slice(None), slice(2, None, 4), slice(4 * T - 1, None)], ids=["all", "some", "last"]
)
def test_the_block_is_the_textbooks_also_at_chosen_positions(queries):
    block = make_policy().blocks[0].double()
    x = torch.randn(B, 4 * T, 16, dtype=torch.float64, requires_grad=True)
    ours, theirs = block(x, queries), textbook_block(block, x)[:, queries]
    torch.testing.assert_close(ours, theirs)
    wanted = [x, *block.parameters()]
    weights = torch.randn_like(ours)
    for one, two in zip(
        torch.autograd.grad((ours * weights).sum(), wanted),
        torch.autograd.grad((theirs * weights).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("cost_token", [True, False])
def test_the_policy_is_its_definition(cost_token):
    policy, window = make_policy(cost_token=cost_token).double(), make_window(dtype=torch.float64)
    parts = [policy.embed_rtg(window.rtg)]
    if cost_token:
        parts.append(policy.embed_ctg(window.ctg))
    parts += [policy.embed_obs(window.obs), policy.embed_action(window.actions)]
    time = policy.embed_time(window.timesteps)
    x = policy.norm_in(torch.stack([part + time for part in parts], dim=2).flatten(1, 2))
    for block in policy.blocks:
        x = textbook_block(block, x)
    states = policy.norm_out(x)[:, len(parts) - 2 :: len(parts)]
    torch.testing.assert_close(policy.hidden(window), states)
    mean, log_std = policy.head.layers(states).chunk(2, dim=-1)
    ours = policy(window)
    torch.testing.assert_close(ours.mean, mean.float())
    torch.testing.assert_close(ours.log_std, log_std.float().clamp(-5, 2))


@pytest.mark.parametrize("cost_token", [True, False])
@pytest.mark.parametrize("length", [1, T])
def test_the_last_state_alone_is_the_last_of_all(cost_token, length):
    policy, window = make_policy(cost_token=cost_token), make_window()
    window = Window(**{f.name: getattr(window, f.name)[:, :length] for f in fields(window)})
    with torch.no_grad():
        last, every = answer(policy, window, last_only=True), answer(policy, window)
    assert last.shape[1] == 1
    torch.testing.assert_close(last[:, 0], every[:, -1], rtol=1e-5, atol=1e-5)


def test_modules_call_their_layers():
    """Forward hooks fire, so that hooks, LoRA and quantisation find what they expect."""
    policy, called = make_policy(), []
    linear = [name for name, m in policy.named_modules() if isinstance(m, torch.nn.Linear)]
    for name, module in policy.named_modules():
        if name in linear:
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    policy(make_window())
    assert sorted(called) == sorted(linear)


def test_dropout_follows_torchs_seed():
    policy, window = make_policy(dropout=0.1, attention_dropout=0.1), make_window()
    policy.train()
    torch.manual_seed(5)
    one, two = answer(policy, window), answer(policy, window)
    torch.manual_seed(5)
    assert torch.equal(answer(policy, window), one)
    assert not torch.equal(one, two)
    policy.eval()
    assert torch.equal(answer(policy, window), answer(policy, window))


def test_attention_dropout_acts_on_its_own():
    block, x = Block(16, 2, dropout=0.0, attention_dropout=0.5), torch.randn(B, 8, 16)
    block.train()
    assert not torch.equal(block(x), block(x))
    block.eval()
    torch.testing.assert_close(block(x), textbook_block(block, x), rtol=1e-5, atol=1e-5)


def test_windows_are_split_into_micro_batches():
    window = make_window()
    parts = window.split(2)
    assert [len(part.mask) for part in parts] == [2, 1]
    torch.testing.assert_close(torch.cat([part.obs for part in parts]), window.obs)
    assert window.split(3) == [window] and window.split(99) == [window]


def test_the_gaussian_by_hand():
    gaussian = Gaussian(torch.tensor([[0.5, 3.0]]), torch.tensor([[0.0, math.log(2.0)]]))
    log_two_pi = math.log(2 * math.pi)
    # z = (0.5 - 0.5) / 1 and (1 - 3) / 2; averaged over dimensions.
    expected = (-0.5 * log_two_pi + (-0.5 - math.log(2.0) - 0.5 * log_two_pi)) / 2
    assert gaussian.log_prob(torch.tensor([[0.5, 1.0]])).item() == pytest.approx(expected)
    assert gaussian.entropy().item() == pytest.approx(0.5 * math.log(2.0) + 0.5 * (1 + log_two_pi))
    assert gaussian.mode().tolist() == [[0.5, 1.0]]  # clipped to the box
    assert gaussian.rsample(torch.tensor([[-1.0, -1.5]])).tolist() == [[-0.5, 0.0]]
    both = Gaussian.cat([gaussian, gaussian[:, :]])
    assert both.mean.shape == (2, 2) and both[0].log_std.tolist() == gaussian.log_std[0].tolist()
    noise = Gaussian.draw_noise(torch.zeros(1000, 2), torch.Generator().manual_seed(0))
    assert abs(noise.mean().item()) < 0.1 and noise.std().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("time_embedding", ["fourier", "learned"])
def test_steps_beyond_the_longest_episode_are_taken_for_its_last(time_embedding):
    policy, window = make_policy(episode_length=8, time_embedding=time_embedding), make_window()
    last = replace(window, timesteps=torch.full((B, T), 7))
    beyond = replace(window, timesteps=torch.full((B, T), 1000))
    torch.testing.assert_close(answer(policy, beyond), answer(policy, last), rtol=0, atol=0)


def test_smooth_time_by_hand():
    """Share 1/4 of the episode, waves of half a period, one, two: sin, then cos."""
    time = FourierTime(100, 6, n_frequencies=3)
    torch.nn.init.eye_(time.linear.weight)
    torch.nn.init.zeros_(time.linear.bias)
    r = math.sqrt(0.5)
    expected = torch.tensor([r, 1.0, 0.0, r, 0.0, -1.0])
    torch.testing.assert_close(time(torch.tensor(25)), expected, atol=1e-6, rtol=0)


def test_smooth_time_is_smooth_and_the_table_is_not():
    """One step of the clock, against the spread over the whole episode."""
    torch.manual_seed(0)
    steps = torch.arange(1000)
    jumps = {}
    for kind in ("fourier", "learned"):
        table = make_policy(episode_length=1000, time_embedding=kind).embed_time(steps).detach()
        jumps[kind] = float((table.diff(dim=0).norm(dim=1)).mean() / table.std(0).norm())
    assert jumps["fourier"] < 0.2 and jumps["learned"] > 1.3


def test_without_time_embedding_the_step_does_not_matter():
    policy, window = make_policy(time_embedding="none"), make_window()
    later = replace(window, timesteps=window.timesteps + 3)
    torch.testing.assert_close(answer(policy, later), answer(policy, window), rtol=0, atol=0)


@pytest.mark.parametrize("time_embedding", ["none", "position"])
def test_the_order_of_what_was_seen_matters_with_positions_alone(time_embedding):
    """One block without positions sees its context as a set, whatever was seen when."""
    policy = make_policy(
        time_embedding=time_embedding, context_length=T, n_layers=1, action_token=False
    )
    window = make_window()
    order = torch.tensor([2, 0, 3, 1, 4])  # the present step stays
    mixed = replace(window, obs=window.obs[:, order], rtg=window.rtg[:, order])
    mixed = replace(mixed, ctg=window.ctg[:, order])
    same = torch.allclose(
        answer(policy, mixed, last_only=True), answer(policy, window, last_only=True), atol=1e-5
    )
    assert same == (time_embedding == "none")
    later = replace(window, timesteps=window.timesteps + 3)  # of the episode
    torch.testing.assert_close(answer(policy, later), answer(policy, window), rtol=0, atol=0)


def test_tokens_that_are_left_out_do_not_matter():
    policy, window = make_policy(return_token=False, action_token=False), make_window()
    assert policy.tokens_per_step == 2 and policy.embed_rtg is None
    other = replace(window, rtg=window.rtg + 7, actions=-window.actions)
    torch.testing.assert_close(answer(policy, other), answer(policy, window), rtol=0, atol=0)
    spent = replace(window, ctg=window.ctg + 7)
    assert not torch.allclose(answer(policy, spent), answer(policy, window), atol=1e-4)


@pytest.mark.parametrize("last_only", [True, False])
def test_the_wide_head_reads_hidden_state_and_inputs(last_only):
    policy = make_policy(head_width=24, state_dependent_std=False, return_token=False)
    window = make_window()
    steps = slice(-1, None) if last_only else slice(None)
    hidden = policy.hidden(window, last_only=last_only)
    read = torch.cat([hidden, window.obs[:, steps], window.ctg[:, steps]], dim=-1)
    torch.testing.assert_close(policy.features(window, last_only=last_only), read)
    ours = policy(window, last_only=last_only)
    torch.testing.assert_close(ours.mean, policy.head.layers(read))
    with torch.no_grad():
        policy.head.log_std.copy_(torch.tensor([-1.0, -9.0])[: policy.head.action_size])
    log_std = policy(window, last_only=last_only).log_std
    assert log_std.flatten(0, -2).unique(dim=0).tolist() == [[-1.0, -5.0]]


def test_log_std_is_bounded():
    log_std = make_policy(log_std_range=(-1.0, -0.5))(make_window()).log_std
    assert (log_std >= -1.0).all() and (log_std <= -0.5).all()


# ---------------------------------------------------------------- critics


def test_each_twin_of_each_signal_is_a_network_of_its_own():
    critics = TwinCritics({"reward": 3.0, "cost": 0.5}, OBS, ACT, width=8, n_layers=4)
    obs, actions = torch.randn(5, 7, OBS), torch.randn(5, 7, ACT)
    values = critics(obs, actions)
    assert list(values) == ["reward", "cost"] and len(critics.layers) == 4
    for i, (signal, scale) in enumerate((("reward", 3.0), ("cost", 0.5))):
        assert values[signal].shape == (2, 5, 7)
        assert critics.unit(signal).item() == scale
        for twin in range(2):
            x = torch.cat((obs, actions), dim=-1)
            for j, layer in enumerate(critics.layers):
                x = x @ layer.weight[2 * i + twin] + layer.bias[2 * i + twin]
                x = F.mish(x) if j < 3 else x
            expected = scale * x[..., 0]
            torch.testing.assert_close(values[signal][twin], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(values["cost"][0], values["cost"][1])


def test_gradients_are_clipped_signal_by_signal():
    critics = TwinCritics({"reward": 1.0, "cost": 1.0}, OBS, ACT, width=8)
    values = critics(torch.randn(6, OBS), torch.randn(6, ACT))
    (100 * values["reward"].square().sum() + 1e-4 * values["cost"].square().sum()).backward()
    before = [p.grad.clone() for p in critics.parameters()]

    def norm(grads, rows):
        return torch.cat([g[rows].flatten() for g in grads]).norm().item()

    norms = critics.clip_grad_norm_(0.25)
    after = [p.grad for p in critics.parameters()]
    assert norms["reward"].item() == pytest.approx(norm(before, slice(0, 2)), rel=1e-5)
    assert norms["reward"] > 0.25 > norms["cost"]
    assert norm(after, slice(0, 2)) == pytest.approx(0.25, rel=1e-4)
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new[2:], old[2:])  # the small one is left alone


def test_no_signals_no_parameters_to_speak_of():
    critics = TwinCritics({}, OBS, ACT, width=8)
    assert sum(p.numel() for p in critics.parameters()) == 0
    assert critics(torch.zeros(2, OBS), torch.zeros(2, ACT)) == {}


def test_target_networks_move_by_their_rate():
    source = TwinCritics({"cost": 1.0}, OBS, ACT, width=4)
    target = target_network(source)
    assert not any(p.requires_grad for p in target.parameters())
    with torch.no_grad():
        for p in source.parameters():
            p += 1.0
    old = copy.deepcopy(list(target.parameters()))
    update_target(target, source, 0.25)
    for now, before in zip(target.parameters(), old, strict=True):
        torch.testing.assert_close(now, before + 0.25)
