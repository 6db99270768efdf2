"""`rcdt train`, `evaluate`, `plot`: a run folder from start to pictures, and a resumed one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from test_cli import rcdt

from rcdt_agent import RCDT, load_agent
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.runs import Run, RunOptions, find_simulator, start_run, train_run
from rcdt_agent.plots import plot_frontier, plot_learning_curves, save_figure
from rcdt_agent.tasks.speed_limit import record_drivers

SMALL = [
    "--preset", "tiny", "--total-steps", "30", "--batch-size", "16", "--embedding-size", "16",
]  # fmt: skip


@pytest.mark.slow
def test_train_evaluate_plot(tmp_path):
    folder = tmp_path / "run"
    result = rcdt(
        "train", "SpeedLimit", *SMALL, "--output", str(folder), "--episodes", "2",
        "--variant", "wqdt", "--eta", "0.5",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["agent.zip", "curves.png", "frontier.png", "logs", "report.json", "run.json"]
    options = json.loads((folder / "run.json").read_text())
    assert options["algorithm"] == "rcdt"
    assert options["config"]["eta"] == 0.5
    assert options["config"]["cost_penalty"] is False  # the variant's component
    assert options["config"]["batch_size"] == 16
    agent = RCDT.load(folder / "agent.zip")
    assert agent.num_timesteps == 30
    assert len(json.loads((folder / "report.json").read_text())["results"]) == 5
    assert "episodes over" in result.stdout
    again = rcdt("train", "SpeedLimit", *SMALL, "--output", str(folder))
    assert again.returncode == 2
    assert f"rcdt train --resume {folder}" in again.stderr
    evaluated = rcdt("evaluate", str(folder), "--budgets", "7", "--episodes", "3")
    assert evaluated.returncode == 0, evaluated.stderr
    report = json.loads((folder / "report.json").read_text())
    assert [r["budget"] for r in report["results"]] == [7.0]
    assert len(report["results"][0]["costs"]) == 3
    assert rcdt("plot", str(folder)).returncode == 0
    measured = rcdt("calibrate", str(folder), "--episodes", "2", "--budgets", "10", "20")
    assert measured.returncode == 0, measured.stderr
    assert "budget 20: token " in measured.stdout
    assert RCDT.load(folder / "agent.zip").calibration.n_episodes == 2


@pytest.mark.slow
def test_a_killed_run_is_resumed(tmp_path):
    folder = tmp_path / "run"
    arguments = [
        "train", "SpeedLimit", *SMALL, "--total-steps", "400", "--output", str(folder),
        "--checkpoint-every", "20", "--no-evaluate",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "rcdt_agent", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.time() + 120
    while not (folder / "last.zip").exists() and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = RCDT.load(folder / "last.zip").num_timesteps
    assert 20 <= before < 400
    assert not (folder / "agent.zip").exists()
    result = rcdt("train", "--resume", str(folder), "--no-evaluate")
    assert result.returncode == 0, result.stderr
    assert RCDT.load(folder / "agent.zip").num_timesteps == 400
    steps = [row["time/total_timesteps"] for row in Run(folder).log()]
    assert steps == sorted(set(steps)) and steps[-1] == 400


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["bc", "bc-safe"])
def test_every_algorithm_trains_resumes_and_is_evaluated(algorithm, tmp_path):
    """`--algorithm` from the first step to the report, with a kill in between."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    arguments = [
        "train", "SpeedLimit", "--algorithm", algorithm, "--preset", "tiny", "--width", "16",
        "--total-steps", "3000", "--checkpoint-every", "10", "--no-evaluate",
        *(["--cost-budget", "5"] if algorithm == "bc-safe" else []),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "rcdt_agent", *arguments, "--output", str(broken)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.time() + 120
    while not (broken / "last.zip").exists() and time.time() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert 10 <= load_agent(broken / "last.zip").num_timesteps < 3000
    assert not (broken / "agent.zip").exists()
    assert rcdt("train", "--resume", str(broken), "--no-evaluate").returncode == 0
    assert rcdt(*arguments, "--output", str(whole)).returncode == 0
    assert (broken / "agent.zip").read_bytes() == (whole / "agent.zip").read_bytes()

    options = Run(whole).options()
    assert (options.algorithm, options.method) == (algorithm, algorithm)
    assert options.config.width == 16
    agent = Run(whole).agent()
    assert type(agent) is get_algorithm(algorithm)
    result = rcdt("evaluate", str(whole), "--episodes", "2")
    assert result.returncode == 0, result.stderr
    results = json.loads((whole / "report.json").read_text())["results"]
    assert [entry["budget"] for entry in results] == [2, 5, 10, 20, 40]
    assert all(entry["target_return"] is None for entry in results)
    assert results[0]["returns"] == pytest.approx(results[4]["returns"])  # deaf to the budget
    assert rcdt("plot", str(whole)).returncode == 0
    assert rcdt("report", str(whole)).returncode == 0
    page = (whole / "report.html").read_text()
    assert f"Algorithm {algorithm}, seed 0, 3,000 steps." in page and "<h3>Loss</h3>" in page
    for command in (["calibrate"], ["export", "--output", str(tmp_path / "p.onnx")]):
        refused = rcdt(command[0], str(whole), *command[1:])
        assert refused.returncode == 2
        assert "only algorithms that serve any cost budget can be" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not (tmp_path / "p.onnx").exists()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_data_are_read_once(algorithm, tmp_path, monkeypatch, drivers):
    file = tmp_path / "SpeedLimit-mine.hdf5"
    drivers.to_hdf5(file)
    reads = []
    read = TrajectoryDataset.from_hdf5.__func__
    monkeypatch.setattr(
        TrajectoryDataset,
        "from_hdf5",
        classmethod(lambda cls, *a: reads.append(a) or read(cls, *a)),
    )
    config = get_algorithm(algorithm).make_config("tiny", total_steps=4, batch_size=8)
    options = RunOptions(data=str(file), config=config, algorithm=algorithm, checkpoint_every=2)
    run, agent = start_run(options, tmp_path / "run")
    assert run.options() == options
    assert agent.task.name == "SpeedLimit"  # a file named after a task belongs to it
    trained = train_run(run, agent, progress_bar=False)
    assert trained is agent and trained.num_timesteps == 4
    assert len(reads) == 1
    run.final.unlink()
    assert train_run(run, progress_bar=False).num_timesteps == 4  # from last.zip, nothing to do
    assert len(reads) == 1
    with pytest.raises(InvalidArgumentError, match="holds a run already"):
        start_run(options, tmp_path / "run")


def test_a_simulator_is_found_by_name_or_by_task(drivers):
    own = RCDT(preset="tiny")
    with pytest.raises(InvalidArgumentError, match="No simulator is known for this data"):
        find_simulator(own)
    named = find_simulator(own, "speedlimit")
    assert (named.env, named.budgets) == ("rcdt_agent/SpeedLimit-v0", (2, 5, 10, 20, 40))
    assert not named.subprocesses
    bullet = find_simulator(own, "BallRun")
    assert bullet.budgets == (10, 20, 40) and bullet.subprocesses
    assert find_simulator(own, "Pendulum-v1").budgets is None
    task = RCDT.from_dsrl("SpeedLimit", dataset=drivers, preset="tiny")
    assert find_simulator(task).env == "rcdt_agent/SpeedLimit-v0"
    assert task.cost_budget == 10  # the task's middle budget


def test_train_on_a_file_of_ones_own(tmp_path):
    TrajectoryDataset.from_arrays(**record_drivers(20)).to_hdf5(tmp_path / "mine.hdf5")
    folder = tmp_path / "run"
    result = rcdt("train", str(tmp_path / "mine.hdf5"), *SMALL, "--output", str(folder))
    assert result.returncode == 0, result.stderr
    assert "No simulator is known" in result.stdout
    assert (folder / "agent.zip").exists() and (folder / "curves.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Say what to train on"),
        (["Nowhere-v0"], "Unknown task 'Nowhere-v0'"),
        (["absent.hdf5"], "there is no such file"),
        (["SpeedLimit", "--variant", "ppo"], "`variant` must be one of"),
        (["SpeedLimit", "--eta", "-1"], "`eta` must be >= 0"),
        (["SpeedLimit", "--algorithm", "ppo"], "`algorithm` must be one of ('rcdt', 'bc'"),
        (["SpeedLimit", "--algorithm", "bc", "--variant", "cdt"], "BC has no variants"),
        (["SpeedLimit", "--algorithm", "bc", "--eta", "1"], "Unrecognized"),
        (["SpeedLimit", "--algorithm", "bc-safe", "--cost-budget", "-1"], "must be >= 0"),
        (["SpeedLimit", "--preset", "huge"], "`preset` must be one of"),
        (["--resume", "nowhere"], "is not a run folder"),
    ],
)
def test_bad_input_writes_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = rcdt("train", *arguments)
    assert result.returncode != 0
    assert words in (result.stderr + result.stdout).replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_pictures(tmp_path, drivers):
    result = {
        "budget": 5.0, "mean_return": 50.0, "mean_cost": 4.0, "return_interval": (49.0, 51.0),
        "cost_interval": (3.5, 4.5), "passed": True,
    }  # fmt: skip
    report = {"env": "SpeedLimit", "results": [result, {**result, "budget": 2.0, "passed": False}]}
    save_figure(
        plot_frontier(drivers.episode_returns, drivers.episode_costs, report), tmp_path / "f.png"
    )
    log = [{"time/total_timesteps": float(t), "train/nll": 1.0 / t} for t in (1, 2, 3)]
    save_figure(plot_learning_curves(log), tmp_path / "c.png")
    for name in ("f.png", "c.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
