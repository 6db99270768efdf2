"""What a trained agent needs to act, as one object: networks, normaliser, conditioning, spaces."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rcdt_agent import losses
from rcdt_agent._types import BoolArray, Float32Array
from rcdt_agent.action_spaces import ActionSpace, action_width
from rcdt_agent.actions import ActionDistribution
from rcdt_agent.choices import Choices
from rcdt_agent.config import Config
from rcdt_agent.costs import columns, cost_signals, refuse_several
from rcdt_agent.critics import TwinCritics
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import Outcomes, fit_table
from rcdt_agent.deploy.checks import observation_rows
from rcdt_agent.deploy.conditioning import Conditioning
from rcdt_agent.deploy.shield import CriticShield
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.encoders import make_encoder
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.images import is_image
from rcdt_agent.model import PolicyTransformer, Window
from rcdt_agent.normalizer import Normalizer
from rcdt_agent.observations import ObservationLayout
from rcdt_agent.tasks.registry import Task

CPU_CHUNK = 163_840
"""Size of an activation (tokens times width) when many environments act on a CPU: it stays in the
cache."""


class Policy(nn.Module):
    """Base of what algorithms train: tensors in the state dict, the rest in `to_dict`."""

    def __init__(
        self,
        normalizer: Normalizer,
        observation_space: gym.spaces.Box,
        action_space: ActionSpace,
    ) -> None:
        """Hold what every policy has."""
        super().__init__()
        self.normalizer = normalizer
        self.observation_space = observation_space
        self.action_space = action_space
        self.layout: ObservationLayout | None = None  # of others than arrays; else a Box suffices

    @property
    @abstractmethod
    def outcomes(self) -> Outcomes:
        """Returns and costs of the training episodes."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps besides tensors, configuration and spaces; plain values."""

    @property
    def device(self) -> torch.device:
        """Where the policy computes."""
        return self.normalizer.obs_mean.device

    @property
    def observation_dtype(self) -> npt.DTypeLike:
        """Of rows: uint8 of images, else float32."""
        return self.layout.dtype if self.layout else np.float32

    def observation_rows(self, observation: Any) -> tuple[npt.NDArray[Any], bool]:
        """Observations (N, O), and whether a single one was given.

        Raises:
            InvalidArgumentError: Wrong shape, key or type, or not finite.
        """
        if self.layout is not None:
            return self.layout.rows(observation)
        return observation_rows(observation, self.observation_space.shape)


class ConditionedPolicy(Policy):
    """The transformer policy, conditioned on return-to-go and cost-to-go, and its critics.

    Attributes:
        transformer: Windows to action distributions.
        critics: Of reward and cost, as far as the configuration trains them.
        conditioning: From budgets to tokens.
        episode_length: Longest episode.
        cost_limit: () c_lim of the trajectory weights, and the default unit of cost; (m,) of
            several costs.
        cost_signals: What critics and multipliers call the costs.
        shield_candidates: Actions that the critic shield chooses from; 0: no shield.
        token_critics: Whether critics see the cost-to-go token and the time.
        finite_critics: Whether critics end with the episode; else they look beyond time limits.
    """

    def __init__(
        self,
        config: Config,
        normalizer: Normalizer,
        conditioning: Conditioning,
        observation_space: gym.spaces.Box,
        action_space: ActionSpace,
        *,
        episode_length: int,
        cost_limit: npt.ArrayLike,
    ) -> None:
        """Make the networks that the configuration asks for."""
        super().__init__(normalizer, observation_space, action_space)
        cost_names = conditioning.cost_names
        _check_several(config, cost_names)
        self.cost_signals = cost_signals(cost_names)
        self.conditioning = conditioning
        self.episode_length = episode_length
        self.cost_limit = np.asarray(cost_limit, dtype=np.float64)
        self.token_critics = config.critic_inputs == "token"
        self.finite_critics = self.token_critics or config.critic_targets == "monte_carlo"
        self.cost_discount = config.cost_discount
        self.cost_pessimism = config.cost_pessimism
        self.shield_candidates = config.shield_candidates
        sizes = normalizer.observation_size, len(normalizer.action_low)
        features = config.image_features
        self.transformer = PolicyTransformer(
            *sizes,
            episode_length=episode_length,
            time_embedding=config.time_embedding,
            context_length=config.context_length,
            token_features=normalizer.token_features,
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            width=config.embedding_size,
            return_token=config.return_token,
            cost_token=config.cost_token,
            action_token=config.action_token,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            head_width=config.head_width,
            state_dependent_std=config.state_dependent_std,
            log_std_range=config.log_std_range,
            cost_head=config.cost_head_weight > 0,
            n_costs=len(cost_names),
            choices=normalizer.choices.counts if normalizer.choices else (),
            encoder=make_encoder(observation_space, features),
        )
        signals = ("reward",) * config.q_guidance + self.cost_signals * config.cost_penalty
        self.critics = TwinCritics(
            dict.fromkeys(signals, 1.0),
            *sizes,
            context_size=len(cost_names) * normalizer.token_features + 1
            if self.token_critics
            else 0,
            width=config.critic_width,
            n_layers=config.critic_layers,
            encoder=make_encoder(observation_space, features) if signals else None,
        )

    @classmethod
    def from_data(
        cls, config: Config, dataset: TrajectoryDataset, task: Task | None, **spaces: Any
    ) -> ConditionedPolicy:
        """An untrained policy; everything that depends on the data is fixed here."""
        outcomes = dataset.outcomes
        longest = int(dataset.lengths.max())
        episode_length = max(longest, task.episode_length if task else 0)
        one_cost = dataset.n_costs == 1
        reference = task.reference_budget if task and one_cost else outcomes.typical_costs
        cost_limit = np.maximum(reference, 1e-3)
        if config.cost_limit is not None:
            cost_limit = np.full_like(cost_limit, config.cost_limit)
        normalizer = Normalizer.fit(
            dataset,
            spaces["action_space"],
            normalize_observations=config.normalize_observations,
            rtg_scale=config.rtg_scale or float(np.ptp(outcomes.returns)) or 1.0,
            ctg_scale=config.ctg_scale or np.maximum(cost_limit, 1e-3),
            ctg_shape=config.ctg_shape,
            episode_length=episode_length if config.token_rates else None,
        )
        tables = [
            None if level is None else fit_table(dataset, quantile=level, cost_unit=cost_limit)
            for level in (config.target_quantile, config.cautious_quantile)
        ]
        published: tuple[tuple[float, float], ...] = ()
        if task and task.published_targets and one_cost:
            published = tuple(zip(task.budgets, task.published_targets, strict=True))
        conditioning = Conditioning.from_config(
            config,
            outcomes=outcomes,
            table=tables[0],
            cautious_table=tables[1],
            published=published,
        )
        policy = cls(
            config,
            normalizer,
            conditioning,
            **spaces,
            episode_length=episode_length,
            cost_limit=cost_limit,
        )
        sums = {
            "reward": float(np.abs(dataset.rewards).mean()) / (1 - config.discount),
            **{
                signal: float(costs.mean()) / (1 - config.cost_discount)
                for signal, costs in columns(dataset.costs, dataset.cost_names).items()
            },
        }
        for signal in policy.critics.signals:  # their unit is the size of the discounted sums
            policy.critics.unit(signal).fill_(max(sums[signal], 1e-3))
        return policy

    @property
    def outcomes(self) -> Outcomes:
        """Returns and costs of the training episodes."""
        return self.conditioning.outcomes

    def critic_context(self, ctg: Tensor, timesteps: Tensor) -> Tensor | None:
        """(..., X) what critics see besides state and action; None if it is nothing.

        Args:
            ctg: (...,) cost-to-go, in units of the task; (..., m) of several costs.
            timesteps: (...,) step of the episode.
        """
        if not self.token_critics:
            return None
        passed = timesteps.clamp(max=self.episode_length)[..., None] / self.episode_length
        return torch.cat((self.normalizer.ctg(ctg, timesteps), passed), dim=-1)

    def cost_allowance(self, ctg: Tensor, timesteps: Tensor) -> Tensor:
        """(...,) what the cost critic says of spending `ctg` evenly over the steps left."""
        steps_left = self.episode_length - timesteps
        return losses.cost_allowance(
            ctg, steps_left, self.cost_discount, finite=self.finite_critics
        )

    def forward(self, window: Window, *, last_only: bool = False) -> ActionDistribution:
        """Action distribution, as networks see actions, of windows in task units."""
        distribution: ActionDistribution = self.transformer(
            self.normalizer.window(window), last_only=last_only
        )
        return distribution

    @torch.inference_mode()
    def act(
        self, state: AgentState, *, deterministic: bool, generator: torch.Generator
    ) -> tuple[Float32Array, AgentState]:
        """Actions (N, A) of the space at the present step of each episode, noted in the state."""
        if self.transformer.training:  # training switches the transformer alone
            self.transformer.eval()
        target_return, cost_budget = self.conditioning.targets(state)
        last = self._present(state, state.window(target_return, cost_budget, self.device))
        chosen = last.mode()
        if not deterministic:
            chosen = last.sample(generator)
        replaced = np.zeros(state.n_envs, dtype=np.bool_)
        if self.shield_candidates:
            left = (cost_budget - state.total_cost).astype(np.float32)
            chosen, replaced = self._shielded(state, last, chosen, left)
        actions = self.normalizer.unscale_actions(chosen).cpu().numpy()
        return actions, state.with_action(actions, replaced)

    def _present(self, state: AgentState, window: Window) -> ActionDistribution:
        """The distribution (N, A) at the present step of each window."""
        position = state.position
        last_only = bool((position == position[0]).all())
        n_windows, n_steps = window.mask.shape
        size = n_windows
        if self.device.type == "cpu":
            size = self.transformer.windows_within(CPU_CHUNK, n_steps)
        parts = [self(part, last_only=last_only) for part in window.split(size)]
        distribution: ActionDistribution = type(parts[0]).cat(parts)
        if last_only:
            return distribution[:, 0]
        # Episodes of different age: the present step is not the last one of every window.
        return distribution[torch.arange(n_windows), torch.from_numpy(position)]

    def _shielded(
        self, state: AgentState, policy: ActionDistribution, chosen: Tensor, left: Float32Array
    ) -> tuple[Tensor, BoolArray]:
        steps = torch.from_numpy(state.clock).to(self.device)
        to_go = torch.from_numpy(left).to(self.device)
        shield = CriticShield(
            critics=self.critics,
            n_candidates=self.shield_candidates,
            cost_pessimism=self.cost_pessimism,
        )
        newest = state.obs[np.arange(state.n_envs), state.position]
        obs = self.normalizer.obs(torch.from_numpy(newest).to(self.device))
        return shield.choose(
            obs,
            policy,
            chosen,
            self.cost_allowance(to_go, steps),
            self.critic_context(to_go, steps),
        )

    def configure(self, config: Config) -> None:
        """Take over the deployment settings of a configuration."""
        _check_several(config, self.conditioning.cost_names)
        data = {
            name: getattr(self.conditioning, name)
            for name in ("outcomes", "table", "cautious_table", "published", "calibration")
        }
        self.conditioning = Conditioning.from_config(config, **data)
        self.shield_candidates = config.shield_candidates

    def calibrate(self, calibration: Any) -> None:
        """Translate budgets by a `TokenCalibration` from here on; None: not any more."""
        if calibration is not None:
            refuse_several(self.conditioning.cost_names, "A calibration")
        self.conditioning = replace(self.conditioning, calibration=calibration)

    @classmethod
    def from_dict(
        cls,
        config: Config,
        values: dict[str, Any],
        observation_space: gym.spaces.Box,
        action_space: ActionSpace,
    ) -> ConditionedPolicy:
        """The inverse of `to_dict`; tensors come from the state dict."""
        sizes = gym.spaces.flatdim(observation_space), action_width(action_space)
        conditioning = Conditioning.from_dict(config, values["conditioning"])
        n_costs = len(conditioning.cost_names)
        episode_length = int(values["episode_length"])
        cost_limit = np.asarray(values["cost_limit"], dtype=np.float64)
        if episode_length < 0 or not (cost_limit >= 0).all():
            raise InvalidArgumentError(
                f"`episode_length` and `cost_limit` must be >= 0, got {episode_length} and "
                f"{cost_limit}."
            )
        if cost_limit.shape != (() if n_costs == 1 else (n_costs,)):
            raise InvalidArgumentError(
                f"`cost_limit` must be of {n_costs} costs, got shape {cost_limit.shape}."
            )
        rates = episode_length if config.token_rates else None
        return cls(
            config,
            Normalizer(
                *sizes,
                config.ctg_shape,
                rates,
                n_costs,
                Choices.of(action_space),
                images=is_image(observation_space),
            ),
            conditioning,
            observation_space,
            action_space,
            episode_length=episode_length,
            cost_limit=cost_limit,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "conditioning": self.conditioning.to_dict(),
            "episode_length": self.episode_length,
            "cost_limit": self.cost_limit.tolist(),
        }


def _check_several(config: Config, cost_names: tuple[str, ...]) -> None:
    """Refuse settings that know one cost only.

    Raises:
        InvalidArgumentError: There are several costs; the message names the setting.
    """
    if config.shield_candidates:
        refuse_several(cost_names, "The critic shield (`shield_candidates`)")
    if config.cost_head_weight:
        refuse_several(cost_names, "The cost head (`cost_head_weight`)")
    if config.pareto_fraction:
        refuse_several(cost_names, "`pareto_fraction`")
    if config.sampling == "cost_tilted":
        refuse_several(cost_names, "`sampling='cost_tilted'`")
