"""BCQ-Lag, BEAR-Lag, CPQ, COptiDICE: who learns from what, what is saved, that they learn."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from conftest import random_arrays, small_settings

from rcdt_agent import CPQ, BCQLag, BEARLag, COptiDICE, TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.losses import cost_threshold
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers

KINDS = {"bcq-lag": BCQLag, "bear-lag": BEARLag, "cpq": CPQ, "coptidice": COptiDICE}
LAGRANGIAN = ["bcq-lag", "bear-lag"]

name_of_each = pytest.mark.parametrize("name", KINDS)


def ready(name, data, **changes):
    """An agent about to make its first step."""
    agent = KINDS[name](**{**small_settings(name), **changes})
    agent.set_dataset(data)
    agent.setup(data)
    return agent


def weights(*modules):
    return [p.detach().clone() for module in modules for p in module.parameters()]


def moved(before, *modules):
    return [
        not torch.equal(b, p)
        for b, p in zip(before, (p for m in modules for p in m.parameters()), strict=True)
    ]


# ------------------------------------------------------------ budgets and settings


@name_of_each
def test_a_budget_is_needed_for_training_and_is_fixed_then(name, drivers):
    kind = KINDS[name]
    for learn in (
        lambda: kind(preset="tiny").learn(drivers, 1),
        lambda: kind.from_dsrl("SpeedLimit", preset="tiny"),
    ):
        with pytest.raises(
            InvalidArgumentError, match=rf"`cost_budget` must be given: {kind.__name__}"
        ):
            learn()
    with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0, got -1"):
        kind(cost_budget=-1.0)
    agent = kind(**small_settings(name)).learn(drivers, 1)
    agent.set_cost_budget(7.0)
    with pytest.raises(
        InvalidArgumentError, match=rf"the cost budget 7 only.*RCDT.*{kind.__name__}\("
    ):
        agent.set_cost_budget(8.0)
    assert agent.begin(2, cost_budget=7.0) is None and agent.begin() is None
    with pytest.raises(InvalidArgumentError, match="the cost budget 7 only, got 8"):
        agent.begin(2, cost_budget=[7.0, 8.0])


@pytest.mark.parametrize(
    ("name", "field", "value", "rule"),
    [
        ("bcq-lag", "discount", 1.0, r"in \[0, 1\)"),
        ("bcq-lag", "perturbation", -0.1, r"in \[0, 2\]"),
        ("bcq-lag", "pid", (0.1, -1.0, 0.0), "three numbers >= 0"),
        ("bcq-lag", "lambda_max", 0.0, "> 0"),
        ("bcq-lag", "n_candidates", 0, ">= 1"),
        ("bear-lag", "mmd_kernel", "box", "one of"),
        ("bear-lag", "mmd_sigma", 0.0, "> 0"),
        ("bear-lag", "critic_mix", 1.5, r"in \[0, 1\]"),
        ("cpq", "ood_quantile", 1.5, r"in \[0, 1\]"),
        ("cpq", "alpha_start", 0.0, "> 0"),
        ("cpq", "n_critics", 0, ">= 1"),
        ("coptidice", "alpha", 0.0, "> 0"),
        ("coptidice", "cost_bound", -1.0, ">= 0"),
        ("coptidice", "as_published", 1, "True or False"),
        ("coptidice", "target_rate", 0.0, r"in \(0, 1\]"),
    ],
)
def test_bad_settings_are_refused_by_name(name, field, value, rule):
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be {rule}"):
        KINDS[name](cost_budget=5.0, **{field: value})


@name_of_each
def test_the_threshold_has_the_critics_own_horizon(name, drivers):
    """Critics look beyond a time limit, DICE does not; the published code compares otherwise."""
    agent, theirs = ready(name, drivers), ready(name, drivers, as_published=True)
    discount = agent.config.discount
    assert agent.policy.episode_length == 60
    if name == "coptidice":
        expected = cost_threshold(7.0, discount, 60, normalised=True)
        assert agent.cost_threshold(normalised=True, finite=True) == pytest.approx(expected)
    else:
        assert agent.cost_threshold() == pytest.approx(7.0 / 60 / (1 - discount))
    assert theirs.cost_threshold() == pytest.approx(cost_threshold(7.0, discount, 60))
    scaled = ready(name, drivers, cost_scale=2.0)
    assert scaled.cost_threshold() == pytest.approx(2 * agent.cost_threshold())


@name_of_each
def test_presets_are_as_published_by_default(name):
    kind = KINDS[name]
    assert kind.make_config("paper") == kind.config_class()
    assert kind.make_config("paper").total_steps == (300_000 if name == "bear-lag" else 100_000)
    assert (kind.config_class().batch_size, kind.config_class().width) == (512, 256)
    assert not kind.config_class().normalize_observations
    assert not kind.config_class().as_published


# ------------------------------------------------------------ acting


@name_of_each
def test_actions_fill_the_action_space(name, drivers):
    """Inside they are in [-1, 1]; a box of [2, 6] is met, and deterministic means repeatable."""
    import gymnasium as gym

    box = gym.spaces.Box(2.0, 6.0, (1,), dtype=np.float32)
    data = TrajectoryDataset.from_arrays(
        **{**record_drivers(20, seed=0), "actions": 4 + 2 * record_drivers(20, seed=0)["actions"]}
    )
    agent = KINDS[name](**small_settings(name), action_space=box).learn(data, 3)
    obs = drivers.observations[:200]
    actions, _ = agent.predict(obs)
    assert actions.min() >= 2.0 and actions.max() <= 6.0
    np.testing.assert_array_equal(agent.predict(obs)[0], actions)
    drawn = agent.predict(obs, deterministic=False)[0]
    assert np.abs(drawn - actions).max() > 0.01
    assert np.abs(agent.predict(obs, deterministic=False)[0] - drawn).max() > 0.01


@pytest.mark.parametrize("name", LAGRANGIAN)
def test_the_best_candidate_is_taken(name, drivers):
    agent = ready(name, drivers)
    agent.num_timesteps = 1
    policy, obs = agent.policy, torch.from_numpy(drivers.observations[:5])
    policy.lagrangian.lmbda.fill_(2.0)
    chosen = policy.act(obs, generator=torch.Generator(), deterministic=True)
    for row, action in zip(obs, chosen, strict=True):
        state = policy.normalizer.obs(row).expand(agent.config.n_candidates, -1)
        actions = policy.candidates(policy.actor, state, policy.draws)
        q, cost = policy.mixed(policy.critics(state, actions))
        best = actions[(q - 2.0 * cost).argmax()]
        torch.testing.assert_close(action, best)


def test_bcq_moves_proposals_a_little(drivers):
    policy = ready("bcq-lag", drivers, perturbation=0.05).policy
    with torch.no_grad():
        policy.actor.network[-1].bias.fill_(100.0)
    obs, noise = torch.zeros(4, 4), 9 * torch.randn(4, policy.noise_size)
    proposed = policy.vae.decode(obs, noise.clamp(-0.5, 0.5))
    torch.testing.assert_close(
        policy.candidates(policy.actor, obs, noise), (proposed + 0.05).clamp(-1, 1)
    )


def test_published_actions(drivers):
    obs = torch.from_numpy(drivers.observations[:6])
    bcq = ready("bcq-lag", drivers, as_published=True).policy
    one, two = (
        bcq.act(obs, generator=torch.Generator().manual_seed(s), deterministic=True) for s in (1, 2)
    )
    assert not torch.equal(one, two)  # one random proposal, whatever is asked for
    bear = ready("bear-lag", drivers, as_published=True).policy
    mean, _ = bear.actor(bear.normalizer.obs(obs))
    found = bear.act(obs, generator=torch.Generator(), deterministic=True)
    torch.testing.assert_close(found, torch.tanh(mean))
    for published in (True, False):
        dice = ready("coptidice", drivers, as_published=published).policy
        with torch.no_grad():
            dice.actor.network[-1].bias[0] += 0.9
        mean, _ = dice.actor(dice.normalizer.obs(obs))
        found = dice.act(obs, generator=torch.Generator(), deterministic=True)
        expected = torch.tanh(mean) if published else mean.clamp(-1, 1)
        torch.testing.assert_close(found, expected)


# ------------------------------------------------------------ who learns from what


def test_each_step_of_the_lagrangian_moves_its_own_networks(drivers):
    for name in LAGRANGIAN:
        agent = ready(name, drivers)
        policy = agent.policy
        batch = agent.sampler.sample_transitions()
        obs = policy.normalizer.obs(batch.obs)
        actions = policy.normalizer.actions(batch.actions)
        parts = {"vae": policy.vae, "critics": policy.critics, "actor": policy.actor}
        steps = {
            "vae": lambda a=agent, o=obs, x=actions: a.vae_step(o, x),
            "critics": lambda a=agent, b=batch, o=obs, x=actions: a.critic_step(b, o, x),
            "actor": lambda a=agent, o=obs: a.actor_step(o),
        }
        for own, step in steps.items():
            before = {part: weights(module) for part, module in parts.items()}
            step()
            for part, module in parts.items():
                assert any(moved(before[part], module)) == (part == own), (name, own, part)
        targets = weights(agent.target_actor, agent.target_critics)
        agent.step()
        assert any(moved(targets, agent.target_actor, agent.target_critics))


def test_each_step_of_cpq_moves_its_own_networks(drivers):
    agent = ready("cpq", drivers, imitation_steps=0)
    batch, policy = agent.sampler.sample_transitions(), agent.policy
    obs, actions = policy.normalizer.obs(batch.obs), policy.normalizer.actions(batch.actions)
    parts = (agent.vae, agent.critics, agent.cost_critics, policy.actor)
    for step, expected in (
        (lambda: agent.vae_step(obs, actions), [True, False, False, False]),
        (lambda: agent.critic_step(batch, obs, actions), [False, True, True, False]),
        (lambda: agent.actor_step(obs), [False, False, False, True]),
        (lambda: agent.imitation_step(obs, actions), [False, False, False, True]),
    ):
        before = [weights(part) for part in parts]
        step()
        assert [any(moved(b, part)) for b, part in zip(before, parts, strict=True)] == expected


def test_each_step_of_coptidice_moves_its_own_networks(drivers):
    agent = ready("coptidice", drivers)
    batch, normalizer = agent.sampler.sample_transitions(), agent.policy.normalizer
    obs, next_obs = normalizer.obs(batch.obs), normalizer.obs(batch.next_obs)
    first = normalizer.obs(agent.sampler.sample_initial_obs())
    parts = (agent.nu, agent.chi, agent.multipliers, agent.policy.actor)
    for step, expected in (
        (lambda: agent.cost_step(batch, obs, next_obs, first), [False, True, False, False]),
        (lambda: agent.nu_step(batch, obs, next_obs, first), [True, False, False, False]),
        (lambda: agent.multiplier_step(*torch.ones(2)), [False, False, True, False]),
        (lambda: agent.actor_step(batch, obs, next_obs), [False, False, False, True]),
    ):
        before = [weights(part) for part in parts]
        step()
        assert [any(moved(b, part)) for b, part in zip(before, parts, strict=True)] == expected


def test_the_ood_term_raises_the_cost_critic_and_as_published_does_not(drivers):
    for published in (False, True):
        agent = ready("cpq", drivers, as_published=published)
        obs = agent.policy.normalizer.obs(torch.from_numpy(drivers.observations[:64]))
        found = agent.ood_cost(obs)
        assert found.requires_grad == (not published)
        if published:
            continue
        (-found).backward()
        grads = [p.grad.abs().sum().item() for p in agent.cost_critics.parameters()]
        assert sum(grads) > 0
        assert all(p.grad is None for p in agent.policy.actor.parameters())
        assert all(p.grad is None for p in agent.target_cost_critics.parameters())
        state = agent.training.generators["noise"].get_state()
        before = agent.ood_cost(obs).item()
        with torch.no_grad():
            for p in agent.cost_critics.parameters():
                p -= 0.01 * p.grad
        agent.training.generators["noise"].set_state(state)
        assert agent.ood_cost(obs).item() > before


def test_unsafe_actions_teach_the_cpq_actor_nothing(drivers):
    agent = ready("cpq", drivers)
    obs = agent.policy.normalizer.obs(torch.from_numpy(drivers.observations[:32]))
    with torch.no_grad():
        agent.cost_critics.layers[-1].bias.fill_(1e6)
    before = weights(agent.policy.actor)
    metrics = agent.actor_step(obs)
    assert metrics["safe_share"].item() == 0.0
    assert not any(moved(before, agent.policy.actor))
    with torch.no_grad():
        agent.cost_critics.layers[-1].bias.fill_(-1e6)
    assert agent.actor_step(obs)["safe_share"].item() == 1.0
    assert any(moved(before, agent.policy.actor))


# ------------------------------------------------------------ ends of episodes, pessimism


def constant(ensemble, value):
    """Make every estimate this value."""
    with torch.no_grad():
        for p in ensemble.parameters():
            p.zero_()
        last = ensemble.layers[-1].bias
        last += torch.as_tensor(value, dtype=last.dtype).view(-1, 1, 1)


def ends_of_both_kinds():
    data = TrajectoryDataset.from_arrays(**random_arrays([5, 5], terminated=[True, False]))
    return data, torch.tensor([1, 4, 9])  # inside, at a terminal, at a time limit


@pytest.mark.parametrize("name", [*LAGRANGIAN, "cpq"])
@pytest.mark.parametrize("published", [False, True])
def test_where_values_stop(name, published, monkeypatch):
    """By default at terminals; the published code stops rewards at every end and costs at none."""
    from rcdt_agent import losses

    data, rows = ends_of_both_kinds()
    agent = ready(name, data, as_published=published, ood_samples=2) if name == "cpq" else ready(
        name, data, as_published=published
    )  # fmt: skip
    batch = agent.sampler.transitions(rows)
    stops = []
    td_target = losses.td_target

    def note(reward, value, terminal, discount):
        stops.append(terminal.tolist())
        return td_target(reward, value, terminal, discount)

    monkeypatch.setattr(losses, "td_target", note)
    normalizer = agent.policy.normalizer
    agent.critic_step(batch, normalizer.obs(batch.obs), normalizer.actions(batch.actions))
    at_terminals, at_ends, never = [False, True, False], [False, True, True], [False] * 3
    assert stops == ([at_ends, never] if published else [at_terminals, at_terminals])


@pytest.mark.parametrize("published", [False, True])
def test_costs_are_pessimistic_by_default(published, drivers):
    agent = ready("bcq-lag", drivers, n_critics=2, as_published=published)
    policy = agent.policy
    constant(policy.critics, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0])
    values = policy.critics(torch.zeros(2, 4), torch.zeros(2, 1))
    q, cost = policy.mixed(values)
    assert q.tolist() == [0.75 * 1 + 0.25 * 3] * 2
    assert cost.tolist() == [0.75 * 5 + 0.25 * 7 if published else 0.75 * 9 + 0.25 * 6] * 2
    q, cost = policy.extremes(values)
    assert (q.tolist(), cost.tolist()) == ([1.0] * 2, [5.0 if published else 9.0] * 2)
    cpq = ready("cpq", drivers, as_published=published)
    assert cpq.cost_value(torch.tensor([[1.0], [2.0]])).item() == (1.0 if published else 2.0)


# ------------------------------------------------------------ multipliers


@pytest.mark.parametrize("name", LAGRANGIAN)
@pytest.mark.parametrize("published", [False, True])
def test_lambda_follows_the_violation_and_is_saved(name, published, drivers):
    agent = ready(name, drivers, as_published=published, lambda_max=0.3)
    pid = agent.policy.lagrangian
    constant(agent.policy.critics, torch.full((4,), 50.0))
    constant(agent.target_critics, torch.full((4,), 50.0))
    for _ in range(3):
        agent.step()
        agent.num_timesteps += 1
    assert (pid.lmbda.item() > 0.3) if published else (pid.lmbda.item() == pytest.approx(0.3))
    buffer = io.BytesIO()
    agent.save(buffer)
    loaded = KINDS[name].load(buffer)
    for key, value in pid.state_dict().items():
        assert torch.equal(loaded.policy.lagrangian.state_dict()[key], value)
    assert loaded.policy.lagrangian.maximum == (float("inf") if published else 0.3)
    constant(agent.policy.critics, torch.zeros(4))
    constant(agent.target_critics, torch.zeros(4))
    high = pid.lmbda.item()
    for _ in range(5):
        agent.step()
    assert pid.lmbda.item() < high


def test_multipliers_of_the_others_are_saved(drivers):
    for name, module in (("bear-lag", "alpha"), ("cpq", "alpha"), ("coptidice", "multipliers")):
        agent = KINDS[name](**small_settings(name)).learn(drivers, 4)
        start = KINDS[name](**small_settings(name)).learn(drivers, 1)
        buffer = io.BytesIO()
        agent.save(buffer)
        loaded = KINDS[name].load(buffer).training.module_states[module]
        for key, value in agent.training.modules[module].state_dict().items():
            assert torch.equal(loaded[key], value)
            assert not torch.equal(start.training.modules[module].state_dict()[key], value)


@pytest.mark.parametrize("published", [False, True])
def test_lambda_of_dice_rises_above_its_threshold(published, drivers):
    """Costs of .2 a step: beyond .0005 to ours; the published code compares with 1 / 0.01 of it."""
    agent = ready("coptidice", drivers, as_published=published, cost_budget=1.0, discount=0.99)
    before = agent.multipliers.lmbda.item()
    for _ in range(20):
        metrics = agent.step()
    threshold = cost_threshold(1.0, 0.99, 60, normalised=not published)
    assert (metrics["cost_estimate"].item() > threshold) == (not published)
    assert (agent.multipliers.lmbda.item() > before) == (not published)


# ------------------------------------------------------------ learning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "low", "high", "steps"),
    [
        ("bcq-lag", 3.0, 30.0, 1500),
        ("bear-lag", 3.0, 30.0, 1500),
        ("cpq", 5.0, 40.0, 2000),
        ("coptidice", 3.0, 30.0, 2000),
    ],
)
def test_cost_falls_with_the_budget_it_was_trained_for(name, low, high, steps):
    data = TrajectoryDataset.from_arrays(**record_drivers(300, seed=0))
    results = []
    for budget in (low, high):
        agent = KINDS[name](preset="tiny", seed=0, cost_budget=budget).learn(data, steps)
        report = agent.evaluate(ENV_ID, [budget], n_episodes=20, seed=1000, n_envs=20)
        results.append(report.results[0])
        print(name, budget, report.results[0].mean_return, report.results[0].mean_cost)
    strict, loose = results
    assert strict.mean_cost < 0.6 * loose.mean_cost
    assert strict.mean_return < loose.mean_return  # what the larger budget buys
    assert strict.mean_return > 30  # and it drives
    if name != "cpq":  # stops learning once all looks unsafe; see its page
        assert strict.mean_cost <= low
