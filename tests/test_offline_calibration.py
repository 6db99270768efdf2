"""Calibration from logged data: by hand, against roll-outs on SpeedLimit, and what it refuses."""

from __future__ import annotations

import io

import numpy as np
import pytest

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.calibration import from_estimates
from rcdt_agent.cli import run_command
from rcdt_agent.deploy.token_calibration import TokenCalibration
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.fitted_q import FQEConfig
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers
from rcdt_agent.tasks.speed_limit_costs import record_fuel_drivers
from tests.conftest import QUICK

SMALL = FQEConfig(n_members=3, n_features=128, window_rows=1000)
BUDGETS = [5.0, 10.0, 20.0]


@pytest.fixture(scope="module")
def many():
    return TrajectoryDataset.from_arrays(**record_drivers(300, seed=1), name="drivers")


@pytest.fixture(scope="module")
def driver(many):
    return RCDT(preset="tiny", seed=0, total_steps=400, budget_margin=0.0).learn(many)


def test_tokens_by_hand():
    """Twice the cost up to 5; then the estimates fall, which pools them, and say too little."""
    found = from_estimates(
        np.array([0.0, 5.0, 10.0, 20.0, 40.0]),
        costs=np.array([1.0, 9.0, 12.0, 10.0, 11.0]),
        upper=np.array([2.0, 10.0, 16.0, 14.0, 15.0]),
        n_episodes=60,
        seed=3,
    )
    np.testing.assert_allclose(found.upper, [2, 10, 15, 20, 40])  # 16, 14, 15 are 15 each
    np.testing.assert_allclose(found.costs, [1, 9, 11, 11, 11])
    np.testing.assert_allclose(found.token([6.0, 10.0, 15.0, 30.0]), [2.5, 5, 10, 30])
    budgets = np.linspace(0, 60, 200)
    assert (found.token(budgets) <= budgets + 1e-5).all()  # never more than was asked for
    assert (found.offline, found.n_episodes, found.seed) == (True, 60, 3)


def test_calibrated_budgets_are_kept_in_roll_outs(driver, many):
    before = [r.mean_cost for r in driver.evaluate(ENV_ID, BUDGETS, n_episodes=20).results]
    found = driver.calibrate_offline(many, BUDGETS, n_tokens=6, config=SMALL)
    tokens = found.token(BUDGETS)
    assert driver.calibration is found and (tokens < BUDGETS).any()
    for r, token, plain in zip(
        driver.evaluate(ENV_ID, BUDGETS, n_episodes=20).results, tokens, before, strict=True
    ):
        print(f"budget {r.budget:g}: {plain:.2f}, at token {token:.2f} {r.mean_cost:.2f}")
        assert 0.5 * r.budget < r.mean_cost <= r.budget
        assert r.mean_cost == pytest.approx(token, rel=0.1)  # what the driver does with a token
    driver.calibration = None


def test_it_travels_with_the_agent_and_old_files_are_of_roll_outs(driver, many):
    found = driver.calibrate_offline(many, [10.0], n_tokens=3, config=SMALL)
    buffer = io.BytesIO()
    driver.save(buffer)
    buffer.seek(0)
    driver.calibration = None
    loaded = RCDT.load(buffer)
    assert loaded.calibration.offline
    assert loaded.calibration.token(10.0) == found.token(10.0)
    with pytest.warns(UserWarning, match="No token kept .*by the data"):
        loaded.calibration.warn_if_uncovered(0.0)
    old = {key: value for key, value in found.to_dict().items() if key != "offline"}
    assert not TokenCalibration.from_dict(old).offline


def test_data_that_do_not_cover_are_refused_and_the_calibration_stays(agent, drivers):
    kept = TokenCalibration.fit([0.0, 9.0], np.array([[0.0], [9.0]]), confidence=0.5, seed=0)
    agent.calibration = kept
    agent.evaluate(ENV_ID, [20.0], n_episodes=2)
    measured = agent.last_evaluation
    costly = drivers.select(np.flatnonzero(drivers.episode_costs > 5))
    for data, budgets, error, message in (
        (costly, [5.0, 20.0], DatasetError, "the budget 5 needs at least 5 .*, got 0 of"),
        (costly, [12.0], DatasetError, "do not show a token that keeps the budget 12: the smalle"),
        (drivers.select([0, 1, 2]), [40.0], DatasetError, "at least 5 trajectories"),
        (drivers, [], InvalidArgumentError, "needs a positive budget"),
        (drivers, [-1.0], InvalidArgumentError, "must be >= 0"),
        (drivers, [{"cost": 5.0}], InvalidArgumentError, "one cost, without a name"),
        (fuel(), [5.0], DatasetError, "its costs are speeding, fuel, but the agent's"),
    ):
        with pytest.raises(error, match=message):
            agent.calibrate_offline(data, budgets, n_tokens=4, config=SMALL)
        assert agent.calibration is kept and agent.last_evaluation is measured
    with pytest.raises(InvalidArgumentError, match="at least 3 tokens"):
        agent.calibrate(ENV_ID, [5.0], n_tokens=2)
    assert agent.calibration is kept and agent.last_evaluation is measured


def fuel():
    return TrajectoryDataset.from_arrays(**record_fuel_drivers(20, seed=1), name="fuel")


def test_several_costs_and_windows_refuse_by_name(agent, drivers):
    two = RCDT(**{**QUICK, "total_steps": 2}).learn(fuel())
    with pytest.raises(InvalidArgumentError, match="`calibrate_offline` knows one cost"):
        two.calibrate_offline(fuel(), [5.0])
    agent.set_cost_budget(6, per=10)
    with pytest.raises(InvalidArgumentError, match="for every 10 steps"):
        agent.calibrate_offline(drivers, [5.0])


def test_the_command_line_calibrates_from_a_file(driver, many, tmp_path, capsys):
    driver.save(tmp_path / "agent.zip")
    many.select(np.arange(60)).to_hdf5(tmp_path / "data.hdf5")
    command = ["calibrate", str(tmp_path / "agent.zip"), "--offline", str(tmp_path / "data.hdf5")]
    with pytest.raises(InvalidArgumentError, match="Give either `--offline` or `--env`"):
        run_command([*command, "--env", "SpeedLimit"])
    assert run_command([*command, "--budgets", "20"]) == 0
    found = RCDT.load(tmp_path / "agent-calibrated.zip").calibration
    assert found.offline and found.n_episodes == 60
    assert f"budget 20: token {float(found.token(20.0)):.3g}" in capsys.readouterr().out
