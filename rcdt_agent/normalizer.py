"""How observations, actions and tokens are scaled for the networks; saved with the weights."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rcdt_agent._types import Float32Array
from rcdt_agent.action_spaces import ActionSpace
from rcdt_agent.choices import Choices
from rcdt_agent.config import TokenShape
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sums import mean_and_std
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.model import Window


class Normalizer(nn.Module):
    """Scales fixed when training begins: task units outside, network units inside.

    Observations have mean 0 and deviation 1 per dimension; the bytes of an image lie in [0, 1].
    Actions lie in [-1, 1]; discrete ones are in one-hot form. A token holds what is to go, divided
    by its unit; and, if there is an `episode_length`, also what is to go per step left. Towards the
    end of an episode, and where one reckless trajectory sets the unit, only the rate tells a good
    pace from a poor one.

    Attributes:
        observation_size: O.
    """

    obs_mean: Tensor
    obs_std: Tensor
    action_low: Tensor
    action_high: Tensor
    rtg_scale: Tensor
    ctg_scale: Tensor
    rtg_rate: Tensor

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        ctg_shape: TokenShape = "linear",
        episode_length: int | None = None,
        n_costs: int = 1,
        choices: Choices | None = None,
        *,
        images: bool = False,
    ) -> None:
        """Scales of one; `fit` and `load_state_dict` set others.

        `choices` are those of a discrete action space; they set the size of an action. Observations
        that are `images` have one scale for all bytes, 255, and no other.
        """
        super().__init__()
        self.observation_size = observation_size
        self.choices = choices
        action_size = action_size if choices is None else sum(choices.counts)
        self.ctg_shape = ctg_shape
        self.episode_length = episode_length
        per_number = () if images else (observation_size,)
        self.register_buffer("obs_mean", torch.zeros(per_number))
        self.register_buffer("obs_std", torch.full(per_number, 255.0 if images else 1.0))
        self.register_buffer("action_low", -torch.ones(action_size))
        self.register_buffer("action_high", torch.ones(action_size))
        self.register_buffer("rtg_scale", torch.ones(()))
        self.register_buffer("ctg_scale", torch.ones(() if n_costs == 1 else (n_costs,)))
        self.register_buffer("rtg_rate", torch.ones(()))

    @classmethod
    def fit(
        cls,
        dataset: TrajectoryDataset,
        action_space: ActionSpace,
        *,
        normalize_observations: bool = True,
        rtg_scale: float = 1.0,
        ctg_scale: npt.ArrayLike = 1.0,
        ctg_shape: TokenShape = "linear",
        episode_length: int | None = None,
    ) -> Normalizer:
        """Scales of a dataset.

        Args:
            dataset: Training data.
            action_space: Its bounds become [-1, 1]; where it has none, the data's do.
            normalize_observations: Otherwise observations stay as they are; images are never
                shifted and scaled by the data.
            rtg_scale: Unit of the RTG token.
            ctg_scale: Unit of the CTG token; one for each of several costs, or one for all.
            ctg_shape: `linear`, or `asinh`, which resolves small budgets among large costs.
            episode_length: Steps of the longest episode, for tokens that also hold rates.
        """
        normalizer = cls(
            dataset.observation_size,
            dataset.action_size,
            ctg_shape,
            episode_length,
            dataset.n_costs,
            Choices.of(action_space),
            images=dataset.image_shape is not None,
        )
        if normalize_observations and dataset.image_shape is None:
            mean, std = mean_and_std(dataset.observations)
            normalizer.obs_mean.copy_(torch.from_numpy(mean))
            normalizer.obs_std.copy_(torch.from_numpy(np.where(std < 1e-6, 1.0, std)))
        if isinstance(action_space, gym.spaces.Box):
            low, high = _bounds(dataset, action_space)
            normalizer.action_low.copy_(torch.from_numpy(low))
            normalizer.action_high.copy_(torch.from_numpy(high))
        normalizer.rtg_scale.fill_(rtg_scale)
        normalizer.ctg_scale.copy_(torch.as_tensor(np.asarray(ctg_scale, dtype=np.float64)))
        normalizer.rtg_rate.fill_(float(dataset.rewards.std(dtype=np.float64)) or 1.0)
        normalizer.check()
        return normalizer

    def check(self) -> None:
        """Refuse scales that would make an observation, an action or a token meaningless."""
        for name, holds, rule in (
            ("obs_mean", True, "finite"),
            ("obs_std", (self.obs_std > 0).all(), "> 0"),
            ("action_low", True, "finite"),
            ("action_high", (self.action_high > self.action_low).all(), "> action_low"),
            ("rtg_scale", self.rtg_scale > 0, "> 0"),
            ("ctg_scale", (self.ctg_scale > 0).all(), "> 0"),
            ("rtg_rate", self.rtg_rate > 0, "> 0"),
        ):
            values = getattr(self, name)
            if not (bool(holds) and bool(torch.isfinite(values).all())):
                raise InvalidArgumentError(f"`{name}` must be {rule}, got {values.tolist()}.")

    def obs(self, obs: Tensor) -> Tensor:
        """Observations (..., O) for the networks; uint8 becomes float32 here, on the device."""
        return (obs - self.obs_mean) / self.obs_std

    def actions(self, actions: Tensor) -> Tensor:
        """Actions of the space for the networks: (..., A) in [-1, 1], or one-hot (..., k)."""
        if self.choices is not None:
            return self.choices.encode(actions)
        return 2 * (actions - self.action_low) / (self.action_high - self.action_low) - 1

    def unscale_actions(self, actions: Tensor) -> Tensor:
        """Network actions (..., A), clipped to [-1, 1], as actions of the space.

        Of discrete ones, the options (..., k) of the largest values.
        """
        if self.choices is not None:
            return self.choices.decode(actions)
        span = self.action_high - self.action_low
        return self.action_low + (actions.clamp(-1.0, 1.0) + 1) / 2 * span

    @property
    def action_width(self) -> int:
        """Numbers of an action of the space: A, or k choices."""
        return self.action_low.numel() if self.choices is None else len(self.choices.counts)

    @property
    def token_features(self) -> int:
        """F, the numbers that an RTG or CTG token holds."""
        return 1 if self.episode_length is None else 2

    def rtg(self, rtg: Tensor, timesteps: Tensor) -> Tensor:
        """(..., F) features of the return-to-go token at steps of the episode."""
        features = [rtg / self.rtg_scale]
        if self.episode_length is not None:
            features.append(rtg / self._steps_left(timesteps) / self.rtg_rate)
        return torch.stack(features, dim=-1)

    def ctg(self, ctg: Tensor, timesteps: Tensor) -> Tensor:
        """(..., F) features of the cost-to-go token at steps (...,) of the episode.

        Of several costs (..., m), the tokens' features one after the other: (..., m F).
        """
        several = self.ctg_scale.ndim > 0
        features = [ctg / self.ctg_scale]
        if self.episode_length is not None:  # 1: a pace that spends the unit in an episode
            left = self._steps_left(timesteps[..., None] if several else timesteps)
            pace = ctg / left * self.episode_length
            features.append(pace / self.ctg_scale)
        stacked = torch.stack(features, dim=-1)
        stacked = stacked.flatten(-2) if several else stacked
        return torch.asinh(stacked) if self.ctg_shape == "asinh" else stacked

    def _steps_left(self, timesteps: Tensor) -> Tensor:
        assert self.episode_length is not None
        return (self.episode_length - timesteps).clamp(min=1)

    def window(self, window: Window) -> Window:
        """A window in task units, scaled for the policy network; padding is not looked at."""
        return Window(
            obs=self.obs(window.obs),
            actions=self.actions(window.actions),
            rtg=self.rtg(window.rtg, window.timesteps),
            ctg=self.ctg(window.ctg, window.timesteps),
            timesteps=window.timesteps,
            mask=window.mask,
        )


def _bounds(dataset: TrajectoryDataset, space: gym.spaces.Box) -> tuple[Float32Array, Float32Array]:
    """What becomes [-1, 1]: the bounds of the space, and the data's range where it has none."""
    low, high = space.low.ravel(), space.high.ravel()
    if not space.is_bounded():
        least, most = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
        low, high = np.where(np.isinf(low), least, low), np.where(np.isinf(high), most, high)
        flat = high <= low  # a constant is shifted, not divided by nothing
        high = np.where(flat & np.isinf(space.high.ravel()), low + 1, high)
        low = np.where(high <= low, high - 1, low)
    return low, high


def data_action_space(dataset: TrajectoryDataset) -> ActionSpace:
    """The space of data that come without an environment.

    [-1, 1] per dimension; of integers `Discrete` or `MultiDiscrete` up to the largest.

    Raises:
        InvalidArgumentError: The data's actions lie outside.
    """
    least, most = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
    if dataset.discrete_actions:
        if least.min() < 0:
            raise InvalidArgumentError(
                f"{dataset.name}: actions are whole numbers from {least.min()} on. Give the agent "
                f"the environment, or its action space."
            )
        counts = (most.astype(np.int64) + 1).tolist()
        one = len(counts) == 1
        return gym.spaces.Discrete(counts[0]) if one else gym.spaces.MultiDiscrete(counts)
    largest = float(max(-least.min(), most.max()))
    if largest > 1.0 + 1e-5:
        raise InvalidArgumentError(
            f"{dataset.name}: actions reach {largest:g}, beyond [-1, 1]. Give the agent the "
            f"environment, or its action space, so that they can be scaled: "
            f"`RCDT(action_space=gymnasium.spaces.Box(low, high, ({dataset.action_size},)))`. "
            f"The command line takes actions in [-1, 1] alone."
        )
    return gym.spaces.Box(-1.0, 1.0, (dataset.action_size,), dtype=np.float32)
