"""Algorithm 1: each term moves what it should and nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import random_arrays

from rcdt_agent import RCDT, losses
from rcdt_agent.actions import Gaussian
from rcdt_agent.algorithms import critic_learning
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.data.weights import outcome_weights
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.variants import VARIANTS, make_config


def make_agent(data, **overrides):
    """The paper's literal reading, set up for 100 steps, critics from the first on."""
    settings = {
        "total_steps": 100, "batch_size": 16, "context_length": 4, "critic_start": 0.0,
        "warmup_steps": 0, "entropy_bonus": False, "cost_limit": 3.0, **overrides,
    }  # fmt: skip
    config = make_config("tiny", settings.pop("variant", "rcdt-paper"), **settings)
    agent = RCDT(config=config, seed=5)
    agent.set_dataset(data)
    agent.setup(data)
    return agent


def steps(agent, n):
    for _ in range(n):
        metrics = agent.step()
        agent.num_timesteps += 1
    return metrics


def snapshot(module):
    return [p.detach().clone() for p in module.parameters()]


def same(module, before):
    return all(torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


@torch.no_grad()
def always_say(critics, value):
    critics.layers[-1].weight.zero_()
    for i, unit in enumerate(critics.scale):
        critics.layers[-1].bias[2 * i : 2 * i + 2] = value / unit


def policy_value(agent, signal, batch):
    """Mean critic value of the policy's mode."""
    with torch.no_grad():
        agent.policy.eval()
        actions = agent.policy(batch).mode()
        values = agent.policy.critics(agent.policy.normalizer.obs(batch.obs), actions)[signal]
        return float(losses.masked_mean(values.mean(0), batch.mask))


def unweighted(batch):
    """The batch without imitation: only the critic terms are left in the loss."""
    return replace(batch, weights=torch.zeros_like(batch.weights))


def test_q_term_alone_raises_the_value_of_the_policys_actions(dataset):
    agent = make_agent(dataset, cost_penalty=False, eta=1.0)
    batch = unweighted(agent.sampler.sample())
    before, critics = policy_value(agent, "reward", batch), snapshot(agent.policy.critics)
    for _ in range(30):
        agent.policy_step(batch, signals=agent.config.critic_signals)
    assert policy_value(agent, "reward", batch) > before + 1e-3 * abs(before)
    assert same(agent.policy.critics, critics)


def test_cost_term_alone_lowers_the_cost_of_the_policys_actions(dataset):
    agent = make_agent(dataset, q_guidance=False, lambda_step=0.0)
    agent.multipliers.lmbda.fill_(1.0)
    batch = unweighted(agent.sampler.sample())
    before, critics = policy_value(agent, "cost", batch), snapshot(agent.policy.critics)
    for _ in range(30):
        agent.policy_step(batch, signals=agent.config.critic_signals)
    assert policy_value(agent, "cost", batch) < before - 1e-3 * abs(before)
    assert same(agent.policy.critics, critics)


def test_without_any_term_the_policy_stands_still(dataset):
    """The control of the two tests above: it is the critic terms that moved the policy."""
    agent = make_agent(dataset, eta=0.0, lambda_step=0.0, weight_decay=0.0)
    batch = unweighted(agent.sampler.sample())
    before = snapshot(agent.policy)
    agent.policy_step(batch, signals=agent.config.critic_signals)
    assert same(agent.policy, before)


def test_critic_step_moves_critics_only(dataset):
    agent = make_agent(dataset)
    transformer, critics = snapshot(agent.policy.transformer), snapshot(agent.policy.critics)
    targets = snapshot(agent.target_critics)
    agent.critic_step(agent.sampler.sample())
    assert same(agent.policy.transformer, transformer)
    assert same(agent.target_critics, targets)
    for before, now in zip(critics, agent.policy.critics.parameters(), strict=True):
        for i in range(4):  # both twins of both signals
            assert not torch.equal(before[i], now[i])


def test_step_updates_targets_after_the_critics(dataset):
    agent = make_agent(dataset)
    before = snapshot(agent.target_critics)
    agent.step()
    for got, old, new in zip(
        agent.target_critics.parameters(), before, agent.policy.critics.parameters(), strict=True
    ):
        torch.testing.assert_close(got, 0.99 * old + 0.01 * new, rtol=1e-5, atol=1e-7)


def test_with_the_terms_off_the_step_is_cdts_bit_for_bit(dataset):
    cdt = make_agent(dataset, variant="cdt-paper", entropy_bonus=True, dropout=0.1)
    other = make_agent(
        dataset, variant="qcdt-paper", critic_start=1.0, entropy_bonus=True, dropout=0.1
    )
    other.policy.transformer.load_state_dict(cdt.policy.transformer.state_dict())
    for agent in (cdt, other):
        torch.manual_seed(1)
        steps(agent, 5)
    assert same(other.policy.transformer, snapshot(cdt.policy.transformer))


# ---------------------------------------------------------------- micro-batches


def gradients(agent, batch):
    """Metrics and gradients of both halves of a step, from the same random numbers."""
    agent.training.seed(7)
    metrics = agent.critic_step(batch) if agent.config.uses_critics else {}
    critics = [p.grad.clone() for p in agent.policy.critics.parameters() if p.grad is not None]
    agent.training.seed(7)
    metrics |= agent.policy_step(batch, signals=agent.config.critic_signals)
    policy = [p.grad.clone() for p in agent.online.parameters()]
    temperature = [p.grad.clone() for p in agent.multipliers.parameters() if p.grad is not None]
    return metrics, [*critics, *policy, *temperature]


@pytest.mark.parametrize("variant", ["cdt-paper", "wcdt-paper", "qcdt-paper", "rcdt-paper", "rcdt"])
def test_micro_batches_have_the_gradient_of_the_whole_batch(dataset, variant):
    """Every term of the loss, those that are no plain mean included."""
    found = []
    for size in (0, 4):
        agent = make_agent(
            dataset, variant=variant, entropy_bonus=True, cost_head_weight=0.1, lambda_step=0.5,
            kappa=0.0, micro_batch_size=size, max_grad_norm=1e9, critic_max_grad_norm=1e9,
        )  # fmt: skip
        agent.multipliers.lmbda.fill_(0.7)
        batch = agent.sampler.sample()
        assert agent.micro_batch_size(batch) == (size or 16)
        assert batch.mask.sum(1).unique().numel() > 1  # micro-batches differ in real steps
        found.append(gradients(agent, batch))
    (metrics, whole), (other_metrics, parts) = found
    assert list(other_metrics) == list(metrics)
    for name, value in metrics.items():
        torch.testing.assert_close(
            other_metrics[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name} {m}"
        )
    assert len(whole) == len(parts)
    for one, two in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_the_scale_of_q_guidance_is_the_batchs_not_the_micro_batchs(dataset, monkeypatch):
    """With each micro-batch's own scale the gradient would be another one."""
    found = []
    for whole_batch in (True, False):
        agent = make_agent(
            dataset, variant="qcdt-paper", cost_penalty=False, eta=5.0, micro_batch_size=4,
            max_grad_norm=1e9,
        )  # fmt: skip
        if not whole_batch:
            monkeypatch.setattr(agent, "q_scale", lambda parts, swap: None)
        found.append(gradients(agent, agent.sampler.sample())[1])
    differences = [float((a - b).abs().max()) for a, b in zip(*found, strict=True)]
    assert max(differences) > 1e-3


def test_micro_batches_by_default():
    small = TrajectoryDataset.from_arrays(**random_arrays([12] * 4))
    assert make_agent(small).micro_batch_size(make_agent(small).sampler.sample()) == 16
    agent = make_agent(small, batch_size=512, context_length=10, embedding_size=128, n_heads=8)
    assert agent.micro_batch_size(agent.sampler.sample()) == 128  # what a CPU's cache takes


# ---------------------------------------------------------------- precision and compilation


def test_bf16_trains_like_float32(dataset):
    """Autocast changes the last digits of a step, not the step; weights stay float32."""
    found = {}
    for precision in ("float32", "bf16"):
        agent = make_agent(dataset, precision=precision)
        found[precision] = agent, steps(agent, 5)
    (exact, metrics), (rough, rough_metrics) = found["float32"], found["bf16"]
    assert {p.dtype for p in rough.policy.parameters()} == {torch.float32}
    assert not same(rough.policy, snapshot(exact.policy))
    assert float(rough_metrics["nll"]) == pytest.approx(float(metrics["nll"]), rel=0.02)
    assert float(rough_metrics["q_loss"]) == pytest.approx(float(metrics["q_loss"]), rel=0.05)


def test_fp16_needs_cuda(dataset):
    with pytest.raises(InvalidArgumentError, match="`precision='fp16'` needs CUDA"):
        RCDT(preset="tiny", precision="fp16", device="cpu").learn(dataset, 1)
    with pytest.raises(InvalidArgumentError, match="`precision` must be one of"):
        make_agent(dataset, precision="fp8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_compiled_network_makes_the_same_step(dataset):
    plain, compiled = make_agent(dataset), make_agent(dataset, compile=True)
    one, two = steps(plain, 2), steps(compiled, 2)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-5)
    for a, b in zip(plain.policy.parameters(), compiled.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert set(compiled.policy.state_dict()) == set(plain.policy.state_dict())


# ---------------------------------------------------------------- critics and lambda


def test_critics_wait_for_their_start(dataset):
    agent = make_agent(dataset, critic_start=0.03)  # of 100 steps
    before = snapshot(agent.policy.critics)
    for _ in range(3):
        assert not agent.critics_active
        steps(agent, 1)
    assert same(agent.policy.critics, before)
    steps(agent, 1)
    assert not same(agent.policy.critics, before)


def test_lambda_follows_its_formula(dataset):
    agent = make_agent(dataset, kappa=10.0, lambda_step=0.5, lambda_max=4.0)
    expected, seen = 0.0, []
    for cost in (12.0, 13.0, 5.0, 0.0, 14.0, 30.0, 30.0, 9.0):
        agent.dual_step(0, torch.tensor(cost))
        expected = min(max(expected + 0.5 * (cost - 10.0), 0.0), 4.0)
        seen.append(expected)
        assert float(agent.multipliers.lmbda) == pytest.approx(expected)
    assert min(seen) == 0.0 and max(seen) == 4.0


def test_lambda_moves_in_a_real_step_and_enters_the_loss(dataset):
    agent = make_agent(dataset, kappa=0.0, lambda_step=1.0)
    always_say(agent.policy.critics, 2.0)
    metrics = agent.policy_step(agent.sampler.sample(), signals=agent.config.critic_signals)
    assert float(agent.multipliers.lmbda) == pytest.approx(2.0)
    assert float(metrics["cost_estimate"]) == pytest.approx(2.0)
    assert float(metrics["lambda"]) == pytest.approx(2.0)


def test_kappa_can_be_an_episode_cost(dataset):
    literal = make_agent(dataset, kappa=6.0, lambda_step=0.1)
    episode = make_agent(dataset, kappa=6.0, lambda_step=0.1, kappa_mode="episode")
    for agent in (literal, episode):
        agent.dual_step(0, torch.tensor(5.0))
    assert float(literal.multipliers.lmbda) == 0.0
    factor = losses.episode_cost_factor(0.99, 12)
    assert float(episode.multipliers.lmbda) == pytest.approx(0.1 * (5.0 * factor - 6.0))


@pytest.mark.parametrize("critic_inputs", ["token", "state"])
def test_kappa_of_each_step_can_be_its_token(dataset, critic_inputs):
    """A critic that always says 2: beyond some tokens' allowance, within others'."""
    agent = make_agent(
        dataset, lambda_step=0.5, kappa_mode="token", eta=0.0, critic_inputs=critic_inputs
    )
    always_say(agent.policy.critics, 2.0)
    batch = agent.sampler.sample()
    allowed = losses.cost_allowance(
        batch.ctg, 12 - batch.timesteps, 0.99, finite=critic_inputs == "token"
    )
    gaps = (2.0 - allowed)[batch.mask]
    assert (gaps > 0).any() and (gaps < 0).any()
    noise, swap = torch.zeros_like(batch.actions), torch.tensor(False)

    def objective(lmbda):
        agent.multipliers.lmbda.fill_(lmbda)
        return agent.policy_objective(batch, noise, swap, None, signals=agent.config.critic_signals)

    (loss, _), (without, terms) = objective(3.0), objective(0.0)
    assert (loss - without).item() == pytest.approx(3.0 * float(gaps.clamp(min=0).mean()), rel=1e-4)
    assert float(terms["cost_estimate"]) == pytest.approx(float(gaps.mean()), abs=1e-5)
    assert float(terms["cost_policy"]) == pytest.approx(2.0)
    agent.dual_step(0, torch.tensor(0.5))
    assert float(agent.multipliers.lmbda) == pytest.approx(0.25)
    agent.dual_step(0, torch.tensor(-9.0))
    assert float(agent.multipliers.lmbda) == 0.0


def test_kappa_can_be_a_share_of_what_recorded_actions_exceed(dataset):
    """A critic that always says 2: policy and recorded actions exceed what is left alike."""
    agent = make_agent(dataset, kappa_mode="data", lambda_step=0.5, kappa_share=0.8, eta=0.0)
    always_say(agent.policy.critics, 2.0)
    batch = agent.sampler.sample()
    gaps = (2.0 - batch.ctg.clamp(min=0.0))[batch.mask].clamp(min=0.0)
    assert 0 < float(gaps.mean()) < 2
    noise, swap = torch.zeros_like(batch.actions), torch.tensor(False)

    def objective(lmbda):
        agent.multipliers.lmbda.fill_(lmbda)
        return agent.policy_objective(batch, noise, swap, None, signals=agent.config.critic_signals)

    (loss, _), (without, terms) = objective(3.0), objective(0.0)
    unit = float(agent.policy.critics.unit("cost"))
    assert (loss - without).item() == pytest.approx(3.0 * float(gaps.mean()) / unit, rel=1e-3)
    for name in ("cost_estimate", "cost_recorded"):
        assert float(terms[name]) == pytest.approx(float(gaps.mean()), rel=1e-5)
    # J_c / kappa - 1 = 1 / 0.8 - 1: lambda rises, and falls where the policy exceeds by half of it.
    recorded = terms["cost_recorded"]
    moved = agent.dual_step(0, terms["cost_estimate"], recorded)
    assert float(moved) == pytest.approx(0.25)
    assert float(agent.multipliers.lmbda) == pytest.approx(0.125)
    agent.dual_step(0, 0.4 * recorded, recorded)
    assert float(agent.multipliers.lmbda) == 0.0


def test_critic_terms_judge_the_mean_or_a_sample(dataset):
    policy = Gaussian(torch.tensor([[0.5, 1.5]]), torch.zeros(1, 2))
    noise = torch.tensor([[0.25, 0.0]])
    drawn = make_agent(dataset)._actions_to_judge(policy, noise)
    mean = make_agent(dataset, sampled_actions=False)._actions_to_judge(policy, noise)
    assert drawn.tolist() == [[0.75, 1.0]] and mean.tolist() == [[0.5, 1.5]]


def test_monte_carlo_targets_by_hand(monkeypatch):
    """Discounted recorded sums, whatever the target critics say, held-out trajectories left out."""
    arrays = random_arrays([3, 2, 6], terminated=[True, False, False])
    data = TrajectoryDataset.from_arrays(**arrays)
    agent = make_agent(data, critic_targets="monte_carlo", discount=0.5, cost_discount=0.25)
    always_say(agent.target_critics, 100.0)
    seen = []
    real = losses.td_loss

    def spy(values, target, mask):
        seen.append((target * agent.policy.critics.scale[len(seen)], mask))
        return real(values, target, mask)

    monkeypatch.setattr(losses, "td_loss", spy)
    agent.critic_step(agent.sampler.windows(torch.tensor([0, 1]), torch.tensor([0, 0])))
    r, c = arrays["rewards"], arrays["costs"]
    (reward_targets, mask), (cost_targets, _) = seen
    assert mask.tolist() == [[True, True, True, False], [True, True, False, False]]
    np.testing.assert_allclose(
        reward_targets[0, :3], [r[0] + r[1] / 2 + r[2] / 4, r[1] + r[2] / 2, r[2]], rtol=1e-5
    )
    np.testing.assert_allclose(cost_targets[1, :2], [c[3] + c[4] / 4, c[4]], rtol=1e-5)


def test_monte_carlo_critics_learn_before_their_terms_act(dataset):
    agent = make_agent(dataset, critic_targets="monte_carlo", critic_start=0.5)
    before = snapshot(agent.policy.critics)
    metrics = steps(agent, 10)
    assert not same(agent.policy.critics, before)
    assert not agent.terms_active and float(metrics["lambda"]) == 0.0
    waiting = make_agent(dataset, critic_start=0.5)
    before = snapshot(waiting.policy.critics)
    steps(waiting, 10)
    assert same(waiting.policy.critics, before)


def test_frontier_weights_leave_the_bad_data_to_the_critics(dataset, monkeypatch):
    agent = make_agent(dataset, variant="wcdt", frontier_sharpness=50.0)
    drawn = []
    monkeypatch.setattr(agent, "critic_step", lambda batch: drawn.append(batch) or {})
    monkeypatch.setattr(agent, "check_critics", dict)
    imitated = []
    real = agent.policy_step
    monkeypatch.setattr(
        agent, "policy_step", lambda batch, **kw: imitated.append(batch) or real(batch, **kw)
    )
    steps(agent, 5)

    def mean_return(batches):
        return float(torch.cat([batch.rtg[:, 0] for batch in batches]).mean())

    assert mean_return(imitated) > mean_return(drawn) + 0.5
    assert all(batch.weights.unique().tolist() == [1.0] for batch in imitated)


def test_td_targets_by_hand(monkeypatch):
    """Terminal, timeout, window end and padding, with target critics that always say 100."""
    arrays = random_arrays([3, 2, 6], terminated=[True, False, False])
    data = TrajectoryDataset.from_arrays(**arrays)
    agent = make_agent(data, discount=0.5, cost_discount=0.25)
    always_say(agent.target_critics, 100.0)
    seen = []
    real = losses.td_loss

    def spy(values, target, mask):
        seen.append((target * agent.policy.critics.scale[len(seen)], mask))
        return real(values, target, mask)

    monkeypatch.setattr(losses, "td_loss", spy)
    batch = agent.sampler.windows(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]))
    agent.critic_step(batch)
    r, c = arrays["rewards"], arrays["costs"]
    (reward_targets, mask), (cost_targets, _) = seen
    assert mask.tolist() == [
        [True, True, True, False],  # ends after three steps, then padding
        [True, True, False, False],
        [True, True, True, True],  # goes on beyond the window
    ]
    by_hand = [
        [r[0] + 50, r[1] + 50, r[2]],  # the terminal does not look ahead
        [r[3] + 50, r[4] + 50],  # the timeout does
        [r[5] + 50, r[6] + 50, r[7] + 50, r[8] + 50],  # so does the last step of the window
    ]
    for row, expected in zip(reward_targets, by_hand, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-5)
    assert cost_targets[0, 2].item() == pytest.approx(c[2], abs=1e-5)
    assert cost_targets[1, 1].item() == pytest.approx(c[4] + 25, rel=1e-5)


def test_a_timeout_without_recorded_end_is_left_out():
    arrays = random_arrays([3, 3], terminated=[True, False])
    del arrays["next_observations"]
    agent = make_agent(TrajectoryDataset.from_arrays(**arrays))
    batch = agent.sampler.windows(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert batch.next_known.tolist() == [[True, True, True, False], [True, True, False, False]]


def test_next_actions_are_the_policys_own_one_step_on(dataset):
    agent = make_agent(dataset, log_std_range=(-30.0, -29.0))
    trajectories, starts = torch.tensor([3, 2]), torch.tensor([2, 1])
    batch = agent.sampler.windows(trajectories, starts)
    expected = agent.policy(agent.sampler.windows(trajectories, starts + 1)).mode()
    torch.testing.assert_close(agent.next_actions(batch), expected.detach(), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- the whole step


def test_same_seed_same_weights(dataset):
    def run():
        agent = make_agent(dataset, critic_start=0.2, dropout=0.1, entropy_bonus=True)
        torch.manual_seed(3)
        return agent, steps(agent, 50)

    (one, metrics), (two, other_metrics) = run(), run()
    assert same(one.policy, snapshot(two.policy))
    assert same(one.target_critics, snapshot(two.target_critics))
    assert metrics == other_metrics


def test_training_state_continues_bit_for_bit(dataset):
    whole = make_agent(dataset, critic_start=0.1)
    steps(whole, 12)
    state = copy.deepcopy(whole.snapshot())
    resumed = make_agent(dataset, critic_start=0.1)
    resumed.restore(state)
    steps(whole, 10)
    steps(resumed, 10)
    assert same(resumed.policy, snapshot(whole.policy))
    assert same(resumed.target_critics, snapshot(whole.target_critics))
    assert resumed.num_timesteps == whole.num_timesteps == 22


def test_the_average_of_the_weights_acts_and_the_last_ones_are_trained(dataset):
    agent = make_agent(dataset, variant="cdt-paper", ema_decay=0.75)
    assert agent.online is not agent.policy.transformer
    average = snapshot(agent.policy.transformer)
    for step in range(8):
        steps(agent, 1)
        rate = max(0.25, 1 - (step + 1) / (step + 10))  # early averages forget faster
        for old, new in zip(average, agent.online.parameters(), strict=True):
            old.lerp_(new.detach(), rate)
    for expected, got in zip(average, agent.policy.transformer.parameters(), strict=True):
        torch.testing.assert_close(got, expected)
    assert not same(agent.online, average)
    without = make_agent(dataset, variant="cdt-paper")
    assert without.online is without.policy.transformer


def test_training_with_an_average_continues_bit_for_bit(dataset):
    whole = make_agent(dataset, variant="rcdt-paper", ema_decay=0.9)
    steps(whole, 6)
    part, rest = (make_agent(dataset, variant="rcdt-paper", ema_decay=0.9) for _ in range(2))
    steps(part, 3)
    rest.restore(copy.deepcopy(part.snapshot()))
    steps(rest, 3)
    assert same(rest.policy, snapshot(whole.policy)) and same(rest.online, snapshot(whole.online))


# ---------------------------------------------------------------- critics that may act


def test_critics_are_not_trained_on_held_out_trajectories(dataset):
    agent = make_agent(dataset, held_out_fraction=0.4)
    held_out = agent.sampler.windows(torch.arange(5), torch.zeros(5, dtype=torch.int64)).held_out
    assert held_out.sum() == 2
    unseen = agent.sampler.windows(torch.nonzero(held_out)[:, 0], torch.zeros(2, dtype=torch.int64))
    before = snapshot(agent.policy.critics)
    agent.critic_step(unseen)
    assert same(agent.policy.critics, before)
    agent.critic_step(agent.sampler.windows(torch.arange(5), torch.zeros(5, dtype=torch.int64)))
    assert not same(agent.policy.critics, before)


def test_a_critic_term_waits_until_its_critic_beats_a_constant(dataset, monkeypatch):
    agent = make_agent(dataset, held_out_fraction=0.4)
    errors = {"reward": {"error": 0.9}, "cost": {"error": 1.2}}
    monkeypatch.setattr(critic_learning, "critic_errors", lambda *_: errors)
    assert agent.signals_that_act == ()
    metrics = agent.step()  # step 0 checks
    assert agent.signals_that_act == ("reward",)
    assert float(metrics["q_error"]) == pytest.approx(0.9)
    assert float(metrics["cost_error"]) == pytest.approx(1.2)
    assert "q_policy" in metrics and "cost_policy" not in metrics
    assert float(agent.multipliers.lmbda) == 0.0
    # What acts is part of the training state.
    other = make_agent(dataset, held_out_fraction=0.4)
    other.restore(copy.deepcopy(agent.snapshot()))
    assert other.signals_that_act == ("reward",)
    errors["reward"]["error"] = 1.0
    agent.check_critics()
    assert agent.signals_that_act == ()


def test_a_critic_that_never_beat_a_constant_is_said_aloud(dataset, monkeypatch):
    agent = make_agent(dataset, held_out_fraction=0.4, total_steps=2)
    errors = {"reward": {"error": 0.9}, "cost": {"error": 1.25}}
    monkeypatch.setattr(critic_learning, "critic_errors", lambda *_: errors)
    monkeypatch.setattr(critic_learning, "PATIENCE", 2)
    agent.total_steps = 2
    steps(agent, 1)
    with pytest.warns(UserWarning, match="cost critic .* 1.25 standard deviations"):
        agent.step()


def test_token_critics_end_with_the_episode_and_see_what_is_left(dataset):
    agent = make_agent(dataset, critic_inputs="token", discount=0.5, cost_discount=0.5)
    always_say(agent.target_critics, 100.0)
    batch = agent.sampler.windows(torch.tensor([2]), torch.tensor([3]))  # to the timeout
    assert batch.ends[0].tolist() == [False, False, False, True] and not batch.terminals.any()
    seen = {}
    agent.policy.critics.register_forward_hook(
        lambda module, args, out: seen.update(context=args[2]), prepend=True
    )
    with torch.no_grad():
        loss, _ = agent.critic_objective(batch, torch.zeros_like(batch.actions))
    # Twins that say 0: the loss is the squared target, 50 more than the reward but at the end.
    assert seen["context"].shape == (1, 4, 2)
    torch.testing.assert_close(seen["context"][0, :, 1], torch.tensor([3.0, 4, 5, 6]) / 12)
    always_say(agent.policy.critics, 0.0)
    loss, _ = agent.critic_objective(batch, torch.zeros_like(batch.actions))
    bootstrap = torch.tensor([50.0, 50.0, 50.0, 0.0])
    expected = sum(
        2 * ((values[0] + bootstrap) / agent.policy.critics.unit(signal)).square().mean()
        for signal, values in (("reward", batch.rewards), ("cost", batch.costs))
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_target_rate_is_the_configurations_or_enough(dataset):
    assert make_agent(dataset).target_rate == 0.01
    agent = make_agent(dataset, target_rate=None, discount=0.9, cost_discount=0.9)
    assert agent.target_rate == pytest.approx(5 / (0.1 * 100))


def test_metrics_of_a_step(dataset):
    metrics = make_agent(dataset).step()
    assert {"loss", "nll", "entropy", "lambda", "weight_ess", "grad_norm", "q_loss", "cost_loss",
            "q_policy", "cost_policy", "q_grad_norm", "cost_grad_norm",
            "temperature"} <= set(metrics)  # fmt: skip
    assert 0 < float(metrics["weight_ess"]) <= 1
    assert not any(value.requires_grad for value in metrics.values())


def test_trajectory_weights_reach_the_loss(dataset):
    """The agent's own objective: linear in W, and a zero weight removes a trajectory."""
    agent = make_agent(dataset, variant="cdt-paper")
    windows = agent.sampler.windows(torch.tensor([2, 3]), torch.tensor([0, 0]))

    def gradient(*weights):
        batch = replace(windows, weights=torch.tensor(weights))
        noise, swap = torch.zeros_like(batch.actions), torch.tensor(False)
        loss, _ = agent.policy_objective(batch, noise, swap, None, signals=())
        return torch.autograd.grad(loss, agent.policy.transformer.head.layers[-1].weight)[0]

    first, second = gradient(1.0, 0.0), gradient(0.0, 1.0)
    assert first.abs().max() > 1e-3 and not torch.allclose(first, second, atol=1e-3)
    torch.testing.assert_close(gradient(3.0, 0.0), 3 * first)
    torch.testing.assert_close(gradient(1.0, 1.0), first + second, rtol=1e-4, atol=1e-6)


def test_weights_in_batches_are_those_of_the_equation(dataset):
    agent = make_agent(dataset)
    raw = outcome_weights(dataset.outcomes, agent.config, 3.0)
    expected = (raw / raw.mean()).clamp(max=agent.config.max_weight)
    batch = agent.sampler.windows(torch.arange(5), torch.zeros(5, dtype=torch.int64))
    torch.testing.assert_close(batch.weights, expected)


def test_weights_of_the_variants(dataset):
    ones = outcome_weights(dataset.outcomes, make_config("tiny", "cdt"), 3.0)
    assert ones.tolist() == [1.0] * 5
    expert = outcome_weights(
        dataset.outcomes, make_config("tiny", "rdt", alpha=2.0, expert_fraction=0.2), 3.0
    )
    best = int(dataset.episode_returns.argmax())
    assert expert.tolist() == [3.0 if m == best else 1.0 for m in range(5)]
    shaped = outcome_weights(dataset.outcomes, make_config("tiny", "rcdt-paper"), 3.0)
    assert len(set(shaped.tolist())) > 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains(dataset, variant):
    agent = make_agent(dataset, variant=f"{variant}-paper")
    before = snapshot(agent.policy.transformer)
    metrics = agent.step()
    assert not same(agent.policy.transformer, before)
    assert ("q_policy" in metrics) == agent.config.q_guidance
    assert ("cost_policy" in metrics) == agent.config.cost_penalty
    assert agent.policy.critics.signals == agent.config.critic_signals


def test_warm_up(dataset):
    agent = make_agent(dataset, warmup_steps=3, learning_rate=1.0, final_learning_rate=1.0)
    rates = []
    for _ in range(5):
        steps(agent, 1)
        rates.append(agent.training.optimizers["policy"].param_groups[0]["lr"])
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_temperature_follows_the_entropy(dataset):
    """Above its target of -2, an entropy lowers the temperature; without the bonus it stays."""
    agent = make_agent(dataset, entropy_bonus=True, initial_temperature=0.5)
    metrics = steps(agent, 1)
    assert float(metrics["entropy"]) > -2
    lowered = agent.multipliers.log_temperature.exp().item()
    assert lowered == pytest.approx(0.5 * np.exp(-agent.config.learning_rate), rel=1e-4)
    plain = make_agent(dataset, initial_temperature=0.5)
    steps(plain, 1)
    assert plain.multipliers.log_temperature.exp().item() == pytest.approx(0.5)


def test_cost_head_learns_and_is_off_by_default(dataset):
    assert make_agent(dataset).policy.transformer.cost_head is None
    agent = make_agent(dataset, variant="cdt-paper", cost_head_weight=1.0)
    batch = agent.sampler.sample()
    seen = [float(agent.policy_step(batch, signals=())["cost_head_loss"]) for _ in range(30)]
    assert seen[-1] < seen[0]
