"""Where training data come from, as a user names them: a task, an HDF5 file, or both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from rcdt_agent.algorithms import OfflineAlgorithm, get_algorithm
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.mapped import SUFFIX
from rcdt_agent.data.readers import as_dataset
from rcdt_agent.errors import InvalidArgumentError, UnknownTaskError
from rcdt_agent.eval_envs import is_registered
from rcdt_agent.tasks.datasets import load_task_dataset
from rcdt_agent.tasks.registry import Task, get_task, guess_task
from rcdt_agent.tasks.simulators import make_env

AnyAlgorithm = OfflineAlgorithm[Any, Any]
DATA_SUFFIXES = (".hdf5", ".h5", SUFFIX)


def is_data_file(name: str) -> bool:
    """Whether a text names a dataset file, or a folder of arrays, rather than a task."""
    return Path(name).suffix in DATA_SUFFIXES or Path(name).is_file()


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A task, a file, or a task with a file instead of its own data.

    Attributes:
        task: None where the data belong to no task of the registry.
        file: None: the task's own data.
    """

    task: Task | None
    file: Path | None

    @classmethod
    def find(cls, data: str, dataset: Path | None = None) -> DataSource:
        """Make out what a user means; nothing is read yet.

        Args:
            data: A task in any spelling, or the path of an HDF5 file; one named after a task
                belongs to it.
            dataset: A file to use instead of the task's own.

        Raises:
            UnknownTaskError: `data` is neither.
        """
        if dataset is None and is_data_file(data):
            return cls(task=guess_task(Path(data).name), file=Path(data))
        return cls(task=get_task(data), file=dataset)

    def read(self) -> TrajectoryDataset:
        """The dataset; a task's own is downloaded unless the cache holds it."""
        if self.file is not None:
            return as_dataset(self.file)
        assert self.task is not None
        return load_task_dataset(self.task, progress_bar=True)

    def make_agent(self, algorithm: str, **settings: Any) -> AnyAlgorithm:
        """An untrained agent with this dataset.

        Args:
            algorithm: A key of `ALGORITHMS`.
            **settings: Arguments of the algorithm's constructor.
        """
        kind = get_algorithm(algorithm)
        if self.task is not None:
            return kind.from_dsrl(self.task.id, dataset=self.file, **settings)
        assert self.file is not None
        agent = kind(**settings)
        agent.set_dataset(self.file)
        return agent


def environment_spaces(env: str) -> dict[str, gym.Space[Any]]:
    """The spaces of a task or Gymnasium environment, as arguments of an agent.

    Raises:
        InvalidArgumentError: There is no such environment.
        SimulatorError: Its simulator is not installed.
    """
    try:
        made = make_env(get_task(env))
    except UnknownTaskError:
        try:
            is_registered(env)  # imports the module before a colon
            made = gym.make(env)
        except gym.error.Error as error:
            raise InvalidArgumentError(
                f"`env` must be a task or an environment of Gymnasium, got {env!r} ({error})."
            ) from error
    spaces = {"observation_space": made.observation_space, "action_space": made.action_space}
    made.close()  # type: ignore[no-untyped-call]
    return spaces
