"""Run folders: options, logs, checkpoints and the evaluation of one training."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import configure

from rcdt_agent._io import read_json, write_json
from rcdt_agent.algorithms import get_algorithm, load_agent
from rcdt_agent.algorithms.budgets import BudgetConditioned
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.config import Config
from rcdt_agent.errors import (
    InvalidArgumentError,
    SimulatorError,
    TrainingError,
    UnknownTaskError,
)
from rcdt_agent.evaluation import BudgetReport
from rcdt_agent.experiments.sources import AnyAlgorithm, DataSource
from rcdt_agent.tasks.registry import get_task


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run is asked to do; `run.json` of its folder.

    Attributes:
        data: A task in any spelling, or the path of an HDF5 file.
        config: Settings of the algorithm.
        algorithm: A key of `ALGORITHMS`.
        dataset: A file to use instead of the task's own.
        seed: Of everything.
        device: Where to train.
        checkpoint_every: Steps between checkpoints.
        command: What the user typed, to be shown in the report.
    """

    data: str
    config: BaseConfig
    algorithm: str = "rcdt"
    dataset: Path | None = None
    seed: int = 0
    device: str = "auto"
    checkpoint_every: int = 1_000
    command: str | None = None

    @property
    def method(self) -> str:
        """The variant of RCDT, or the algorithm's name."""
        return self.config.variant if isinstance(self.config, Config) else self.algorithm

    @property
    def source(self) -> DataSource:
        """Where the data are."""
        return DataSource.find(self.data, self.dataset)

    def make_agent(self) -> AnyAlgorithm:
        """The untrained agent with its dataset."""
        return self.source.make_agent(
            self.algorithm, config=self.config, seed=self.seed, device=self.device
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        dataset = str(self.dataset) if self.dataset else None
        return {**vars(self), "config": self.config.to_dict(), "dataset": dataset}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunOptions:
        """The inverse of `to_dict` after a trip through JSON."""
        kind = get_algorithm(values.get("algorithm", "rcdt"))
        dataset = Path(values["dataset"]) if values["dataset"] else None
        config = kind.config_class.from_dict(values["config"])
        return cls(**{**values, "config": config, "dataset": dataset})


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path

    @property
    def started(self) -> bool:
        """Whether the folder holds a run."""
        return self.options_file.is_file()

    @property
    def latest(self) -> Path:
        """The checkpoint that is kept up to date."""
        return self.folder / "last.zip"

    @property
    def final(self) -> Path:
        """The agent after the last step."""
        return self.folder / "agent.zip"

    @property
    def checkpoint(self) -> Path | None:
        """The final agent, the latest checkpoint of an unfinished run, or None."""
        return next((path for path in (self.final, self.latest) if path.is_file()), None)

    @property
    def report(self) -> Path:
        """The evaluation as JSON."""
        return self.folder / "report.json"

    @property
    def options_file(self) -> Path:
        """What the run was asked to do, as JSON."""
        return self.folder / "run.json"

    def options(self) -> RunOptions:
        """What the run was asked to do.

        Raises:
            InvalidArgumentError: Not a run folder.
        """
        values = read_json(self.options_file)
        if values is None:
            raise InvalidArgumentError(f"{self.folder} is not a run folder: no run.json in it.")
        return RunOptions.from_dict(values)

    def write_options(self, options: RunOptions) -> None:
        """Make the folder a run folder."""
        write_json(self.options_file, options.to_dict())

    def agent(self, device: str = "auto") -> AnyAlgorithm:
        """The agent of `checkpoint`.

        Raises:
            InvalidArgumentError: Not a run folder, or nothing has been trained in it yet.
        """
        if self.checkpoint is None:
            self.options()
            raise InvalidArgumentError(
                f"{self.folder} holds no agent yet: continue it with "
                f"`rcdt train --resume {self.folder}`."
            )
        return load_agent(self.checkpoint, device=device)

    def log(self) -> list[dict[str, float]]:
        """Rows of all log files, in order of steps; a resumed run's repetitions are dropped."""
        rows: dict[float, dict[str, float]] = {}
        for path in sorted((self.folder / "logs").glob("*/progress.csv")):
            with path.open() as file:
                for row in csv.DictReader(file):
                    numbers = {key: float(value) for key, value in row.items() if value}
                    rows[numbers.get("time/total_timesteps", len(rows))] = numbers
        return [rows[step] for step in sorted(rows)]


def open_agent(path: Path) -> AnyAlgorithm:
    """The agent of a run folder or of a checkpoint."""
    return Run(path).agent() if path.is_dir() else load_agent(path)


def open_budget_conditioned(path: Path, purpose: str) -> BudgetConditioned:
    """The agent of a run folder or of a checkpoint, if it serves any cost budget.

    Args:
        path: Run folder or checkpoint.
        purpose: What it would be, for the message: such as "exported".

    Raises:
        InvalidArgumentError: Its algorithm serves one budget, or none.
    """
    agent = open_agent(path)
    if not isinstance(agent, BudgetConditioned):
        raise InvalidArgumentError(
            f"{path} holds a {type(agent).__name__}: only algorithms that serve any cost budget "
            f"can be {purpose}."
        )
    return agent


def start_run(options: RunOptions, folder: Path) -> tuple[Run, AnyAlgorithm]:
    """Read the data, make the untrained agent, and only then write the folder.

    Args:
        options: What to do.
        folder: Must not hold a run already.

    Returns:
        The run, and the agent for `train_run`, so that the data are read once.

    Raises:
        InvalidArgumentError: The folder holds a run, or the options are not good.
    """
    run = Run(folder)
    if run.started:
        raise InvalidArgumentError(
            f"{folder} holds a run already: continue it with `rcdt train --resume {folder}`, or "
            f"name another `--output`."
        )
    agent = options.make_agent()
    run.write_options(options)
    return run, agent


def train_run(
    run: Run, agent: AnyAlgorithm | None = None, *, progress_bar: bool = True
) -> AnyAlgorithm:
    """Train, or continue from the latest checkpoint, to the end.

    Args:
        run: A started run.
        agent: As `start_run` returned it; None: the checkpoint's, or a new one.
        progress_bar: Show speed and loss.
    """
    options = run.options()
    if run.checkpoint is not None:
        agent = run.agent(options.device)
    agent = agent or options.make_agent()
    goal = options.config.total_steps
    if agent.num_timesteps < goal:
        data = options.source.read() if agent.dataset is None else agent.dataset
        part = len(list((run.folder / "logs").glob("*")))
        agent.set_logger(configure(str(run.folder / "logs" / f"{part:03d}"), ["csv", "json"]))
        try:
            agent.learn(
                data,
                goal - agent.num_timesteps,
                callback=LatestCheckpoint(run.latest, options.checkpoint_every),
                progress_bar=progress_bar,
            )
        except TrainingError:
            agent.save(run.latest)  # put back to the last good step
            raise
        finally:
            agent.logger.close()
        agent.save(run.final)
    return agent


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """Where an agent is rolled out.

    Attributes:
        env: Task or environment id.
        budgets: Its usual cost budgets; None: not known.
        subprocesses: Whether environments run in processes of their own.
    """

    env: str
    budgets: tuple[float, ...] | None
    subprocesses: bool


def find_simulator(agent: AnyAlgorithm, env: str | None = None) -> Simulator:
    """Where an agent can be evaluated.

    Args:
        agent: A trained agent.
        env: A task or environment id; default: the agent's task.

    Raises:
        InvalidArgumentError: None is named, and none is known for the agent's data.
    """
    if env is None:
        if agent.task is None:
            raise InvalidArgumentError(
                "No simulator is known for this data: evaluate in your own loop with "
                "`agent.evaluate`."
            )
        env = agent.task.id
    try:
        task = get_task(env)
    except UnknownTaskError:  # perhaps one of Gymnasium's; `evaluate` says if not
        return Simulator(
            env=env, budgets=agent.task.budgets if agent.task else None, subprocesses=False
        )
    return Simulator(env=task.id, budgets=task.budgets, subprocesses=task.suite != "embedded")


def evaluate_run(
    agent: AnyAlgorithm,
    env: str | None = None,
    *,
    budgets: tuple[float, ...] | None = None,
    n_episodes: int = 20,
    seed: int = 0,
    progress_bar: bool = True,
    echo: Callable[[str], None] = lambda line: None,
) -> BudgetReport | None:
    """Evaluate where there is a simulator; otherwise say why not, and return None.

    Args:
        agent: A trained agent.
        env: A task or environment id; default: the agent's task.
        budgets: Cost budgets; default: the simulator's usual ones.
        n_episodes: Episodes a budget.
        seed: Episode e is reset with `seed + e`.
        progress_bar: Show finished episodes.
        echo: Takes the reason.
    """
    try:
        simulator = find_simulator(agent, env)
    except InvalidArgumentError as error:
        echo(str(error))
        return None
    try:
        return agent.evaluate(
            simulator.env,
            budgets or simulator.budgets,
            n_episodes,
            seed,
            progress_bar=progress_bar,
            subprocesses=simulator.subprocesses,
        )
    except SimulatorError as error:
        echo(f"Not evaluated: {error}")
        return None
