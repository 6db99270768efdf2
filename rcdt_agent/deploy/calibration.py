"""Token calibration: which CTG token keeps a cost budget, measured in an environment."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.errors import InvalidArgumentError

Floats = npt.NDArray[np.float64]

_DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCalibration:
    """What episodes cost at each token, and how sure that is.

    Attributes:
        tokens: (T,) increasing cost budgets the policy was given.
        costs: (T,) mean cost of the episodes, fitted to never fall with the token.
        upper: (T,) upper confidence bound of that mean.
        confidence: Of the bound, one-sided.
        n_episodes: Episodes a token.
        seed: Episode e was reset with `seed + e`.
    """

    tokens: Floats
    costs: Floats
    upper: Floats
    confidence: float
    n_episodes: int
    seed: int

    @classmethod
    def fit(
        cls, tokens: npt.ArrayLike, episode_costs: Floats, *, confidence: float, seed: int
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
        grid = np.asarray(tokens, dtype=np.float64)
        n_episodes = episode_costs.shape[1]
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, n_episodes, (_DRAWS, *episode_costs.shape))
        means = np.take_along_axis(episode_costs[None], drawn, axis=2).mean(2)  # (draws, T)
        return cls(
            tokens=grid,
            costs=isotonic(episode_costs.mean(1)),
            upper=np.quantile(isotonic(means), confidence, axis=0),
            confidence=confidence,
            n_episodes=n_episodes,
            seed=seed,
        )

    def token(self, budget: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The largest token whose upper bound is within the budget, between tokens linearly.

        Below the bound of the smallest token, that token: `warn_if_uncovered` says so.
        """
        # Of tokens with equal bounds the largest counts: steps of the curve are read at their end.
        bounds, last = np.unique(self.upper[::-1], return_index=True)
        tokens = self.tokens[::-1][last]
        found = np.interp(np.asarray(budget, dtype=np.float64), bounds, tokens)
        return np.asarray(found, dtype=np.float32)

    def warn_if_uncovered(self, budget: float) -> None:
        """Say aloud when no measured token keeps the budget."""
        if self.upper[0] > budget:
            warnings.warn(
                f"No token kept the cost budget {budget:g} in calibration: the smallest cost "
                f"{self.costs[0]:.3g} on average (at most {self.upper[0]:.3g} with "
                f"{self.confidence:.0%} confidence).",
                stacklevel=3,
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return {
            "tokens": self.tokens.tolist(),
            "costs": self.costs.tolist(),
            "upper": self.upper.tolist(),
            "confidence": self.confidence,
            "n_episodes": self.n_episodes,
            "seed": self.seed,
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
        )


def isotonic(values: Floats) -> Floats:
    """Least-squares fit (..., T) that never falls along the last axis.

    At each place, the largest over earlier starts of the smallest over later ends of the mean of
    that stretch (the max-min formula of isotonic regression); fine for tens of values.
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


def token_grid(budgets: npt.ArrayLike, most: float, n_tokens: int) -> Floats:
    """Tokens worth measuring for some budgets: zero, then in equal ratios to beyond the largest.

    Args:
        budgets: The budgets that will be asked for, >= 0.
        most: Largest cost in the training data; tokens beyond it mean nothing.
        n_tokens: How many, >= 3.
    """
    asked = np.asarray(budgets, dtype=np.float64)
    positive = asked[asked > 0]
    if n_tokens < 3 or not len(positive):
        raise InvalidArgumentError("Calibration needs a positive budget and at least 3 tokens.")
    smallest, largest = positive.min() / 5, min(positive.max() * 1.5, max(most, positive.max()))
    return np.concatenate(([0.0], np.geomspace(smallest, largest, n_tokens - 1)))
