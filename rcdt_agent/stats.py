"""Statistics of results, each in one place: normalised scores and bootstrap intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float64Array

N_RESAMPLES = 2000


def normalized_score(values: npt.ArrayLike, score_range: tuple[float, float]) -> Float64Array:
    """Returns scaled so that `score_range` maps to 0 and 1; they can fall outside."""
    low, high = score_range
    return np.asarray((np.asarray(values, dtype=np.float64) - low) / (high - low))


def bootstrap_means(
    values: npt.ArrayLike, rng: np.random.Generator, n_resamples: int = N_RESAMPLES
) -> Float64Array:
    """(n_resamples, ...) means of resamples with replacement along the last axis.

    Args:
        values: (..., E); each row is resampled by itself.
        rng: Source of the resamples.
        n_resamples: How many.
    """
    array = np.asarray(values, dtype=np.float64)
    drawn = rng.integers(0, array.shape[-1], (n_resamples, *array.shape))
    return np.asarray(np.take_along_axis(array[None], drawn, axis=-1).mean(-1))


def interval(means: Float64Array, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap means (n_resamples,)."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def bootstrap_interval(values: npt.ArrayLike, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of (E,) values."""
    return interval(bootstrap_means(values, np.random.default_rng(seed)))


def nested_bootstrap_interval(values: npt.ArrayLike, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of (seeds, budgets, episodes).

    Seeds are resampled, then the episodes of each; budgets stay.
    """
    array = np.asarray(values, dtype=np.float64)
    n_seeds, n_budgets, n_episodes = array.shape
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, n_seeds, (N_RESAMPLES, n_seeds, 1, 1))
    episodes = rng.integers(0, n_episodes, (N_RESAMPLES, n_seeds, n_budgets, n_episodes))
    drawn = array[chosen, np.arange(n_budgets)[:, None], episodes]
    return interval(drawn.mean((1, 2, 3)))
