"""Batches of windows by one index computation over the dataset's own arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from rcdt_agent import kernels
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rcdt_agent.scaling import Scaling

Sampling = Literal["trajectory", "transition", "cost_tilted"]

_NUMBERS = ("rewards", "costs", "rtg", "ctg")  # of a step


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Windows of trajectories, right-padded with zeros. B windows, T steps.

    Attributes:
        obs: (B, T, O).
        actions: (B, T, A).
        rewards: (B, T).
        costs: (B, T).
        rtg: (B, T) reward still to come in the trajectory, this step's included.
        ctg: (B, T) cost still to come, this step's included.
        timesteps: (B, T) int64, place in the episode.
        mask: (B, T) bool, True for real steps.
        next_obs: (B, T, O) observation after the step.
        terminals: (B, T) bool, the task ended with this step.
        next_known: (B, T) bool, real steps whose `next_obs` was recorded or is not needed.
        weights: (B,) weight of the window's trajectory.
        trajectories: (B,) int64, which trajectory each window is from.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    costs: Tensor
    rtg: Tensor
    ctg: Tensor
    timesteps: Tensor
    mask: Tensor
    next_obs: Tensor
    terminals: Tensor
    next_known: Tensor
    weights: Tensor
    trajectories: Tensor

    def split(self, size: int) -> list[Batch]:
        """Parts of at most `size` windows."""
        columns = vars(self)
        parts = zip(*(torch.split(column, size) for column in columns.values()), strict=True)
        return [Batch(**dict(zip(columns, part, strict=True))) for part in parts]


class WindowSampler:
    """Draws batches of windows of `context_length` steps from a dataset.

    On the CPU the dataset's arrays are read where they are; to another device they are copied
    once. Only what the data do not hold is added: return-to-go and cost-to-go of every step. A
    batch gathers `context_length + 1` consecutive rows a window and scales them.
    """

    def __init__(
        self,
        dataset: TrajectoryDataset,
        *,
        context_length: int,
        batch_size: int,
        sampling: Sampling = "trajectory",
        cost_ceiling: float = 70.0,
        weights: Tensor | None = None,
        pareto_fraction: float = 0.0,
        pareto_increase: float = 0.1,
        relabel_fraction: float = 0.0,
        relabel_slack: float = 1.0,
        scaling: Scaling | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Find what is to go at every step.

        Args:
            dataset: Trajectories.
            context_length: K, steps of a window, >= 1.
            batch_size: Windows of a batch, >= 1.
            sampling: `trajectory`: uniform over trajectories, then over their steps as the start
                of the window. `transition`: uniform over all steps. `cost_tilted`: trajectories
                with probability proportional to max(0, cost_ceiling - cost).
            cost_ceiling: Only for `cost_tilted`.
            weights: (M,) weight of each trajectory; ones by default.
            pareto_fraction: Share of windows taken from the frontier and relabelled: a cost is
                drawn, the best trajectory within it is taken, and its tokens ask for that cost
                and for a somewhat larger return. Rewards and costs stay real.
            pareto_increase: Largest increase of that return, as a share of the range of returns.
            relabel_fraction: Share of windows whose CTG gains a slack: a trajectory that cost C is
                shown as an answer to a budget zeta >= C, so that the token means "at most".
            relabel_slack: Mean of zeta - C, which is exponentially distributed, in units of cost.
            scaling: How observations and actions of a batch are scaled; None: not at all.
            device: Where batches are made.
            seed: Two samplers with the same seed draw the same batches.
        """
        for name, value in (("context_length", context_length), ("batch_size", batch_size)):
            if value < 1:
                raise InvalidArgumentError(f"`{name}` must be >= 1, got {value}.")
        self.context_length = context_length
        self.batch_size = batch_size
        self.device = torch.device(device)
        # The same expressions run on numpy arrays where the device is the CPU (several times
        # faster there for arrays of this size, and on one core) and on tensors elsewhere.
        self._xp: Any = _array_module(self.device)
        n = len(dataset)
        array = self._array
        self._final_obs = array(dataset.final_observations)
        self._obs, self._actions, self._rewards, self._costs = (
            array(np.ascontiguousarray(values))
            for values in (
                dataset.observations, dataset.actions, dataset.rewards, dataset.costs,
            )
        )  # fmt: skip
        self._rtg, self._ctg = array(dataset.returns_to_go), array(dataset.costs_to_go)
        self._lengths, self._firsts = array(dataset.lengths), array(dataset.offsets[:-1])
        self._terminated = array(dataset.terminated)
        self._final_known = array(dataset.terminated | dataset.final_known)
        self._scale_obs = self._scale_actions = None
        if scaling is not None:
            self._scale_obs = tuple(map(array, scaling.obs_scale))
            self._scale_actions = tuple(map(array, scaling.action_scale))
        self._places = self._array(np.arange(context_length + 1))
        self.set_weights(torch.ones(n) if weights is None else weights)
        self.probabilities = _probabilities(dataset, sampling, cost_ceiling)
        self._cdf = None if sampling == "trajectory" else self._array(np.cumsum(self.probabilities))
        self._pareto_fraction = pareto_fraction
        self._pareto_increase = pareto_increase * float(np.ptp(dataset.episode_returns))
        self._relabel_fraction = relabel_fraction
        self._relabel_slack = relabel_slack
        frontier = dataset.frontier()
        self._frontier_rows = self._array(frontier.rows)
        self._frontier_costs = self._array(frontier.costs.astype(np.float64))
        self._generator = torch.Generator(device=self.device)
        self._generator.manual_seed(seed)

    def set_weights(self, weights: Tensor) -> None:
        """Set the (M,) weight of each trajectory."""
        expected = tuple(self._lengths.shape)
        if tuple(weights.shape) != expected:
            raise InvalidArgumentError(
                f"`weights` must have shape {expected}, got {tuple(weights.shape)}."
            )
        self._weights = self._array(weights.float().numpy())

    def sample(self) -> Batch:
        """Draw the next batch."""
        n = len(self._lengths)
        uniform = self._uniform(2)
        if self._cdf is None:
            chosen = self._whole(uniform[0] * n)
        else:
            at = uniform[0] * self._cdf[-1]
            chosen = self._xp.searchsorted(self._cdf, at, side="right").clip(max=n - 1)
        more_return: Any = None
        more_cost: Any = None
        if self._pareto_fraction:
            chosen, more_return, more_cost = self._towards_frontier(chosen)
        if self._relabel_fraction:
            slack = self._slack()
            more_cost = slack if more_cost is None else more_cost + slack
        batch = self._windows(chosen, self._whole(uniform[1] * self._lengths[chosen]))
        if more_return is not None:
            gain = self._tensor(more_return).float()[:, None] * batch.mask
            batch = replace(batch, rtg=batch.rtg + gain)
        if more_cost is not None:
            gain = self._tensor(more_cost).float()[:, None] * batch.mask
            batch = replace(batch, ctg=batch.ctg + gain)
        return batch

    def windows(self, trajectories: Tensor, starts: Tensor) -> Batch:
        """The windows that begin at step `starts` of `trajectories`, both (B,) int64.

        Raises:
            InvalidArgumentError: There is no such step.
        """
        lengths = torch.as_tensor(self._lengths)[trajectories]
        if ((starts < 0) | (starts >= lengths)).any():
            raise InvalidArgumentError("`starts` must be steps of their trajectories.")
        return self._windows(self._array(trajectories.numpy()), self._array(starts.numpy()))

    def _windows(self, chosen: Any, starts: Any) -> Batch:
        length = self._lengths[chosen][:, None]
        place = starts[:, None] + self._places  # (B, T + 1)
        step = place[:, :-1]
        mask = step < length
        obs, actions, *numbers = self._gather(chosen, starts)
        obs = self._with_final(obs, place == length, chosen)
        if self._scale_obs is not None:
            mean, std = self._scale_obs
            obs = (obs - mean) / std
        if self._scale_actions is not None:
            low, high = self._scale_actions
            actions = 2 * (actions - low) / (high - low) - 1
        last = step == length - 1
        tensor, real = self._tensor, self._clearing(mask)
        return Batch(
            obs=tensor(real(obs[:, :-1])),
            actions=tensor(real(actions)),
            **{name: tensor(real(values)) for name, values in zip(_NUMBERS, numbers, strict=True)},
            timesteps=tensor(real(step)),
            mask=tensor(mask),
            next_obs=tensor(real(obs[:, 1:])),
            terminals=tensor(last & self._terminated[chosen][:, None]),
            next_known=tensor(mask & (~last | self._final_known[chosen][:, None])),
            weights=tensor(self._weights[chosen]),
            trajectories=tensor(chosen),
        )

    def _gather(self, chosen: Any, starts: Any) -> list[Any]:
        """Observations (B, T + 1, O), actions (B, T, A) and the four numbers of a step (B, T).

        Beyond the end of a trajectory they are anything.
        """
        n = self.context_length
        arrays = (self._obs, self._actions, self._rewards, self._costs, self._rtg, self._ctg)
        lengths, first = [n + 1, *[n] * 5], self._firsts[chosen] + starts
        left = self._lengths[chosen] - starts
        found = kernels.runs(arrays, lengths, first, left) if self._xp is np else None
        if found is not None:
            return found
        rows = first[:, None] + self._xp.minimum(self._places, left[:, None] - 1)
        return [self._take(x, rows[:, :t]) for x, t in zip(arrays, lengths, strict=True)]

    def _with_final(self, obs: Any, after_end: Any, chosen: Any) -> Any:
        """Observations (B, T, O), where a trajectory is over (B, T) its final one."""
        if self._xp is np:  # a few
            which, at = np.nonzero(after_end)
            obs[which, at] = self._final_obs[chosen[which]]
            return obs
        return torch.where(after_end[..., None], self._final_obs[chosen][:, None], obs)

    def _clearing(self, mask: Any) -> Callable[[Any], Any]:
        """A function that clears values (B, T, ...) beyond the end, a view's in a copy."""
        if self._xp is np:  # a few
            beyond = np.nonzero(~mask)

            def clear(values: Any) -> Any:
                values = values if values.flags.owndata else values.copy()
                values[beyond] = 0
                return values

            return clear
        return lambda values: values * mask.view(*mask.shape, *[1] * (values.ndim - 2))

    def _slack(self) -> Any:
        """(B,) what the CTG of each window gains: zero, or exponentially distributed."""
        draw = self._uniform(2)
        return -self._relabel_slack * self._xp.log1p(-draw[1]) * (draw[0] < self._relabel_fraction)

    def _towards_frontier(self, chosen: Any) -> tuple[Any, Any, Any]:
        """Swap some trajectories for frontier ones, with what their tokens gain."""
        draw = self._uniform(3)
        low, high = self._frontier_costs[0], self._frontier_costs[-1]
        cost = low + draw[1] * (high - low)
        place = self._xp.searchsorted(self._frontier_costs, cost, side="right") - 1
        swapped = draw[0] < self._pareto_fraction
        more_cost = (cost - self._frontier_costs[place]) * swapped
        more_return = draw[2] * self._pareto_increase * swapped
        return self._xp.where(swapped, self._frontier_rows[place], chosen), more_return, more_cost

    def _uniform(self, n: int) -> Any:
        """(n, B) uniform numbers in float64, so that long trajectories are reached evenly."""
        size = (n, self.batch_size)
        draw = torch.rand(size, dtype=torch.float64, generator=self._generator, device=self.device)
        return draw.numpy() if self._xp is np else draw

    def _whole(self, values: Any) -> Any:
        return values.astype(np.int64) if self._xp is np else values.long()

    def _take(self, values: Any, rows: Any) -> Any:
        if self._xp is np:
            return values.take(rows, axis=0)
        return values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])

    def _array(self, values: np.ndarray[Any, Any]) -> Any:
        """Where the sampler computes: numpy for the CPU, a tensor on another device."""
        return values if self._xp is np else torch.from_numpy(values).to(self.device)

    def _tensor(self, values: Any) -> Tensor:
        return torch.from_numpy(values) if self._xp is np else values

    def state_dict(self) -> dict[str, Tensor]:
        """What is needed to draw the same batches from here on."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._generator.set_state(state["generator"])


def _array_module(device: torch.device) -> Any:
    return np if device.type == "cpu" else torch


def normalize_weights(weights: Tensor, probabilities: Tensor, maximum: float) -> Tensor:
    """Divide by the mean under the sampler, then clip: the loss keeps its scale (row 6)."""
    mean = (weights * probabilities).sum() / probabilities.sum()
    return (weights / mean).clamp(max=maximum)


def _probabilities(
    dataset: TrajectoryDataset, sampling: Sampling, cost_ceiling: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(M,) how likely each trajectory is to be drawn."""
    if sampling == "trajectory":
        weight = np.ones(len(dataset))
    elif sampling == "transition":
        weight = dataset.lengths.astype(np.float64)
    elif sampling == "cost_tilted":
        weight = np.maximum(0.0, cost_ceiling - dataset.episode_costs.astype(np.float64))
        if not weight.any():
            raise InvalidArgumentError(
                f"`cost_ceiling` must exceed the smallest cost of the data "
                f"({dataset.episode_costs.min():g}), got {cost_ceiling:g}."
            )
    else:
        raise InvalidArgumentError(
            f"`sampling` must be trajectory, transition or cost_tilted, got {sampling!r}."
        )
    return np.asarray(weight / weight.sum())
