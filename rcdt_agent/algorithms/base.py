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
from torch import nn
from typing_extensions import Self

from rcdt_agent import distributed, schedules
from rcdt_agent.action_spaces import ActionSpace, check_action_space
from rcdt_agent.algorithms.agent import ConfigT, PolicyT, Provenance
from rcdt_agent.algorithms.arguments import (
    check_callback,
    check_log_interval,
    check_seed,
    check_training_budget,
    scheduled_rate,
    split_learn_arguments,
)
from rcdt_agent.algorithms.saved import SavedAgent
from rcdt_agent.algorithms.training import Metrics, say, train
from rcdt_agent.arguments import check_flags, check_texts
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.readers import AnyData, as_dataset
from rcdt_agent.errors import InvalidArgumentError, TrainingError
from rcdt_agent.normalizer import data_action_space
from rcdt_agent.observations import ObservationLayout
from rcdt_agent.tasks.datasets import load_task_dataset
from rcdt_agent.tasks.registry import get_task

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class OfflineAlgorithm(SavedAgent[PolicyT, ConfigT]):
    """An agent that learns from recorded trajectories; see the module's docstring."""

    # ------------------------------------------------------------ what a subclass gives

    @abstractmethod
    def build_policy(
        self, dataset: TrajectoryDataset, observation: gym.spaces.Box, action: ActionSpace
    ) -> PolicyT:
        """An untrained policy for the data and spaces."""

    @abstractmethod
    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make the sampler, and fill `training` with optimisers, networks and counters."""

    @abstractmethod
    def step(self) -> Metrics:
        """Make one gradient step; the loop counts it afterwards."""

    # ------------------------------------------------------------ data

    @classmethod
    def from_dsrl(
        cls, task: str, *, dataset: AnyData | None = None, progress_bar: bool = True, **kwargs: Any
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
        check_flags(progress_bar=progress_bar)
        agent = cls(**kwargs)
        check_training_budget(cls.__name__, cls.budgets, agent.config)
        agent.task = get_task(task)
        if dataset is None:
            agent.provenance = Provenance(published=agent.task.suite != "embedded")
            dataset = load_task_dataset(agent.task, progress_bar=progress_bar)
        agent.set_dataset(dataset)
        return agent

    def set_dataset(self, dataset: AnyData) -> None:
        """Give the agent its training data: the first fix its scales, later ones must fit.

        Args:
            dataset: Trajectories, the path of an HDF5 file, a dict of arrays, a list of episodes
                or a data frame: whatever `as_dataset` takes.

        Raises:
            DatasetError: The file cannot be read, its sizes are not the environment's or the
                task's, or its actions are not in the action space.
            TrainingError: The agent has been trained on other data in this process.
            InvalidArgumentError: The algorithm learns for one cost budget, and none was given.
        """
        check_training_budget(type(self).__name__, self.budgets, self.config)
        data = as_dataset(dataset)
        if data is self.dataset:
            return
        self.check_costs(data)
        if self.task is not None:
            sizes = self.task.observation_size, self.task.action_size
            data.check_sizes(*sizes, f"those of {self.task.id}")
        observation = data.layout.space if data.layout else _unbounded(data.observation_size)
        data.check_spaces(
            self.observation_space or observation,
            self.action_space or _unbounded(data.action_size),
        )
        self.check_images(observation)
        if not self.has_policy:
            self.check_actions(self.action_space or data_action_space(data))
        if self.training.ready:
            if data.fingerprint == self.provenance.fingerprint:  # read again: the same data
                return
            raise TrainingError(
                "This agent has been trained on another dataset. Save it and load it to fine-tune "
                "on new data with the old scales, or make a new agent."
            )
        self.dataset = data
        if not self.has_policy:
            name = Path(data.name).name
            self.provenance = replace(self.provenance, fingerprint=data.fingerprint, name=name)
            self._build(data)

    def _build(self, dataset: TrajectoryDataset) -> None:
        layout = dataset.layout
        if self.observation_space is not None:
            layout = ObservationLayout.of(self.observation_space) or layout
        observation = self.observation_space
        if layout and (layout.image or not isinstance(observation, gym.spaces.Box)):
            observation = layout.policy_space
        elif not isinstance(observation, gym.spaces.Box):
            observation = _unbounded(dataset.observation_size)
        action = check_action_space(self.action_space or data_action_space(dataset))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            policy = self.build_policy(dataset, observation, action)
            policy.layout = layout
            self.training.torch_rng = torch.get_rng_state()
        self.adopt(policy)

    # ------------------------------------------------------------ training

    def learn(
        self,
        dataset: AnyData | int | None = None,
        total_steps: int | None = None,
        callback: Any = None,
        log_interval: int = 100,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        *,
        total_timesteps: int | None = None,
        resume: bool = False,
    ) -> Self:
        """Train for `total_steps` more gradient steps.

        Schedules end with them: a learning rate that has fallen to its end rises again when
        training is continued. An interrupted training goes on with `resume=True` to the step at
        which it would have ended, bit for bit as if it had not been interrupted.

        Args:
            dataset: Trajectories, as for `set_dataset`; not needed again once given. A number
                here is `total_steps`, as in stable-baselines3.
            total_steps: Gradient steps to make; default: the configuration's. 0 makes none.
            callback: stable-baselines3 callback, list of callbacks, or function.
            log_interval: Steps between log entries.
            tb_log_name: Name of the tensorboard run; default: the algorithm's.
            reset_num_timesteps: Whether tensorboard gets a new run; steps are counted on anyway.
            progress_bar: Show speed and loss.
            total_timesteps: Another name of `total_steps`.
            resume: Make the steps that an interrupted `learn` has left, instead of `total_steps`.

        Returns:
            The agent.

        Raises:
            InvalidArgumentError: An argument is outside its rule, or there are no data.
            DatasetError: The data cannot be read, or do not fit the agent.
            TrainingError: A term or a weight is no longer finite.
        """
        dataset, requested = split_learn_arguments(dataset, total_steps, total_timesteps)
        log_interval = check_log_interval(log_interval)
        check_callback(callback)
        check_texts(tb_log_name=tb_log_name)
        check_flags(
            reset_num_timesteps=reset_num_timesteps, progress_bar=progress_bar, resume=resume
        )
        steps = self._steps_to_make(requested, resume)
        if self.config.precision == "fp16" and self.device.type != "cuda":
            raise InvalidArgumentError("`precision='fp16'` needs CUDA; use 'bf16' on a CPU.")
        distributed.start()
        data = self._training_data(dataset, progress_bar and distributed.is_main())
        if steps == 0:
            return self
        if self.lr_schedule is not None:
            scheduled_rate(self.lr_schedule, 1.0)  # refuse one that is missing before training
        self.forget_evaluation()
        self.total_steps = self.num_timesteps + steps
        if not self.training.ready:
            self._check_same_data(data)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed + 3)  # of networks that only training needs
                self.setup(data)
            self.training.resume()
            self._join_ranks(data)
        self.make_logger(tb_log_name or type(self).__name__, new=reset_num_timesteps)
        if self._preset_to_tell:
            say(self, f"Preset auto: the sizes of `{self.preset}`, for device {self.device}.")
            self._preset_to_tell = False
        with self.env_for_callbacks():
            train(
                self,
                self.total_steps,
                callback=callback,
                log_interval=log_interval,
                progress_bar=progress_bar,
            )
        return self

    def _join_ranks(self, data: TrajectoryDataset) -> None:
        """Begin with rank 0's weights everywhere, and say if the number of processes changed."""
        distributed.check_agreement(
            total_steps=self.total_steps,
            num_timesteps=self.num_timesteps,
            fingerprint=int(data.fingerprint[:15], 16),
        )
        distributed.share_state(self.named_modules())
        self.seed = int(distributed.from_main(torch.tensor(self.seed)))
        before, self.n_processes = self.n_processes, distributed.world_size()
        if before not in (None, self.n_processes):
            warnings.warn(
                f"Trained by {before} processes so far, by {self.n_processes} from here on: the "
                f"global batch size stays {self.config.batch_size}; which transitions and noise a "
                f"step draws changes, so it is not the run that {before} would have made.",
                stacklevel=4,
            )

    def _steps_to_make(self, requested: int | None, resume: bool) -> int:
        if not resume:
            return self.config.total_steps if requested is None else requested
        if requested is not None:
            raise InvalidArgumentError(
                f"`resume` goes on to step {self.total_steps}: give no number of steps with it, "
                f"or leave it out to make {requested} more."
            )
        return max(self.total_steps - self.num_timesteps, 0)

    def learning_rate_now(self) -> float:
        """The policy's learning rate at this step: `lr_schedule`, or the configuration's."""
        if self.lr_schedule is not None:
            return scheduled_rate(self.lr_schedule, 1 - self.num_timesteps / self.total_steps)
        return schedules.learning_rate(
            self.num_timesteps,
            peak=self.config.learning_rate,
            warmup_steps=self.config.warmup_steps,
            total_steps=self.total_steps,
            final_share=self.config.final_learning_rate,
        )

    def _training_data(self, dataset: AnyData | None, progress_bar: bool) -> TrajectoryDataset:
        if dataset is None and self.dataset is None and self.task is not None:
            dataset = load_task_dataset(self.task, progress_bar=progress_bar)  # a loaded agent's
        if dataset is not None:
            self.set_dataset(dataset)
        if self.dataset is None:
            raise InvalidArgumentError(
                "There is nothing to learn from: `learn` needs `dataset`, such as a "
                "TrajectoryDataset or the path of an HDF5 file."
            )
        return self.dataset

    def _check_same_data(self, dataset: TrajectoryDataset) -> None:
        if dataset.fingerprint != self.provenance.fingerprint:
            warnings.warn(
                f"{dataset.name} is not the data this agent was trained on: training continues "
                f"with the old scales and targets.",
                stacklevel=3,
            )
            name = Path(dataset.name).name
            self.provenance = Provenance(fingerprint=dataset.fingerprint, name=name)

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
        """Begin all random numbers anew: weights not yet made, batches, noise, sampled actions."""
        if seed is not None:
            self.seed = check_seed(seed)
            self.training.seed(self.seed)
            self.acting_generator.manual_seed(self.seed + 2)

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


def _unbounded(size: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, (size,), dtype=np.float32)
