"""`rcdt train`, `evaluate`, `plot`: a run folder from start to pictures, and a resumed one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from test_cli import rcdt

from rcdt_agent import RCDT
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.plots import plot_frontier, plot_learning_curves, save_figure
from rcdt_agent.runs import Run
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
        [sys.executable, "-c", "from rcdt_agent.cli import main; main()", *arguments],
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
