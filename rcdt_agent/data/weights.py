"""How likely each trajectory is to be drawn, and how much it weighs in the loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rcdt_agent import losses
from rcdt_agent._types import Float64Array
from rcdt_agent.config import Config, Sampling
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import Outcomes, ReturnToGoTable
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


class FrontierWeights:
    """`losses.frontier_weights` of steps and their tokens, looked up in tables of the data."""

    def __init__(
        self, dataset: TrajectoryDataset, *, quantile: float, cost_unit: float, sharpness: float
    ) -> None:
        """Tabulate the best and the typical returns-to-go.

        Args:
            dataset: Training data.
            quantile: Which return-to-go is the best, such as 0.99: one lucky trajectory is not.
            cost_unit: As for `ReturnToGoTable.fit`.
            sharpness: As for `losses.frontier_weights`.
        """
        self.sharpness = sharpness
        self._best = ReturnToGoTable.fit(dataset, quantile=quantile, cost_unit=cost_unit)
        self._typical = ReturnToGoTable.fit(dataset, quantile=TYPICAL_QUANTILE, cost_unit=cost_unit)
        self._least = 1e-3 * float(np.ptp(dataset.episode_returns)) or 1e-3

    def __call__(self, timesteps: Tensor, rtg: Tensor, ctg: Tensor) -> Tensor:
        """(B,) weights of steps (B,) with these returns-to-go, shown with these cost tokens."""
        steps, costs = timesteps.cpu().numpy(), ctg.cpu().numpy()
        best = torch.from_numpy(self._best(steps, costs)).to(rtg.device)
        typical = torch.from_numpy(self._typical(steps, costs)).to(rtg.device)
        best = torch.maximum(best, typical + self._least)  # where all returns are alike
        return losses.frontier_weights(rtg, best, typical, self.sharpness)


def outcome_weights(outcomes: Outcomes, config: Config, cost_limit: float) -> Tensor:
    """(M,) trajectory weights of a configuration, before normalisation."""
    returns, costs = torch.from_numpy(outcomes.returns), torch.from_numpy(outcomes.costs)
    if config.weighting == "return_cost":
        return losses.trajectory_weights(
            returns, costs, alpha=config.alpha, gamma=config.gamma, cost_limit=cost_limit
        )
    if config.weighting == "expert":
        threshold = torch.quantile(returns, 1 - config.expert_fraction)
        return losses.expert_weights(returns >= threshold, config.alpha)
    return torch.ones(len(returns))
