"""The benchmark: which cells run, what survives a kill, and tables that say what the JSON says."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import QUICK
from test_bullet_learning import record_balls

from rcdt_agent import BC, RCDT, TrajectoryDataset, evaluate_budgets, load_agent
from rcdt_agent.algorithms import ALGORITHMS
from rcdt_agent.algorithms.held_out import discounted_sums
from rcdt_agent.cli import run_command
from rcdt_agent.config import Config
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark import (
    Protocol,
    collect_results,
    dump_results,
    fill_page,
    find_published,
    make_tables,
    parse_method,
    published_scores,
    results_tables,
    run_benchmark,
)
from rcdt_agent.experiments.benchmark.methods import (
    DEPLOYMENT_FIELDS,
    EVALUATION_ARGUMENTS,
    OTHER_ALGORITHMS,
    SWITCHES,
)
from rcdt_agent.experiments.benchmark.plots import draw_frontiers
from rcdt_agent.experiments.benchmark.results import summarize
from rcdt_agent.experiments.diagnostics import critic_error
from rcdt_agent.stats import (
    interquartile_mean,
    nested_bootstrap_interval,
    paired_interval,
    probability_of_improvement,
    share_interval,
    stratified_bootstrap,
    t_interval,
    upper_limit,
)
from rcdt_agent.tasks.registry import get_task
from rcdt_agent.tasks.speed_limit import ENV_ID

SMALL = Protocol(preset="tiny", steps=12, episodes=2)


@pytest.fixture(scope="module")
def file(drivers, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "drivers.hdf5"
    drivers.to_hdf5(path)
    return path


def run(folder, file, methods, *, seeds=(0,), protocol=SMALL, **kwargs):
    return run_benchmark(
        folder,
        ["SpeedLimit"],
        methods,
        datasets={"SpeedLimit": file},
        seeds=seeds,
        protocol=protocol,
        progress_bar=False,
        **kwargs,
    )


def finished(folder):
    """Every finished training and evaluation, with the moment it was written."""
    paths = [*folder.glob("cells/**/training.json"), *folder.glob("cells/**/evaluations/*.json")]
    return {str(path.relative_to(folder / "cells")): path.stat().st_mtime_ns for path in paths}


# -------------------------------------------------------------------- methods


def test_what_a_method_name_means():
    method = parse_method("RCDT+pareto+eta=0.1+target=paper+ctg_floor=none", ["kappa=5"])
    assert method.base == "rcdt"
    assert method.config == {"pareto_fraction": 0.2, "eta": 0.1, "kappa": 5}
    assert method.deploy == {"target_return": "paper", "ctg_floor": None}
    assert method.training_id == "rcdt+eta=0.1+kappa=5+pareto_fraction=0.2"
    assert method.deployment_id == "ctg_floor=null+target_return=paper"
    config = method.make_config("tiny", 7)
    assert (config.total_steps, config.eta, config.variant) == (7, 0.1, "rcdt")
    assert parse_method("bc", ["eta=0.1"]).config == {}  # overrides are for variants of RCDT
    assert parse_method("rcdt+floor").training_id == "rcdt"
    assert (
        parse_method("rcdt+kappa_mode=episode").config == parse_method("rcdt+kappa-episode").config
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ppo", "must begin with one of"),
        ("bc+pareto", "'pareto' is a switch of RCDT's variants, bc takes FIELD=VALUE only"),
        ("bc-safe+shield", "'shield' is a switch of RCDT's variants"),
        ("bc+eta=0.1", "'eta=0.1' is not FIELD=VALUE with a field of .*BCConfig"),
        ("bc+width=0", "`width` must be >= 1, got 0"),
        ("bc-each", "must begin with one of"),
        ("cpq-each", "must begin with one of"),
        ("bc-safe-each+cost_budget=3", "takes `cost_budget` from the protocol"),
        ("rcdt+variant=cdt", "'variant=cdt' is neither a switch"),
        ("rcdt+speed", "'speed' is neither a switch"),
        ("rcdt+width=3", "'width=3' is neither a switch"),
        ("rcdt+eta=-1", "`eta` must be >= 0, got -1"),
        ("rcdt+eta=big", "`eta` must be a number, got 'big'"),
        ("rcdt+eta=0.1+eta=0.2", "sets 'eta' twice"),
    ],
)
def test_bad_method_names_are_refused(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        parse_method(text)


def test_other_algorithms_as_methods():
    assert set(OTHER_ALGORITHMS) == {*ALGORITHMS, "bc-safe-each"} - {"rcdt"}
    method = parse_method("BC+width=64+learning-rate=0.01")
    assert (method.algorithm, method.variant) == ("bc", None)
    assert method.training_id == "bc+learning_rate=0.01+width=64"
    config = method.make_config("tiny", 7, 2.0)
    assert (config.width, config.learning_rate, config.total_steps) == (64, 0.01, 7)
    assert not hasattr(config, "cost_budget")
    # One that serves one budget takes the protocol's, unless the name says another.
    safe, each = parse_method("bc-safe"), parse_method("bc-safe-each+width=8")
    assert safe.make_config("tiny", None, 2.0).cost_budget == 2
    assert parse_method("bc-safe+cost_budget=7").make_config("tiny", None, 2.0).cost_budget == 7
    assert (each.algorithm, each.one_policy_per_budget) == ("bc-safe", True)
    assert not safe.one_policy_per_budget
    # The plain name of every other one means a policy for each budget, as the paper trains them.
    every = parse_method("cpq+width=8")
    assert (every.algorithm, every.one_policy_per_budget) == ("cpq", True)
    assert every.make_config("tiny", None, 2.0).cost_budget == 2
    assert not parse_method("cpq+cost_budget=7").one_policy_per_budget
    assert not parse_method("bc").one_policy_per_budget
    for name in ("cdt", "rcdt-paper", "tvcdt"):
        assert (parse_method(name).algorithm, parse_method(name).variant) == ("rcdt", name)


def test_switches_change_only_what_they_may():
    known = set(Config.__dataclass_fields__)
    for name, switch in SWITCHES.items():
        assert set(switch.config) <= known - DEPLOYMENT_FIELDS, name
        assert set(switch.deploy) <= DEPLOYMENT_FIELDS | EVALUATION_ARGUMENTS, name
        assert switch.config or switch.deploy or switch.prepare, name
        parse_method(f"rcdt+{name}")


def test_every_switch_is_documented():
    page = (Path(__file__).parents[1] / "docs" / "benchmark.md").read_text()
    for name, switch in SWITCHES.items():
        when = "training" if switch.config else "deployment"
        assert f"| `{name}` | {when} |" in page


# -------------------------------------------------------------------- running


def test_only_what_is_missing_is_done(file, tmp_path):
    assert run(tmp_path, file, ["bc", "cdt", "rcdt"]) == []
    first = finished(tmp_path)
    assert set(first) == {
        f"SpeedLimit/{name}/seed-0/{part}"
        for name in ("bc", "cdt", "rcdt")
        for part in ("training.json", "evaluations/plain.json")
    }
    # A deployment switch evaluates the same policy; a training switch trains another.
    assert run(tmp_path, file, ["rcdt", "rcdt+floor", "cdt+relabel"]) == []
    second = finished(tmp_path)
    assert {name: second[name] for name in first} == first
    assert set(second) - set(first) == {
        "SpeedLimit/rcdt/seed-0/evaluations/ctg_floor=0.0.json",
        "SpeedLimit/cdt+relabel_fraction=0.5/seed-0/training.json",
        "SpeedLimit/cdt+relabel_fraction=0.5/seed-0/evaluations/plain.json",
    }
    # What was lost is made again, to the same numbers, and nothing else is touched.
    lost = tmp_path / "cells" / "SpeedLimit" / "cdt" / "seed-0" / "evaluations" / "plain.json"
    before = json.loads(lost.read_text())["results"]
    lost.unlink()
    assert run(tmp_path, file, ["bc", "cdt", "rcdt", "rcdt+floor"]) == []
    third = finished(tmp_path)
    assert set(third) == set(second)
    assert [name for name in third if third[name] != second[name]] == [
        str(lost.relative_to(tmp_path / "cells"))
    ]
    assert json.loads(lost.read_text())["results"] == before

    results = collect_results(tmp_path)
    assert [cell["method"] for cell in results["cells"]] == [
        "bc", "cdt", "rcdt", "rcdt+floor", "cdt+relabel",
    ]  # fmt: skip
    cells = {cell["method"]: cell for cell in results["cells"]}
    assert cells["rcdt"]["training"] == cells["rcdt+floor"]["training"]
    training = results["trainings"][cells["rcdt"]["training"]]
    assert {"lambda", "cost_data", "weight_ess"} <= set(training["metrics"])
    assert set(training["critic_error"]) == {"reward", "cost"}
    assert training["critic_error_on"] == "training data"
    assert training["config"]["total_steps"] == 12
    assert training["seconds"] > 0
    assert json.loads(dump_results(results)) == json.loads(json.dumps(results))
    pictures = draw_frontiers(tmp_path, results)
    assert [path.name for path in pictures] == [
        "frontier-SpeedLimit.png",
        "profile.png",
        "budgets.png",
    ]
    assert pictures[0].stat().st_size > 10_000


def test_cells_are_what_the_library_gives(file, drivers, tmp_path):
    """Training and episodes of a cell are those of `RCDT` and `evaluate_budgets`."""
    run(tmp_path, file, ["cdt"], seeds=(3,))
    (cell,) = collect_results(tmp_path)["cells"]
    agent = RCDT.from_dsrl(
        "SpeedLimit", dataset=drivers, preset="tiny", variant="cdt", seed=3, device="cpu"
    ).learn(total_steps=12)
    budgets = [result["budget"] for result in cell["evaluation"]["results"]]
    assert budgets == [2, 5, 10, 20, 40]
    report = evaluate_budgets(agent, ENV_ID, budgets, n_episodes=2, seed=3000)
    for ours, theirs in zip(cell["evaluation"]["results"], report.results, strict=True):
        np.testing.assert_allclose(ours["returns"], theirs.returns, atol=1e-3)
        np.testing.assert_allclose(ours["costs"], theirs.costs, atol=1e-3)
        assert ours["target_return"] == pytest.approx(theirs.target_return)
    assert "--methods cdt --seeds 3 --preset tiny --episodes 2 --steps 12" in cell["command"]


def test_other_algorithms_are_what_the_library_gives(file, drivers, tmp_path):
    assert run(tmp_path, file, ["bc+width=16"], seeds=(2,)) == []
    (cell,) = collect_results(tmp_path)["cells"]
    agent = BC.from_dsrl("SpeedLimit", dataset=drivers, preset="tiny", width=16, seed=2,
                         device="cpu").learn(total_steps=12)  # fmt: skip
    report = evaluate_budgets(agent, n_episodes=2, seed=2000)
    for ours, theirs in zip(cell["evaluation"]["results"], report.results, strict=True):
        np.testing.assert_allclose(ours["returns"], theirs.returns, atol=1e-3)
        assert ours["target_return"] is None
    folder = tmp_path / "cells" / "SpeedLimit" / "bc+width=16" / "seed-2"
    assert json.loads((folder / "run.json").read_text())["algorithm"] == "bc"
    # A folder trained with other settings is not reused in silence, for any algorithm.
    training = json.loads((folder / "training.json").read_text())
    training["config"]["learning_rate"] = 0.5
    (folder / "training.json").write_text(json.dumps(training))
    next(folder.glob("evaluations/*")).unlink()
    (failure,) = run(tmp_path, file, ["bc+width=16"], seeds=(2,))
    assert "was trained with learning_rate=0.5" in failure.error


def test_the_tasks_own_data(tmp_path):
    """SpeedLimit needs no file: it is a task like any other."""
    protocol = Protocol(preset="tiny", steps=3, episodes=1)
    assert (
        run_benchmark(
            tmp_path, ["speedlimit-v0"], ["bc"], seeds=(0,), protocol=protocol, progress_bar=False
        )
        == []
    )
    results = collect_results(tmp_path)
    task = results["tasks"]["SpeedLimit"]
    assert (task["task"], task["dataset"], task["published"]) == (
        "rcdt_agent/SpeedLimit-v0", None, False,
    )  # fmt: skip
    assert task["trajectories"] == 1000
    assert task["return_range"] == pytest.approx(get_task("SpeedLimit").return_range)
    assert task["range_source"] == "the range of returns in SpeedLimit drivers"
    assert "--tasks SpeedLimit --methods bc" in results["cells"][0]["command"]


def test_baselines_know_one_budget_or_each(file, drivers, tmp_path):
    assert run(tmp_path, file, ["bc-safe", "bc-safe-each"]) == []
    results = collect_results(tmp_path)
    one, each = (results["trainings"][cell["training"]] for cell in results["cells"])
    assert (one["config"]["cost_budget"], each["config"]["cost_budget"]) == (2, 2)
    assert one["imitated_trajectories"] == {"policy": int((drivers.episode_costs <= 2).sum())}
    assert each["imitated_trajectories"] == {
        f"policy-{budget}": int((drivers.episode_costs <= budget).sum())
        for budget in (2, 5, 10, 20, 40)
    }
    first, second = (cell["evaluation"]["results"] for cell in results["cells"])
    assert first[0]["returns"] == pytest.approx(first[4]["returns"])  # deaf to the budget
    assert second[0]["returns"] == pytest.approx(first[0]["returns"])  # one policy at the smallest
    assert second[0]["returns"] != pytest.approx(second[4]["returns"])
    said = "One policy for each budget, the others one for all: bc-safe-each."
    tables = make_tables(results)
    assert said in tables["main"] and said in tables["summary:SpeedLimit"]


def test_an_algorithm_of_one_budget_is_trained_for_each(file, tmp_path):
    assert run(tmp_path, file, ["coptidice+width=8", "coptidice+width=8+cost_budget=4"]) == []
    results = collect_results(tmp_path)
    each, fixed = (results["trainings"][cell["training"]] for cell in results["cells"])
    assert (each["policies"], fixed["policies"], fixed["config"]["cost_budget"]) == (5, 1, 4)
    folders = sorted(tmp_path.glob("cells/*/coptidice+width=8/seed-*/budget-*"))
    budgets = [load_agent(folder).config.cost_budget for folder in folders]
    assert sorted(budgets) == [2, 5, 10, 20, 40]
    assert make_tables(results)["main"].count("one for all: coptidice+width=8.") == 1


def test_a_failed_cell_does_not_lose_the_others(drivers, tmp_path):
    costly = tmp_path / "costly.hdf5"
    drivers.select(np.flatnonzero(drivers.episode_costs > 3)).to_hdf5(costly)
    failures = run(tmp_path / "out", costly, ["bc-safe", "bc"])
    assert [(Path(f.cell).parent.name, f.what) for f in failures] == [("bc-safe", "training")]
    assert "holds no trajectory" in failures[0].error
    assert "holds no trajectory" in (Path(failures[0].cell) / "error.txt").read_text()
    assert [cell["method"] for cell in collect_results(tmp_path / "out")["cells"]] == ["bc"]


def test_refusals(file, drivers, tmp_path):
    run(tmp_path, file, ["cdt"])
    with pytest.raises(InvalidArgumentError, match="begun with episodes=2, now episodes=3"):
        run(tmp_path, file, ["cdt"], protocol=Protocol(preset="tiny", steps=12, episodes=3))
    other = tmp_path / "other.hdf5"
    drivers.bottom(50).to_hdf5(other)
    with pytest.raises(InvalidArgumentError, match="results for SpeedLimit on other data"):
        run(tmp_path, other, ["cdt"])
    with pytest.raises(InvalidArgumentError, match="`variant_of_data` must be bottom:RHO"):
        run(tmp_path, file, ["cdt"], variant_of_data="top:10")
    with pytest.raises(InvalidArgumentError, match="not among `tasks`"):
        run_benchmark(tmp_path, ["BallRun"], ["bc"], datasets={"CarRun": file})
    with pytest.raises(InvalidArgumentError, match="`holdout` must be in"):
        Protocol(holdout=1.0)
    # A policy trained with other settings than the name now means is not reused in silence.
    path = next(tmp_path.glob("cells/**/training.json"))
    stored = json.loads(path.read_text())
    stored["config"]["gamma"] = 0.7
    path.write_text(json.dumps(stored))
    next(tmp_path.glob("cells/**/plain.json")).unlink()
    (failure,) = run(tmp_path, file, ["cdt"])
    assert "was trained with gamma=0.7, now gamma=0.1" in failure.error


def test_shards_do_every_cell_once(file, tmp_path):
    arguments = {"datasets": {"SpeedLimit": file}, "seeds": [0, 1, 2], "protocol": SMALL}
    arguments |= {"progress_bar": False}
    done = []
    for shard in ((1, 2), (2, 2)):
        assert not run_benchmark(tmp_path, ["SpeedLimit"], ["bc"], shard=shard, **arguments)
        done.append({path.parent.name for path in tmp_path.glob("cells/*/*/*/training.json")})
    assert done == [{"seed-0", "seed-2"}, {"seed-0", "seed-1", "seed-2"}]
    assert len(collect_results(tmp_path)["cells"]) == 3
    with pytest.raises(InvalidArgumentError, match="`shard` must be i/n with 1 <= i <= n, got 3/2"):
        run_benchmark(tmp_path, ["SpeedLimit"], ["bc"], shard=(3, 2), **arguments)
    with pytest.raises(InvalidArgumentError, match="`shard` must be I/N, such as 1/4, got '2'"):
        run_command(
            ["benchmark", "--output", str(tmp_path), "--tasks", "SpeedLimit", "--shard", "2"]
        )


def test_no_benchmark_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidArgumentError, match="start it without torchrun"):
        run_benchmark(tmp_path, ["SpeedLimit"], ["bc"])


def test_variants_and_held_out_trajectories(file, drivers, tmp_path):
    protocol = Protocol(preset="tiny", steps=8, episodes=1, holdout=0.25)
    assert run(tmp_path, file, ["rcdt"], protocol=protocol, variant_of_data="bottom:60") == []
    results = collect_results(tmp_path)
    (task,) = results["tasks"].values()
    assert task["label"] == "SpeedLimit bottom 60"
    assert task["trajectories"] == 45  # three quarters of 60 of 100
    assert len(TrajectoryDataset.from_hdf5(task["heldout"])) == 15
    # Normalised by the whole data, so that variants can be compared.
    assert task["return_range"] == pytest.approx(
        [float(drivers.episode_returns.min()), float(drivers.episode_returns.max())]
    )
    (training,) = results["trainings"].values()
    assert training["critic_error_on"] == "held-out trajectories"
    assert training["critic_error"]["cost"]["trajectories"] == 15
    assert "--variant-of-data bottom:60" in results["cells"][0]["command"]
    assert "--holdout 0.25" in results["cells"][0]["command"]


@pytest.mark.slow
def test_a_worker_that_dies_loses_only_its_cell(file, tmp_path):
    killed = []

    def kill_one():
        for _ in range(600):
            children = multiprocessing.active_children()
            if children:
                killed.append(children[0].pid)
                os.kill(children[0].pid, signal.SIGKILL)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=kill_one)
    thread.start()
    failures = run(tmp_path, file, ["bc", "cdt", "bc-safe"], workers=2)
    thread.join()
    assert len(killed) == 1
    assert {f.error for f in failures} == {"its process ended with code -9"}
    assert len({f.cell for f in failures}) == 1
    assert len(collect_results(tmp_path)["cells"]) == 2
    assert run(tmp_path, file, ["bc", "cdt", "bc-safe"]) == []
    assert len(collect_results(tmp_path)["cells"]) == 3


@pytest.mark.slow
def test_killed_in_the_middle_and_started_again(file, tmp_path):
    arguments = [
        "benchmark", "--tasks", "SpeedLimit", "--datasets", f"SpeedLimit={file}", "--methods",
        "bc", "cdt", "rcdt", "rcdt+floor", "--seeds", "0", "--preset", "tiny", "--steps", "12",
        "--episodes", "2", "--output", str(tmp_path / "out"), "--workers", "2",
    ]  # fmt: skip
    command = [sys.executable, "-m", "rcdt_agent", *arguments]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(3000):
            if finished(tmp_path / "out"):
                break
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
    time.sleep(3)  # the workers notice and end: nothing more is written
    before = finished(tmp_path / "out")
    time.sleep(2)
    assert finished(tmp_path / "out") == before
    assert 1 <= len(before) < 7
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    after = finished(tmp_path / "out")
    assert len(after) == 7
    assert {name: after[name] for name in before} == before
    assert "7/7" in result.stderr  # one bar: parts finished of all
    assert "| task | BC | CDT | rcdt | rcdt+floor |" in result.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["cells"]) == 4
    assert (tmp_path / "out" / "results.md").read_text() == results_tables(results)
    assert results["commands"] == [" ".join(["rcdt", *arguments])]
    # Without tasks: only the tables again.
    again = subprocess.run(
        [*command[:4], "--output", str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results


# Dies at step 1500 of the policy in PLACE, by then with a checkpoint of step 1000.
KILL = """
import os, signal
from rcdt_agent.algorithms.bc import BC

step = BC.step

def step_or_die(self):
    if self.num_timesteps == 1500 and os.path.exists("PLACE/last.zip"):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self)

BC.step = step_or_die
"""


@pytest.mark.slow
def test_cells_of_other_algorithms_resume_after_a_kill(file, tmp_path):
    """Killed at step 1500 of 2000: finished policies stay, the others go on from a checkpoint."""
    arguments = [
        "benchmark", "--tasks", "SpeedLimit", "--datasets", f"SpeedLimit={file}", "--methods",
        "bc+width=8", "bc-safe+width=8", "bc-safe-each+width=8", "--seeds", "0", "--preset",
        "tiny", "--steps", "2000", "--episodes", "1",
    ]  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [sys.executable, "-m", "rcdt_agent", *arguments, "--output"]
    result = subprocess.run([*command, str(whole)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    cells = broken / "cells" / "SpeedLimit"
    places = [
        cells / "bc+width=8" / "seed-0",
        cells / "bc-safe+width=8" / "seed-0",
        cells / "bc-safe-each+width=8" / "seed-0" / "budget-10",
    ]
    for place in places:
        code = f"{KILL.replace('PLACE', str(place))}\nfrom rcdt_agent.cli import main\nmain()"
        killed = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--output", str(broken)],
            capture_output=True, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert load_agent(place / "last.zip").num_timesteps == 1000
        assert not (place / "agent.zip").exists()
        assert not list((place if place.name == "seed-0" else place.parent).glob("training.json"))
    before = {path: path.read_bytes() for path in broken.rglob("agent.zip")}
    assert len(before) == 4  # bc, bc-safe, and the two smaller budgets of bc-safe-each
    result = subprocess.run([*command, str(broken)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert {path: path.read_bytes() for path in before} == before
    agents = sorted(path.relative_to(whole) for path in whole.rglob("agent.zip"))
    assert len(agents) == 7
    for agent in agents:  # bit for bit as if nothing had happened
        assert (broken / agent).read_bytes() == (whole / agent).read_bytes()
    ours, theirs = (collect_results(folder) for folder in (broken, whole))
    assert all(training["resumed"] for training in ours["trainings"].values())
    for one, other in zip(ours["cells"], theirs["cells"], strict=True):
        assert one["evaluation"]["results"] == other["evaluation"]["results"]


@pytest.mark.slow
@pytest.mark.simulator
def test_a_real_task(tmp_path):
    file = tmp_path / "balls.hdf5"
    record_balls(20).to_hdf5(file)
    failures = run_benchmark(
        tmp_path / "out",
        ["SafetyBallRun-v0"],
        ["bc", "cdt", "cdt+target=paper"],
        datasets={"BallRun": file},
        seeds=(0,),
        protocol=Protocol(preset="tiny", steps=10, episodes=2),
        progress_bar=False,
    )
    assert failures == []
    results = collect_results(tmp_path / "out")
    cells = {cell["method"]: cell["evaluation"]["results"] for cell in results["cells"]}
    assert [entry["budget"] for entry in cells["bc"]] == [10, 20, 40]
    assert [entry["target_return"] for entry in cells["cdt+target=paper"]] == [500, 500, 700]
    assert cells["cdt"][0]["target_return"] < 500
    text = make_tables(results)["published"]
    assert "| BallRun |" in text and "**0.39 / 0.64** ★" in text
    assert "Not comparable" in text and "balls.hdf5" in text


# -------------------------------------------------------------------- baselines in evaluation


def test_an_agent_that_knows_no_budget_equals_the_plain_loop(drivers):
    policy = BC(width=16, seed=1).learn(drivers, 50)
    report = evaluate_budgets(policy, ENV_ID, [2, 10], n_episodes=3, seed=5, n_envs=4)
    for episode in range(3):
        env = gym.make(ENV_ID)
        obs, _ = env.reset(seed=5 + episode)
        total_return = total_cost = 0.0
        done = False
        while not done:
            action, _ = policy.predict(obs)
            obs, reward, terminated, truncated, info = env.step(action)
            total_return += reward
            total_cost += info["cost"]
            done = terminated or truncated
        for result in report.results:
            assert result.returns[episode] == pytest.approx(total_return, rel=1e-4)
            assert result.costs[episode] == pytest.approx(total_cost, rel=1e-4)


# -------------------------------------------------------------------- diagnostics


def test_discounted_sums_by_hand():
    # 3 + 0.5 * 8 = 7; 2 + 0.5 * 7 = 5.5; 1 + 0.5 * 5.5 = 3.75
    np.testing.assert_allclose(
        discounted_sums(np.array([1.0, 2.0, 3.0]), 0.5, 8.0), [3.75, 5.5, 7.0]
    )
    np.testing.assert_allclose(discounted_sums(np.array([1.0, 2.0, 3.0]), 0.5), [2.75, 3.5, 3.0])


def test_critic_error_of_a_constant_critic(drivers):
    settings = {**QUICK, "critic_start": 0.1}
    literal = {"critic_inputs": "state", "critic_targets": "td", "cost_discount": 0.99}
    agent = RCDT(**settings, **literal).learn(drivers, 10)
    part = drivers.select(np.arange(4))
    assert not part.terminated.any()  # SpeedLimit ends by time only
    critics = agent.policy.critics
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.zero_()
        critics.layers[-1].bias.fill_(2.0)
    constant = 2.0 * float(critics.unit("cost"))
    truth = []
    for i in range(4):
        costs = part.costs[part.offsets[i] : part.offsets[i + 1] - 1].astype(float)
        n = len(costs)
        truth += [
            sum(0.99**k * costs[t + k] for k in range(n - t)) + 0.99 ** (n - t) * constant
            for t in range(n)
        ]
    found = critic_error(agent, part)["cost"]
    gap = constant - np.array(truth)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(gap**2)), rel=1e-4)
    assert found["bias"] == pytest.approx(gap.mean(), rel=1e-3)
    assert found["deviation"] == pytest.approx(np.std(truth), rel=1e-4)
    assert found["correlation"] == 0
    assert set(critic_error(agent, part)) == {"reward", "cost"}
    # Critics of token and time end with the episode: nothing is bootstrapped, every step counts.
    token = RCDT(**settings, critic_inputs="token").learn(drivers, 10)
    with torch.no_grad():
        for parameter in token.policy.critics.parameters():
            parameter.zero_()
    rows = part.costs.reshape(4, -1).astype(float)
    sums = np.concatenate([discounted_sums(row, 0.95) for row in rows])
    found = critic_error(token, part)["cost"]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(sums**2)), rel=1e-4)
    assert found["error"] == pytest.approx(found["rmse"] / np.std(sums), rel=1e-4)
    # Nothing to compare: no critics, not begun, or another algorithm.
    assert critic_error(RCDT(**{**QUICK, "variant": "cdt"}).learn(drivers, 3), part) == {}
    late = RCDT(**{**QUICK, "critic_start": 1.0}).learn(drivers, 3)
    assert critic_error(late, part) == {}
    assert critic_error(BC(width=8, seed=0).learn(drivers, 3), part) == {}


# -------------------------------------------------------------------- tables


def by_hand(**methods):
    """Results of two seeds, two budgets (10, 20) and two episodes; returns in 0 .. 100."""
    cells = []
    for name, (returns, costs) in methods.items():
        for seed in (0, 1):
            entries = [
                {"budget": budget, "returns": returns[seed][b], "costs": costs[seed][b]}
                for b, budget in enumerate((10.0, 20.0))
            ]
            cells.append(
                {
                    "task": "HopperVelocity",
                    "method": name,
                    "seed": seed,
                    "training": f"{name}/{seed}",
                    "evaluation": {"results": entries},
                    "command": f"rcdt benchmark {name} {seed}",
                }
            )
    task = {
        "file": "mine.hdf5", "published": False, "trajectories": 50, "return_range": [0.0, 100.0],
        "range_source": "the range of returns in mine.hdf5", "budgets": [10.0, 20.0],
        "variant": None,
    }  # fmt: skip
    trainings = {
        cell["training"]: {
            "task": "HopperVelocity", "method": cell["method"], "seed": cell["seed"],
            "steps": 100, "seconds": 90.0 + 60 * cell["seed"],
            "metrics": {"lambda": 0.5, "cost_estimate": 4.0 + cell["seed"], "weight_ess": 0.25},
            "critic_error": {"cost": {"rmse": 3.0, "deviation": 2.0}},
            "critic_error_on": "held-out trajectories",
        }
        for cell in cells
    }  # fmt: skip
    return {
        "commands": ["rcdt benchmark all"],
        "protocol": {"episodes": 2},
        "tasks": {"HopperVelocity": task},
        "methods": {name: {} for name in methods},
        "seeds": [0, 1],
        "trainings": trainings,
        "cells": cells,
    }


# Seeds x budgets x episodes. `fast`: mean costs 12 and 8 of budgets 10 and 20: ratio 0.8, safe on
# average although the first budget is broken. `slow` keeps both. `wild` keeps none.
FAST = ([[[60, 60], [80, 80]]] * 2, [[[10, 14], [8, 8]]] * 2)
SLOW = ([[[30, 50], [50, 50]], [[40, 40], [50, 50]]], [[[0, 12], [4, 4]], [[4, 4], [4, 4]]])
WILD = ([[[90, 90], [90, 90]]] * 2, [[[30, 30], [30, 30]]] * 2)


def test_figures_by_hand():
    results = by_hand(fast=FAST, slow=SLOW, wild=WILD)
    fast = summarize(results, "HopperVelocity", "fast")
    assert fast.normalized_return == pytest.approx(0.70)
    assert fast.normalized_cost == pytest.approx((12 / 10 + 8 / 20) / 2)
    assert fast.safe and not fast.keeps_all and fast.kept == 1
    assert fast.over_budget == pytest.approx(0.25)  # two of eight episodes cost 14 > 10
    assert fast.return_interval == pytest.approx((0.70, 0.70))
    slow = summarize(results, "HopperVelocity", "slow")
    assert slow.normalized_return == pytest.approx(0.45)
    assert slow.normalized_cost == pytest.approx((5 / 10 + 4 / 20) / 2)
    assert slow.keeps_all
    assert [b.mean_cost for b in slow.budgets] == [5, 4]
    assert slow.budgets[0].over_budget == pytest.approx(0.25)
    assert [b.seeds_passed for b in slow.budgets] == [2, 2]
    wild = summarize(results, "HopperVelocity", "wild")
    assert not wild.safe
    assert wild.normalized_cost == pytest.approx((3 + 1.5) / 2)
    assert summarize(results, "HopperVelocity", "none") is None


def test_tables_by_hand():
    tables = make_tables(by_hand(fast=FAST, slow=SLOW, wild=WILD))
    lines = tables["main"].splitlines()
    assert lines[0] == "| task | fast | slow | wild |"
    # Safe in bold, best safe marked: the paper's rule averages over the budgets.
    assert lines[2] == "| HopperVelocity | **0.70 / 0.80** ★ | **0.45 / 0.35** | 0.90 / 2.25 |"
    assert "mine.hdf5 (not the published dataset)" in tables["main"]
    # The stricter rule looks at every budget.
    rows = tables["summary:HopperVelocity"].splitlines()
    assert rows[2].startswith("| fast | 0.700 [0.700, 0.700] | 0.80 ")
    assert "| 1 of 2 | 25% | 2 |" in rows[2]
    assert rows[3].startswith("| **slow** ★ | 0.450 ")
    assert "| 2 of 2 | 12% | 2 |" in rows[3]
    assert rows[4].startswith("| wild |") and "| 0 of 2 | 100% | 2 |" in rows[4]
    budgets = tables["budgets:HopperVelocity"].splitlines()
    assert budgets[2].startswith("| fast | 10 | 60.0 [60.0, 60.0] | 12.0 [")
    assert budgets[2].endswith("] | 50% | 0 of 2 | no |")
    assert (
        budgets[3] == "| fast | 20 | 80.0 [80.0, 80.0] | **8.0 [8.0, 8.0]** | 0% | 2 of 2 | yes |"
    )
    # Minutes: (1.5 + 2.5) / 2; J_c (4 + 5) / 2; error of C 3 / 2; no critic of reward.
    assert tables["training"].splitlines()[2] == (
        "| HopperVelocity | fast | 100 | 2.0 | 0.50 | 4.50 | 0.25 | - | 1.50 |"
    )
    assert "held-out trajectories" in tables["training"]
    # The paper's numbers stand apart and say why they cannot be compared.
    assert "| HopperVelocity | 0.65 / 6.39 |" in tables["published"]
    assert "Not comparable with our numbers** for HopperVelocity" in tables["published"]
    assert tables["commands"].splitlines()[1:4] == [
        "# everything", "rcdt benchmark all", "# any one cell",
    ]  # fmt: skip
    assert "rcdt benchmark slow 1" in tables["commands"]


def test_a_page_is_filled_and_stays_filled():
    results = by_hand(fast=FAST, slow=SLOW)
    rest = "\n\nText.\n\n<!-- table:b/main -->\n<!-- end -->\n"
    page = f"# R\n\n<!-- table:main -->\nstale\n<!-- end -->{rest}"
    once = fill_page(page, results)
    assert "**0.70 / 0.80** ★" in once and "stale" not in once
    assert once.endswith(rest)
    assert fill_page(once, results) == once
    both = fill_page(once, by_hand(wild=WILD), prefix="b/")
    assert "**0.70 / 0.80** ★" in both and "0.90 / 2.25" in both
    assert fill_page(fill_page(both, results), by_hand(wild=WILD), prefix="b/") == both
    with pytest.raises(InvalidArgumentError, match="asks for the table 'none'"):
        fill_page("<!-- table:none -->\n<!-- end -->", results)


def test_nested_interval():
    rng = np.random.default_rng(0)
    alike = rng.normal(0, 1, (5, 1, 200))
    apart = alike + np.array([-4.0, -2.0, 0.0, 2.0, 4.0])[:, None, None]
    low, high = nested_bootstrap_interval(alike)
    assert low < alike.mean() < high
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(1000), rel=0.5)
    wide = nested_bootstrap_interval(apart)  # seeds that differ weigh more than their episodes
    assert wide[1] - wide[0] == pytest.approx(2 * 1.96 * np.sqrt(8 / 5), rel=0.2)
    assert nested_bootstrap_interval(np.full((2, 3, 4), 7.0)) == (7.0, 7.0)


def test_t_interval_by_hand():
    """1, 2, 3: mean 2, deviation 1, t(2) at 0.975 is 4.3027; at 0.95 it is 2.9200."""
    reach = 4.3027 / np.sqrt(3)
    assert t_interval([1, 2, 3]) == pytest.approx((2 - reach, 2 + reach), abs=1e-4)
    assert upper_limit([1, 2, 3]) == pytest.approx(2 + 2.92 / np.sqrt(3), abs=1e-4)
    assert np.isnan(t_interval([5.0])).all() and np.isnan(upper_limit([5.0]))


def test_t_intervals_hold_for_three_seeds():
    """They cover the true mean in 95 of 100 draws; a percentile bootstrap of three does not."""
    rng = np.random.default_rng(0)
    draws = rng.normal(7.0, 2.0, (2000, 3))
    spans = np.array([t_interval(draw) for draw in draws])
    covered = np.mean((spans[:, 0] <= 7.0) & (spans[:, 1] >= 7.0))
    assert covered == pytest.approx(0.95, abs=0.015)


def test_comparisons_by_hand():
    assert interquartile_mean([0, 1, 2, 9]) == 1.5
    # Task 1: 3 beats both, 1 beats none and ties one: (2 + 0.5) / 4. Task 2: all pairs won.
    first, second = [[3.0, 1.0], [5.0]], [[1.0, 2.0], [4.0, 4.5]]
    assert probability_of_improvement(first, second) == pytest.approx((2.5 / 4 + 1) / 2)
    assert stratified_bootstrap(probability_of_improvement, [[2, 3]], [[0, 1]]) == (1.0, 1.0)
    low, high = stratified_bootstrap(lambda m: float(m[0].mean()), [[0.0, 1.0]])
    assert (low, high) == (0.0, 1.0)
    # All of four won: the lower limit is the p with p^4 = 0.025.
    assert share_interval(4, 4) == pytest.approx((0.025**0.25, 1.0))


def test_a_paired_interval_by_hand():
    """Means 2 and 10, variances of them 1 / 3 and 1: (4 / 3)^2 / (1 / 18 + 1) = 32 / 19 degrees of
    freedom, at which t is 5.1762 at 0.975."""
    reach = 5.1762 * np.sqrt(4 / 3) / 2
    assert paired_interval([[1, 2, 3], [9, 11]]) == pytest.approx((6 - reach, 6 + reach), abs=1e-3)
    assert paired_interval([[1.0, 3.0]]) == pytest.approx(t_interval([1.0, 3.0]))  # of one task
    assert paired_interval([[2.0, 2.0], [4.0, 4.0]]) == (3.0, 3.0)
    assert np.isnan(paired_interval([[1, 2], [3]])).all()


def test_paired_intervals_hold_for_two_seeds():
    rng = np.random.default_rng(0)
    spans = np.array([paired_interval(rng.normal(7.0, 2.0, (6, 2))) for _ in range(2000)])
    covered = np.mean((spans[:, 0] <= 7.0) & (spans[:, 1] >= 7.0))
    assert 0.945 < covered < 0.985


def test_the_overall_table_by_hand():
    rows = make_tables(by_hand(fast=FAST, slow=SLOW))["overall"].splitlines()
    assert rows[2].startswith("| fast | 1 | 2 | 0.700 | 1 of 2 |")
    assert rows[3].endswith("| 1.00 | 2 of 2 [0.16, 1.00] | +0.250 [+0.250, +0.250] |")


def test_one_seed_gets_no_star_and_no_interval():
    results = by_hand(fast=FAST)
    results["cells"] = results["cells"][:1]
    tables = make_tables(results)
    assert "★" not in tables["main"].split("Normalised")[0]
    assert "(one seed)" in tables["summary:HopperVelocity"]


# -------------------------------------------------------------------- the paper's numbers


@pytest.mark.parametrize(
    ("task", "data", "method", "expected"),
    [
        ("HopperVelocity", None, "rcdt", (0.80, 0.45)),
        ("HopperVelocity", None, "wcdt", (0.77, 0.52)),
        ("SwimmerVelocity", None, "wqdt", (0.68, 0.82)),
        ("BallCircle", None, "trac", (0.69, 0.66)),
        ("BallCircle", None, "cdt", (0.58, 0.94)),
        ("HalfCheetahVelocity", None, "bc", (0.97, 13.1)),
        ("easysparse", None, "cdt", (0.13, 0.25)),
        ("mediumdense", None, "rcdt", (0.89, 0.52)),
        ("HopperVelocity", "bottom:60", "cdt", (0.27, 0.73)),
        ("SwimmerVelocity", "bottom:60", "rcdt", (0.43, 0.41)),
        ("Walker2dVelocity", "extremes:10", "rcdt", (0.73, 0.56)),
        ("HopperVelocity", "extremes:20", "cdt", (0.24, 1.50)),
    ],
)
def test_published_numbers(task, data, method, expected):
    score = find_published(task, data)[method]
    assert (score.normalized_return, score.normalized_cost) == expected


# The paper's own averages over the tasks of a suite, from its main table.
AVERAGES = {
    "safety-gymnasium": {
        "bc": (0.55, 3.40), "bc-safe": (0.40, 0.74), "cdt": (0.55, 1.09), "rcdt": (0.59, 0.95),
        "fisor": (0.42, 3.81), "bcq-lag": (0.58, 3.59),
    },
    "bullet": {
        "bc": (0.64, 3.36), "bc-safe": (0.52, 0.82), "cdt": (0.61, 0.77), "rcdt": (0.63, 0.68),
    },
    "metadrive": {
        "bc": (0.42, 2.06), "cdt": (0.40, 0.95), "rcdt": (0.69, 0.71), "trac": (0.53, 0.54),
    },
}  # fmt: skip


def test_published_numbers_average_to_the_papers():
    assert len(published_scores()) == 340 + 21 + 60 + 60
    assert all(get_task(score.task).name == score.task for score in published_scores())
    for suite, methods in AVERAGES.items():
        for method, expected in methods.items():
            rows = [
                (score.normalized_return, score.normalized_cost)
                for score in published_scores()
                if score.table == "main-result"
                and score.method == method
                and get_task(score.task).suite == suite
            ]
            np.testing.assert_allclose(np.mean(rows, axis=0), expected, atol=0.0061)
