"""What each cost token cost when it was measured, and which token therefore keeps a budget."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.stats import bootstrap_means

_RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCalibration:
    """What episodes cost at each token, measured in an environment, and how sure that is.

    Attributes:
        tokens: (T,) increasing cost budgets the policy was given.
        costs: (T,) mean cost of the episodes, fitted to never fall with the token.
        upper: (T,) upper confidence bound of that mean.
        confidence: Of the bound, one-sided.
        n_episodes: Episodes per token.
        seed: Episode e was reset with `seed + e`.
        offline: Estimated from `n_episodes` logged trajectories instead, with `seed`.
    """

    tokens: Float64Array
    costs: Float64Array
    upper: Float64Array
    confidence: float
    n_episodes: int
    seed: int
    offline: bool = False

    @classmethod
    def fit(
        cls, tokens: npt.ArrayLike, episode_costs: Float64Array, *, confidence: float, seed: int
    ) -> TokenCalibration:
        """Fit the curve and bootstrap its bound.

        Args:
            tokens: (T,) increasing.
            episode_costs: (T, E) cost of each episode.
            confidence: One-sided, in [0.5, 1).
            seed: Of the episodes and of the bootstrap.
        """
        if not 0.5 <= confidence < 1:
            raise InvalidArgumentError(f"`confidence` must be in [0.5, 1), got {confidence}.")
        rng = np.random.default_rng(seed)
        means = bootstrap_means(episode_costs, rng, _RESAMPLES)
        return cls(
            tokens=np.asarray(tokens, dtype=np.float64),
            costs=isotonic_fit(episode_costs.mean(1)),
            upper=np.quantile(isotonic_fit(means), confidence, axis=0),
            confidence=confidence,
            n_episodes=episode_costs.shape[1],
            seed=seed,
        )

    def token(self, cost_budget: npt.ArrayLike) -> Float32Array:
        """The largest token whose upper bound is within the budget, between tokens linearly.

        Below the bound of the smallest token, that token: `warn_if_uncovered` says so.
        """
        # Of tokens with equal bounds the largest counts: steps of the curve are read at their end.
        bounds, last = np.unique(self.upper[::-1], return_index=True)
        tokens = self.tokens[::-1][last]
        found = np.interp(np.asarray(cost_budget, dtype=np.float64), bounds, tokens)
        return np.asarray(found, dtype=np.float32)

    def warn_if_uncovered(self, cost_budget: float) -> None:
        """Say aloud when no measured token keeps the budget."""
        if self.upper[0] > cost_budget:
            sure = "by the data" if self.offline else f"with {self.confidence:.0%} confidence"
            warnings.warn(
                f"No token kept the cost budget {cost_budget:g} in calibration: the smallest cost "
                f"{self.costs[0]:.3g} on average (at most {self.upper[0]:.3g} {sure}).",
                stacklevel=4,
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        arrays = {name: getattr(self, name).tolist() for name in ("tokens", "costs", "upper")}
        return {
            **arrays,
            "confidence": self.confidence,
            "n_episodes": self.n_episodes,
            "seed": self.seed,
            "offline": self.offline,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TokenCalibration:
        """The inverse of `to_dict`."""
        arrays = {name: np.asarray(values[name], float) for name in ("tokens", "costs", "upper")}
        if len({array.shape for array in arrays.values()}) != 1 or arrays["tokens"].ndim != 1:
            raise ValueError("a calibration's rows must be as long as each other")
        return cls(
            **arrays,
            confidence=float(values["confidence"]),
            n_episodes=int(values["n_episodes"]),
            seed=int(values["seed"]),
            offline=bool(values.get("offline", False)),  # files of earlier versions have none
        )


def isotonic_fit(values: Float64Array) -> Float64Array:
    """Least-squares fit (..., T) that never falls along the last axis.

    The max-min formula of isotonic regression, for many rows at once; fine for tens of values.
    """
    size = values.shape[-1]
    sums = np.concatenate((np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)), axis=-1)
    fit = np.full(values.shape, -np.inf)
    for start in range(size):
        lengths = np.arange(1, size - start + 1)
        means = (sums[..., start + 1 :] - sums[..., start : start + 1]) / lengths
        smallest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
        fit[..., start:] = np.maximum(fit[..., start:], smallest)
    return fit


def token_grid(budgets: npt.ArrayLike, largest_cost: float, n_tokens: int) -> Float64Array:
    """Tokens worth measuring for some budgets: zero, then in equal ratios to beyond the largest.

    Args:
        budgets: The budgets that will be asked for, >= 0.
        largest_cost: In the training data; tokens beyond it mean nothing.
        n_tokens: How many, >= 3.
    """
    requested = np.asarray(budgets, dtype=np.float64)
    positive = requested[requested > 0]
    if n_tokens < 3 or not len(positive):
        raise InvalidArgumentError("Calibration needs a positive budget and at least 3 tokens.")
    first = positive.min() / 5
    last = min(positive.max() * 1.5, max(largest_cost, positive.max()))
    return np.concatenate(([0.0], np.geomspace(first, last, n_tokens - 1)))
