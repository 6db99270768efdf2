"""`SavedAgent`: an agent that goes into a file, a pickle or a copy, and comes back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor
from typing_extensions import Self

from rcdt_agent import distributed
from rcdt_agent.action_spaces import ActionSpace
from rcdt_agent.algorithms.agent import Agent, ConfigT, PolicyT
from rcdt_agent.algorithms.files import (
    agent_to_bytes,
    bytes_to_agent,
    print_versions,
    read_agent,
    write_agent,
)
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.arguments import check_flags
from rcdt_agent.checkpoint import check_source, to_path
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.model_card import write_card


class SavedAgent(Agent[PolicyT, ConfigT]):
    """Saving and loading, as stable-baselines3 has them, without pickled code in the file."""

    @abstractmethod
    def restore_policy(
        self, values: dict[str, Any], observation: gym.spaces.Box, action: ActionSpace
    ) -> PolicyT:
        """The policy of a checkpoint, whose `Policy.to_dict` gave `values`; weights follow."""

    def save(
        self,
        path: Any,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        *,
        card: bool = False,
    ) -> None:
        """Write one zip of safetensors and JSON, from which training can continue bit for bit.

        Of several processes that train together, rank 0 writes it.

        Args:
            path: Path or open binary file.
            exclude: Parts to leave out, for a smaller file: `training`, which only training
                needs, or of it `optimizers`. Training on begins them anew.
            include: Parts to write although they are excluded.
            card: Write a model card beside it, `.md` in place of `.zip`: task, data, settings,
                budgets measured, limits.

        Raises:
            InvalidArgumentError: A part is unknown, the agent is untrained, or a card is asked for
                beside an open file.
            CheckpointError: The disk is full or the folder read-only; an older file stays.
        """
        check_source("path", path)
        check_flags(card=card)
        target = to_path(path)
        if card and not isinstance(target, Path):
            raise InvalidArgumentError("`card` needs a path to write beside, got an open file.")
        if distributed.is_main():
            write_agent(self, path, exclude=exclude, include=include)
            if card and isinstance(target, Path):
                write_card(self, target.with_suffix(".md"))

    @classmethod
    def load(
        cls,
        path: Any,
        env: Env | VecEnv | None = None,
        device: str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        *,
        verbose: int = 0,
        tensorboard_log: str | None = None,
        **overrides: Any,
    ) -> Self:
        """Read an agent; nothing in the file is executed.

        Args:
            path: Checkpoint, open binary file, or run folder, whose final or else latest
                checkpoint is read.
            env: As for `set_env`.
            device: `auto`, `cpu`, `cuda`; whatever it was trained on.
            custom_objects: As `overrides`, by name.
            print_system_info: Print the versions here and those that wrote the file.
            verbose: 1 prints the log.
            tensorboard_log: Folder for tensorboard.
            **overrides: Fields of the configuration that do not change the networks
                (`changeable`); `learning_rate` may be a function.

        Raises:
            CheckpointError: Damaged, of another version or algorithm, or not a checkpoint.
            InvalidArgumentError: `env` has other spaces than the agent, or a field cannot be
                changed.
        """
        check_source("path", path)
        check_flags(print_system_info=print_system_info)
        if custom_objects is not None and not isinstance(custom_objects, Mapping):
            raise InvalidArgumentError(
                f"`custom_objects` must be a dict of settings, got {custom_objects!r}."
            )
        if print_system_info:
            print_versions(cls, path)
        options = {"device": device, "verbose": verbose, "tensorboard_log": tensorboard_log}
        agent = read_agent(cls, path, {**(custom_objects or {}), **overrides}, **options)
        if env is not None:
            agent.set_env(env)
        return agent

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
        training: bool = False,
        token: str | bool | None = None,
        endpoint: str | None = None,
    ) -> str:
        """Upload the agent and its model card to the Hugging Face hub, in one commit.

        Needs the extra `hub`. Of several processes that train together, rank 0 uploads.

        Args:
            repo_id: `user/name`; made if it does not exist.
            private: Whether a new repository is private; None: as the account's default.
            revision: Branch; default: `main`.
            commit_message: Default: algorithm and steps.
            training: Also what only training needs; a larger file, from which training resumes.
            token: Of the account; None: the one of `hf auth login` or `HF_TOKEN`.
            endpoint: Of another hub; default: `HF_ENDPOINT`, or the public one.

        Returns:
            The address of the commit.

        Raises:
            InvalidArgumentError: The extra is missing, `repo_id` is none, or nothing is trained.
            HubError: The hub refused, or could not be reached.
        """
        from rcdt_agent.hub import push_agent

        if not distributed.is_main():
            return ""
        return push_agent(
            self,
            repo_id,
            private=private,
            revision=revision,
            commit_message=commit_message,
            training=training,
            token=token,
            endpoint=endpoint,
        )

    @classmethod
    def from_hub(
        cls,
        repo_id: str,
        *,
        filename: str = "agent.zip",
        revision: str | None = None,
        token: str | bool | None = None,
        endpoint: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Download an agent of this class and load it; nothing in the file is executed.

        Needs the extra `hub`.

        Args:
            repo_id: `user/name`.
            filename: Of the checkpoint in the repository.
            revision: Branch, tag or commit. A commit's hash always gives the same file.
            token: Of an account that may read it; None: the one of `hf auth login`.
            endpoint: Of another hub; default: `HF_ENDPOINT`, or the public one.
            cache_dir: Where downloads are kept; default: the package's own cache.
            local_files_only: Ask no hub: the file must be in the cache.
            **kwargs: As for `load`.

        Raises:
            InvalidArgumentError: The extra is missing, or an argument is outside its rule.
            HubError: It is not there, must not be read, or the hub cannot be reached.
            CheckpointError: What came is no checkpoint of this class.
        """
        from rcdt_agent.hub import download_agent

        path = download_agent(
            repo_id,
            filename=filename,
            revision=revision,
            token=token,
            endpoint=endpoint,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
        return cls.load(path, **kwargs)

    def read_parameters(self, path: Any) -> dict[str, dict[str, Tensor]]:
        """State dicts of a checkpoint by name."""
        other = type(self).load(path, device="cpu")
        return {"policy": other.policy.state_dict(), **other.training.module_states}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by way of a checkpoint; data, environment and logger stay behind."""
        return bytes_to_agent, (type(self), *agent_to_bytes(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that trains and acts on by itself; data and environment are shared."""
        rebuild, arguments = self.__reduce__()
        agent: Self = rebuild(*arguments)
        agent.dataset, agent.lr_schedule, agent._env = self.dataset, self.lr_schedule, self._env
        memo[id(self)] = agent
        return agent

    def settings_to_save(self) -> dict[str, Any]:
        """Plain values of a subclass's own for the checkpoint."""
        return {}

    def load_settings(self, values: dict[str, Any]) -> None:
        """Take over what `settings_to_save` gave."""
