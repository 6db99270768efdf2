"""Checks of what a user hands to an agent that acts; numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.errors import InvalidArgumentError


def check_budget(cost_budget: Any) -> float:
    """One cost budget as a number.

    Raises:
        InvalidArgumentError: Not one number, negative, or not finite.
    """
    budgets = check_budgets(cost_budget)
    if np.ndim(cost_budget) != 0:
        raise InvalidArgumentError(
            f"`cost_budget` must be one number, got {cost_budget!r}; `agent.begin(n, cost_budget)` "
            f"takes one for each of n environments."
        )
    return float(budgets[0])


def check_budgets(cost_budget: Any, n_envs: int | None = None) -> Float64Array:
    """Cost budgets as numbers: (n_envs,), from one or as many; without it, as many as given.

    Raises:
        InvalidArgumentError: Not numbers, negative, not finite, or not as many.
    """
    budgets = _numbers(cost_budget)
    if budgets is None or not (np.isfinite(budgets) & (budgets >= 0)).all():
        raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget!r}.")
    return _one_each("cost_budget", budgets, n_envs)


def check_targets(target_return: Any, n_envs: int) -> Float64Array:
    """Target returns (n_envs,) as numbers, from one or as many.

    Raises:
        InvalidArgumentError: Not numbers, not finite, or not as many.
    """
    targets = _numbers(target_return)
    if targets is None or not np.isfinite(targets).all():
        raise InvalidArgumentError(f"`target_return` must be finite, got {target_return!r}.")
    return _one_each("target_return", targets, n_envs)


def observation_rows(observation: Any, shape: tuple[int, ...]) -> tuple[Float32Array, bool]:
    """Observations (N, O), and whether a single one was given.

    Raises:
        InvalidArgumentError: Wrong shape, or not finite.
    """
    array = np.asarray(observation, dtype=np.float32)
    single = array.shape == shape
    if not single and array.shape[1:] != shape:
        raise InvalidArgumentError(
            f"`observation` must have shape {shape}, or (N, {', '.join(map(str, shape))}) for "
            f"N environments, got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"`observation` must be finite, got {observation}.")
    return array.reshape(1 if single else len(array), -1), single


def _numbers(values: Any) -> Float64Array | None:
    """Values as float64, or None if they are no numbers: text that looks like one is not."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        return None
    return array.astype(np.float64) if array.dtype.kind in "iuf" else None


def _one_each(name: str, values: Float64Array, n_envs: int | None) -> Float64Array:
    if values.ndim > 1 or (n_envs is not None and values.size not in (1, n_envs)):
        raise InvalidArgumentError(
            f"`{name}` must be one number, or one for each of {n_envs or 'several'} environments, "
            f"got shape {values.shape}."
        )
    return values.reshape(-1) if n_envs is None else np.broadcast_to(values, (n_envs,)).copy()
