"""The search for settings: what it looks at, what it keeps, and what it calls best."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest

from rcdt_agent import RCDT, BCSafe, evaluate_budgets, load_agent, make_config
from rcdt_agent.cli import run_command
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark.cells import SEEDS_APART
from rcdt_agent.experiments.study import Trial, best_trial
from rcdt_agent.experiments.tune import VALIDATION_SEED, search_space, tune

SMALL = {"preset": "tiny", "steps": 8, "episodes": 2, "seed": 1}


@pytest.fixture(scope="module")
def file(drivers, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "drivers.hdf5"
    drivers.to_hdf5(path)
    return path


def test_what_is_searched():
    space = search_space(make_config("cpu", "rcdt"))
    assert space["eta"] == ("choice", (0.1, 0.3, 0.5))
    assert set(space) == {
        "eta", "frontier_sharpness", "kappa_share", "learning_rate", "context_length",
    }  # fmt: skip
    assert space["context_length"] == ("choice", (4, 8, 16))
    one_step = make_config("cpu", context_length=1)
    assert search_space(one_step)["context_length"] == ("choice", (1, 2))
    assert {"alpha", "gamma"} <= set(search_space(make_config("cpu", "rcdt-paper")))
    low, high = space["learning_rate"][1]
    assert low < make_config("cpu").learning_rate < high
    assert set(search_space(make_config("cpu", "cdt"))) == {
        "learning_rate", "target_quantile", "context_length",
    }  # fmt: skip
    assert set(search_space(BCSafe.make_config("cpu"))) == {"learning_rate"}


def test_the_best_keeps_every_budget():
    def trial(number, score, *costs):
        return Trial(number=number, settings={}, normalized_return=score, normalized_costs=costs)

    # The second earns most and keeps its budgets on average, but not each of them.
    trials = [trial(0, 0.5, 0.9, 1.0), trial(1, 0.9, 1.2, 0.1), trial(2, 0.4, 0.1, 0.1)]
    assert best_trial(trials).number == 0
    assert best_trial(trials[1:]).number == 2
    broken = [trial(3, 0.9, 1.5, 0.1), trial(4, 0.2, 1.1, 1.2)]
    assert not best_trial(broken).feasible
    assert best_trial(broken).number == 4  # none is feasible: the one nearest to it


def test_search_resumes_and_reports_what_the_library_gives(file, drivers, tmp_path):
    first = tune("SpeedLimit", tmp_path, dataset=file, n_trials=2, **SMALL)
    assert [trial.number for trial in first.trials] == [0, 1]
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/training.json")}
    assert len(trained) == 2
    second = tune("SpeedLimit", tmp_path, dataset=file, n_trials=3, **SMALL)
    assert second.trials[:2] == first.trials
    assert len(second.trials) == 3
    assert second.trials[2].settings not in [trial.settings for trial in first.trials]
    assert all(path.stat().st_mtime_ns == moment for path, moment in trained.items())

    # The figures are those of a policy trained with the settings, on seeds of validation.
    best = second.best
    settings = {**best.settings, "total_steps": 8}
    agent = RCDT.from_dsrl(
        "SpeedLimit", dataset=drivers, preset="tiny", variant="rcdt", seed=1, device="cpu",
        **settings,
    ).learn()  # fmt: skip
    report = evaluate_budgets(agent, n_episodes=2, seed=VALIDATION_SEED)
    ratios = [result.mean_cost / result.budget for result in report.results]
    assert best.normalized_costs == pytest.approx(ratios, abs=1e-3)
    low, high = float(drivers.episode_returns.min()), float(drivers.episode_returns.max())
    scores = [(result.mean_return - low) / (high - low) for result in report.results]
    assert best.normalized_return == pytest.approx(np.mean(scores), abs=1e-4)

    kept = json.loads((tmp_path / "best.json").read_text())
    assert kept["settings"] == best.settings
    assert kept["validation_seeds"] == [VALIDATION_SEED, VALIDATION_SEED + 1]
    assert kept["command"] == second.command
    with pytest.raises(InvalidArgumentError, match="holds a search with episodes=2, now 3"):
        tune("SpeedLimit", tmp_path, dataset=file, n_trials=3, **{**SMALL, "episodes": 3})


def test_validation_seeds_are_apart_from_the_tests():
    assert VALIDATION_SEED > SEEDS_APART * 1000 + 10_000  # a thousand training seeds
    assert abs(VALIDATION_SEED - 1_000_000) > 100_000  # calibration's


def test_refusals(file, tmp_path):
    with pytest.raises(InvalidArgumentError, match="No task is named at the start of"):
        tune(str(file), tmp_path)
    with pytest.raises(InvalidArgumentError, match="`method` must train one policy"):
        tune("SpeedLimit", tmp_path, dataset=file, method="bc-safe-each")
    with pytest.raises(InvalidArgumentError, match="`n_trials` and `episodes` must be >= 1"):
        tune("SpeedLimit", tmp_path, dataset=file, n_trials=0)


def test_other_algorithms_are_searched_too(file, tmp_path, monkeypatch):
    result = tune(
        "SpeedLimit", tmp_path, dataset=file, method="bc-safe+width=16", n_trials=2, **SMALL
    )
    rates = [trial.settings["learning_rate"] for trial in result.trials]
    assert len(set(rates)) == 2 and set(result.best.settings) == {"learning_rate"}
    for trial in tmp_path.glob("trials/*/agent.zip"):
        agent = load_agent(trial)
        assert type(agent) is BCSafe and agent.config.width == 16
        assert agent.config.cost_budget == 2  # the smallest of the task
    words = shlex.split(result.command)
    assert words[:6] == ["rcdt", "train", "SpeedLimit", "--dataset", str(file), "--algorithm"]
    assert run_command([*words[1:], "--output", str(tmp_path / "run"), "--no-evaluate"]) == 0
    config = load_agent(tmp_path / "run" / "agent.zip").config
    rate = result.best.settings["learning_rate"]
    assert config.learning_rate == pytest.approx(rate, rel=1e-5)
    assert (config.width, config.cost_budget, config.total_steps) == (16, 2, 8)


@pytest.mark.slow
def test_killed_and_started_again(file, tmp_path):
    command = [
        sys.executable, "-m", "rcdt_agent", "tune", "SpeedLimit",
        "--dataset", str(file), "--output", str(tmp_path / "out"), "--preset", "tiny", "--steps",
        "40", "--episodes", "1", "--trials", "3", "--method", "rcdt+gamma=0.05+replan",
    ]  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(6000):  # until the second trial has begun
            if len(list((tmp_path / "out").glob("trials/*/run.json"))) == 2:
                break
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        process.kill()
        process.wait()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    assert "3 trials, 0 failed, evaluated on reset seeds 2000000 .. 2000000." in result.stdout
    # The interrupted setting was tried again, in its own folder: three policies, not four.
    assert len(list((tmp_path / "out").glob("trials/*/training.json"))) == 3
    assert len(list((tmp_path / "out").glob("trials/*/run.json"))) == 3

    # The printed command trains that setting.
    best = json.loads((tmp_path / "out" / "best.json").read_text())
    assert f"Train it: {best['command']}" in result.stdout
    words = shlex.split(best["command"])
    run = tmp_path / "run"
    words = [*words[1:], "--output", str(run), "--no-evaluate"]
    assert run_command(words) == 0
    config = RCDT.load(run / "agent.zip").config
    expected = make_config(
        "tiny", "rcdt", gamma=0.05, replan=True, total_steps=40, **best["settings"]
    )
    searched = ("learning_rate", "frontier_sharpness", "kappa_share", "context_length")
    same = replace(config, **{name: getattr(expected, name) for name in searched})
    assert same == expected
    for name in searched:
        assert getattr(config, name) == pytest.approx(getattr(expected, name), rel=1e-5)


@pytest.mark.slow
def test_several_processes_share_one_study_and_one_of_them_is_killed(file, tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "rcdt_agent", "tune", "SpeedLimit", "--dataset", str(file),
        "--output", str(out), "--preset", "tiny", "--steps", "300", "--episodes", "1",
        "--trials", "6", "--method", "bc",
    ]  # fmt: skip
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for _ in range(1200):  # until each has had a trial
        if len(list(out.glob("trials/*/run.json"))) >= 3:
            break
        time.sleep(0.05)
    processes[0].kill()
    outputs = [process.communicate(timeout=120) for process in processes]
    for process, (said, errors) in list(zip(processes, outputs, strict=True))[1:]:
        assert process.returncode in (0, 1), errors
        assert "6 trials, 0 failed" in said  # each waits for the other's last trial
    # No setting was tried twice, and none was lost: six policies, all of them finished.
    assert len(list(out.glob("trials/*/run.json"))) == 6
    assert len(list(out.glob("trials/*/training.json"))) == 6
    assert not list(out.glob("running/*"))


def test_a_study_in_a_database_by_url(file, tmp_path):
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    options = {**SMALL, "dataset": file, "storage": url, "method": "bc"}
    first = tune("SpeedLimit", tmp_path / "a", n_trials=1, **options)
    # Another folder, the same search: the database tells. Another search has a study of its own.
    assert tune("SpeedLimit", tmp_path / "b", n_trials=1, **options).trials == first.trials
    other = tune("SpeedLimit", tmp_path / "c", n_trials=1, **{**options, "seed": 2})
    assert other.trials != first.trials
    assert not (tmp_path / "a" / "study.log").exists()
    names = optuna.get_all_study_names(url)
    assert len(names) == 2 and all(name.startswith("rcdt-") for name in names)
