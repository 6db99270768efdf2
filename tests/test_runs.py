"""`rcdt train`, `evaluate`, `plot`: a run folder from start to pictures, and a resumed one."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time

import gymnasium as gym
import pytest
from commands import rcdt, rcdt_process

from rcdt_agent import RCDT, load_agent, make_config
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.cli import run_command
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.evaluate import add_to_report, evaluate_run, find_simulator
from rcdt_agent.experiments.interruption import StopOnSignal
from rcdt_agent.experiments.runs import Run, RunOptions, extend_run, start_run, train_run
from rcdt_agent.plots import plot_frontier, plot_learning_curves, save_figure
from rcdt_agent.tasks.speed_limit import SpeedLimitEnv, record_drivers

SMALL = [
    "--preset", "tiny", "--total-steps", "30", "--batch-size", "16", "--embedding-size", "16",
]  # fmt: skip


@pytest.mark.slow
def test_train_evaluate_plot(tmp_path):
    folder = tmp_path / "run"
    result = rcdt_process(
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
    command = ["evaluate", str(folder), "--budgets", "7", "5", "--episodes", "3", "--seed", "4"]
    evaluated = rcdt(*command)
    assert evaluated.returncode == 0, evaluated.stderr
    results = json.loads((folder / "report.json").read_text())["results"]
    assert [(r["budget"], r["seed"], len(r["costs"])) for r in results] == [
        (2, 0, 2), (5, 4, 3), (7, 4, 3), (10, 0, 2), (20, 0, 2), (40, 0, 2),
    ]  # fmt: skip
    before = (folder / "report.json").read_bytes()
    assert rcdt(*command, "--output", str(tmp_path / "alone.json")).returncode == 0
    alone = json.loads((tmp_path / "alone.json").read_text())
    assert [r["budget"] for r in alone["results"]] == [7, 5]
    assert (folder / "report.json").read_bytes() == before
    assert rcdt("plot", str(folder)).returncode == 0


@pytest.mark.slow
def test_calibrate_leaves_the_agent_alone_unless_told(tmp_path, trained):
    file = tmp_path / "agent.zip"
    file.write_bytes(trained)
    options = ["--env", "SpeedLimit", "--budgets", "10", "20"]
    measured = rcdt("calibrate", str(file), *options, "--episodes", "2")
    assert measured.returncode == 0, measured.stderr
    assert "budget 20: token " in measured.stdout
    assert "warning: the 95% bound rests on 2 episodes a token" in measured.stderr
    assert file.read_bytes() == trained
    assert RCDT.load(tmp_path / "agent-calibrated.zip").calibration.n_episodes == 2
    other = rcdt("calibrate", str(file), *options, "--output", str(tmp_path / "other.zip"))
    assert other.returncode == 0, other.stderr
    assert "warning: the" not in other.stderr  # the default is enough
    assert file.read_bytes() == trained
    assert RCDT.load(tmp_path / "other.zip").calibration.n_episodes == 20
    assert rcdt("calibrate", str(file), *options, "--episodes", "3", "--in-place").returncode == 0
    assert RCDT.load(file).calibration.n_episodes == 3


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


LONG = [
    "train", "SpeedLimit", *SMALL, "--total-steps", "400", "--no-evaluate", "--output",
]  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = rcdt(*LONG, str(folder))
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_first_and_the_run_goes_on_as_if_nothing_had_been(
    number, uninterrupted, tmp_path
):
    """Before the first regular checkpoint, which would be at step 1000."""
    folder = tmp_path / "a run"
    process = subprocess.Popen(
        [sys.executable, "-m", "rcdt_agent", *LONG, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.time() + 120
    while not list(folder.glob("logs/000/*")) and time.time() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert f"Checkpoint: {folder / 'last.zip'}\n" in said
    command = next(line for line in said.splitlines() if line.startswith("Go on with: rcdt "))
    words = shlex.split(command.removeprefix("Go on with: rcdt "))
    assert words == ["train", "--resume", str(folder)]
    assert 0 < RCDT.load(folder / "last.zip").num_timesteps < 400
    assert not (folder / "agent.zip").exists()
    resumed = rcdt(*words)
    assert resumed.returncode == 0, resumed.stderr
    assert "budget " not in resumed.stdout  # `--no-evaluate` is remembered
    assert (folder / "agent.zip").read_bytes() == (uninterrupted / "agent.zip").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "rcdt"])
def test_every_algorithm_trains_resumes_and_is_evaluated(algorithm, tmp_path):
    """`--algorithm` from the first step to the report, with a kill in between."""
    steps = 1000 if algorithm in ("bc", "bc-safe") else 300  # the others' steps are slower
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    arguments = [
        "train", "SpeedLimit", "--algorithm", algorithm, "--preset", "tiny", "--width", "16",
        "--total-steps", str(steps), "--checkpoint-every", "10", "--no-evaluate",
        *(["--cost-budget", "5"] if get_algorithm(algorithm).budgets == "one" else []),
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
    assert 10 <= load_agent(broken / "last.zip").num_timesteps < steps
    assert not (broken / "agent.zip").exists()
    assert run_command(["train", "--resume", str(broken), "--no-evaluate"]) == 0
    assert run_command([*arguments, "--output", str(whole)]) == 0
    assert (broken / "agent.zip").read_bytes() == (whole / "agent.zip").read_bytes()

    options = Run(whole).options()
    assert (options.algorithm, options.method) == (algorithm, algorithm)
    assert options.config.width == 16
    agent = Run(whole).agent()
    assert type(agent) is get_algorithm(algorithm)
    assert run_command(["evaluate", str(whole), "--episodes", "2"]) == 0
    results = json.loads((whole / "report.json").read_text())["results"]
    assert [entry["budget"] for entry in results] == [2, 5, 10, 20, 40]
    assert all(entry["target_return"] is None for entry in results)
    deaf = results[0]["returns"] == pytest.approx(results[4]["returns"])
    assert deaf == (get_algorithm(algorithm).budgets != "any")
    assert run_command(["plot", str(whole)]) == 0
    assert run_command(["report", str(whole)]) == 0
    page = (whole / "report.html").read_text()
    assert f"Algorithm {algorithm}, seed 0, {steps:,} steps." in page and "<h3>Loss</h3>" in page
    for command in (["calibrate"], ["export", "--output", str(tmp_path / "p.onnx")]):
        with pytest.raises(InvalidArgumentError, match="told the cost budget by tokens"):
            run_command([command[0], str(whole), *command[1:]])
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
    kind = get_algorithm(algorithm)
    budget = {"cost_budget": 5.0} if kind.budgets == "one" else {}
    config = kind.make_config("tiny", total_steps=4, batch_size=8, **budget)
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


@pytest.fixture
def small_run(tmp_path, drivers):
    """Makes started runs of a few steps, with the untrained agent."""
    file = tmp_path / "SpeedLimit-mine.hdf5"
    drivers.to_hdf5(file)

    def make(name, total_steps=8, **options):
        config = make_config("tiny", total_steps=total_steps, batch_size=8, embedding_size=16)
        return start_run(RunOptions(data=str(file), config=config, **options), tmp_path / name)

    return make


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_acts_after_the_step_under_way(number, small_run):
    class Told(Exception):
        pass

    def told(*_):
        raise Told

    before = {each: signal.signal(each, told) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        run, agent = small_run("cut")
        step = agent.step

        def interrupted():
            if agent.num_timesteps == 4:
                signal.raise_signal(number)  # in the middle of step 5
            return step()

        agent.step = interrupted
        with pytest.raises(Told):
            train_run(run, agent, progress_bar=False)
        assert signal.getsignal(number) is told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert RCDT.load(run.latest).num_timesteps == 5
    assert not run.final.exists()
    train_run(run, progress_bar=False)
    whole, agent = small_run("whole")
    train_run(whole, agent, progress_bar=False)
    assert run.final.read_bytes() == whole.final.read_bytes()


def test_ignored_signals_stay_ignored():
    """As in a job that was started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopOnSignal() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.received is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_finished_run_goes_on_to_a_later_goal(small_run):
    run, agent = small_run("run", command="rcdt train mine", checkpoint_every=4)
    train_run(run, agent, progress_bar=False)
    assert run.final.exists()
    with pytest.raises(InvalidArgumentError, match="`total_steps` must be >= 8, the steps that"):
        extend_run(run, 7)
    extend_run(run, 14, "rcdt train --resume run --total-steps 14")
    options = run.options()
    assert options.config.total_steps == 14
    assert options.command == "rcdt train mine\nrcdt train --resume run --total-steps 14"
    agent = train_run(run, progress_bar=False)
    assert (agent.num_timesteps, agent.total_steps, agent.config.total_steps) == (14, 14, 14)
    assert RCDT.load(run.final).num_timesteps == 14
    assert RCDT.load(run.latest).num_timesteps == 12  # kept up to date on the way
    extend_run(run, 14)  # nothing to do
    assert train_run(run, progress_bar=False).num_timesteps == 14


def test_an_extended_run_that_is_cut_goes_on_from_its_checkpoint(small_run, monkeypatch):
    run, agent = small_run("run", checkpoint_every=2)
    train_run(run, agent, progress_bar=False)
    extend_run(run, 16)
    agent = run.agent()
    step = type(agent).step

    def failing(self):
        if self.num_timesteps == 13:
            raise MemoryError
        return step(self)

    monkeypatch.setattr(type(agent), "step", failing)
    with pytest.raises(MemoryError):
        train_run(run, progress_bar=False)
    assert run.checkpoint == run.latest  # not the agent of the first goal
    assert run.agent().num_timesteps == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--eta", "0.3"], "so --eta cannot be said with it"),
        (["--seed=0", "--total-steps", "9"], "so --seed cannot"),  # its default, but not the run's
        (["--preset", "cpu", "--algorithm", "rcdt"], "so --algorithm --preset cannot"),
        (["--output", "elsewhere"], "so --output cannot"),
        (["SpeedLimit"], "so SpeedLimit cannot"),
        (["--total-steps", "7"], "`total_steps` must be >= 8"),
    ],
)
def test_resume_refuses_what_it_cannot_honour(small_run, arguments, words):
    run, agent = small_run("run", seed=3)
    train_run(run, agent, progress_bar=False)
    before = run.options_file.read_bytes()
    with pytest.raises(InvalidArgumentError, match=words):
        run_command(["train", "--resume", str(run.folder), *arguments])
    assert run.options_file.read_bytes() == before
    assert run.agent().num_timesteps == 8


def test_resume_extends_and_remembers(small_run, capsys):
    run, agent = small_run("run", episodes=3)
    train_run(run, agent, progress_bar=False)

    def resume(*arguments):
        assert run_command(["train", "--resume", str(run.folder), *arguments]) == 0
        capsys.readouterr()
        report = json.loads(run.report.read_text())
        return run.agent().num_timesteps, {len(entry["costs"]) for entry in report["results"]}

    assert resume() == (8, {3})
    assert resume("--total-steps", "10", "--checkpoint-every", "1") == (10, {3})
    assert run.options().checkpoint_every == 1
    assert resume("--episodes", "2") == (10, {2})
    run.report.unlink()
    assert run_command(["train", "--resume", str(run.folder), "--no-evaluate"]) == 0
    assert not run.report.exists() and run.options().episodes is None
    assert resume("--evaluate", "--episodes", "1") == (10, {1})


def test_run_json_of_an_older_version_is_read(small_run):
    run, _ = small_run("run")
    values = json.loads(run.options_file.read_text())
    del values["episodes"], values["preset"]
    run.options_file.write_text(json.dumps(values))
    assert (run.options().episodes, run.options().preset) == (20, None)


def test_an_evaluation_is_added_to_the_report(small_run):
    run, agent = small_run("run")
    train_run(run, agent, progress_bar=False)

    def add(env=None, **kwargs):
        report = evaluate_run(run.agent(), env, progress_bar=False, **kwargs)
        return add_to_report(run, run.agent(), report)

    def entries(path=run.report):
        results = json.loads(path.read_text())["results"]
        return [(entry["budget"], entry["seed"], len(entry["costs"])) for entry in results]

    assert add(budgets=(20.0, 2.0), n_episodes=2) == run.report
    assert entries() == [(2, 0, 2), (20, 0, 2)]
    add(budgets=(5.0, 2.0), n_episodes=3, seed=7)
    assert entries() == [(2, 7, 3), (5, 7, 3), (20, 0, 2)]
    report = json.loads(run.report.read_text())
    assert report["passed"] == all(entry["passed"] for entry in report["results"])
    # Elsewhere: a file of its own.
    gym.register("test/SpeedLimit-2", entry_point=SpeedLimitEnv)
    try:
        path = add("test/SpeedLimit-2", budgets=(5.0,), n_episodes=1)
    finally:
        del gym.registry["test/SpeedLimit-2"]
    assert path == run.folder / "report-test-SpeedLimit-2.json"
    assert entries(path) == [(5, 0, 1)]
    assert len(entries()) == 3
    # Results of an agent that has been trained further since are not mixed with the new one's.
    extend_run(run, 10)
    train_run(run, progress_bar=False)
    add(budgets=(40.0,), n_episodes=1)
    assert entries() == [(40, 0, 1)]


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
    assert "Not evaluated: No simulator is known" in result.stdout
    assert (folder / "agent.zip").exists() and (folder / "curves.png").exists()
    asked = rcdt("evaluate", str(folder))
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr.startswith("error: No simulator is known for this data: name one (`--env`)")


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
