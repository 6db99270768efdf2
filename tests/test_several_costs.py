"""Several costs with a budget each: data, tokens, critics, lambdas, acting, reports, refusals."""

from __future__ import annotations

import io
import json
import re

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from stable_baselines3.common.logger import HumanOutputFormat, Logger

from rcdt_agent import RCDT, TrajectoryDataset, VectorReturnCostTokens
from rcdt_agent.algorithms import get_algorithm
from rcdt_agent.callbacks import BudgetEvalCallback
from rcdt_agent.costs import parse_budget
from rcdt_agent.data.dominance import DominanceTable, dominance_frontier
from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.data.sampler import Relabelling, WindowSampler
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.env_step import read_step
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.plots import page_style, to_svg
from rcdt_agent.tasks.speed_limit import optimal_return
from rcdt_agent.tasks.speed_limit_costs import (
    SpeedLimitFuelEnv,
    fuel_cost,
    optimal_fuel_return,
    record_fuel_drivers,
)
from tests.conftest import QUICK, random_arrays, small_settings

NAMES = ("speeding", "fuel")
SPEEDING, FUEL = NAMES


def arrays(lengths=(4, 6, 3), **changes):
    """Random trajectories with costs a and b; b is ten times a random number."""
    flat = random_arrays(list(lengths))
    b = 10 * np.random.default_rng(1).random(len(flat["costs"])).astype(np.float32)
    return {**flat, "costs": {"a": flat["costs"], "b": b}, **changes}


@pytest.fixture(scope="module")
def fuel_data():
    return TrajectoryDataset.from_arrays(**record_fuel_drivers(60, seed=1), name="fuel")


@pytest.fixture(scope="module")
def agent(fuel_data):
    return RCDT(**QUICK).learn(fuel_data)


# ------------------------------------------------------------ data


def test_a_mapping_of_costs_becomes_columns_with_names_and_sums_of_each():
    given = arrays()
    data = TrajectoryDataset.from_arrays(**given)
    assert data.cost_names == ("a", "b") and data.costs.shape == (13, 2)
    for j, name in enumerate("ab"):
        costs = given["costs"][name]
        np.testing.assert_allclose(data.episode_costs[1, j], costs[4:10].sum(), rtol=1e-6)
        np.testing.assert_allclose(data.costs_to_go[5, j], costs[5:10].sum(), rtol=1e-5)
    assert data.summary().cost_ranges["b"] == (
        data.episode_costs[:, 1].min(),
        data.episode_costs[:, 1].max(),
    )
    assert data.select([2]).cost_names == ("a", "b")
    assert len(data.filter(max_cost={"b": float(data.episode_costs[:, 1].min())})) == 1
    columns = TrajectoryDataset.from_arrays(**{**given, "costs": data.costs})
    assert columns.cost_names == ("cost_0", "cost_1")
    assert columns.fingerprint != data.fingerprint  # other names are other data


def test_one_cost_stays_a_row_without_a_name():
    flat = random_arrays([4, 6])
    plain = TrajectoryDataset.from_arrays(**flat)
    for costs in (flat["costs"][:, None], {"collision": flat["costs"]}):
        same = TrajectoryDataset.from_arrays(**{**flat, "costs": costs})
        assert same.costs.shape == (10,) and same.cost_names == ("cost",)
        assert same.fingerprint == plain.fingerprint


def test_episodes_and_files_keep_names_and_values(tmp_path):
    given = arrays()
    data = TrajectoryDataset.from_arrays(**given)
    bounds = list(zip(data.offsets[:-1], data.offsets[1:], strict=True))
    episodes = [
        {key: given[key][i:j] for key in ("observations", "actions", "rewards")}
        | {"costs": {name: costs[i:j] for name, costs in given["costs"].items()}}
        for i, j in bounds
    ]
    joined = TrajectoryDataset.from_episodes(episodes)
    data.to_hdf5(tmp_path / "data.hdf5")
    data.to_npy(tmp_path / "data.npy")
    with h5py.File(tmp_path / "data.hdf5", "a") as file, h5py.File(tmp_path / "b.hdf5", "w") as out:
        for key in file:
            if key != "costs":
                file.copy(key, out)
        for name, costs in given["costs"].items():
            out[f"costs_{name}"] = costs
    for same in (
        joined,
        TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5"),
        TrajectoryDataset.from_npy(tmp_path / "data.npy"),
        TrajectoryDataset.from_hdf5(tmp_path / "b.hdf5"),
    ):
        assert same.cost_names == ("a", "b")
        np.testing.assert_array_equal(same.costs, data.costs)
    turned = TrajectoryDataset.from_hdf5(tmp_path / "data.hdf5", cost_names=["b", "a"])
    np.testing.assert_array_equal(turned.costs, data.costs[:, ::-1])
    alone = TrajectoryDataset.from_hdf5(tmp_path / "b.hdf5", cost_names=["b"])
    np.testing.assert_array_equal(alone.costs, data.costs[:, 1])


def test_wrong_names_and_numbers_of_costs_are_refused(tmp_path):
    two = np.ones((13, 2), dtype=np.float32)
    for costs, names, message in (
        (two, ["a"], "must name 2 costs"),
        (two, ["a", "a"], "distinct"),
        ({"a": two[:, 0], "b": two[:5, 0]}, None, "as long as each other"),
        ({"a": two[:, 0], "b": ["high"] * 13}, None, "`costs` must be numbers of one shape"),
        (["high"] * 13, None, "`costs` must be numbers of one shape"),
        ({"a": two[:, 0], "b": -two[:, 0]}, None, "`costs` must be >= 0, row 0"),
        ({"a": two[:, 0], "b": two[:, 0]}, ["a", "c"], "b unknown; c missing"),
    ):
        with pytest.raises((InvalidArgumentError, DatasetError), match=message):
            TrajectoryDataset.from_arrays(**arrays(costs=costs), cost_names=names)
    path = tmp_path / "data.hdf5"
    TrajectoryDataset.from_arrays(**arrays()).to_hdf5(path)
    with pytest.raises(DatasetError, match="no cost .*'c'.*found"):
        TrajectoryDataset.from_hdf5(path, cost_names=["a", "c"])
    with h5py.File(path, "a") as file:
        file["costs"].attrs["cost_names"] = ["a"]
    with pytest.raises(DatasetError, match="`cost_names` must name the 2 columns"):
        TrajectoryDataset.from_hdf5(path)


# ------------------------------------------------------------ frontier and tokens


def test_frontier_and_target_of_two_costs_by_hand():
    outcomes = Outcomes(
        returns=np.array([5, 4, 4, 3, 5], dtype=np.float32),
        costs=np.array([[2, 2], [1, 3], [3, 3], [0, 0], [2, 2]], dtype=np.float32),
        cost_names=("a", "b"),
    )
    assert dominance_frontier(outcomes.returns, outcomes.costs).tolist() == [3, 1, 0]
    assert outcomes.n_within([1, 3]) == 2
    assert outcomes.frontier.best_return([1.5, 3]) == 4
    assert np.isnan(outcomes.frontier.best_return([-1, 3]))
    # Four keep (2, 3): 5, 4, 3, 5. Fewer than five, so that all five count; the best is 5.
    assert outcomes.target_return([2, 3], 1.0) == 5
    assert Outcomes.from_dict(outcomes.to_dict()).cost_names == ("a", "b")


def test_dominance_table_against_a_plain_loop(fuel_data):
    table = DominanceTable.fit(
        fuel_data, quantile=0.9, cost_unit=[1.0, 1.0], least=5, n_steps=60, n_trajectories=60
    )
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 60, 40)
    bounds = rng.uniform([5, 20], [60, 120], (40, 2))
    found = table(steps, bounds)
    for step, bound, value in zip(steps, bounds, found, strict=True):
        at = fuel_data.offsets[:-1] + step
        within = (fuel_data.costs_to_go[at] <= bound + 1e-6).all(1)
        if within.sum() >= 5:
            expected = np.quantile(fuel_data.returns_to_go[at][within], 0.9)
            np.testing.assert_allclose(value, expected, rtol=1e-5)
    same = DominanceTable.from_dict(json.loads(json.dumps(table.to_dict())))
    np.testing.assert_allclose(same(steps, bounds), found, rtol=1e-6)
    # Where nobody is within, the five that exceed least, in units of cost.
    at = fuel_data.offsets[:-1]
    excess = fuel_data.costs_to_go[at].max(1)
    nearest = np.sort(excess)[4]
    expected = np.quantile(fuel_data.returns_to_go[at][excess <= nearest], 0.9)
    np.testing.assert_allclose(table([0], np.zeros((1, 2))), [expected], rtol=1e-5)


def test_each_cost_gains_its_own_slack():
    data = TrajectoryDataset.from_arrays(**arrays(lengths=(30,) * 20))
    sampler = WindowSampler(
        data,
        context_length=2,
        batch_size=4000,
        generator=torch.Generator().manual_seed(0),
        relabelling=Relabelling(slack_fraction=0.5, slack=[1.0, 10.0]),
    )
    batch = sampler.sample()
    assert batch.ctg.shape == batch.costs.shape == (4000, 2, 2)
    rows = {  # rewards are all different: they tell the step
        float(reward): to_go for reward, to_go in zip(data.rewards, data.costs_to_go, strict=True)
    }
    recorded = torch.tensor(np.array([rows[float(r)] for r in batch.rewards[:, 0]]))
    slack = (batch.ctg[:, 0] - recorded).clamp(min=0)
    relabelled = slack > 1e-3
    share = relabelled.double().mean(0)
    np.testing.assert_allclose(share, 0.5, atol=0.03)
    np.testing.assert_allclose(relabelled.all(1).double().mean(), 0.25, atol=0.03)
    np.testing.assert_allclose(slack.mean(0), [0.5, 5.0], rtol=0.1)


def test_one_token_critic_and_lambda_for_each_cost(agent):
    policy = agent.policy
    assert policy.critics.signals == ("reward", "cost_speeding", "cost_fuel")
    assert agent.multipliers.lmbda.shape == (2,)
    assert policy.transformer.tokens_per_step == 3  # two costs and the state, no RTG by default
    window = agent.sampler.sample_plain()
    moved = {}
    for j in range(2):
        changed = window.ctg.clone()
        changed[..., j] += 30.0
        with torch.no_grad():
            other = type(window)(**{**vars(window), "ctg": changed})
            moved[j] = (policy(other).mean - policy(window).mean)[window.mask]
    assert all(change.abs().max() > 1e-3 for change in moved.values())
    assert not torch.allclose(moved[0], moved[1])
    metrics = agent.step()
    for name in NAMES:
        assert {f"cost_{name}_loss", f"lambda_{name}"} <= set(metrics)


# ------------------------------------------------------------ use


def test_budgets_by_name_reach_the_tokens_of_their_cost(agent):
    agent.set_deployment(budget_margin=0.0)
    agent.set_cost_budget({FUEL: 90, SPEEDING: 30})
    assert agent.cost_budget == {SPEEDING: 30.0, FUEL: 90.0}
    _, state = agent.predict(np.array([0.4, 1.0, 0.3, 1.0], dtype=np.float32))
    state = state.observe(1.0, {FUEL: 3.0, SPEEDING: 2.0})
    np.testing.assert_allclose(state.total_cost, [[2.0, 3.0]])
    _, budget = agent.policy.conditioning.targets(state)
    np.testing.assert_allclose(budget, [[30.0, 90.0]])
    np.testing.assert_allclose(state.cost_to_go, [[28.0, 87.0]])
    many = agent.begin(3, cost_budget={SPEEDING: [30, 31, 32], FUEL: 80})
    np.testing.assert_allclose(many.cost_budget, [[30, 80], [31, 80], [32, 80]])
    agent.set_deployment(budget_margin=0.1)


def test_a_spent_cost_stops_at_zero_and_the_other_goes_on(agent):
    state = AgentState.begin(
        1,
        context_length=2,
        observation_size=4,
        action_size=1,
        target_return=50.0,
        cost_budget=[[5.0, 60.0]],
        cost_names=NAMES,
    )
    state = state.push(np.zeros((1, 4), dtype=np.float32))
    state = state.with_action(np.zeros((1, 1), dtype=np.float32))
    state = state.observe(1.0, {SPEEDING: 7.0, FUEL: 10.0})
    _, budget = agent.policy.conditioning.targets(state)
    np.testing.assert_allclose(budget - state.total_cost, [[0.0, 60.0 * 0.9 - 10.0]], rtol=1e-5)


def test_names_and_numbers_that_do_not_fit_are_refused_and_nothing_is_lost(agent):
    agent.set_cost_budget({SPEEDING: 30, FUEL: 90})
    for wrong, message in (
        ({SPEEDING: 5}, "fuel missing"),
        ({SPEEDING: 5, FUEL: 2, "noise": 1}, "noise unknown"),
        (5, "must be a dict with a budget for each cost .speeding, fuel"),
        ({SPEEDING: -1, FUEL: 5}, "`cost_budget` must be >= 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            agent.set_cost_budget(wrong)
        with pytest.raises(InvalidArgumentError, match=message):
            agent.begin(2, cost_budget=wrong)
        with pytest.raises(InvalidArgumentError, match=message):
            agent.evaluate(SpeedLimitFuelEnv, wrong)
    assert agent.cost_budget == {SPEEDING: 30.0, FUEL: 90.0}
    _, state = agent.predict(np.zeros(4, dtype=np.float32), agent.begin())
    for wrong in ({SPEEDING: 1}, 1.0, [1.0, 2.0, 3.0], {SPEEDING: 1, FUEL: -1}):
        with pytest.raises(InvalidArgumentError, match="cost"):
            state.observe(0.0, wrong)
    assert state.awaiting.all()
    with pytest.raises(InvalidArgumentError, match="`budgets` must be given"):
        agent.evaluate(SpeedLimitFuelEnv)


def test_a_budget_stated_before_the_data_must_name_their_costs(fuel_data):
    agent = RCDT(**QUICK, cost_budget={SPEEDING: 5, "noise": 1})
    with pytest.raises(InvalidArgumentError, match="noise unknown; fuel missing"):
        agent.set_dataset(fuel_data)
    assert not agent.has_policy
    agent.set_cost_budget({SPEEDING: 30, FUEL: 90})
    agent.set_dataset(fuel_data)
    assert agent.cost_budget == {SPEEDING: 30.0, FUEL: 90.0}


def test_coverage_is_judged_of_each_cost_and_together(fuel_data):
    agent = RCDT(**QUICK)
    agent.set_dataset(fuel_data)
    with pytest.warns(UserWarning, match="speeding=0, fuel=0 are covered together by 0 of 60"):
        agent.set_cost_budget({SPEEDING: 0, FUEL: 0})
    with pytest.warns(UserWarning, match="fuel=1000 above"):
        agent.set_cost_budget({SPEEDING: 30, FUEL: 1000})


def test_wrapped_environments_report_each_cost(agent):
    agent.set_cost_budget({SPEEDING: 30, FUEL: 90})
    env = agent.wrap(SpeedLimitFuelEnv())
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    state, spent, done = None, np.zeros(2), False
    while not done:
        action, state = agent.predict(obs, state)
        obs, _, _, done, info = env.step(action)
        spent += [info["cost"][SPEEDING], info["cost"][FUEL]]
        np.testing.assert_allclose(obs["episode_cost"], spent, rtol=1e-5)
    assert info["episode_cost"] == pytest.approx(dict(zip(NAMES, spent, strict=True)))
    with pytest.raises(InvalidArgumentError, match="must hold 2 costs"):
        agent.predict({**obs, "episode_cost": [1.0], "cost_budget": [np.inf]})


def test_vector_environments_report_each_cost(agent):
    venv = gym.vector.SyncVectorEnv([SpeedLimitFuelEnv] * 3)
    env = VectorReturnCostTokens(
        venv, cost_budget={SPEEDING: [30, 31, 32], FUEL: 90}, cost_names=agent.cost_names
    )
    obs, _ = env.reset(seed=0)
    actions, state = agent.predict(obs, agent.begin(3))
    np.testing.assert_allclose(state.cost_budget, [[30, 90], [31, 90], [32, 90]])
    speeds = obs["observation"][:, 0] + 0.2 * actions[:, 0]
    obs, _, _, _, infos = env.step(actions)
    np.testing.assert_allclose(obs["episode_cost"][:, 1], fuel_cost(speeds), atol=1e-5)
    np.testing.assert_allclose(infos["cost"][FUEL], fuel_cost(speeds), atol=1e-5)
    agent.predict(obs, state)
    env.close()


@pytest.mark.parametrize(
    ("cost_key", "info"),
    [
        ("cost", {"cost": {"b": 2.0, "a": 1.0}}),
        ("cost", {"cost": np.array([1.0, 2.0])}),
        (("a", "b"), {"a": 1.0, "b": 2.0}),
        ({"a": "crash", "b": "speed"}, {"crash": 1.0, "speed": 2.0}),
    ],
)
def test_costs_are_read_from_a_dict_an_array_or_keys(cost_key, info):
    step = read_step((0, 0.0, False, False, info), cost_key=cost_key, cost_names=("a", "b"))
    assert step.cost.tolist() == [1.0, 2.0]
    assert step.info["cost"] == {"a": 1.0, "b": 2.0}


def test_environments_whose_costs_do_not_fit_are_refused():
    for info, message in (
        ({"cost": {"a": 1.0}}, "b missing"),
        ({"cost": {"a": 1.0, "b": 1.0, "c": 0.0}}, "c unknown"),
        ({"cost": [1.0]}, "must hold 2 costs"),
        ({"cost": {"a": 1.0, "b": -1.0}}, ">= 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            read_step((0, 0.0, False, False, info), cost_names=("a", "b"))
    step = read_step(
        (0, 0.0, False, False, {}), cost_fn=lambda *_: {"b": 3, "a": 0}, cost_names=("a", "b")
    )
    assert step.cost.tolist() == [0.0, 3.0]
    with pytest.raises(InvalidArgumentError, match="must be one number"):
        read_step((0, 0.0, False, False, {"cost": {"a": 1.0}}))


def test_saved_agents_act_the_same(agent, tmp_path):
    agent.set_cost_budget({SPEEDING: 30, FUEL: 90})
    agent.save(tmp_path / "agent.zip")
    loaded = RCDT.load(tmp_path / "agent.zip")
    assert loaded.cost_budget == agent.cost_budget and loaded.cost_names == NAMES
    assert loaded.target_return == pytest.approx(agent.target_return)
    budgets = [{SPEEDING: 30, FUEL: 90}, {SPEEDING: 20, FUEL: 60}]
    reports = [
        a.evaluate(SpeedLimitFuelEnv, budgets, n_episodes=2, n_envs=4) for a in (agent, loaded)
    ]
    assert reports[0].to_json() == reports[1].to_json()
    result = json.loads(reports[0].to_json())["results"][1]
    assert result["budget"] == {SPEEDING: 20.0, FUEL: 60.0}
    assert result["mean_cost"][FUEL] == pytest.approx(np.mean(result["costs"][FUEL]))
    assert result["passed"] == all(result["mean_cost"][n] <= result["budget"][n] for n in NAMES)
    table = reports[0].as_table()
    assert "speeding (budget)" in table and "fuel (budget)" in table
    other = TrajectoryDataset.from_arrays(**arrays())
    with pytest.raises(DatasetError, match="its costs are a, b, but the agent's are"):
        RCDT.load(tmp_path / "agent.zip").learn(other, 1)


def test_resumed_training_continues_bit_for_bit(fuel_data, tmp_path):
    whole = RCDT(**QUICK).learn(fuel_data, 30)
    half = RCDT(**QUICK)
    half.learn(fuel_data, 30, callback=lambda values, _: values["agent"].num_timesteps < 15)
    half.save(tmp_path / "half.zip")
    resumed = RCDT.load(tmp_path / "half.zip").learn(fuel_data, resume=True)
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, resumed.policy.state_dict()[name]), name
    assert torch.equal(whole.multipliers.lmbda, resumed.multipliers.lmbda)


# ------------------------------------------------------------ what knows one cost


@pytest.mark.parametrize("name", ["bc", "cpq", "caps", "coptidice", "trac", "fisor"])
def test_baselines_refuse_several_costs_by_name(name, fuel_data):
    baseline = get_algorithm(name)(**small_settings(name))
    with pytest.raises(InvalidArgumentError, match="knows one cost, but there are 2: speeding"):
        baseline.set_dataset(fuel_data)
    assert not baseline.has_policy


def test_features_of_one_cost_refuse_by_name(agent, fuel_data, tmp_path):
    with pytest.raises(InvalidArgumentError, match="`calibrate` knows one cost"):
        agent.calibrate(SpeedLimitFuelEnv, [5.0])
    with pytest.raises(InvalidArgumentError, match="ONNX file knows one cost"):
        agent.export_onnx(tmp_path / "agent.onnx")
    with pytest.raises(InvalidArgumentError, match="shield.* knows one cost"):
        agent.set_deployment(shield_candidates=8)
    assert agent.config.shield_candidates == 0
    for setting in (
        {"shield_candidates": 4}, {"cost_head_weight": 0.1}, {"pareto_fraction": 0.1},
        {"sampling": "cost_tilted"},
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="knows one cost"):
            RCDT(**{**QUICK, **setting}).set_dataset(fuel_data)


def test_a_dict_is_refused_where_there_is_one_cost(drivers):
    one = RCDT(**QUICK).learn(drivers, 2)
    with pytest.raises(InvalidArgumentError, match="there is one cost, without a name"):
        one.set_cost_budget({"cost": 5})
    with pytest.raises(InvalidArgumentError, match="there is one cost"):
        one.evaluate("SpeedLimit", [{"cost": 5}])


def test_budgets_of_the_command_line():
    assert parse_budget("speeding=5,fuel=40.5") == {SPEEDING: 5.0, FUEL: 40.5}
    for wrong in ("", "5", "speeding", "speeding=x", "a=1,a=2", "=3"):
        with pytest.raises(InvalidArgumentError, match="name=number"):
            parse_budget(wrong)


# ------------------------------------------------------------ the exact optimum


def test_the_linear_programme_agrees_with_the_one_cost_optimum_and_falls_with_fuel():
    for speeding in (2.0, 10.0):
        wide = optimal_fuel_return({SPEEDING: speeding, FUEL: 1e6})
        assert wide == pytest.approx(optimal_return(speeding), abs=1e-6)
    assert optimal_fuel_return({SPEEDING: 5, FUEL: 40}) < optimal_fuel_return(
        {SPEEDING: 1e6, FUEL: 40}
    )
    with pytest.raises(InvalidArgumentError, match="what a policy can keep"):
        optimal_fuel_return({SPEEDING: 5, FUEL: 0})


PAIRS = [
    {SPEEDING: 1, FUEL: 30}, {SPEEDING: 2, FUEL: 40}, {SPEEDING: 5, FUEL: 40},
    {SPEEDING: 10, FUEL: 30}, {SPEEDING: 10, FUEL: 50}, {SPEEDING: 20, FUEL: 60},
]  # fmt: skip


@pytest.mark.slow
def test_one_policy_keeps_six_pairs_of_budgets_near_the_optimum():
    data = TrajectoryDataset.from_arrays(**record_fuel_drivers(1000, seed=0))
    agent = RCDT(preset="tiny", seed=0).learn(data)
    report = agent.evaluate(SpeedLimitFuelEnv, PAIRS, n_episodes=50, seed=1000, n_envs=50)
    print(report.as_table())
    shares = [r.mean_return / optimal_fuel_return(r.budget) for r in report.results]
    print([f"{share:.3f}" for share in shares])
    assert report.passed
    assert min(shares) >= 0.9


def test_long_names_and_budgets_are_logged_in_full(capsys):
    """stable-baselines3's printer refuses two names that are alike in their first 33 letters."""
    lengths = [4, 6, 5, 7, 8, 5]
    given = arrays(lengths)
    names = [f"contact_force_of_the_left_gripper_{part}" for part in ("finger", "thumb")]
    costs = dict(zip(names, given["costs"].values(), strict=True))
    agent = RCDT(**QUICK, verbose=1)
    agent.learn(TrajectoryDataset.from_arrays(**{**given, "costs": costs}), 2, log_interval=1)
    assert all(f"cost_{name}_data" in capsys.readouterr().out for name in names[:1])
    own = Logger(None, [HumanOutputFormat(io.StringIO())])
    agent.set_logger(own)
    for budget in (5, 40):
        label = f"eval/cost_{names[0]}_{names[0]}={budget}"
        agent.logger.record(label, 1.0)
    agent.logger.dump(1)


def test_an_evaluation_without_budgets_is_refused_before_training(fuel_data):
    agent = RCDT(**QUICK)
    with pytest.raises(InvalidArgumentError, match="`budgets` must be given"):
        agent.learn(fuel_data, 3, callback=BudgetEvalCallback(SpeedLimitFuelEnv, eval_freq=2))
    assert agent.num_timesteps == 0


def test_a_costs_name_cannot_leave_its_place_in_a_page():
    name = 'x"><meta http-equiv=refresh> \\d $\\frac$'
    with page_style():
        figure = Figure()
        figure.subplots().plot([0, 1], label=name)
        figure.legend()
        text = to_svg(figure, name)
    assert "<meta" not in text and re.fullmatch(r"[\w-]+", re.search(r'id="([^"]*)"', text)[1])
    (first, *_) = re.findall(r"url\(#([^)]*)\)", text)
    assert re.fullmatch(r"[\w-]+", first) and f'id="{first}"' in text
