"""`OfflineAlgorithm`: what every algorithm shares. A new one is one file on top of it.

A subclass says how its policy is built (`build_policy`, `restore_policy`), what training needs
besides (`setup`), what one gradient step is (`step`), and how it acts
(`choose_actions`). Learning loop, callbacks, logger, seeds, devices, precision, checkpoints, exact
resumption, the divergence guard and evaluation are shared.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv
from torch import nn
from typing_extensions import Self

from rcdt_agent.algorithms.agent import Agent, ConfigT, PolicyT, Provenance
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.algorithms.training import Metrics, train
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError, TrainingError
from rcdt_agent.normalizer import check_action_space, data_action_space
from rcdt_agent.tasks.datasets import load_task_dataset
from rcdt_agent.tasks.registry import get_task

Data = TrajectoryDataset | str | Path

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class OfflineAlgorithm(Agent[PolicyT, ConfigT]):
    """An agent that learns from recorded trajectories; see the module's docstring."""

    # ------------------------------------------------------------ what a subclass gives

    @abstractmethod
    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: gym.spaces.Box
    ) -> PolicyT:
        """An untrained policy for the data and spaces."""

    @abstractmethod
    def restore_policy(
        self, values: dict[str, Any], observation: gym.spaces.Box, action: gym.spaces.Box
    ) -> PolicyT:
        """The policy of a checkpoint, whose `Policy.to_dict` gave `values`; weights follow."""

    @abstractmethod
    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make the sampler, and fill `training` with optimisers, networks and counters."""

    @abstractmethod
    def step(self) -> Metrics:
        """Make one gradient step; the loop counts it afterwards."""

    # ------------------------------------------------------------ data

    @classmethod
    def from_dsrl(
        cls, task: str, *, dataset: Data | None = None, progress_bar: bool = True, **kwargs: Any
    ) -> Self:
        """An agent for a task of the registry, with its dataset, spaces, scores and budgets.

        Args:
            task: DSRL id in any spelling, or SpeedLimit.
            dataset: Use this file or dataset instead of the task's own.
            progress_bar: Show the download, if one is needed.
            **kwargs: As for the class itself.

        Raises:
            UnknownTaskError: The id is not in the registry.
            DownloadError: The file is not in the cache and cannot be fetched.
        """
        agent = cls(**kwargs)
        agent.task = get_task(task)
        if dataset is None:
            agent.provenance = Provenance(published=agent.task.suite != "embedded")
            dataset = load_task_dataset(agent.task, progress_bar=progress_bar)
        agent.set_dataset(dataset)
        return agent

    def set_dataset(self, dataset: Data) -> None:
        """Give the agent its training data: the first fix its scales, later ones must fit.

        Raises:
            DatasetError: The file cannot be read, its sizes are not the environment's or the
                task's, or its actions are not in the action space.
            TrainingError: The agent has been trained on other data in this process.
        """
        data = (
            dataset
            if isinstance(dataset, TrajectoryDataset)
            else TrajectoryDataset.from_hdf5(dataset)
        )
        if data is self.dataset:
            return
        if self.task is not None:
            sizes = self.task.observation_size, self.task.action_size
            data.check_sizes(*sizes, f"those of {self.task.id}")
        if self.observation_space is not None and self.action_space is not None:
            data.check_spaces(self.observation_space, self.action_space)
        if self.training.ready:
            if data.fingerprint == self.provenance.fingerprint:  # read again: the same data
                return
            raise TrainingError(
                "This agent has been trained on another dataset. Save it and load it to fine-tune "
                "on new data with the old scales, or make a new agent."
            )
        self.dataset = data
        if not self.has_policy:
            self.provenance = replace(self.provenance, fingerprint=data.fingerprint)
            self._build(data)

    def _build(self, dataset: TrajectoryDataset) -> None:
        observation = self.observation_space or gym.spaces.Box(
            -np.inf, np.inf, (dataset.observation_size,), dtype=np.float32
        )
        if not isinstance(observation, gym.spaces.Box):
            raise InvalidArgumentError(f"`observation_space` must be a Box, got {observation}.")
        action = check_action_space(self.action_space or data_action_space(dataset))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            policy = self.build_policy(dataset, observation, action)
            self.training.torch_rng = torch.get_rng_state()
        self.adopt(policy)

    # ------------------------------------------------------------ training

    def learn(
        self,
        dataset: Data | int | None = None,
        total_steps: int | None = None,
        callback: Any = None,
        log_interval: int = 100,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        *,
        total_timesteps: int | None = None,
    ) -> Self:
        """Train, or continue training.

        A run that was interrupted, or loaded from a checkpoint, goes on to `total_steps` in all.
        Once that many were made, a further call makes as many again; with
        `reset_num_timesteps=False` the steps are always added.

        Args:
            dataset: Trajectories or a path; not needed again once given. A whole number here is
                taken for `total_steps`, as stable-baselines3 has it.
            total_steps: Gradient steps; default: the configuration's.
            callback: stable-baselines3 callback, list of callbacks, or function.
            log_interval: Steps between log entries.
            tb_log_name: Name of the tensorboard run; default: the algorithm's.
            reset_num_timesteps: See above.
            progress_bar: Show speed and loss.
            total_timesteps: Another name of `total_steps`.

        Returns:
            The agent.
        """
        if isinstance(dataset, int):
            dataset, total_steps = None, dataset if total_steps is None else total_steps
        steps = self._requested_steps(total_steps, total_timesteps)
        if self.config.precision == "fp16" and self.device.type != "cuda":
            raise InvalidArgumentError("`precision='fp16'` needs CUDA; use 'bf16' on a CPU.")
        data = self._training_data(dataset, progress_bar)
        more = not reset_num_timesteps or self.num_timesteps >= steps
        self.total_steps = self.num_timesteps + steps if more else steps
        if not self.training.ready:
            self._check_same_data(data)
            self.setup(data)
            self.training.resume()
        self.make_logger(tb_log_name or type(self).__name__, new=reset_num_timesteps)
        train(
            self,
            self.total_steps,
            callback=callback,
            log_interval=log_interval,
            progress_bar=progress_bar,
        )
        return self

    def _requested_steps(self, total_steps: int | None, total_timesteps: int | None) -> int:
        if None not in (total_steps, total_timesteps):
            raise InvalidArgumentError(
                "Give either `total_steps` or `total_timesteps`: they are two names of one thing."
            )
        steps = total_timesteps if total_steps is None else total_steps
        steps = self.config.total_steps if steps is None else steps
        if steps < 1:
            raise InvalidArgumentError(f"`total_steps` must be >= 1, got {steps}.")
        return steps

    def _training_data(self, dataset: Data | None, progress_bar: bool) -> TrajectoryDataset:
        if dataset is None and self.dataset is None and self.task is not None:
            dataset = load_task_dataset(self.task, progress_bar=progress_bar)  # a loaded agent's
        if dataset is not None:
            self.set_dataset(dataset)
        if self.dataset is None:
            raise InvalidArgumentError(
                "There is nothing to learn from: `learn` needs `dataset`, a TrajectoryDataset or "
                "the path of an HDF5 file."
            )
        return self.dataset

    def _check_same_data(self, dataset: TrajectoryDataset) -> None:
        if dataset.fingerprint != self.provenance.fingerprint:
            warnings.warn(
                f"{dataset.name} is not the data this agent was trained on: training continues "
                f"with the old scales and targets.",
                stacklevel=3,
            )
            self.provenance = Provenance(fingerprint=dataset.fingerprint)

    def autocast(self) -> torch.autocast:
        """The context of forward passes in training, by `config.precision`."""
        dtype = AUTOCAST.get(self.config.precision)
        return torch.autocast(
            self.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None
        )

    def named_modules(self) -> dict[str, nn.Module]:
        """The networks by name: `policy`, and what training keeps besides."""
        return {"policy": self.policy, **self.training.modules}

    def set_random_seed(self, seed: int | None) -> None:
        """Seed whatever is made or drawn from here on."""
        if seed is not None:
            self.seed = seed
            self.training.seed(seed)
            self.acting_generator.manual_seed(seed + 2)

    def snapshot(self) -> dict[str, Any]:
        """Everything that training changes, not copied."""
        return {
            "policy": self.policy.state_dict(),
            "training": self.training.state_dict(),
            "num_timesteps": self.num_timesteps,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put everything where `snapshot` found it."""
        self.policy.load_state_dict(snapshot["policy"])
        self.training.load_state_dict(snapshot["training"])
        self.num_timesteps = int(snapshot["num_timesteps"])

    # ------------------------------------------------------------ files

    def save(self, path: Any) -> None:
        """Write one zip of safetensors and JSON, from which training can continue bit for bit."""
        from rcdt_agent.algorithms.files import write_agent

        write_agent(self, path)

    @classmethod
    def load(
        cls,
        path: Any,
        env: Env | VecEnv | None = None,
        device: str = "auto",
        *,
        verbose: int = 0,
        tensorboard_log: str | None = None,
    ) -> Self:
        """Read an agent; nothing in the file is executed.

        Raises:
            CheckpointError: Damaged, of another version or algorithm, or not a checkpoint.
            InvalidArgumentError: `env` has other spaces than the agent.
        """
        from rcdt_agent.algorithms.files import read_agent

        options = {"device": device, "verbose": verbose, "tensorboard_log": tensorboard_log}
        agent = read_agent(cls, path, **options)
        if env is not None:
            agent.set_env(env)
        return agent

    def settings_to_save(self) -> dict[str, Any]:
        """Plain values of a subclass's own for the checkpoint."""
        return {}

    def load_settings(self, values: dict[str, Any]) -> None:
        """Take over what `settings_to_save` gave."""
