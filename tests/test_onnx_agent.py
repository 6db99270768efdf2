"""`OnnxAgent` beside `predict`, over whole real episodes; without torch; and what it refuses."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import QUICK
from test_examples import ROOT

from rcdt_agent import RCDT
from rcdt_agent.deploy import TokenCalibration, export
from rcdt_agent.deploy.onnx_file import METADATA_KEY
from rcdt_agent.errors import CheckpointError, InvalidArgumentError, StateError
from rcdt_agent.onnx_agent import OnnxAgent
from rcdt_agent.tasks.speed_limit import ENV_ID, HORIZON

# Budgets beyond the data, and below what calibration found, are asked for on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The cost budget:UserWarning"),
    pytest.mark.filterwarnings("ignore:No token kept the cost budget:UserWarning"),
]
TOLERANCE = 1e-5
CALIBRATION = TokenCalibration(
    tokens=np.array([0.0, 4.0, 16.0, 64.0]),
    costs=np.array([1.0, 5.0, 18.0, 40.0]),
    upper=np.array([2.0, 7.0, 22.0, 50.0]),
    confidence=0.95,
    n_episodes=20,
    seed=0,
)


@pytest.fixture(scope="module")
def folder(drivers, tmp_path_factory):
    """`agent.zip`, trained until its actions depend on its tokens, and `policy.onnx`."""
    folder = tmp_path_factory.mktemp("onnx_agent")
    settings = {**QUICK, "learning_rate": 5e-3, "total_steps": 300, "return_token": True}
    agent = RCDT(**settings).learn(drivers)
    agent.save(folder / "agent.zip")
    agent.export_onnx(folder / "policy.onnx")
    return folder


@pytest.fixture
def agent(folder):
    return RCDT.load(folder / "agent.zip")


@pytest.fixture
def exported(folder, tmp_path, monkeypatch):
    """Export agents of the same network in no time: the graph is taken from `policy.onnx`."""
    graph = onnx.load(folder / "policy.onnx")
    monkeypatch.setattr(export, "_onnx_model", lambda *_: copy.deepcopy(graph))

    def run(agent):
        agent.export_onnx(tmp_path / "copy.onnx")
        return OnnxAgent(tmp_path / "copy.onnx")

    return run


def drive(agent, runner, n_envs=1, begin=None, change=None, seed=0):
    """Whole episodes of both on what the agent does; (T, N) actions, and the final states."""
    envs = [gym.make(ENV_ID) for _ in range(n_envs)]
    obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    state, own = (begin(agent), begin(runner)) if begin else (None, None)
    seen = []
    for step in range(HORIZON):
        if change and step == HORIZON // 3:
            change(agent), change(runner)
        given = obs[0] if n_envs == 1 else obs
        actions, state = agent.predict(given, state)
        ours, own = runner.predict(given, own)
        assert ours.shape == actions.shape and ours.dtype == actions.dtype
        np.testing.assert_allclose(ours, actions, atol=TOLERANCE, rtol=0)
        rows = [env.step(a) for env, a in zip(envs, actions.reshape(n_envs, -1), strict=True)]
        obs = np.stack([row[0] for row in rows])
        rewards, costs = [row[1] for row in rows], [row[4]["cost"] for row in rows]
        state, own = state.observe(rewards, costs), own.observe(rewards, costs)
        seen.append(actions.reshape(n_envs))
    np.testing.assert_array_equal(own.cost_to_go, state.cost_to_go)
    np.testing.assert_array_equal(own.return_to_go, state.return_to_go)
    return np.array(seen), state, own


SWITCHES = {
    "replan": (False, True),
    "exhausted_mode": (False, True),
    "budget_margin": (0.0, 0.3),
    "ctg_floor": (None, 0.5),
    "calibration": (None, CALIBRATION),
}


def runs_at_budgets(agent, exported, on):
    """Actions in six environments with budgets from none to beyond the data, with rules `on`."""
    chosen = {name: pair[name in on] for name, pair in SWITCHES.items()}
    calibration, agent.calibration = chosen.pop("calibration"), None
    agent.set_deployment(**chosen)
    agent.calibration = calibration
    budgets = np.linspace(0.0, 1.5 * agent.policy.outcomes.costs.max(), 6)
    seen, state, _ = drive(agent, exported(agent), 6, lambda a: a.begin(6, cost_budget=budgets))
    assert state.cost_to_go[0] < 0 < state.cost_to_go[-1]  # one budget was exhausted, one not
    return seen


def test_every_rule_alone_and_together_acts_as_predict(agent, exported):
    plain = runs_at_budgets(agent, exported, ())
    assert np.ptp(plain, axis=1).max() > 0.1  # the budget matters
    for switch in SWITCHES:
        changed = runs_at_budgets(agent, exported, (switch,))
        assert np.abs(changed - plain).max() > 1e-3, switch  # and so does each rule
    runs_at_budgets(agent, exported, SWITCHES)


@pytest.mark.slow
def test_every_combination_of_rules_acts_as_predict(agent, exported):
    for size in range(2, len(SWITCHES)):
        for on in itertools.combinations(SWITCHES, size):
            runs_at_budgets(agent, exported, on)


@pytest.mark.parametrize("calibrated", [False, True])
def test_one_environment_at_every_budget(agent, exported, calibrated):
    agent.calibration = CALIBRATION if calibrated else None
    runner = exported(agent)
    largest = float(agent.policy.outcomes.costs.max())
    for budget in np.linspace(2.0, 1.5 * largest, 6):
        agent.set_cost_budget(budget)
        runner.set_cost_budget(budget)
        drive(agent, runner)


def test_targets_are_exact_between_any_two_budgets(agent, exported):
    """Where a table of points was interpolated, an action was off by as much as half."""
    for calibration in (None, CALIBRATION):
        agent.calibration = calibration
        runner = exported(agent)
        largest = float(agent.policy.outcomes.costs.max())
        for budget in np.linspace(0.0, 1.5 * largest, 101):
            state = runner.begin(cost_budget=budget)
            assert state.target_return[0] == np.float32(agent.resolve_target(budget))
            np.testing.assert_array_equal(
                runner.conditioning.targets(state), agent.policy.conditioning.targets(state)
            )


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_budget_changed_in_mid_episode_acts_at_once(agent, exported, n_envs):
    agent.set_cost_budget(40.0)
    runner = exported(agent)
    unchanged, *_ = drive(agent, runner, n_envs)
    changed, _, own = drive(agent, runner, n_envs, change=lambda a: a.set_cost_budget(6.0))
    first = HORIZON // 3
    np.testing.assert_array_equal(changed[:first], unchanged[:first])
    assert np.abs(changed[first] - unchanged[first]).max() > 1e-3
    assert (own.cost_budget == 6.0).all()
    _, _, own = drive(  # budgets of their own do not follow
        agent, runner, n_envs,
        lambda a: a.begin(n_envs, cost_budget=20.0), lambda a: a.set_cost_budget(6.0),
    )  # fmt: skip
    assert (own.cost_budget == 20.0).all()


def test_a_policy_without_a_return_token_acts_alike_and_takes_no_target(drivers, tmp_path):
    agent = RCDT(**QUICK).learn(drivers)
    agent.export_onnx(tmp_path / "policy.onnx")
    runner = OnnxAgent(tmp_path / "policy.onnx")
    drive(agent, runner, 3, lambda a: a.begin(3, cost_budget=[0.0, 9.0, 30.0]))
    for call in (lambda: runner.begin(1, 5.0, 50.0), lambda: runner.set_cost_budget(5.0, 50.0)):
        with pytest.raises(InvalidArgumentError, match="told the cost budget alone"):
            call()


def test_own_target_returns(agent, exported):
    runner = exported(agent)
    targets = {"cost_budget": [5.0, 9.0, 30.0], "target_return": [10.0, 50.0, 20.0]}
    _, _, own = drive(agent, runner, 3, lambda a: a.begin(3, **targets))
    np.testing.assert_array_equal(own.target_return, targets["target_return"])
    for each in (agent, runner):
        each.set_cost_budget(30.0, target_return=33.0)
    assert runner.target_return == agent.target_return == 33.0
    drive(agent, runner)


def test_episodes_of_different_age(agent, exported):
    """`episode_start` restarts some; the present step is then at another place of each window."""
    runner = exported(agent)
    rng = np.random.default_rng(0)
    state, own = agent.begin(3), runner.begin(3)
    for step in range(20):
        obs = rng.normal(size=(3, 4))
        starts = [step == 2, step == 9, False]
        actions, state = agent.predict(obs, state, starts)
        ours, own = runner.predict(obs, own, starts)
        np.testing.assert_allclose(ours, actions, atol=TOLERANCE, rtol=0)
        state, own = (s.observe([1.0, 2.0, 0.5], [0.0, 1.0, 2.0]) for s in (state, own))
    assert own.steps.tolist() == [18, 11, 20]


def test_reset_and_act_for_a_robot(agent, exported):
    """The agent holds the state: the same actions as by `predict` and `observe`."""
    runner = exported(agent)
    with pytest.raises(StateError, match=r"call `agent\.reset\(\)`"):
        runner.act(np.zeros(4))
    for episode in range(2):
        env = gym.make(ENV_ID)
        obs, _ = env.reset(seed=episode)
        agent.set_cost_budget(15.0)
        runner.reset(cost_budget=15.0)
        with pytest.raises(StateError, match="no action of this episode"):
            runner.act(obs, 1.0, 0.0)
        outcome, state = (), None
        for _ in range(HORIZON):
            action, state = agent.predict(obs, state)
            np.testing.assert_allclose(runner.act(obs, *outcome), action, atol=TOLERANCE, rtol=0)
            obs, reward, _, _, info = env.step(action)
            outcome, state = (reward, info["cost"]), state.observe(reward, info["cost"])
            for missing in ((), (reward,)):
                with pytest.raises(StateError, match=r"agent\.act\(obs, reward, cost\)"):
                    runner.act(obs, *missing)
        assert runner.episode.steps[0] == HORIZON
    runner.reset()
    assert runner.cost_budget == 15.0 and runner.episode.cost_to_go[0] == 15.0


def test_dropped_states_and_outcomes(agent, exported):
    runner = exported(agent)
    runner.predict(np.zeros(4))
    with pytest.raises(StateError, match="was never used"):
        runner.predict(np.zeros(4))
    _, state = runner.predict(np.zeros(4), runner.begin())
    with pytest.raises(StateError, match="before the outcome of its last action"):
        runner.predict(np.zeros(4), state)
    state = state.observe(1.0, 0.0)
    with pytest.raises(StateError, match="without an action waiting"):
        state.observe(1.0, 0.0)
    for _ in range(3):  # episodes of one step, each told of its end
        _, state = runner.predict(np.zeros(4))
        state.observe(1.0, 0.0)
    runner.predict(np.zeros((2, 4)), None, [True, True])
    runner.predict(np.zeros((2, 4)), None, [True, True])


def test_a_state_kept_over_episodes_is_said_once(agent, exported):
    runner = exported(agent)
    state = runner.begin()
    for _ in range(HORIZON):
        state = runner.predict(np.zeros(4), state)[1].observe(0.0, 0.0)
    with pytest.warns(UserWarning, match=f"passed step {HORIZON}") as said:
        state = runner.predict(np.zeros(4), state)[1].observe(0.0, 0.0)
    assert len(said) == 1 and said[0].filename == __file__
    runner.predict(np.zeros(4), state)


def test_budgets_that_calibration_or_the_data_do_not_cover_warn_once(agent, exported):
    agent.calibration = CALIBRATION
    runner = exported(agent)
    for ask in (lambda: runner.begin(2, [1.0, 9.0]), lambda: runner.set_cost_budget(0.5)):
        with pytest.warns(UserWarning, match="No token kept the cost budget") as said:
            ask()
        assert len(said) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask()


def test_wrong_arguments(agent, exported):
    runner = exported(agent)
    for budget in (-1.0, np.nan, "much", None, [1.0, 2.0]):
        with pytest.raises(InvalidArgumentError, match="`cost_budget` must be"):
            runner.set_cost_budget(budget)
    for call, words in (
        (lambda: runner.begin(3, [1.0, 2.0]), r"one for each of 3 environments, got shape \(2,\)"),
        (lambda: runner.begin(2, 1.0, "much"), "`target_return` must be finite"),
        (lambda: runner.predict(np.zeros(3)), r"must have shape \(4,\)"),
        (lambda: runner.predict(np.full(4, np.nan)), "must be finite"),
        (lambda: runner.predict({"observation": np.zeros(4)}), "got a dict"),
        (lambda: runner.predict(np.zeros(4), ()), r"`state` must be what .* got \(\)"),
        (lambda: runner.predict(np.zeros((2, 4)), runner.begin()), "of 1 environments"),
        (lambda: runner.set_cost_budget(3.0, "most"), "`target_return` must be"),
        (lambda: runner.set_cost_budget(3.0, "paper"), "needs a DSRL task"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            call()
    with pytest.warns(UserWarning, match="The target return 1000 exceeds the best") as said:
        runner.set_cost_budget(3.0, 1000.0)
    runner.set_cost_budget(3.0, 1000.0)  # once
    assert len(said) == 1 and said[0].filename == __file__
    assert runner.cost_budget == 3.0 and runner.target_return == 1000.0


class Port:
    """What docs/deployment.md tells others to write around the graph, step by step."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        known = json.loads(self.session.get_modelmeta().custom_metadata_map["rcdt_agent"])
        self.config, self.rules = known["config"], known["conditioning"]
        self.steps, self.earned, self.spent = [], 0.0, 0.0

    def token(self, budget):
        if self.rules["calibration"]:
            upper, tokens = (self.rules["calibration"][k] for k in ("upper", "tokens"))
            budget = np.interp(budget, upper, tokens)
        return np.float32(budget) * np.float32(1 - self.config["budget_margin"])

    @functools.cache  # noqa: B019
    def target(self, token):
        rows = (self.rules["outcomes"][k] for k in ("costs", "returns"))
        episodes = sorted(zip(*rows, strict=True), key=lambda episode: episode[0])
        levels = [token]
        for cost, value in episodes:
            cheaper = [other for spent, other in episodes if spent < cost]
            if cost <= token and value > max(cheaper, default=-np.inf):
                levels.append(cost)
        counts = [max(5, sum(cost <= level for cost, _ in episodes)) for level in levels]
        returns = [value for _, value in episodes]
        return max(np.quantile(returns[:n], self.config["target_quantile"]) for n in counts)

    def lookup(self, name, t, left):
        table = self.rules[name]
        column = [np.interp(left, table["costs"], row) for row in table["returns"]]
        return np.interp(t, table["steps"], column)

    def act(self, obs, budget):
        config, t = self.config, len(self.steps)
        token = self.token(budget)
        target, left = self.target(token), token - self.spent
        exhausted = left <= 0
        if config["exhausted_mode"]:
            left = max(left, config["ctg_floor"] or 0.0, 0.0)
        elif config["ctg_floor"] is not None:
            left = max(left, config["ctg_floor"])
        if config["replan"] or (config["exhausted_mode"] and exhausted):
            ask = self.lookup("table", t, left)
            if self.rules["cautious_table"]:
                even = token * (1 - t / (self.rules["table"]["steps"][-1] + 1))
                pace = (token - self.spent) / even if even > 0 else float(self.spent <= token)
                low = self.lookup("cautious_table", t, left)
                ask = low + min(max(pace, 0.0), 1.0) * (ask - low)
            target = min(target, self.earned + ask)
        self.steps.append([obs, np.zeros(1), self.earned, self.spent, t])
        length = config["context_length"]
        window, place = self.steps[-length:], min(t, length - 1)
        inputs = {
            "observations": [step[0] for step in window],
            "actions": [step[1] for step in window],
            "returns_to_go": [target - step[2] for step in window],
            "costs_to_go": [self.spent + left - step[3] for step in window],
            "timesteps": [step[4] for step in window],
        }
        for name, rows in inputs.items():
            array = np.array(rows, dtype=np.int64 if name == "timesteps" else np.float32)
            padding = [(0, length - len(window))] + [(0, 0)] * (array.ndim - 1)
            inputs[name] = np.pad(array, padding)[None]
        action = self.session.run(["action"], inputs)[0][0, place]
        self.steps[-1][1] = action
        return action

    def observe(self, reward, cost):
        self.earned, self.spent = self.earned + reward, self.spent + cost


@pytest.mark.parametrize("on", [(), ("ctg_floor",), ("exhausted_mode",), tuple(SWITCHES)])
def test_the_pages_steps_for_other_languages(agent, exported, tmp_path, on):
    chosen = {name: pair[name in on] for name, pair in SWITCHES.items()}
    calibration, agent.calibration = chosen.pop("calibration"), None
    agent.set_deployment(**chosen)
    agent.calibration = calibration
    runner = exported(agent)
    for budget in (3.0, 33.3):
        port, env = Port(tmp_path / "copy.onnx"), gym.make(ENV_ID)
        obs, _ = env.reset(seed=2)
        runner.set_cost_budget(budget)
        runner.reset()
        outcome = ()
        for _ in range(HORIZON):
            action = runner.act(obs, *outcome)
            np.testing.assert_allclose(port.act(obs, budget), action, atol=2e-5, rtol=0)
            obs, reward, _, _, info = env.step(action)
            outcome = reward, info["cost"]
            port.observe(*outcome)


# ---------------------------------------------------------------- without torch

SCRIPT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None  # an import of it fails
import numpy as np
from rcdt_agent.onnx_agent import OnnxAgent
agent, episode = OnnxAgent(sys.argv[1]), np.load(sys.argv[2])
agent.reset(cost_budget=9.0)
actions, outcome = [], ()
for obs, reward, cost in zip(episode["obs"], episode["rewards"], episode["costs"]):
    actions.append(agent.act(obs, *outcome))
    outcome = float(reward), float(cost)
np.save(sys.argv[3], actions)
loaded = {{name.split(".")[0] for name in sys.modules if sys.modules[name]}}
print(*sorted(loaded & {{"torch", "gymnasium", "stable_baselines3", "h5py", "tyro", "onnx"}}))
"""


@pytest.fixture
def recorded(agent, exported, tmp_path):
    """A file, an episode at budget 9 with a calibrated agent, and what `predict` did."""
    agent.calibration = CALIBRATION
    exported(agent)
    agent.set_cost_budget(9.0)
    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=4)
    rows, state = [], None
    for _ in range(HORIZON):
        action, state = agent.predict(obs, state)
        following, reward, _, _, info = env.step(action)
        rows.append((obs, reward, info["cost"], action))
        obs, state = following, state.observe(reward, info["cost"])
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    episode = dict(zip(("obs", "rewards", "costs"), columns, strict=False))
    np.savez(tmp_path / "episode.npz", **episode)
    return [tmp_path / name for name in ("copy.onnx", "episode.npz", "actions.npy")], columns[3]


def run_script(python, code, *arguments):
    result = subprocess.run(
        [python, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_acts_where_nothing_but_numpy_and_onnxruntime_can_be_imported(recorded):
    paths, expected = recorded
    blocked = ["torch", "gymnasium", "stable_baselines3", "h5py", "safetensors", "onnx", "tyro"]
    blocked += ["typing_extensions", "rich", "tqdm", "matplotlib", "packaging"]
    assert run_script(sys.executable, SCRIPT.format(blocked=blocked), *paths) == []
    np.testing.assert_allclose(np.load(paths[2]), expected, atol=TOLERANCE, rtol=0)


def test_acts_where_nothing_but_numpy_and_onnxruntime_is_installed(recorded, tmp_path):
    paths, expected = recorded
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    for package in ("numpy", "numpy.libs", "onnxruntime"):
        source = Path(sysconfig.get_path("purelib")) / package
        if source.exists():
            (site / package).symlink_to(source)
    assert run_script(place / "bin" / "python", SCRIPT.format(blocked=[]), *paths) == []
    np.testing.assert_allclose(np.load(paths[2]), expected, atol=TOLERANCE, rtol=0)


def test_importing_the_runner_loads_no_torch_where_there_is_one():
    code = "import sys, rcdt_agent.onnx_agent; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in run_script(sys.executable, code)}
    assert {"rcdt_agent", "onnxruntime"} <= loaded
    assert not loaded & {"torch", "stable_baselines3", "h5py", "safetensors", "matplotlib", "tyro"}


def test_environments_are_registered_by_the_import_alone():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import rcdt_agent, gymnasium\n"
        "gymnasium.make('rcdt_agent/SpeedLimit-v0').reset(seed=0)\n"
        "print(sum(name.startswith('rcdt_agent/') for name in gymnasium.registry))"
    )
    assert run_script(sys.executable, code) == ["39"]


def test_lazy_names_of_the_package():
    code = (
        "import rcdt_agent\n"
        "assert set(rcdt_agent.__all__) <= set(dir(rcdt_agent))\n"
        "from rcdt_agent import *\n"
        "print(RCDT.__module__, make_env.__module__, get_task('SpeedLimit').id)\n"
        "print(hasattr(rcdt_agent, 'nothing'))"
    )
    assert run_script(sys.executable, code) == [
        "rcdt_agent.algorithms.rcdt", "rcdt_agent.tasks.simulators", ENV_ID, "False",
    ]  # fmt: skip


# ---------------------------------------------------------------- files


@pytest.fixture
def crafted(folder, tmp_path):
    """`OnnxAgent` of a file with other metadata, or another graph, and the right checksum."""

    def run(change=lambda metadata: None, graph=lambda model: None):
        model = onnx.load(folder / "policy.onnx")
        (text,) = [entry.value for entry in model.metadata_props if entry.key == METADATA_KEY]
        metadata = json.loads(text)
        change(metadata)
        graph(model)
        path = tmp_path / "crafted.onnx"
        path.write_bytes(export.serialize(model, metadata))
        return OnnxAgent(path)

    return run


def test_a_damaged_file_is_refused(folder, tmp_path):
    content = (folder / "policy.onnx").read_bytes()
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    OnnxAgent(str(path))
    rng = np.random.default_rng(0)
    broken = [content[:size] for size in (len(content) - 1, len(content) // 2, 1000)]
    for place in (*rng.integers(0, len(content), 60), len(content) - 1):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        broken.append(bytes(flipped))
    broken.append(content + b"\0")
    for damaged in broken:
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"damaged\.onnx: (damaged|not a policy)"):
            OnnxAgent(path)


def test_a_foreign_file_is_refused(folder, tmp_path, crafted):
    path = tmp_path / "foreign.onnx"
    model = onnx.load(folder / "policy.onnx")
    del model.metadata_props[:]
    for content in (b"", b"cos\nsystem\n(S'true'\ntR.", b"\0" * 1000, model.SerializeToString()):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a policy exported by rcdt_agent"):
            OnnxAgent(path)
    for missing in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            OnnxAgent(missing)
    with pytest.raises(CheckpointError, match="damaged, changed after its export"):
        OnnxAgent(folder / "agent.zip")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(format_version=3), r"format 3 by .* runs format 2\. Update rcdt_agent"),
        (lambda m: m.update(format_version="x"), "format x by .* Update rcdt_agent"),
        (lambda m: m.update(format_version=1), "format 1 by .* Export the agent again"),
        (lambda m: m.clear(), "KeyError: 'format_version'"),
        (lambda m: m["config"].update(later=1), r"Unknown config fields: \['later'\]"),
        (lambda m: m["config"].update(context_length=6), "its inputs must be"),
        (lambda m: m.update(observation_shape=[5]), "its inputs must be"),
        (lambda m: m["settings"].update(cost_budget=-1.0), "`cost_budget` must be >= 0"),
        (lambda m: m["settings"].update(target_return="most"), "`target_return` must be"),
        (lambda m: m["settings"].update(cost_window=9), "its budget is for every 9 steps"),
        (lambda m: m["conditioning"].pop("table"), "KeyError: 'table'"),
        (lambda m: m["conditioning"]["outcomes"].update(returns=[1.0]), "must be as many"),
        (lambda m: m.update(action_shape=[1, 1, 2]), "its inputs must be"),
        (lambda m: m.update(action_low=[-1.0, -1.0]), "an action has 1 bounds"),
        (lambda m: m.pop("action_high"), "KeyError: 'action_high'"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(crafted, change, words):
    crafted()  # without a change it is accepted
    with pytest.raises(CheckpointError, match=words):
        crafted(change)


def test_a_graph_that_does_not_work_is_refused(crafted):
    def not_finite(model):
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.raw_data:
                size = len(tensor.raw_data) // 4
                tensor.raw_data = np.full(size, np.nan, np.float32).tobytes()

    def unknown_operation(model):
        model.graph.node[0].op_type = "System"

    def library_of_its_own(model):
        model.graph.node[0].domain = "com.example"

    with pytest.raises(CheckpointError, match=r"an action of it is \[nan\]"):
        crafted(graph=not_finite)
    for graph in (unknown_operation, library_of_its_own):
        with pytest.raises(CheckpointError, match=r"not a policy that rcdt_agent .* can run"):
            crafted(graph=graph)
