"""How observations, actions and tokens are scaled; stored in every checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rcdt_agent.config import Config, TokenShape
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError

Floats = npt.NDArray[np.float32]

_BLOCK = 65_536  # rows looked at at a time


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Scales fixed when training begins.

    Attributes:
        obs_mean: Per observation dimension.
        obs_std: Per observation dimension, > 0.
        action_low: Bounds of the action space, which the networks see as [-1, 1].
        action_high: See `action_low`.
        rtg_scale: Unit of the RTG token.
        ctg_scale: Unit of the CTG token.
        ctg_shape: Shape of the CTG token.
    """

    obs_mean: tuple[float, ...]
    obs_std: tuple[float, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    rtg_scale: float
    ctg_scale: float
    ctg_shape: TokenShape = "linear"

    def __post_init__(self) -> None:
        """Refuse scales that would make a token, an observation or an action meaningless."""
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused as such
            mean, std = _floats(self.obs_mean), _floats(self.obs_std)
            low, high = _floats(self.action_low), _floats(self.action_high)
            units = _floats((self.rtg_scale, self.ctg_scale))
        for name, values, holds, rule in (
            ("obs_mean", mean, mean.ndim == 1 and mean.size > 0, "a row of numbers"),
            ("obs_std", std, std.shape == mean.shape and (std > 0).all(), "> 0, one a dimension"),
            ("action_low", low, low.ndim == 1 and low.size > 0, "a row of numbers"),
            ("action_high", high, high.shape == low.shape and (high > low).all(), "> action_low"),
            ("rtg_scale and ctg_scale", units, (units > 0).all(), "> 0"),
        ):
            if not (holds and np.isfinite(values).all()):
                raise InvalidArgumentError(f"`{name}` must be finite and {rule}, got {values}.")

    @classmethod
    def fit(
        cls,
        dataset: TrajectoryDataset,
        config: Config,
        *,
        cost_limit: float,
        action_space: gym.Space[Any] | None = None,
    ) -> Scaling:
        """Scales of a dataset.

        Args:
            dataset: Training data.
            config: Says what is scaled and how.
            cost_limit: Default unit of the CTG token.
            action_space: Its bounds; without it the data's actions must lie in [-1, 1].
        """
        size_o, size_a = dataset.observation_size, dataset.action_size
        if config.normalize_observations:
            mean, std = _mean_and_std(dataset.observations)
            std = np.where(std < 1e-6, 1.0, std)
        else:
            mean, std = np.zeros(size_o), np.ones(size_o)
        low, high = _action_bounds(dataset, action_space)
        spread = float(np.ptp(dataset.episode_returns)) or 1.0
        return cls(
            obs_mean=tuple(map(float, mean)),
            obs_std=tuple(map(float, std)),
            action_low=tuple(map(float, np.broadcast_to(low, size_a))),
            action_high=tuple(map(float, np.broadcast_to(high, size_a))),
            rtg_scale=config.rtg_scale or spread,
            ctg_scale=config.ctg_scale or max(cost_limit, 1e-3),
            ctg_shape=config.ctg_shape,
        )

    def scale_obs(self, obs: npt.ArrayLike) -> Floats:
        """Observations (..., O) as the networks see them."""
        mean, std = self.obs_scale
        return np.asarray((np.asarray(obs, dtype=np.float32) - mean) / std, dtype=np.float32)

    def scale_actions(self, actions: npt.ArrayLike) -> Floats:
        """Actions of the space, as the networks see them: [-1, 1]."""
        low, high = self.action_scale
        scaled = 2 * (np.asarray(actions, dtype=np.float32) - low) / (high - low) - 1
        return np.asarray(scaled, dtype=np.float32)

    def unscale_actions(self, actions: npt.ArrayLike) -> Floats:
        """Network actions, clipped to [-1, 1], as actions of the space."""
        low, high = self.action_scale
        unit = np.minimum(np.maximum(np.asarray(actions, dtype=np.float32), -1.0), 1.0)
        return np.asarray(low + (unit + 1) / 2 * (high - low), dtype=np.float32)

    def scale_dataset(self, dataset: TrajectoryDataset) -> TrajectoryDataset:
        """The dataset with scaled observations and actions; rewards and costs stay."""
        return replace(
            dataset,
            observations=self.scale_obs(dataset.observations),
            final_observations=self.scale_obs(dataset.final_observations),
            actions=self.scale_actions(dataset.actions),
        )

    @cached_property
    def obs_scale(self) -> tuple[Floats, Floats]:
        """Mean and deviation of the observations."""
        return _floats(self.obs_mean), _floats(self.obs_std)

    @cached_property
    def action_scale(self) -> tuple[Floats, Floats]:
        """Bounds of the actions."""
        return _floats(self.action_low), _floats(self.action_high)

    def rtg_token(self, rtg: Tensor) -> Tensor:
        """RTG in the unit of its token."""
        return rtg / self.rtg_scale

    def ctg_token(self, ctg: Tensor) -> Tensor:
        """CTG in the unit and shape of its token."""
        scaled = ctg / self.ctg_scale
        return torch.asinh(scaled) if self.ctg_shape == "asinh" else scaled

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Scaling:
        """The inverse of `to_dict` after a trip through JSON."""
        plain: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
        }
        return cls(**plain)


def _mean_and_std(values: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of each column, in float64 and a block of rows at a time: no copy of the data in float64."""
    mean = values.mean(0, dtype=np.float64)
    squares = np.zeros_like(mean)
    for start in range(0, len(values), _BLOCK):
        squares += np.square(values[start : start + _BLOCK] - mean).sum(0)
    return mean, np.sqrt(squares / len(values))


def _floats(values: tuple[float, ...]) -> Floats:
    return np.asarray(values, dtype=np.float32)


def _action_bounds(
    dataset: TrajectoryDataset, action_space: gym.Space[Any] | None
) -> tuple[npt.ArrayLike, npt.ArrayLike]:
    if action_space is None:
        largest = float(np.abs(dataset.actions).max())
        if largest > 1.0 + 1e-5:
            raise InvalidArgumentError(
                f"{dataset.name}: actions reach {largest:g}, beyond [-1, 1]. Give the agent the "
                f"environment, or its action space, so that they can be scaled."
            )
        return -1.0, 1.0
    if not isinstance(action_space, gym.spaces.Box) or not action_space.is_bounded():
        raise InvalidArgumentError(f"`action_space` must be a bounded Box, got {action_space}.")
    return action_space.low.ravel(), action_space.high.ravel()
