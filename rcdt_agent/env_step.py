"""What an environment's `step` returned, in one form, with its cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rcdt_agent.errors import InvalidArgumentError

CostFunction = Callable[[Any, Any, Any, dict[str, Any]], float]
"""(observation, action, next observation, info) -> cost of the step."""


class Step(NamedTuple):
    """One step; `info` holds the cost as well."""

    obs: Any
    reward: float
    cost: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def read_step(
    values: Any,
    *,
    cost_key: str = "cost",
    cost_fn: CostFunction | None = None,
    before: Any = None,
    action: Any = None,
) -> Step:
    """Read a step of five values (cost in `info`) or six (cost in third place).

    Args:
        values: What `step` returned.
        cost_key: Where in `info` the cost is.
        cost_fn: Computes the cost instead, also of a six-value step.
        before: Observation before the step, for `cost_fn`.
        action: Action taken, for `cost_fn`.

    Raises:
        InvalidArgumentError: There is no cost, or it is no number, negative or not finite.
    """
    if len(values) == 6:
        obs, reward, cost, terminated, truncated, info = values
    else:
        obs, reward, terminated, truncated, info = values
        cost = None if cost_fn else cost_in(info, cost_key)
    if cost_fn:
        cost = cost_fn(before, action, obs, info)
    cost = step_cost(cost)
    earned = _number(reward)
    if earned is None:
        raise InvalidArgumentError(f"The reward of a step must be one number, got {reward!r}.")
    info = {**info, "cost": cost}
    return Step(obs, earned, cost, bool(terminated), bool(truncated), info)


def cost_in(info: dict[str, Any], key: str) -> Any:
    """The cost in `info`; its absence is an error, never a zero."""
    if key not in info:
        raise InvalidArgumentError(
            f"The environment reported no cost: `cost_key` is {key!r}, `info` holds "
            f"{sorted(info)}. Name the key, or give a `cost_fn`."
        )
    return info[key]


def step_cost(cost: Any) -> float:
    """The cost of a step as a number: one, finite and >= 0."""
    number = _number(cost)
    if number is None:
        raise InvalidArgumentError(
            f"The cost of a step must be one number, got {cost!r}. Name another `cost_key`, or "
            f"give a `cost_fn` that makes one number of it."
        )
    if not (np.isfinite(number) and number >= 0):
        raise InvalidArgumentError(f"The cost of a step must be finite and >= 0, got {number}.")
    return number


def _number(value: Any) -> float | None:
    """A number, also in an array of one; None for anything else."""
    if isinstance(value, float | int):
        return float(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None
