"""The command line as a user meets it: processes, exit codes, words on the screen."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from commands import rcdt, rcdt_process

from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.cli import COMMANDS, run_command
from rcdt_agent.doctor import Check, check_datasets, check_simulator, run_checks
from rcdt_agent.errors import InvalidArgumentError, SimulatorError
from rcdt_agent.tasks.install import install_commands, install_simulators
from rcdt_agent.version import __version__


def test_help_lists_the_commands():
    result = rcdt_process("--help")
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


def test_the_task_list_is_plain_text_of_80_columns():
    """Ids are whole in a narrow terminal and in a pipe, one line a task."""
    result = rcdt_process("tasks", "--suite", "metadrive", COLUMNS="80")
    assert result.returncode == 0
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["task", "steps", "return", "cost", "budgets"]
    assert [row.split()[0] for row in rows] == [
        f"OfflineMetadrive-{road}{traffic}-v0"
        for road in ("easy", "medium", "hard")
        for traffic in ("sparse", "mean", "dense")
    ]
    assert rows[0].split()[1:] == ["1000", "20.1..425.8", "0..82.4", "10", "20", "40"]
    everything = rcdt_process("tasks", COLUMNS="80").stdout.splitlines()
    assert len(everything) == 1 + 39
    assert max(map(len, everything)) < 80
    assert sum("Offline" in line for line in everything) == 38
    assert everything[-1].startswith("rcdt_agent/SpeedLimit-v0 ")
    (hopper,) = [line for line in everything if "hopper" in line.lower()]
    assert hopper.split()[0] == "OfflineHopperVelocityGymnasium-v1"
    files = rcdt_process("tasks", "--files", COLUMNS="80").stdout
    assert "OfflineMetadrive-easysparse-v0 " in files
    assert " SafeMetaDrive-easysparse-v0-85-1000.hdf5\n" in files


@pytest.mark.parametrize("arguments", [["tasks"], ["train", "--help"]])
def test_a_reader_that_stops_early_is_no_error(arguments):
    """As in `rcdt tasks | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "rcdt_agent", *arguments],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


def test_help_explains_its_marks(capsys):
    """No `{None}|PATH` for what is simply optional, and the letters of the sources are said."""
    texts = {}
    for command in ("train", *COMMANDS):
        with pytest.raises(SystemExit):
            run_command([command, "--help"])
        texts[command] = capsys.readouterr().out
        shown = texts[command].split("--total-steps")[0]  # settings follow, where None is a value
        assert "{None}|" not in shown.replace("{None}|FLOAT", ""), command
    text = " ".join(texts["train"].split())
    for words in ("(P) the paper", "(C) the CDT code", "(I) our inference", "the word None"):
        assert words in text


@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_doctor_steps_all_three():
    result = rcdt_process("doctor")
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
    result = rcdt_process("doctor", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "no engine" in result.stdout
    assert "broken" in result.stdout


def test_doctor_shows_the_packages_own_version():
    own, python = run_checks(simulators=())[:2]
    assert (own.name, own.status) == ("rcdt_agent", "ok")
    assert own.detail.startswith(f"{__version__} in ") and own.detail.endswith("rcdt_agent")
    assert python.name == "python"


def test_missing_simulator_is_not_a_fault(monkeypatch):
    monkeypatch.setitem(sys.modules, "bullet_safety_gym", None)
    check = check_simulator("bullet")
    assert check == Check(
        name="simulator bullet", status="missing", detail="run `rcdt install-simulators bullet`"
    )


def test_doctor_cuts_no_path_short(monkeypatch):
    path = "/home/somebody/" + "a_long_folder/" * 20 + "rcdt_agent"
    check = Check(name="rcdt_agent", status="ok", detail=path)
    monkeypatch.setattr("rcdt_agent.doctor.run_checks", lambda: [check])
    rows = [line.split("│") for line in rcdt("doctor").stdout.splitlines() if "│" in line]
    assert "".join(row[3].strip() for row in rows) == path


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "SpeedLimit", "--output", "/proc/foo"], "`output` must be a file that can be"),
        (["train", "SpeedLimit", "--output", "taken"], "(Not a directory)"),
        (["train", "SpeedLimit", "--episodes", "0"], "`episodes` must be a whole number >= 1, got"),
        (
            ["train", "SpeedLimit", "--checkpoint-every", "0"],
            "`checkpoint_every` must be a whole number >= 1",
        ),
        (["train", "--resume", "damaged"], "damaged/run.json does not describe a run ("),
        (["inspect", "data.hdf5", "--output", "/proc/foo/a.png"], "got /proc/foo/a.png (No such"),
        (["inspect", "data.hdf5", "--budgets", "-5"], "`budgets` must be >= 0, got -5."),
        (["evaluate", "none"], "none: there is no such run folder or checkpoint."),
        (["evaluate", "damaged"], "damaged/run.json does not describe a run ("),
        (["evaluate", "none", "--budgets", "3", "-5"], "`budgets` must be >= 0, got -5."),
        (["evaluate", "none", "--output", "/proc/foo/a.json"], "got /proc/foo/a.json (No such"),
        (["evaluate", "none", "--output", "damaged"], "must be a file, got the folder damaged."),
        (["calibrate", "none", "--budgets", "nan"], "`budgets` must be >= 0, got nan."),
        (["calibrate", "none", "--in-place", "--output", "a"], "Give either `--output` or"),
        (["report", "none", "--output", "/proc/foo/a.html"], "got /proc/foo/a.html (No such"),
        (["export", "none", "--output", "/proc/foo/a.onnx"], "got /proc/foo/a.onnx (No such"),
        (["benchmark", "--output", "/proc/foo", "--tasks", "SpeedLimit"], "/proc/foo"),
        (["tune", "SpeedLimit", "--output", "/proc/foo"], "/proc/foo"),
        (["collect", "BallRun", "--output", "/proc/foo/a.hdf5"], "/proc/foo"),
        (["convert", "x.hdf5", "y.csv"], "`target` must be an HDF5 file (.hdf5, .h5) or a Minari"),
        (["convert", "x.csv", "y.hdf5"], "`source` must be an HDF5 file (.hdf5, .h5) or a Minari"),
        (["convert", "data.hdf5", "/proc/foo/y.hdf5"], "got /proc/foo/y.hdf5 (No such"),
    ],
)
def test_a_failure_is_one_line_with_exit_code_2(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("precious")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    result = rcdt(*arguments)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert line.startswith("error: ") and words in line
    assert sorted(tmp_path.rglob("*")) == before


def test_looking_for_pip_leaves_the_process_alone():
    """`find_spec("pip")` would switch off setuptools' distutils, which torch's compiler needs."""
    code = (
        "import sys; from rcdt_agent.tasks.install import install_commands; "
        "install_commands(['bullet']); import setuptools, distutils.core; "
        "print('_distutils' in distutils.core.__file__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, "True"), result
