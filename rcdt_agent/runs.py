"""Run folders of the command line: what was asked, logs, checkpoints, report, pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import configure

from rcdt_agent.agent import RCDT
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.config import Config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError, SimulatorError, TrainingError
from rcdt_agent.evaluation import BudgetReport
from rcdt_agent.plots import plot_frontier, plot_learning_curves, save_figure
from rcdt_agent.tasks.registry import SPEED_LIMIT, guess_task

SPEED_LIMIT_NAMES = tuple(spelling.lower() for spelling in SPEED_LIMIT.spellings)
SPEED_LIMIT_BUDGETS = SPEED_LIMIT.budgets


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path

    @property
    def latest(self) -> Path:
        """The checkpoint that is kept up to date."""
        return self.folder / "last.zip"

    @property
    def final(self) -> Path:
        """The agent after the last step."""
        return self.folder / "agent.zip"

    @property
    def report(self) -> Path:
        """The evaluation as JSON."""
        return self.folder / "report.json"

    def options(self) -> dict[str, Any]:
        """What was asked for."""
        path = self.folder / "run.json"
        if not path.is_file():
            raise InvalidArgumentError(f"{self.folder} is not a run folder: no run.json in it.")
        options: dict[str, Any] = json.loads(path.read_text())
        return options

    def agent(self) -> RCDT:
        """The final agent, or the latest checkpoint of an unfinished run."""
        return RCDT.load(self.final if self.final.is_file() else self.latest)

    def log(self) -> list[dict[str, float]]:
        """Rows of all log files, in order of steps; a resumed run's repetitions are dropped."""
        rows: dict[float, dict[str, float]] = {}
        for path in sorted((self.folder / "logs").glob("*/progress.csv")):
            with path.open() as file:
                for row in csv.DictReader(file):
                    numbers = {key: float(value) for key, value in row.items() if value}
                    rows[numbers.get("time/total_timesteps", len(rows))] = numbers
        return [rows[step] for step in sorted(rows)]


def start_run(
    data: str,
    config: Config,
    folder: Path,
    *,
    dataset: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    checkpoint_every: int = 1_000,
    command: str | None = None,
) -> Run:
    """Make the folder and write down what was asked.

    Args:
        data: A DSRL task, the path of an HDF5 file, or `SpeedLimit`.
        config: Settings.
        folder: Must not hold a run already.
        dataset: A file to use instead of the task's own.
        seed: Of everything.
        device: Where to train.
        checkpoint_every: Steps between checkpoints.
        command: What the user typed, to be shown in the report.
    """
    if (folder / "run.json").exists():
        raise InvalidArgumentError(
            f"{folder} holds a run already: continue it with `rcdt train --resume {folder}`, or "
            f"name another `--output`."
        )
    load_agent_data(data, dataset, config, seed, device)  # refuse bad input before writing
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "data": data,
        "dataset": str(dataset) if dataset else None,
        "config": config.to_dict(),
        "seed": seed,
        "device": device,
        "checkpoint_every": checkpoint_every,
        "command": command,
    }
    (folder / "run.json").write_text(json.dumps(options, indent=2) + "\n")
    return Run(folder)


def load_agent_data(
    data: str, dataset: Path | None, config: Config, seed: int, device: str
) -> tuple[RCDT, TrajectoryDataset]:
    """An untrained agent and its data, from what a user typed."""
    settings: dict[str, Any] = {"config": config, "seed": seed, "device": device}
    if data.lower() in SPEED_LIMIT_NAMES:
        from rcdt_agent.tasks.datasets import load_task_dataset

        return RCDT(**settings), load_task_dataset(SPEED_LIMIT)
    path = Path(data)
    if (dataset is None and path.suffix in (".hdf5", ".h5")) or path.is_file():
        dataset = path
        task = guess_task(path.name)
        if task is None or task.suite == "embedded":
            return RCDT(**settings), TrajectoryDataset.from_hdf5(path)
        data = task.id
    agent = RCDT.from_dsrl(data, dataset=dataset, **settings)
    assert agent.dataset is not None
    return agent, agent.dataset


def train_run(run: Run, *, progress_bar: bool = True) -> RCDT:
    """Train, or continue from the latest checkpoint, to the end."""
    options = run.options()
    config = Config.from_dict(options["config"])
    dataset = Path(options["dataset"]) if options["dataset"] else None
    agent, data = load_agent_data(
        options["data"], dataset, config, options["seed"], options["device"]
    )
    if run.latest.is_file():
        agent = RCDT.load(run.latest, device=options["device"])
    part = len(list((run.folder / "logs").glob("*"))) if (run.folder / "logs").exists() else 0
    agent.set_logger(configure(str(run.folder / "logs" / f"{part:03d}"), ["csv", "json"]))
    if agent.num_timesteps < config.total_steps:
        try:
            agent.learn(
                data,
                config.total_steps,
                callback=LatestCheckpoint(run.latest, options["checkpoint_every"]),
                progress_bar=progress_bar,
            )
        except TrainingError:
            agent.save(run.latest)  # put back to the last good step
            raise
    agent.save(run.final)
    agent.logger.close()
    return agent


def simulator_of(agent: RCDT, data: str) -> tuple[str | None, tuple[float, ...] | None]:
    """Where an agent acts and its usual budgets, from what a user typed.

    Returns:
        An environment id (None: the agent's task) and budgets (None: the task's).

    Raises:
        InvalidArgumentError: No simulator is known for the data.
    """
    if data.lower() in SPEED_LIMIT_NAMES:
        from rcdt_agent.tasks.speed_limit import ENV_ID

        return ENV_ID, SPEED_LIMIT_BUDGETS
    if agent.task is None:
        raise InvalidArgumentError(
            "No simulator is known for this data: evaluate in your own loop with `agent.evaluate`."
        )
    return None, agent.task.budgets


def evaluate_run(
    agent: RCDT,
    data: str,
    *,
    budgets: tuple[float, ...] | None = None,
    n_episodes: int = 20,
    seed: int = 0,
    progress_bar: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> BudgetReport | None:
    """Evaluate where there is an environment; otherwise say why not."""
    try:
        env, usual = simulator_of(agent, data)
    except InvalidArgumentError as error:
        say(str(error))
        return None
    budgets = budgets or usual
    try:
        return agent.evaluate(
            env, budgets, n_episodes, seed, progress_bar=progress_bar, subprocesses=env is None
        )
    except SimulatorError as error:
        say(f"Not evaluated: {error}")
        return None


def draw_run(run: Run) -> list[Path]:
    """Write the pictures of a run: learning curves, and the agent on the data's frontier."""
    written = []
    log = run.log()
    if log:
        path = run.folder / "curves.png"
        save_figure(plot_learning_curves(log), path)
        written.append(path)
    if run.report.is_file():
        agent = run.agent()
        assert agent.targets is not None
        path = run.folder / "frontier.png"
        report = json.loads(run.report.read_text())
        save_figure(plot_frontier(agent.targets.returns, agent.targets.costs, report), path)
        written.append(path)
    return written
