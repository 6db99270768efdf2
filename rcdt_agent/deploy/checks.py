"""Checks of what a user hands to an agent that acts; numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.errors import InvalidArgumentError


def check_budget(cost_budget: Any) -> Float64Array:
    """A cost budget, or several, as numbers.

    Raises:
        InvalidArgumentError: Not a number, negative, or not finite.
    """
    try:
        budgets = np.asarray(cost_budget, dtype=np.float64)
    except (TypeError, ValueError):
        budgets = np.array(np.nan)
    if not (np.isfinite(budgets) & (budgets >= 0)).all():
        raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget!r}.")
    return budgets


def one_budget(cost_budget: Any) -> float:
    """One cost budget.

    Raises:
        InvalidArgumentError: As `check_budget`, or several.
    """
    budgets = check_budget(cost_budget)
    if budgets.size != 1:
        raise InvalidArgumentError(
            f"`cost_budget` must be one number, got {cost_budget!r}; `agent.begin` takes several."
        )
    return float(budgets.item())


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
