"""Checks of what a user hands to an agent that acts; numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.errors import InvalidArgumentError


def check_budget(cost_budget: Any) -> float:
    """One cost budget.

    Raises:
        InvalidArgumentError: Not one number, negative, or not finite.
    """
    budgets = check_budgets(cost_budget)
    if budgets.size != 1:
        raise InvalidArgumentError(
            f"`cost_budget` must be one number, got {cost_budget!r}; `agent.begin` takes several."
        )
    return float(budgets.item())


def check_budgets(cost_budget: Any, n_envs: int | None = None) -> Float64Array:
    """Cost budgets of `n_envs` environments (N,), from a number or one for each.

    Raises:
        InvalidArgumentError: Not numbers, negative, not finite, or not as many.
    """
    budgets = _numbers("cost_budget", cost_budget, n_envs)
    if not (budgets >= 0).all():
        raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget!r}.")
    return budgets


def check_targets(target_return: Any, n_envs: int) -> Float64Array:
    """Target returns of `n_envs` environments (N,), from a number or one for each.

    Raises:
        InvalidArgumentError: Not numbers, not finite, or not as many.
    """
    return _numbers("target_return", target_return, n_envs)


def _numbers(name: str, values: Any, n_envs: int | None) -> Float64Array:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"`{name}` must be a finite number, got {values!r}.")
    if n_envs is None:
        return array
    if array.shape not in ((), (n_envs,)):
        raise InvalidArgumentError(
            f"`{name}` must be a number or have shape ({n_envs},), got {values!r}."
        )
    return np.broadcast_to(array, (n_envs,))


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
