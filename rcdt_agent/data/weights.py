"""How likely each trajectory is to be drawn, and how much it weighs in the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rcdt_agent import losses
from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.config import Config, Sampling
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.dominance import DominanceTable
from rcdt_agent.data.frontier import MIN_TRAJECTORIES, Outcomes, ReturnToGoTable
from rcdt_agent.errors import InvalidArgumentError


def trajectory_probabilities(
    dataset: TrajectoryDataset, sampling: Sampling, cost_ceiling: float
) -> Float64Array:
    """(M,) how likely each trajectory is to be drawn.

    Args:
        dataset: Trajectories.
        sampling: `trajectory`: uniform over trajectories, then over their steps as the start of
            the window. `transition`: uniform over all steps. `cost_tilted`: proportional to
            max(0, cost_ceiling - cost).
        cost_ceiling: Only for `cost_tilted`.
    """
    if sampling == "trajectory":
        weight = np.ones(len(dataset))
    elif sampling == "transition":
        weight = dataset.lengths.astype(np.float64)
    else:
        refuse_several(dataset.cost_names, "`sampling='cost_tilted'`")
        weight = np.maximum(0.0, cost_ceiling - dataset.episode_costs.astype(np.float64))
        if not weight.any():
            raise InvalidArgumentError(
                f"`cost_ceiling` must exceed the smallest cost of the data "
                f"({dataset.episode_costs.min():g}), got {cost_ceiling:g}."
            )
    return np.asarray(weight / weight.sum())


def normalize_weights(
    weights: Tensor, probabilities: Tensor, maximum: float, floor: float = 0.0
) -> Tensor:
    """Divide by the mean under the sampler, then clip: the loss keeps its scale (row 6).

    With a floor every trajectory is imitated somewhat. Without one, W of costly trajectories goes
    to zero, and what their tokens mean is left to the critic terms alone.
    """
    mean = (weights * probabilities).sum() / probabilities.sum()
    return (weights / mean).clamp(min=floor, max=maximum)


TYPICAL_QUANTILE = 0.5
"""Of the returns that `frontier` weights take for typical."""


_STEPS, _TRAJECTORIES = 64, 512  # that steps of several costs are compared with, at most


class FrontierWeights:
    """`losses.frontier_weights` of steps and their tokens, looked up in tables of the data."""

    def __init__(
        self,
        dataset: TrajectoryDataset,
        *,
        quantile: float,
        cost_unit: npt.ArrayLike,
        sharpness: float,
    ) -> None:
        """Tabulate the best and the typical returns-to-go.

        Args:
            dataset: Training data.
            quantile: Which return-to-go is the best, such as 0.99: one lucky trajectory is not.
            cost_unit: As for `ReturnToGoTable.fit`; (m,) of several costs.
            sharpness: As for `losses.frontier_weights`.
        """
        self.sharpness = sharpness
        levels = quantile, TYPICAL_QUANTILE
        self._lookup: Callable[..., Iterable[Float32Array]]
        if dataset.n_costs == 1:
            unit = float(np.asarray(cost_unit))
            tables = [ReturnToGoTable.fit(dataset, quantile=q, cost_unit=unit) for q in levels]
            self._lookup = lambda steps, costs: [table(steps, costs) for table in tables]
        else:
            several = DominanceTable.fit(
                dataset,
                quantile=quantile,
                cost_unit=cost_unit,
                least=MIN_TRAJECTORIES,
                n_steps=_STEPS,
                n_trajectories=_TRAJECTORIES,
            )
            self._lookup = lambda steps, costs: several.quantiles(steps, costs, levels)
        self._least = 1e-3 * float(np.ptp(dataset.episode_returns)) or 1e-3

    @classmethod
    def from_config(
        cls, dataset: TrajectoryDataset, config: Config, cost_unit: npt.ArrayLike
    ) -> FrontierWeights:
        """With a configuration's quantile and sharpness."""
        return cls(
            dataset,
            quantile=config.target_quantile,
            cost_unit=cost_unit,
            sharpness=config.frontier_sharpness,
        )

    def of_trajectories(self, dataset: TrajectoryDataset) -> Tensor:
        """(M,) mean weight of each trajectory's steps, shown with what they did cost."""
        timesteps = np.concatenate([np.arange(length) for length in dataset.lengths])
        columns = (timesteps, dataset.returns_to_go, dataset.costs_to_go)
        weights = self(*(torch.from_numpy(np.ascontiguousarray(column)) for column in columns))
        sums = np.add.reduceat(weights.double().numpy(), dataset.offsets[:-1])
        return torch.from_numpy(sums / dataset.lengths).float()

    def __call__(self, timesteps: Tensor, rtg: Tensor, ctg: Tensor) -> Tensor:
        """(B,) weights of steps (B,) with these returns-to-go, shown with these cost tokens."""
        found = self._lookup(timesteps.cpu().numpy(), ctg.cpu().numpy())
        best, typical = (torch.from_numpy(values).to(rtg.device) for values in found)
        best = torch.maximum(best, typical + self._least)  # where all returns are alike
        return losses.frontier_weights(rtg, best, typical, self.sharpness)


def outcome_weights(outcomes: Outcomes, config: Config, cost_limit: npt.ArrayLike) -> Tensor:
    """(M,) trajectory weights of a configuration, before normalisation.

    Of several costs, each with its limit (m,), the safety factors are multiplied.
    """
    returns, costs = torch.from_numpy(outcomes.returns), torch.from_numpy(outcomes.costs)
    if config.weighting == "return_cost":
        first, *others = zip(
            costs.reshape(len(costs), -1).unbind(1), np.ravel(cost_limit).tolist(), strict=True
        )
        weights = losses.trajectory_weights(
            returns, first[0], alpha=config.alpha, gamma=config.gamma, cost_limit=first[1]
        )
        for cost, limit in others:
            weights = weights * torch.sigmoid(config.gamma * (limit - cost))
        return weights
    if config.weighting == "expert":
        threshold = torch.quantile(returns, 1 - config.expert_fraction)
        return losses.expert_weights(returns >= threshold, config.alpha)
    return torch.ones(len(returns))
