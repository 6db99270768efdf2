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
        InvalidArgumentError: There is no cost, or it is negative or not finite.
    """
    if len(values) == 6:
        obs, reward, cost, terminated, truncated, info = values
    else:
        obs, reward, terminated, truncated, info = values
        cost = None if cost_fn else cost_in(info, cost_key)
    if cost_fn:
        cost = cost_fn(before, action, obs, info)
    cost = float(cost)
    if not (np.isfinite(cost) and cost >= 0):
        raise InvalidArgumentError(f"The cost of a step must be finite and >= 0, got {cost}.")
    info = {**info, "cost": cost}
    return Step(obs, float(reward), cost, bool(terminated), bool(truncated), info)


def cost_in(info: dict[str, Any], key: str) -> float:
    """The cost in `info`; its absence is an error, never a zero."""
    if key not in info:
        raise InvalidArgumentError(
            f"The environment reported no cost: `cost_key` is {key!r}, `info` holds "
            f"{sorted(info)}. Name the key, or give a `cost_fn`."
        )
    return float(info[key])
