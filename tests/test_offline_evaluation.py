"""Fitted Q evaluation: close to roll-outs and to the data, several costs, refusals, seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rcdt_agent import BC, RCDT, TrajectoryDataset
from rcdt_agent.algorithms.recorded import actions_along
from rcdt_agent.cli import run_command
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.experiments.report import write_report
from rcdt_agent.experiments.runs import Run
from rcdt_agent.fitted_q import FQEConfig
from rcdt_agent.offline_evaluation import _squared_gaps, nearest_outcomes
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers
from rcdt_agent.tasks.speed_limit_costs import record_fuel_drivers
from tests.conftest import QUICK, random_arrays

SMALL = FQEConfig(n_members=3, n_features=64, window_rows=1000)


@pytest.fixture(scope="module")
def many():
    return TrajectoryDataset.from_arrays(**record_drivers(300, seed=1), name="drivers")


@pytest.fixture(scope="module")
def driver(many):
    return RCDT(preset="tiny", seed=0, total_steps=400).learn(many)


def test_estimates_are_close_to_roll_outs_at_every_budget(driver, many):
    budgets = [5, 15, 30]
    offline = driver.evaluate_offline(many, budgets)
    rolled = driver.evaluate(ENV_ID, budgets, n_episodes=20)
    for ours, real in zip(offline.results, rolled.results, strict=True):
        assert ours.mean_return == pytest.approx(real.mean_return, abs=9)
        assert ours.mean_cost == pytest.approx(real.mean_cost, abs=6)
        assert ours.return_interval[0] <= ours.mean_return <= ours.return_interval[1]
    returns = [r.mean_return for r in offline.results]
    costs = [r.mean_cost for r in offline.results]
    assert returns == sorted(returns) and costs == sorted(costs)


def test_the_behaviour_of_the_data_is_estimated_by_its_mean(driver, many):
    check = driver.evaluate_offline(many, [10]).check
    assert list(check) == ["return", "cost"]
    assert abs(check["return"].error) < 0.25 and abs(check["cost"].error) < 0.25
    assert check["return"].rmse < 1.1 * check["return"].deviation


def test_recorded_facts_lead_the_agent(driver, many):
    """At each step it acts as it does in an episode with the recorded rewards and costs."""
    few = many.select([3, 7])
    actions, _ = actions_along(driver, few, 10.0, driver.resolve_target(10.0))
    state = driver.begin(1, cost_budget=10.0)
    for row in range(60):
        action, state = driver.predict(few.observations[row : row + 1], state)
        np.testing.assert_allclose(actions[row], action[0], atol=1e-5)
        state = state.with_action(few.actions[row : row + 1])
        state = state.observe(few.rewards[row], few.costs[row])


def test_nearest_trajectories_by_hand():
    """Twelve trajectories with actions i / 10: those of ten trajectories are nearest to 1.1."""
    arrays = random_arrays([3] * 12)
    arrays["actions"] = np.repeat(np.arange(12) / 10, 3)[:, None].astype(np.float32)
    data = TrajectoryDataset.from_arrays(**arrays)
    found = nearest_outcomes(np.full_like(data.actions, 1.1), data)
    np.testing.assert_allclose(found[:, 0], data.episode_returns[:1:-1])
    np.testing.assert_allclose(found[:, 1], data.episode_costs[:1:-1])


def test_a_constant_action_does_not_outweigh_the_others():
    recorded = np.stack([np.linspace(-1, 1, 50), np.full(50, 0.3)], axis=1).astype(np.float32)
    gaps = _squared_gaps(recorded + np.float32([0.0, 1e-3]), recorded)
    np.testing.assert_allclose(gaps, 0.5e-6, rtol=1e-3)


def test_intervals_span_both_estimates_and_passing_needs_both(agent, drivers):
    for r in agent.evaluate_offline(drivers, [2, 5, 20, 40], config=SMALL).results:
        low, high = r.return_interval
        assert low <= min(r.mean_return, r.nearest_return)
        assert high >= max(r.mean_return, r.nearest_return)
        low, high = r.cost_interval
        assert low <= min(r.mean_cost, r.nearest_cost)
        assert high >= max(r.mean_cost, r.nearest_cost)
        assert r.passed == (max(r.mean_cost, r.nearest_cost) <= r.budget)


def test_the_run_keeps_the_estimate_and_the_report_shows_it(tmp_path, drivers):
    folder, data = tmp_path / "run", str(tmp_path / "data.hdf5")
    drivers.to_hdf5(data)
    small = ["--batch-size", "16", "--embedding-size", "16", "--total-steps", "5"]
    train = ["train", "SpeedLimit", "--preset", "tiny", *small, "--no-evaluate"]
    assert run_command([*train, "--output", str(folder)]) == 0
    assert run_command(["evaluate", str(folder), "--budgets", "5", "--episodes", "2"]) == 0
    assert run_command(["evaluate", str(folder), "--offline", data, "--budgets", "5", "20"]) == 0
    ours = json.loads((folder / "offline.json").read_text())["results"]
    (real,) = json.loads((folder / "report.json").read_text())["results"]
    page = write_report(Run(folder)).read_text()
    _, shown = page.split("<h3>Estimated without a simulator</h3>")
    table = shown.split("</table>")[0]
    for r in ours:
        assert f"{r['mean_return']:.2f}, {r['nearest_return']:.2f}" in table
        assert f"{r['mean_cost']:.2f}, {r['nearest_cost']:.2f}" in table
    assert f"{real['mean_return']:.2f}" in table and f"{real['mean_cost']:.2f}" in table
    assert table.count("not measured") == 2  # return and cost at 20
    changed = Run(folder).agent()
    changed.set_deployment(budget_margin=0.5)
    changed.save(folder / "agent.zip")
    assert "Estimated without" not in write_report(Run(folder)).read_text()  # another agent's


def test_the_report_shows_the_estimate_of_every_cost(tmp_path):
    folder, data = str(tmp_path / "run"), str(tmp_path / "fuel.hdf5")
    TrajectoryDataset.from_arrays(**record_fuel_drivers(30, seed=1)).to_hdf5(data)
    small = ["--batch-size", "16", "--embedding-size", "16", "--total-steps", "5"]
    train = ["train", data, "--preset", "tiny", *small, "--no-evaluate", "--output", folder]
    assert run_command(train) == 0
    budgets = ["--cost-budgets", "speeding=5,fuel=20"]
    assert run_command(["evaluate", folder, "--offline", data, *budgets]) == 0
    (ours,) = json.loads((tmp_path / "run" / "offline.json").read_text())["results"]
    page = write_report(Run(tmp_path / "run")).read_text()
    table = page.split("<h3>Estimated without a simulator</h3>")[1].split("</table>")[0]
    for name in ("speeding", "fuel"):
        assert f"{name}, estimated" in table and f"{name}, measured" in table
        assert f"{ours['mean_cost'][name]:.2f}, {ours['nearest_cost'][name]:.2f}" in table


def test_trajectories_of_other_lengths_that_end_or_are_cut():
    lengths = [9, 4, 12, 12, 6, 7, 12, 3, 8, 12, 5, 10]
    ends = [i % 2 == 0 for i in range(12)]
    data = TrajectoryDataset.from_arrays(**random_arrays(lengths, terminated=ends))
    agent = BC(preset="tiny", seed=0, total_steps=5).learn(data)
    report = agent.evaluate_offline(data, [1.0, 9.0], config=SMALL)
    assert report.horizon == 12
    assert report.trajectories + report.held_out == 12
    first, second = report.results  # it knows no budget
    assert first.mean_cost == second.mean_cost and first.budget != second.budget
    assert 0 <= first.mean_cost <= data.episode_costs.max()


def test_several_costs_are_estimated_by_name():
    data = TrajectoryDataset.from_arrays(**record_fuel_drivers(100, seed=1), name="fuel")
    agent = RCDT(**QUICK).learn(data)
    budget = {"speeding": 5.0, "fuel": 20.0}
    report = agent.evaluate_offline(data, [budget], config=SMALL)
    assert list(report.check) == ["return", "speeding", "fuel"]
    for j, name in enumerate(("speeding", "fuel")):
        assert abs(report.check[name].error) < 0.5
        low, high = report.results[0].cost_interval[name]
        assert low <= report.results[0].mean_cost[name] <= high
        assert high <= data.episode_costs[:, j].max()
    assert "fuel: Q, nearest" in report.as_table() and "speeding=5 fuel=20" in report.as_table()
    with pytest.raises(InvalidArgumentError, match="noise unknown; fuel missing"):
        agent.evaluate_offline(data, [{"speeding": 5, "noise": 1}])


def test_bad_input_is_refused_by_name(agent, drivers):
    other = TrajectoryDataset.from_arrays(**random_arrays([4] * 12), name="other")
    with pytest.raises(DatasetError, match="other: `observations` have size 3, but the agent's"):
        agent.evaluate_offline(other, [5])
    with pytest.raises(DatasetError, match="at least 10 trajectories, got 3"):
        agent.evaluate_offline(drivers.select([0, 1, 2]), [5])
    with pytest.raises(DatasetError):
        agent.evaluate_offline({key: values[:0] for key, values in random_arrays([4]).items()}, [5])
    with pytest.raises(InvalidArgumentError, match=">= 0"):
        agent.evaluate_offline(drivers, [-1])
    with pytest.raises(InvalidArgumentError, match="one cost, without a name"):
        agent.evaluate_offline(drivers, [{"speeding": 5}])
    with pytest.raises(InvalidArgumentError, match="`budgets` must not be empty"):
        agent.evaluate_offline(drivers, [])
    with pytest.raises(InvalidArgumentError, match="`n_members` must be a whole number"):
        FQEConfig(n_members=0)
    with pytest.raises(InvalidArgumentError, match="`holdout` must be in"):
        FQEConfig(holdout=1.0)


def test_same_seed_same_report_and_json(agent, drivers, tmp_path):
    first = agent.evaluate_offline(drivers, [5, 20], config=SMALL, seed=4)
    assert agent.evaluate_offline(drivers, [5, 20], config=SMALL, seed=4) == first
    assert agent.evaluate_offline(drivers, [5, 20], config=SMALL, seed=5) != first
    text = first.to_json(tmp_path / "report.json")
    values = json.loads((tmp_path / "report.json").read_text())
    assert json.loads(text) == values
    assert values["results"][1]["budget"] == 20 and values["passed"] == first.passed
    assert "not roll-outs" in values["limits"] and "not roll-outs" in first.as_table()


def test_the_command_line_estimates_from_a_file(agent, drivers, tmp_path, capsys):
    agent.save(tmp_path / "agent.zip")
    drivers.to_hdf5(tmp_path / "data.hdf5")
    saved, data = str(tmp_path / "agent.zip"), str(tmp_path / "data.hdf5")
    command = ["evaluate", saved, "--offline", data, "--budgets", "5", "20"]
    assert run_command([*command, "--output", str(tmp_path / "out.json")]) == 0
    assert "Held-out check, cost" in capsys.readouterr().out
    assert [r["budget"] for r in json.loads((tmp_path / "out.json").read_text())["results"]] == [
        5,
        20,
    ]
