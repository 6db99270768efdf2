"""Examples run, and the README shows the code that runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


@pytest.mark.slow
def test_quickstart_is_the_readmes_code_and_runs(tmp_path):
    code = (ROOT / "examples" / "quickstart.py").read_text()
    body = code.split('"""\n\n', 1)[1]
    assert body in python_blocks("README.md")
    result = subprocess.run(
        [sys.executable, "-c", body.replace("1_000", "120")],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    budgets = re.findall(r"budget (\d+): return (\S+), cost (\S+)", result.stdout)
    assert [budget for budget, _, _ in budgets] == ["5", "10", "20"]
    assert (tmp_path / "build" / "driver.zip").exists()


def test_control_loop_keeps_its_rate(capsys):
    started = time.perf_counter()
    load("control_loop").main(total_steps=8, seconds=3.0)
    assert time.perf_counter() - started >= 2.9
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("150 steps at 50 Hz: ")


@pytest.mark.slow
@pytest.mark.simulator
def test_metadrive_with_three_costs(tmp_path):
    command = [sys.executable, ROOT / "examples" / "metadrive_three_costs.py"]
    for arguments in (
        ["--collect", "idm.hdf5", "--episodes", "2"],
        ["--train", "idm.hdf5", "--steps", "3", "--episodes", "1"],
    ):
        result = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert result.returncode == 0, result.stderr
    for name in ("crash", "out_of_road", "speed"):
        assert f"{name} (budget)" in result.stdout


@pytest.mark.simulator
def test_dict_observations():
    report = load("dict_observations").main(total_steps=8, n_episodes=1)
    assert [result.budget for result in report.results] == [10, 20, 40]


@pytest.mark.parametrize(
    ("name", "words"),
    [("custom_env", "budget 15.0: heat"), ("custom_loop", "step 60: spent"),
     ("six_value_env", "budget 8: walked")],
)  # fmt: skip
def test_example_runs(name, words, capsys):
    load(name).main(total_steps=8)
    assert words in capsys.readouterr().out


def test_many_envs_each_have_their_budget(tmp_path, capsys):
    load("many_envs").main(total_steps=8, n_envs=3, steps=65, folder=tmp_path)
    assert re.findall(r"budget +(\d+): (\d+) trips", capsys.readouterr().out) == [
        ("2", "1"), ("16", "1"), ("30", "1"),
    ]  # fmt: skip


def test_budget_sweep_draws(tmp_path, capsys):
    load("budget_sweep").main(total_steps=8, n_episodes=2, folder=tmp_path)
    assert capsys.readouterr().out.count("of at most") == 12
    assert {path.name for path in tmp_path.iterdir()} == {"calibration.png", "frontier.png"}


def test_resume_gives_the_same_weights(tmp_path, capsys):
    load("resume").main(total_steps=24, folder=tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "interrupted at step 12 of 24",
        "the file holds step 12",
        "step 24, the same weights as without the interruption: True",
    ]


def test_several_processes_is_also_a_script_for_one(tmp_path, capsys):
    load("several_processes").main(total_steps=4, folder=tmp_path)
    assert "1 processes, 4 steps" in capsys.readouterr().out
    assert (tmp_path / "driver.zip").is_file()


def test_callbacks_evaluate_and_stop(tmp_path, capsys):
    load("callbacks").main(total_steps=8, folder=tmp_path)
    out = capsys.readouterr().out
    step = int(re.search(r"stopped at (\d+)", out).group(1))
    assert out.count("of 20") == step // 2  # evaluated every second step
    assert "driver_2_steps.zip" in out and "progress.csv" in out


def test_tune_prefers_what_scores_better():
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    study = load("tune").main(total_steps=4, n_trials=2, n_episodes=1)
    scores = [trial.value for trial in study.trials]
    assert len(scores) == 2 and study.best_value == max(scores)


def test_random_rollout(capsys):
    load("random_rollout").main()
    assert "69.7" in capsys.readouterr().out


DSRL_DATA = """
import sys
import numpy as np
from rcdt_agent import TrajectoryDataset, make_env
env = make_env("HopperVelocity")
rng = np.random.default_rng(0)
rows = {k: [] for k in ("observations", "next_observations", "actions", "rewards", "costs",
                        "terminals", "timeouts")}
for episode in range(12):
    obs, _ = env.reset(seed=episode)
    done = False
    while not done:
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        following, reward, terminated, truncated, info = env.step(action)
        row = (obs, following, action, reward, info["cost"], terminated, truncated)
        for k, v in zip(rows, row):
            rows[k].append(v)
        obs, done = following, terminated or truncated
TrajectoryDataset.from_arrays(**{k: np.array(v) for k, v in rows.items()}).to_hdf5(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_the_users_own_sentences(tmp_path):
    """The README's DSRL block, on a small file from the real simulator in the cache."""
    path = tmp_path / "SafetyHopperVelocityGymnasium-v1-250-2240.hdf5"
    subprocess.run([sys.executable, "-c", DSRL_DATA, str(path)], check=True)
    (block,) = [code for code in python_blocks("README.md") if "from_dsrl" in code]
    assert 'RCDT.from_dsrl("OfflineHopperVelocity-v1")' in block
    code = block.replace("200_000", "2").replace('-v1")  #', '-v1", preset="tiny")  #')
    assert 'preset="tiny"' in code
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "DSRL_DATASET_DIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "hopper.zip").exists()
