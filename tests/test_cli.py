"""The command line as a user meets it: real processes, exit codes, words on the screen."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.cli import COMMANDS
from rcdt_agent.doctor import Check, check_datasets, check_simulator
from rcdt_agent.errors import InvalidArgumentError, SimulatorError
from rcdt_agent.tasks.install import install_commands, install_simulators


def rcdt(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "rcdt_agent", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        check=False,
    )


def test_help_lists_the_commands():
    result = rcdt("--help")
    assert result.returncode == 0
    for command in ("train", *COMMANDS):
        assert f"• {command} " in result.stdout


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_train_shows_the_settings_of_each_algorithm(algorithm):
    result = rcdt("train", "--help", "--algorithm", algorithm, "--preset", "tiny")
    assert result.returncode == 0, result.stderr
    for field in fields(get_algorithm(algorithm).config_class):
        option = field.name.replace("_", "-")
        assert f"--{option} " in result.stdout or f"--{option}," in result.stdout
    for name in ALGORITHMS:  # each can be found from the help of any other
        assert name in result.stdout
    default = get_algorithm(algorithm).make_config("tiny").batch_size
    (line,) = [line for line in result.stdout.splitlines() if "--batch-size INT" in line]
    assert f"(default: {default})" in line


def test_light_commands_import_no_torch():
    """`rcdt --help` and `rcdt tasks` answer at once; plots and simulators are loaded by need."""
    code = "import sys, rcdt_agent, rcdt_agent.cli; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    heavy = {"torch", "matplotlib", "stable_baselines3", "safety_gymnasium", "bullet_safety_gym"}
    assert not heavy & loaded


def test_nobody_imports_the_command_line():
    package = Path(__file__).parents[1] / "rcdt_agent"
    for path in package.rglob("*.py"):
        inside = path.relative_to(package)
        if inside.parts[0] not in ("cli", "__main__.py"):
            assert "rcdt_agent.cli" not in path.read_text(), inside
            if inside.parts[0] not in ("experiments",):
                assert "rcdt_agent.experiments" not in path.read_text(), inside


def test_tasks_table():
    result = rcdt("tasks", "--suite", "metadrive")
    assert result.returncode == 0
    assert result.stdout.count("OfflineMetadrive-") == 9
    assert "SafeMetaDrive-easysparse-v0-85-1000.hdf5" in result.stdout
    assert "10 20 40" in result.stdout
    everything = rcdt("tasks").stdout
    assert everything.count("Offline") == 38
    assert "rcdt_agent/SpeedLimit-v0" in everything


@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_doctor_steps_all_three():
    result = rcdt("doctor")
    assert result.returncode == 0, result.stdout
    for suite in ("bullet", "safety-gymnasium", "metadrive"):
        row = next(line for line in result.stdout.splitlines() if f"simulator {suite} " in line)
        assert " ok " in row
        assert "steps/s" in row


def test_doctor_says_what_is_broken(tmp_path):
    package = tmp_path / "bullet_safety_gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no engine')")
    for absent in ("safety_gymnasium", "metadrive"):  # start quickly: found, fails at once
        (tmp_path / absent).mkdir()
        (tmp_path / absent / "__init__.py").write_text("raise ImportError('stand-in')")
    result = rcdt("doctor", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "no engine" in result.stdout
    assert "broken" in result.stdout


def test_missing_simulator_is_not_a_fault(monkeypatch):
    monkeypatch.setitem(sys.modules, "bullet_safety_gym", None)
    check = check_simulator("bullet")
    assert check == Check(
        name="simulator bullet", status="missing", detail="run `rcdt install-simulators bullet`"
    )


def test_doctor_counts_dataset_files(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path))
    (tmp_path / "SafetyBallRun-v0-80-940.hdf5").touch()
    assert check_datasets().detail == f"{tmp_path}: 1 of 38 files"


def test_install_plan_is_pinned_and_leaves_broken_pins_out():
    requirements, bare = install_commands(["bullet", "safety-gymnasium"])
    assert "pybullet==3.2.7" in requirements
    assert any(word.startswith("mujoco") for word in requirements)
    assert not any("metadrive" in word for word in requirements)
    constraints = Path(requirements[requirements.index("-c") + 1])
    assert "numpy==1.26.4" in constraints.read_text().splitlines()
    assert bare[-4:] == [
        "--no-deps",
        "dsrl==0.1.0",
        "bullet-safety-gym==1.4.0",
        "safety-gymnasium==0.4.0",
    ]


def test_install_announces_and_reports_failure(tmp_path):
    said = []
    broken = tmp_path / "constraints.txt"
    broken.write_text("pybullet==0.0.0\n")  # contradicts the requirement: pip must fail
    with pytest.raises(SimulatorError, match=r"step failed.*pip"):
        install_simulators(["bullet"], constraints=broken, echo=said.append)
    assert said[-1].startswith("$ ")
    assert "pybullet==3.2.7" in said[-1]


def test_install_refuses_nonsense(tmp_path):
    with pytest.raises(InvalidArgumentError, match="`suites` must be one or more of"):
        install_commands(["gazebo"])
    with pytest.raises(InvalidArgumentError, match="`constraints` must be a file"):
        install_commands(["bullet"], constraints=tmp_path / "none.txt")
    assert rcdt("install-simulators", "gazebo").returncode == 2
