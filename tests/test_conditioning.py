"""From budgets to tokens: targets, margin, replanning, exhaustion, calibration; the shield."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

from rcdt_agent import RCDT, AgentState, TrajectoryDataset
from rcdt_agent.actions import Gaussian
from rcdt_agent.critics import TwinCritics
from rcdt_agent.data.frontier import Outcomes, ReturnToGoTable
from rcdt_agent.deploy.conditioning import Conditioning
from rcdt_agent.deploy.shield import CriticShield
from rcdt_agent.deploy.token_calibration import TokenCalibration, isotonic_fit, token_grid
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.speed_limit import ENV_ID
from rcdt_agent.variants import make_config


def walkers(points: list[tuple[float, float]], length: int = 5) -> TrajectoryDataset:
    """Trajectories with a constant reward and cost a step."""
    size = len(points) * length
    rates = np.repeat(np.array(points), length, axis=0)
    ends = np.arange(size) % length == length - 1
    return TrajectoryDataset.from_arrays(
        observations=np.zeros((size, 1)), actions=np.zeros((size, 1)), rewards=rates[:, 0],
        costs=rates[:, 1], terminals=np.zeros(size), timeouts=ends,
    )  # fmt: skip


# Five careful ones earn 1 a step at no cost, five bold ones 3 a step at a cost of 2.
TWO_KINDS = walkers([(1.0, 0.0)] * 5 + [(3.0, 2.0)] * 5)


def under_way(budget: float, spent: float, earned: float, step: int, target: float) -> AgentState:
    """One episode in mid-course, about to act at `step`."""
    state = AgentState.begin(
        1, context_length=3, observation_size=1, action_size=1, target_return=target,
        cost_budget=budget,
    )  # fmt: skip
    for i in range(step):
        state = state.push(np.zeros((1, 1), np.float32)).with_action(np.zeros((1, 1), np.float32))
        last = i == step - 1
        state = state.observe(earned if last else 0.0, spent if last else 0.0)
    return state.push(np.zeros((1, 1), np.float32))


TABLE = ReturnToGoTable.fit(TWO_KINDS, quantile=1.0, cost_unit=2.0)


def rules(**kwargs):
    return Conditioning(outcomes=TWO_KINDS.outcomes, table=TABLE, **kwargs)


def with_points(points, **kwargs):
    returns, costs = np.array(points, dtype=np.float32).T
    return Conditioning(outcomes=Outcomes(returns=returns, costs=costs), table=TABLE, **kwargs)


GRID = with_points([(r, c) for c in (0, 10, 20) for r in range(c, c + 11)])


def test_auto_is_a_quantile_of_what_was_seen_within_the_budget():
    assert GRID.target_return(0) == pytest.approx(9.0)  # 0.9 quantile of 0 .. 10
    within = np.concatenate([np.arange(11), np.arange(10, 21)])
    assert GRID.target_return(10) == pytest.approx(np.quantile(within, 0.9))
    assert GRID.target_return(15) == GRID.target_return(10)
    held_back = with_points([(r, c) for c in (0, 10, 20) for r in range(c, c + 11)], margin=0.5)
    assert held_back.target_return(20) == GRID.target_return(10)  # asks for half of it


def test_a_number_the_published_table_and_nonsense():
    targets = with_points([(1, 0)] * 5, published=((10.0, 300.0), (20.0, 400.0)))
    assert targets.target_return(10, 123) == 123.0
    assert targets.target_return(10, "paper") == 300.0
    assert targets.target_return(15, "paper") == 350.0
    assert targets.target_return(99, "paper") == 400.0
    with pytest.raises(InvalidArgumentError, match="needs a DSRL task"):
        GRID.target_return(10, "paper")
    for nonsense in ("best", float("nan")):
        with pytest.raises(InvalidArgumentError, match="`target_return` must be 'auto'"):
            GRID.target_return(10, nonsense)


def test_uncovered_requests_are_said_aloud_with_numbers():
    costly = with_points([(1, 30)] * 20)
    with pytest.warns(UserWarning, match="covered by 0 of 20 training trajectories .*costs 30"):
        costly.warn_if_uncovered(10, 1)
    with pytest.warns(UserWarning, match="target return 50 exceeds the best return 10 "):
        GRID.warn_if_uncovered(5, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GRID.warn_if_uncovered(5, GRID.target_return(5))


def test_conditioning_survives_a_checkpoint():
    config = make_config("tiny", budget_margin=0.3, ctg_floor=1.0)
    whole = with_points([(1, 2), (3, 4)], published=((1.0, 2.0),))
    again = Conditioning.from_dict(config, whole.to_dict())
    assert again.outcomes.returns.tolist() == [1, 3]
    assert again.published == ((1.0, 2.0),)
    assert (again.margin, again.ctg_floor, again.calibration) == (0.3, 1.0, None)
    np.testing.assert_array_equal(again.table.returns, TABLE.returns)


CAUTIOUS = ReturnToGoTable.fit(TWO_KINDS, quantile=0.0, cost_unit=2.0)


@pytest.mark.parametrize(
    ("budget", "spent", "step", "share"),
    [
        (10.0, 0.0, 2, 1.0),  # nothing spent
        (10.0, 4.0, 2, 1.0),  # 6 left of 10 with 3 of 5 steps to go: an even pace
        (10.0, 7.0, 2, 0.5),  # 3 left where an even pace has 6
        (10.0, 10.0, 2, 0.0),  # spent
        (10.0, 14.0, 2, 0.0),
        (0.0, 0.0, 2, 1.0),  # nothing may be spent, and nothing was
        (0.0, 1.0, 2, 0.0),
    ],
)
def test_who_spends_ahead_of_pace_is_asked_for_less(budget, spent, step, share):
    asks = rules(cautious_table=CAUTIOUS, replan=True, exhausted_mode=True)
    state = under_way(budget, spent, earned=2.0, step=step, target=1000.0)
    left = max(budget - spent, 0.0)
    high, low = float(TABLE(step, left)), float(CAUTIOUS(step, left))
    target, tokens = asks.targets(state)
    assert target[0] - 2.0 == pytest.approx(low + share * (high - low), rel=1e-5)
    assert tokens[0] - spent == pytest.approx(left)
    if left >= 6:
        assert high > low  # the cases above tell the two apart


def test_the_cautious_table_survives_a_checkpoint_and_has_its_rule():
    config = make_config("tiny", cautious_quantile=0.25)
    again = Conditioning.from_dict(config, rules(cautious_table=CAUTIOUS).to_dict())
    np.testing.assert_array_equal(again.cautious_table.returns, CAUTIOUS.returns)
    with pytest.raises(InvalidArgumentError, match="`cautious_quantile` must be in"):
        make_config("tiny", cautious_quantile=0.25, target_quantile=0.2)


def test_return_to_go_by_hand():
    table = ReturnToGoTable.fit(TWO_KINDS, quantile=1.0, cost_unit=2.0)
    assert table(0, 0.0) == pytest.approx(5.0)  # five careful steps
    assert table(3, 0.0) == pytest.approx(2.0)
    assert table(0, 10.0) == pytest.approx(15.0)  # five bold steps
    assert table(3, 4.5) == pytest.approx(6.0)
    assert table(3, 1000.0) == pytest.approx(6.0)  # beyond the data: the largest
    steps, costs = np.array([0, 4, 99]), np.array([0.0, 0.0, 0.0])
    np.testing.assert_allclose(table(steps, costs), [5.0, 1.0, 1.0], rtol=1e-6)
    values = table(np.zeros(50), np.linspace(0, 12, 50))
    assert (np.diff(values) >= -1e-5).all()


def test_return_to_go_counts_only_trajectories_under_way():
    short, long = walkers([(9.0, 0.0)] * 5, length=2), walkers([(1.0, 0.0)] * 5, length=4)
    fields = ("observations", "actions", "rewards", "costs")
    both = {name: np.concatenate([getattr(d, name) for d in (short, long)]) for name in fields}
    ends = np.zeros(30)
    ends[[*range(1, 10, 2), *range(13, 30, 4)]] = 1
    data = TrajectoryDataset.from_arrays(
        observations=both["observations"], actions=both["actions"], rewards=both["rewards"],
        costs=both["costs"], terminals=np.zeros(30), timeouts=ends,
    )  # fmt: skip
    table = ReturnToGoTable.fit(data, quantile=1.0, cost_unit=1.0)
    assert table(0, 0.0) == pytest.approx(18.0)
    assert table(3, 0.0) == pytest.approx(1.0)


def test_without_rules_tokens_are_what_is_left():
    state = under_way(budget=10, spent=12, earned=4, step=2, target=9)
    target, budget = rules().targets(state)
    assert (target[0], budget[0]) == (9, 10)
    rtg, ctg = state.tokens(target, budget)
    assert rtg[0].tolist() == [9, 9, 5]
    assert ctg[0].tolist() == [10, 10, -2]


def test_replanning_caps_the_return_by_what_the_data_show_from_here():
    conditioning = rules(replan=True)
    behind = under_way(budget=10, spent=10, earned=2, step=3, target=15)  # asks for 13 in 2 steps
    target, budget = conditioning.targets(behind)
    assert budget[0] == 10
    assert target[0] - 2 == pytest.approx(2.0)  # nothing left to spend: two careful steps
    modest = under_way(budget=10, spent=0, earned=2, step=3, target=3)
    assert conditioning.targets(modest)[0][0] == 3  # a smaller request stands


def test_exhausted_mode_acts_only_once_the_budget_is_spent():
    conditioning = rules(exhausted_mode=True)
    fine = under_way(budget=10, spent=9, earned=2, step=3, target=15)
    assert [float(x[0]) for x in conditioning.targets(fine)] == [15, 10]
    spent = under_way(budget=10, spent=13, earned=2, step=3, target=15)
    target, budget = conditioning.targets(spent)
    assert target[0] == pytest.approx(2 + 2)
    rtg, ctg = spent.tokens(target, budget)
    assert ctg[0, -1] == 0
    assert rtg[0, -1] == pytest.approx(2.0)


def test_a_margin_is_held_back_from_the_start():
    state = under_way(budget=10, spent=3, earned=0, step=1, target=5)
    target, budget = rules(margin=0.2).targets(state)
    assert (target[0], budget[0]) == (5, 8)
    _, ctg = state.tokens(target, budget)
    assert ctg[0, :2].tolist() == [8, 5]
    agent = RCDT(preset="tiny", total_steps=5, seed=0, budget_margin=0.5).learn(TWO_KINDS)
    with pytest.warns(UserWarning, match="is above 10, the largest cost of the 10"):
        agent.set_cost_budget(20)
    assert agent.cost_budget == 20
    assert agent.target_return == agent.policy.outcomes.target_return(
        10, agent.config.target_quantile
    )


def test_floor_keeps_the_window_consistent():
    state = under_way(budget=10, spent=13, earned=0, step=1, target=5)
    _, ctg = state.tokens(*rules(ctg_floor=0.0).targets(state))
    assert ctg[0, :2].tolist() == [13, 0]  # as in data that spent 13 and then nothing


def test_isotonic_is_scipys():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 20):
        values = rng.normal(size=(3, size)).cumsum(1)
        expected = np.stack([isotonic_regression(row).x for row in values])
        np.testing.assert_allclose(isotonic_fit(values), expected, atol=1e-12)


def test_calibrated_token_by_hand():
    """Episodes always cost twice the token: half the budget must be asked for."""
    tokens = np.array([0.0, 5.0, 10.0, 20.0])
    exact = TokenCalibration.fit(
        tokens, np.repeat(2 * tokens[:, None], 8, axis=1), confidence=0.95, seed=0
    )
    np.testing.assert_allclose(exact.token([10.0, 15.0, 40.0]), [5.0, 7.5, 20.0])
    assert exact.token(1000.0) == 20.0  # nothing larger was measured
    exact.warn_if_uncovered(0.0)  # a warning would be an error here


def test_calibration_is_cautious_where_costs_scatter():
    rng = np.random.default_rng(1)
    tokens = np.linspace(0, 40, 9)
    costs = tokens[:, None] + rng.normal(0, 8, (9, 20)).clip(-20, 20) + 5
    fitted = TokenCalibration.fit(tokens, costs, confidence=0.95, seed=0)
    assert (np.diff(fitted.costs) >= 0).all() and (np.diff(fitted.upper) >= 0).all()
    assert (fitted.upper >= fitted.costs - 0.5).all()
    assert 8.0 < fitted.token(20.0) < 15.0  # below the 15 that the mean alone would allow
    with pytest.warns(UserWarning, match="No token kept the cost budget 1 in calibration"):
        fitted.warn_if_uncovered(1.0)
    same = TokenCalibration.from_dict(fitted.to_dict())
    assert same.token(20.0) == fitted.token(20.0)


def test_token_grid_spans_the_budgets():
    grid = token_grid([10, 20, 40], largest_cost=100.0, n_tokens=6)
    assert grid[0] == 0
    assert grid[1] == pytest.approx(2.0)
    assert grid[-1] == pytest.approx(60.0)
    assert (np.diff(grid) > 0).all()
    assert token_grid([10, 40], largest_cost=50.0, n_tokens=6)[-1] == pytest.approx(50.0)
    with pytest.raises(InvalidArgumentError, match="at least 3 tokens"):
        token_grid([10], 20.0, 2)


def test_calibrating_an_agent_changes_its_token_and_travels_with_it(agent):
    agent.set_deployment(budget_margin=0.2)
    plain = agent.evaluate(ENV_ID, [20.0], n_episodes=4)
    found = agent.calibrate(ENV_ID, [5.0, 20.0], n_episodes=4, n_tokens=5, n_envs=20)
    assert found.tokens.shape == (5,)
    # A policy that ignores its token so early needs the clear-cut case to be seen to act.
    agent.calibration = TokenCalibration.fit(
        [0.0, 10.0, 20.0], np.array([[0.0], [20.0], [40.0]]), confidence=0.5, seed=0
    )
    agent.set_cost_budget(20.0)
    quantile = agent.config.target_quantile
    assert agent.target_return == pytest.approx(agent.policy.outcomes.target_return(8.0, quantile))
    buffer = io.BytesIO()
    agent.save(buffer)
    buffer.seek(0)
    loaded = RCDT.load(buffer)
    assert loaded.target_return == agent.target_return
    calibrated = loaded.evaluate(ENV_ID, [20.0], n_episodes=4)
    assert calibrated.results[0].target_return == agent.target_return
    # A calibration holds for the rules it was measured under.
    with pytest.raises(InvalidArgumentError, match="`budget_margin` .* calibrated"):
        loaded.set_deployment(budget_margin=0.0)
    assert loaded.config.budget_margin == pytest.approx(0.2)
    loaded.set_deployment(budget_margin=0.2)  # as it was: nothing to refuse
    loaded.calibration = None
    assert loaded.evaluate(ENV_ID, [20.0], n_episodes=4).to_json() == plain.to_json()
    loaded.set_deployment(budget_margin=0.0)
    assert loaded.config.budget_margin == 0.0


def linear_critics(**signals):
    """Critics of one action that say bias + slope a for each signal (bias, slope)."""
    critics = TwinCritics(dict.fromkeys(signals, 1.0), 1, 1, width=1, n_layers=2)
    with torch.no_grad():
        first, last = critics.layers
        first.weight.zero_()
        first.weight[:, 1] = 1.0
        first.bias.fill_(30.0)  # where mish is the identity
        for i, (bias, slope) in enumerate(signals.values()):
            last.weight[2 * i : 2 * i + 2] = slope
            last.bias[2 * i : 2 * i + 2] = bias - 30.0 * slope
    return critics


def test_shield_keeps_what_fits_and_replaces_what_does_not():
    """Cost 5 + 4 a, value 2 a: with 5 allowed the best fitting action is the largest below 0."""
    shield = CriticShield(
        critics=linear_critics(reward=(0.0, 2.0), cost=(5.0, 4.0)), n_candidates=64
    )
    mean = torch.tensor([[0.5]] * 3)
    policy = Gaussian(mean, torch.full((3, 1), 0.5).log())
    allowed = torch.tensor([8.0, 5.0, 0.1])
    actions, replaced = shield.choose(torch.zeros(3, 1), policy, mean, allowed)
    assert replaced.tolist() == [False, True, True]
    assert actions[0, 0] == 0.5
    assert -0.1 < actions[1, 0] <= 0.0
    assert actions[2, 0] < -0.3  # none fits: the least cost
    again, _ = shield.choose(torch.zeros(3, 1), policy, mean, allowed)
    torch.testing.assert_close(actions, again)


def test_shield_without_a_reward_critic_stays_near_the_policy():
    shield = CriticShield(critics=linear_critics(cost=(5.0, 4.0)), n_candidates=64)
    mean = torch.tensor([[0.5]])
    policy = Gaussian(mean, torch.full((1, 1), 0.5).log())
    allowed = torch.tensor([5.0])
    actions, replaced = shield.choose(torch.zeros(1, 1), policy, mean, allowed)
    assert replaced.tolist() == [True] and -0.1 < actions[0, 0] <= 0.0


def test_shield_of_a_loaded_agent_counts_its_interventions(agent):
    agent.set_deployment(shield_candidates=8, exhausted_mode=True)
    report = agent.evaluate(ENV_ID, [0.0], n_episodes=2)
    assert report.results[0].interventions > 0.2  # nothing may be spent: the critic objects
    agent.set_deployment(shield_candidates=0)
    assert agent.evaluate(ENV_ID, [0.0], n_episodes=2).results[0].interventions == 0


def test_deployment_settings_are_checked(agent, drivers):
    with pytest.raises(
        InvalidArgumentError, match="`set_deployment` changes budget_margin, ctg_floor"
    ):
        agent.set_deployment(n_layers=3)
    plain = RCDT(preset="tiny", variant="cdt", total_steps=2, batch_size=4).learn(drivers)
    with pytest.raises(InvalidArgumentError, match="needs a cost critic"):
        plain.set_deployment(shield_candidates=4)
    assert plain.config.shield_candidates == 0
    with pytest.raises(InvalidArgumentError, match="needs a cost critic"):
        RCDT(preset="tiny", variant="cdt", shield_candidates=4)
