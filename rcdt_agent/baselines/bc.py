"""Behaviour cloning: BC imitates every trajectory, BC-Safe those within the cost budget.

An MLP from observation to action, trained on squared error; the baselines of the paper's tables.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rcdt_agent._io import versions
from rcdt_agent.checkpoint import (
    contents_of,
    load_module,
    read_checkpoint,
    to_path,
    write_checkpoint,
)
from rcdt_agent.config import make_config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import CheckpointError, InvalidArgumentError, TrainingError
from rcdt_agent.progress import progress
from rcdt_agent.scaling import Scaling


class BC:
    """Imitates the data; knows neither return nor cost."""

    def __init__(
        self,
        *,
        action_space: gym.Space[Any] | None = None,
        width: int = 256,
        n_layers: int = 3,
        learning_rate: float = 1e-3,
        batch_size: int = 512,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """Make an untrained policy.

        Args:
            action_space: Bounds of the actions; default: [-1, 1].
            width: Hidden units.
            n_layers: Linear layers, >= 2.
            learning_rate: Of Adam.
            batch_size: Transitions of a batch.
            seed: Of weights and batches.
            device: `cpu` or `cuda`.
        """
        for name, value, least in (
            ("width", width, 1), ("n_layers", n_layers, 2), ("batch_size", batch_size, 1),
        ):  # fmt: skip
            if value < least:
                raise InvalidArgumentError(f"`{name}` must be >= {least}, got {value}.")
        self.settings = {
            "width": width,
            "n_layers": n_layers,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "seed": seed,
        }
        self.action_space = action_space
        self.device = torch.device(device)
        self.scaling: Scaling | None = None
        self.network: nn.Sequential | None = None
        self.num_timesteps = 0

    def choose(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The trajectories to imitate."""
        return dataset

    def learn(
        self, dataset: TrajectoryDataset, total_steps: int = 5_000, *, progress_bar: bool = False
    ) -> BC:
        """Fit the policy from scratch.

        Raises:
            DatasetError: No trajectory is left to imitate.
            TrainingError: The loss is not finite.
        """
        if total_steps < 1:
            raise InvalidArgumentError(f"`total_steps` must be >= 1, got {total_steps}.")
        chosen = self.choose(dataset)
        self.scaling = Scaling.fit(
            chosen, make_config("tiny"), cost_limit=1.0, action_space=self.action_space
        )
        obs = torch.from_numpy(self.scaling.scale_obs(chosen.observations)).to(self.device)
        actions = torch.from_numpy(self.scaling.scale_actions(chosen.actions)).to(self.device)
        generator = torch.Generator().manual_seed(int(self.settings["seed"]))
        with torch.random.fork_rng():
            torch.manual_seed(int(self.settings["seed"]))
            self.network = self._make_network(obs.shape[1], actions.shape[1]).to(self.device)
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.settings["learning_rate"])
        size = int(self.settings["batch_size"])
        total = torch.zeros((), device=self.device)
        for _ in progress(progress_bar, iterable=range(total_steps), unit="step"):
            rows = torch.randint(len(obs), (size,), generator=generator).to(self.device)
            loss = (self.network(obs[rows]) - actions[rows]).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if not torch.isfinite(total):
            raise TrainingError("The imitation loss is not finite; try a smaller learning rate.")
        self.num_timesteps = total_steps
        return self

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.float32], Any]:
        """The action for one observation or a batch; `state` is passed through."""
        if self.network is None or self.scaling is None:
            raise InvalidArgumentError("The policy has not been trained: call `learn` first.")
        if isinstance(observation, dict):
            observation = observation["observation"]
        rows = self.scaling.scale_obs(observation)
        unit = self.network(torch.from_numpy(rows).to(self.device))
        return self.scaling.unscale_actions(unit.cpu().numpy()), state

    def save(self, path: Any) -> None:
        """Write one zip of safetensors and JSON."""
        if self.network is None or self.scaling is None:
            raise InvalidArgumentError("The policy has not been trained: call `learn` first.")
        meta = {
            "settings": self.settings,
            "scaling": self.scaling.to_dict(),
            "num_timesteps": self.num_timesteps,
            "versions": versions(),
        }
        write_checkpoint(to_path(path), type(self).__name__, meta, dict(self.network.state_dict()))

    @classmethod
    def load(cls, path: Any, device: str = "cpu") -> BC:
        """Read a policy; nothing in the file is executed."""
        meta, tensors = read_checkpoint(to_path(path), cls.__name__)
        with contents_of(path):
            policy = cls(device=device, **meta["settings"])
            if int(policy.settings["n_layers"]) > len(tensors):
                raise CheckpointError(f"{policy.settings['n_layers']} layers, but few weights")
            policy.scaling = Scaling.from_dict(meta["scaling"])
            sizes = len(policy.scaling.obs_mean), len(policy.scaling.action_low)
            policy.network = load_module(lambda: policy._make_network(*sizes), tensors)
            policy.network.to(policy.device)
            policy.num_timesteps = int(meta["num_timesteps"])
            action, _ = policy.predict(np.zeros(sizes[0]))
            if not np.isfinite(action).all():
                raise CheckpointError(f"an action of it is {action}")
        return policy

    def _make_network(self, size_o: int, size_a: int) -> nn.Sequential:
        width = int(self.settings["width"])
        layers: list[nn.Module] = []
        size = size_o
        for _ in range(int(self.settings["n_layers"]) - 1):
            layers += [nn.Linear(size, width), nn.ReLU()]
            size = width
        return nn.Sequential(*layers, nn.Linear(size, size_a), nn.Tanh())


class BCSafe(BC):
    """Imitates only the trajectories whose cost is within a budget fixed before training."""

    def __init__(self, *, cost_budget: float = 20.0, **kwargs: Any) -> None:
        """Make an untrained policy for one cost budget; other arguments as `BC`."""
        super().__init__(**kwargs)
        if not cost_budget >= 0:
            raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget}.")
        self.settings["cost_budget"] = cost_budget

    def choose(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The trajectories within the budget."""
        return dataset.filter(max_cost=float(self.settings["cost_budget"]))
