"""Statistics of results, each in one place: normalised scores, intervals, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def t_interval(values: npt.ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean of (S,) values, one a seed; NaN for a single one."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return float("nan"), float("nan")
    from scipy import stats  # type: ignore[import-untyped]  # slow to import

    mean, error = array.mean(), array.std(ddof=1) / np.sqrt(len(array))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(array) - 1)) * error
    return float(mean - reach), float(mean + reach)


def paired_interval(gaps: Sequence[npt.ArrayLike], confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the mean over tasks of each task's mean gap, seeds as the unit within tasks.

    Welch and Satterthwaite's: seeds of different tasks are independent trainings, so all tasks
    tell how much seeds vary. It holds for these tasks and says nothing of others.

    Args:
        gaps: For each task (S,) differences, one a seed; at least two.
        confidence: Of the interval.
    """
    arrays = [np.asarray(task, dtype=np.float64) for task in gaps]
    if any(len(array) < 2 for array in arrays):
        return float("nan"), float("nan")
    from scipy import stats

    mean = float(np.mean([array.mean() for array in arrays]))
    variances = np.array([array.var(ddof=1) / len(array) for array in arrays])
    if not variances.any():
        return mean, mean
    freedom = variances.sum() ** 2 / sum(
        variance**2 / (len(array) - 1) for variance, array in zip(variances, arrays, strict=True)
    )
    error = np.sqrt(variances.sum()) / len(arrays)
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom) * error)
    return mean - reach, mean + reach


def share_interval(wins: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, of which `wins` of `n` were seen."""
    from scipy import stats

    found = stats.binomtest(wins, n).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def upper_limit(values: npt.ArrayLike, confidence: float = 0.95) -> float:
    """One-sided upper t limit of the mean of (S,) values; NaN for a single one."""
    return t_interval(values, 2 * confidence - 1)[1]


def interquartile_mean(scores: npt.ArrayLike) -> float:
    """Mean of the middle half of all scores (seeds and tasks together), as rliable defines it."""
    from scipy import stats

    return float(stats.trim_mean(np.ravel(np.asarray(scores, dtype=np.float64)), 0.25))


def probability_of_improvement(
    first: Sequence[npt.ArrayLike], second: Sequence[npt.ArrayLike]
) -> float:
    """How likely a seed of the first method beats one of the second on a task, as in rliable.

    Args:
        first: For each task (S,) scores, one a seed.
        second: Likewise; the number of seeds may differ.

    Returns:
        Mean over tasks of the share of pairs that the first wins; ties count half.
    """
    shares = []
    for ours, theirs in zip(first, second, strict=True):
        gaps = np.asarray(ours, dtype=np.float64)[:, None] - np.asarray(theirs, dtype=np.float64)
        shares.append(float((gaps > 0).mean() + 0.5 * (gaps == 0).mean()))
    return float(np.mean(shares))


def stratified_bootstrap(
    statistic: Callable[..., float], *scores: Sequence[npt.ArrayLike], seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of a statistic, seeds resampled within each task.

    Args:
        statistic: Of as many arguments as there are `scores`.
        *scores: For each method, for each task, (S,) scores.
        seed: Of the resamples.
    """
    rng = np.random.default_rng(seed)
    arrays = [[np.asarray(task, dtype=np.float64) for task in method] for method in scores]
    drawn = [
        statistic(*([t[rng.integers(0, len(t), len(t))] for t in method] for method in arrays))
        for _ in range(N_RESAMPLES)
    ]
    return interval(np.array(drawn))
