"""Run folders: options, logs, checkpoints and the evaluation of one training."""

from __future__ import annotations

import csv
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Logger, configure

from rcdt_agent import distributed
from rcdt_agent._io import read_json, write_json
from rcdt_agent.algorithms import get_algorithm, load_agent
from rcdt_agent.algorithms.budgets import BudgetConditioned
from rcdt_agent.arguments import check_texts, check_whole
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.config import Config
from rcdt_agent.errors import InvalidArgumentError, TrainingError
from rcdt_agent.experiments.interruption import StopOnSignal
from rcdt_agent.experiments.sources import AnyAlgorithm, DataSource, environment_spaces


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
        episodes: Episodes a budget of the evaluation at the end; None: no evaluation.
        preset: Whose sizes `config` began with, where known.
        command: What the user typed, to be shown in the report.
        env: Environment whose spaces the agent has, for data of no task; None: as the data are.
    """

    data: str
    config: BaseConfig
    algorithm: str = "rcdt"
    dataset: Path | None = None
    seed: int = 0
    device: str = "auto"
    checkpoint_every: int = 1_000
    episodes: int | None = 20
    preset: str | None = None
    command: str | None = None
    env: str | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        for name in ("checkpoint_every", "episodes"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, 1)
        check_whole("seed", self.seed)
        check_texts(
            data=self.data, algorithm=self.algorithm, device=self.device, preset=self.preset,
            command=self.command, env=self.env,
        )  # fmt: skip
        if self.preset is not None:
            get_algorithm(self.algorithm).make_config(self.preset)  # refuses an unknown one

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
            self.algorithm,
            config=self.config,
            seed=self.seed,
            device=self.device,
            **(environment_spaces(self.env) if self.env else {}),
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
    def offline(self) -> Path:
        """The estimates from logged data as JSON."""
        return self.folder / "offline.json"

    @property
    def options_file(self) -> Path:
        """What the run was asked to do, as JSON."""
        return self.folder / "run.json"

    def options(self) -> RunOptions:
        """What the run was asked to do.

        Raises:
            InvalidArgumentError: Not a run folder, or its run.json is damaged.
        """
        try:
            values = read_json(self.options_file)
            if values is not None:
                return RunOptions.from_dict(values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgumentError(
                f"{self.options_file} does not describe a run ({error})."
            ) from error
        raise InvalidArgumentError(f"{self.folder} is not a run folder: no run.json in it.")

    def write_options(self, options: RunOptions) -> None:
        """Make the folder a run folder."""
        write_json(self.options_file, options.to_dict())

    @property
    def resume_command(self) -> str:
        """What goes on with the run."""
        return f"{distributed.launcher()} train --resume {shlex.quote(str(self.folder))}"

    def agent(self, device: str = "auto") -> AnyAlgorithm:
        """The agent of `checkpoint`.

        Raises:
            InvalidArgumentError: Not a run folder, or nothing has been trained in it yet.
        """
        if self.checkpoint is None:
            self.options()
            raise InvalidArgumentError(
                f"{self.folder} holds no agent yet: continue it with `{self.resume_command}`."
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
    """The agent of a run folder or of a checkpoint.

    Raises:
        InvalidArgumentError: There is neither.
        CheckpointError: The file cannot be read.
    """
    if path.is_dir():
        return Run(path).agent()
    if not path.is_file() and not path.with_name(f"{path.name}.zip").is_file():
        raise InvalidArgumentError(f"{path}: there is no such run folder or checkpoint.")
    return load_agent(path)


def open_budget_conditioned(path: Path, purpose: str) -> BudgetConditioned:
    """The agent of a run folder or of a checkpoint, if tokens tell it the budget.

    Args:
        path: Run folder or checkpoint.
        purpose: What it would be, for the message: such as "exported".

    Raises:
        InvalidArgumentError: Its algorithm has no such tokens.
    """
    agent = open_agent(path)
    if not isinstance(agent, BudgetConditioned):
        raise InvalidArgumentError(
            f"{path} holds a {type(agent).__name__}: only agents that are told the cost budget by "
            f"tokens (RCDT and its variants) can be {purpose}."
        )
    return agent


def start_run(options: RunOptions, folder: Path) -> tuple[Run, AnyAlgorithm]:
    """Read the data, make the untrained agent, and only then write the folder (rank 0 does).

    Args:
        options: What to do.
        folder: Must not hold a run already.

    Returns:
        The run, and the agent for `train_run`, so that the data are read once.

    Raises:
        InvalidArgumentError: The folder holds a run, or the options are not good.
    """
    run = Run(folder)
    if run.started and distributed.is_main():
        raise InvalidArgumentError(
            f"{folder} holds a run already: continue it with `{run.resume_command}`, or name "
            f"another `--output`."
        )
    agent = options.make_agent()
    if distributed.is_main():
        run.write_options(options)
    return run, agent


def extend_run(run: Run, total_steps: int, command: str | None = None) -> None:
    """Move the goal of a run, finished or not; `train_run` goes on to it.

    Args:
        run: A started run.
        total_steps: Gradient steps of the whole run, those made before included. Schedules refer
            to the new goal from here on.
        command: What the user typed, to be shown in the report.

    Raises:
        InvalidArgumentError: More steps have been made already.
    """
    options = run.options()
    made = 0 if run.checkpoint is None else run.agent(options.device).num_timesteps
    if total_steps < made:
        raise InvalidArgumentError(
            f"`total_steps` must be >= {made}, the steps that {run.folder} has made already, got "
            f"{total_steps}: it is the goal of the whole run."
        )
    commands = [line for line in (options.command, command) if line]
    run.write_options(
        replace(
            options,
            config=replace(options.config, total_steps=total_steps),
            command="\n".join(commands) or None,
        )
    )


def train_run(
    run: Run, agent: AnyAlgorithm | None = None, *, progress_bar: bool = True
) -> AnyAlgorithm:
    """Train, or continue from the latest checkpoint, to the end.

    SIGINT and SIGTERM act after the step under way, once a checkpoint has been saved. Of several
    processes that train together, rank 0 alone writes to the folder.

    Args:
        run: A started run.
        agent: As `start_run` returned it; None: the checkpoint's, or a new one.
        progress_bar: Show speed and loss.

    Raises:
        KeyboardInterrupt: SIGINT, by Python's own handler.
        TrainingError: It diverged; the checkpoint holds the last good step.
        LostProcessError: Another process of the training is gone.
    """
    distributed.barrier()  # rank 0 has written the options
    options = run.options()
    if run.checkpoint is not None:
        agent = run.agent(options.device)
    agent = agent or options.make_agent()
    goal = options.config.total_steps
    if agent.num_timesteps >= goal:
        return agent
    distributed.barrier()  # every rank has read its checkpoint
    if run.final.is_file() and distributed.is_main():
        run.final.replace(run.latest)  # extended: finished no longer
    agent.config = replace(agent.config, total_steps=goal)
    data = options.source.read() if agent.dataset is None else agent.dataset
    agent.set_logger(_logger(run))
    with StopOnSignal() as stop:
        try:
            agent.learn(
                data,
                goal - agent.num_timesteps,
                callback=[LatestCheckpoint(run.latest, options.checkpoint_every), stop],
                progress_bar=progress_bar,
                reset_num_timesteps=False,
            )
        except TrainingError:
            agent.save(run.latest)  # put back to the last good step
            raise
        finally:
            agent.logger.close()
        agent.save(run.final if agent.num_timesteps == goal else run.latest)
    stop.raise_received()
    return agent


def _logger(run: Run) -> Logger:
    """Of the next part of the log; other ranks than 0 log nothing."""
    if not distributed.is_main():
        return Logger(folder=None, output_formats=[])
    part = len(list((run.folder / "logs").glob("*")))
    return configure(str(run.folder / "logs" / f"{part:03d}"), ["csv", "json"])
