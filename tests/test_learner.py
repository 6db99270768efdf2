"""Algorithm 1: each term moves what it should and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import random_arrays

from rcdt_agent import losses
from rcdt_agent.config import VARIANTS, make_config
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.errors import TrainingError
from rcdt_agent.learner import Learner, dataset_weights
from rcdt_agent.scaling import Scaling


def make_learner(data, **overrides):
    settings = {
        "total_steps": 100, "batch_size": 16, "context_length": 4, "critic_start": 0.0,
        "warmup_steps": 0, "entropy_bonus": False, **overrides,
    }  # fmt: skip
    config = make_config("tiny", settings.pop("variant", "rcdt"), **settings)
    scaling = Scaling.fit(data, config, cost_limit=3.0)
    return Learner(data, config, scaling, episode_length=12, cost_limit=3.0, seed=5)


def snapshot(module):
    return [p.detach().clone() for p in module.parameters()]


def same(module, before):
    return all(torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


@torch.no_grad()
def always_say(critic, value):
    critic.layers[-1].weight.zero_()
    critic.layers[-1].bias.fill_(value / critic.scale)


def policy_value(learner, critic, batch):
    """Mean critic value of the policy's mean actions."""
    inputs = learner.inputs(batch)
    with torch.no_grad():
        learner.policy.eval()
        mean, _ = learner.policy(
            inputs.obs, inputs.actions, inputs.rtg, inputs.ctg, inputs.timesteps
        )
        values = critic(batch.obs, mean.clamp(-1, 1)).mean(0)
        return float(losses.masked_mean(values, batch.mask))


def unweighted(batch):
    """The batch without imitation: only the critic terms are left in the loss."""
    return replace(batch, weights=torch.zeros_like(batch.weights))


def test_q_term_alone_raises_the_value_of_the_policys_actions(dataset):
    learner = make_learner(dataset, cost_penalty=False, eta=1.0)
    batch = unweighted(learner.sampler.sample())
    before = policy_value(learner, learner.critics.reward, batch)
    critics = snapshot(learner.critics.reward), snapshot(learner.critics.cost)
    for _ in range(30):
        learner.policy_step(batch, with_critics=True)
    after = policy_value(learner, learner.critics.reward, batch)
    assert after > before + 1e-3 * abs(before)
    assert same(learner.critics.reward, critics[0])
    assert same(learner.critics.cost, critics[1])


def test_cost_term_alone_lowers_the_cost_of_the_policys_actions(dataset):
    learner = make_learner(dataset, q_guidance=False, lambda_step=0.0)
    learner.lmbda = torch.tensor(1.0)
    batch = unweighted(learner.sampler.sample())
    before = policy_value(learner, learner.critics.cost, batch)
    critics = snapshot(learner.critics.cost)
    for _ in range(30):
        learner.policy_step(batch, with_critics=True)
    assert policy_value(learner, learner.critics.cost, batch) < before - 1e-3 * abs(before)
    assert same(learner.critics.cost, critics)


def test_without_any_term_the_policy_stands_still(dataset):
    """The control of the two tests above: it is the critic terms that moved the policy."""
    learner = make_learner(dataset, eta=0.0, lambda_step=0.0, weight_decay=0.0)
    batch = unweighted(learner.sampler.sample())
    before = snapshot(learner.policy)
    learner.policy_step(batch, with_critics=True)
    assert same(learner.policy, before)


def test_critic_step_moves_critics_only(dataset):
    learner = make_learner(dataset)
    policy, reward, cost = map(
        snapshot, (learner.policy, learner.critics.reward, learner.critics.cost)
    )
    targets = snapshot(learner.critics.reward_target)
    learner.critic_step(learner.sampler.sample())
    assert same(learner.policy, policy)
    assert same(learner.critics.reward_target, targets)
    assert not same(learner.critics.reward, reward)
    assert not same(learner.critics.cost, cost)


def test_step_updates_targets_after_the_critics(dataset):
    learner = make_learner(dataset)
    before = snapshot(learner.critics.reward_target)
    learner.step()
    expected = [
        0.99 * old + 0.01 * new
        for old, new in zip(before, learner.critics.reward.parameters(), strict=True)
    ]
    for got, want in zip(learner.critics.reward_target.parameters(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)


def test_with_the_terms_off_the_step_is_cdts_bit_for_bit(dataset):
    cdt = make_learner(dataset, variant="cdt", entropy_bonus=True, dropout=0.1)
    other = make_learner(dataset, variant="qcdt", critic_start=1.0, entropy_bonus=True, dropout=0.1)
    for learner in (cdt, other):
        torch.manual_seed(1)
        for _ in range(5):
            learner.step()
    assert same(other.policy, snapshot(cdt.policy))


def cut_into_parts_of_five(learner, monkeypatch):
    tokens = learner.config.context_length * learner.policy.tokens_per_step
    values = 5 * tokens * learner.config.embedding_size
    monkeypatch.setattr("rcdt_agent.learner.PART_VALUES", values)
    monkeypatch.setattr("rcdt_agent.critic_learner.CRITIC_ROWS", 5 * learner.config.context_length)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    ("variant", "keep"), [("cdt", True), ("wcdt", True), ("rcdt", True), ("rcdt", False)]
)
def test_a_batch_in_parts_has_the_gradient_of_the_whole(
    dataset, variant, keep, n_threads, monkeypatch, threads
):
    threads(n_threads)
    settings = {"entropy_bonus": True, "cost_head_weight": 0.1}
    learner = make_learner(dataset, variant=variant, **settings)
    learner.lmbda = torch.tensor(0.7)
    batch = learner.sampler.sample()
    noise = None if variant == "cdt" else learner._noise(batch)
    assert batch.mask.sum(1).unique().numel() > 1  # parts differ in weight

    def gradients():
        learner.policy.zero_grad()
        terms = learner._differentiate(batch, noise)
        following = learner.next_actions(batch) if noise else None
        return terms, [p.grad.clone() for p in learner.policy.parameters()], following

    state = learner.generator.get_state()
    terms, whole, following = gradients()
    cut_into_parts_of_five(learner, monkeypatch)
    monkeypatch.setattr("rcdt_agent.learner.KEPT_VALUES", 10**9 if keep else 0)
    assert learner._part_size(batch) == 4  # as many parts for each of two cores, or four parts
    learner.generator.set_state(state)
    other_terms, parts, other_following = gradients()
    assert list(other_terms) == list(terms)
    for name, value in terms.items():
        torch.testing.assert_close(other_terms[name], value, rtol=1e-4, atol=1e-5)
    for one, two in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    if noise:
        torch.testing.assert_close(other_following, following, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_critics_fitted_in_parts_have_the_gradient_of_the_whole(
    dataset, n_threads, monkeypatch, threads
):
    threads(n_threads)
    found = []
    for parts in (False, True):
        learner = make_learner(dataset)
        if parts:
            cut_into_parts_of_five(learner, monkeypatch)
        learner.critic_step(learner.sampler.sample())
        critics = learner.critics.optimizer.param_groups[0]["params"]
        found.append((learner.metrics(), [p.grad for p in critics]))
    (metrics, whole), (other_metrics, in_parts) = found
    assert other_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-5)
    for one, two in zip(in_parts, whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_the_same_seed_gives_the_same_weights_on_several_threads(dataset, monkeypatch, threads):
    threads(2)
    learners = [make_learner(dataset, dropout=0.1, attention_dropout=0.1) for _ in range(2)]
    cut_into_parts_of_five(learners[0], monkeypatch)
    for learner in learners:
        torch.manual_seed(3)
        for _ in range(5):
            learner.step()
    assert same(learners[1].policy, snapshot(learners[0].policy))
    assert same(learners[1].critics.cost, snapshot(learners[0].critics.cost))


def test_both_passes_over_a_part_drop_the_same(dataset, monkeypatch, threads):
    """Q guidance takes two forward passes; their masks must agree for the gradient to be right."""
    threads(1)
    learner = make_learner(dataset, dropout=0.3, attention_dropout=0.3)
    cut_into_parts_of_five(learner, monkeypatch)
    monkeypatch.setattr("rcdt_agent.learner.KEPT_VALUES", 0)
    learner.policy.train()
    seen = []
    features = learner.policy.features

    def spy(*inputs):
        seen.append(features(*inputs))
        return seen[-1]

    monkeypatch.setattr(learner.policy, "features", spy)
    batch = learner.sampler.sample()
    learner._differentiate(batch, learner._noise(batch))
    assert [len(part) for part in seen] == [4] * 8
    for one, two in zip(seen[:4], seen[4:], strict=True):
        assert not one.requires_grad and two.requires_grad
        torch.testing.assert_close(one, two.detach(), rtol=0, atol=0)
    assert not torch.equal(seen[0], seen[1])


def test_critics_wait_for_their_start(dataset):
    learner = make_learner(dataset, critic_start=0.03)  # of 100 steps
    before = snapshot(learner.critics.reward)
    for _ in range(3):
        assert not learner.critics_active
        learner.step()
    assert same(learner.critics.reward, before)
    learner.step()
    assert not same(learner.critics.reward, before)


def test_lambda_follows_its_formula(dataset):
    learner = make_learner(dataset, kappa=10.0, lambda_step=0.5, lambda_max=4.0)
    expected, seen = 0.0, []
    for cost in (12.0, 13.0, 5.0, 0.0, 14.0, 30.0, 30.0, 9.0):
        learner._dual_step(torch.tensor(cost))
        expected = min(max(expected + 0.5 * (cost - 10.0), 0.0), 4.0)
        seen.append(expected)
        assert float(learner.lmbda) == pytest.approx(expected)
    assert min(seen) == 0.0 and max(seen) == 4.0


def test_lambda_moves_in_a_real_step_and_enters_the_loss(dataset):
    learner = make_learner(dataset, kappa=0.0, lambda_step=1.0)
    for critic in (learner.critics.cost, learner.critics.cost_target):
        always_say(critic, 2.0)
    learner.policy_step(learner.sampler.sample(), with_critics=True)
    assert float(learner.lmbda) == pytest.approx(2.0)
    assert learner.metrics()["cost_estimate"] == pytest.approx(2.0)


def test_kappa_can_be_an_episode_cost(dataset):
    literal = make_learner(dataset, kappa=6.0, lambda_step=0.1)
    episode = make_learner(dataset, kappa=6.0, lambda_step=0.1, kappa_mode="episode")
    for learner in (literal, episode):
        learner._dual_step(torch.tensor(5.0))
    assert float(literal.lmbda) == 0.0
    factor = losses.episode_cost_factor(0.99, 12)
    assert float(episode.lmbda) == pytest.approx(0.1 * (5.0 * factor - 6.0))


def test_kappa_of_each_step_can_be_its_token(dataset):
    """A critic that always says 2: beyond some tokens' allowance, within others'."""
    learner = make_learner(dataset, lambda_step=0.5, kappa_mode="token", eta=0.0)
    always_say(learner.critics.cost, 2.0)
    batch = learner.sampler.sample()
    allowed = losses.cost_allowance(batch.ctg, 12 - batch.timesteps, 0.99)
    gaps = (2.0 - allowed)[batch.mask]
    assert (gaps > 0).any() and (gaps < 0).any()
    learner.lmbda = torch.tensor(3.0)
    noise = learner._noise(batch)
    inputs = learner._features(batch, None)
    loss, _ = learner._objective(inputs, batch, noise)
    learner.lmbda = torch.tensor(0.0)
    without, terms = learner._objective(inputs, batch, noise)
    assert (loss - without).item() == pytest.approx(3.0 * float(gaps.clamp(min=0).mean()), rel=1e-4)
    assert float(terms["cost_estimate"]) == pytest.approx(float(gaps.mean()), abs=1e-5)
    assert float(terms["cost_policy"]) == pytest.approx(2.0)
    learner._dual_step(torch.tensor(0.5))
    assert float(learner.lmbda) == pytest.approx(0.25)
    learner._dual_step(torch.tensor(-9.0))
    assert float(learner.lmbda) == 0.0


def test_td_targets_by_hand(monkeypatch):
    """Terminal, timeout, window end and padding, with target critics that always say 100."""
    arrays = random_arrays([3, 2, 6], terminated=[True, False, False])
    data = TrajectoryDataset.from_arrays(**arrays)
    learner = make_learner(data, discount=0.5, cost_discount=0.25)
    for critic in (learner.critics.reward_target, learner.critics.cost_target):
        always_say(critic, 100.0)
    seen = []
    real = losses.td_loss

    def spy(values, target, mask):
        seen.append(
            (target * (learner.critics.reward, learner.critics.cost)[len(seen)].scale, mask)
        )
        return real(values, target, mask)

    monkeypatch.setattr(losses, "td_loss", spy)
    batch = learner.sampler.windows(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]))
    learner.critic_step(batch)
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
    learner = make_learner(TrajectoryDataset.from_arrays(**arrays))
    batch = learner.sampler.windows(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert batch.next_known.tolist() == [[True, True, True, False], [True, True, False, False]]


def test_next_actions_are_the_policys_own_one_step_on(dataset):
    learner = make_learner(dataset, log_std_range=(-30.0, -29.0))
    trajectories, starts = torch.tensor([3, 2]), torch.tensor([2, 1])
    batch = learner.sampler.windows(trajectories, starts)
    moved_on = learner.inputs(learner.sampler.windows(trajectories, starts + 1))
    expected, _ = learner.policy(
        moved_on.obs, moved_on.actions, moved_on.rtg, moved_on.ctg, moved_on.timesteps
    )
    torch.testing.assert_close(
        learner.next_actions(batch), expected.clamp(-1, 1).detach(), rtol=1e-4, atol=1e-5
    )


def test_same_seed_same_weights(dataset):
    def run():
        learner = make_learner(dataset, critic_start=0.2, dropout=0.1, entropy_bonus=True)
        torch.manual_seed(3)
        for _ in range(50):
            learner.step()
        return learner

    one, two = run(), run()
    for module in ("policy", "reward_critic", "cost_critic", "cost_target"):
        assert same(one.modules()[module], snapshot(two.modules()[module]))
    assert one.metrics() == two.metrics()


def test_state_continues_bit_for_bit(dataset):
    def steps(learner, n):
        for _ in range(n):
            learner.step()

    whole = make_learner(dataset, critic_start=0.1)
    steps(whole, 12)
    state = whole.state()
    state = {
        **state,
        "modules": {k: {n: t.clone() for n, t in v.items()} for k, v in state["modules"].items()},
    }
    resumed = make_learner(dataset, critic_start=0.1)
    import copy

    resumed.load_state(copy.deepcopy(state))
    steps(whole, 10)
    steps(resumed, 10)
    assert same(resumed.policy, snapshot(whole.policy))
    assert same(resumed.critics.cost, snapshot(whole.critics.cost))
    assert resumed.step_count == whole.step_count == 22


def test_metrics_are_means_and_name_what_is_not_finite(dataset):
    learner = make_learner(dataset)
    learner.step()
    learner.step()
    metrics = learner.metrics()
    assert {"loss", "nll", "entropy", "lambda", "weight_ess", "grad_norm", "q_loss", "cost_loss",
            "q_policy", "cost_policy", "q_grad_norm", "temperature"} <= set(metrics)  # fmt: skip
    assert 0 < metrics["weight_ess"] <= 1
    assert learner.metrics() == {}
    learner._record("nll", torch.tensor(float("nan")))
    with pytest.raises(TrainingError, match="step 2: `nll` is nan"):
        learner.metrics()


def test_trajectory_weights_reach_the_loss(dataset):
    """Scaling every weight scales the gradient; a zero weight removes a trajectory."""
    learner = make_learner(dataset, variant="cdt")
    batch = learner.sampler.windows(torch.tensor([2, 3]), torch.tensor([0, 0]))

    def gradient(weights):
        inputs = learner.inputs(batch)
        mean, log_std = learner.policy(
            inputs.obs, inputs.actions, inputs.rtg, inputs.ctg, inputs.timesteps
        )
        log_prob = losses.gaussian_log_prob(batch.actions, mean, log_std)
        loss = losses.weighted_nll(log_prob, torch.tensor(weights), batch.mask)
        return torch.autograd.grad(loss, learner.policy.mean.weight)[0]

    torch.testing.assert_close(gradient([3.0, 0.0]), 3 * gradient([1.0, 0.0]))
    torch.testing.assert_close(
        gradient([1.0, 1.0]), gradient([1.0, 0.0]) + gradient([0.0, 1.0]), rtol=1e-4, atol=1e-6
    )


def test_weights_of_the_variants(dataset):
    ones = dataset_weights(dataset.outcomes, make_config("tiny", "cdt"), 3.0)
    assert ones.tolist() == [1.0] * 5
    expert = dataset_weights(
        dataset.outcomes, make_config("tiny", "rdt", alpha=2.0, expert_fraction=0.2), 3.0
    )
    best = int(dataset.episode_returns.argmax())
    assert expert.tolist() == [3.0 if m == best else 1.0 for m in range(5)]
    shaped = dataset_weights(dataset.outcomes, make_config("tiny", "rcdt"), 3.0)
    assert len(set(shaped.tolist())) > 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains(dataset, variant):
    learner = make_learner(dataset, variant=variant)
    before = snapshot(learner.policy)
    learner.step()
    assert not same(learner.policy, before)
    metrics = learner.metrics()
    assert ("q_policy" in metrics) == learner.config.q_guidance
    assert ("cost_policy" in metrics) == learner.config.cost_penalty


def test_warm_up(dataset):
    learner = make_learner(dataset, warmup_steps=3, learning_rate=1.0, final_learning_rate=1.0)
    rates = []
    for _ in range(5):
        learner.step()
        rates.append(learner.policy_optimizer.param_groups[0]["lr"])
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cost_head_learns_and_is_off_by_default(dataset):
    assert make_learner(dataset).policy.cost_head is None
    learner = make_learner(dataset, variant="cdt", cost_head_weight=1.0)
    batch = learner.sampler.sample()
    losses_seen = []
    for _ in range(30):
        learner.policy_step(batch, with_critics=False)
        losses_seen.append(learner.metrics()["cost_head_loss"])
    assert losses_seen[-1] < losses_seen[0]
