"""What an environment's `step` returned, in one form, with its cost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rcdt_agent.arguments import check_functions
from rcdt_agent.costs import ONE_COST, by_name, in_order
from rcdt_agent.errors import InvalidArgumentError

CostFunction = Callable[[Any, Any, Any, dict[str, Any]], Any]
"""(observation, action, next observation, info) -> cost of the step; of several costs, a dict."""

CostKey = str | Sequence[str] | Mapping[str, str]
"""Where in `info` the cost is. Several costs are a dict or an array there, or have a key each: keys
that are their names, or a dict from names to keys."""


def check_cost_source(cost_key: Any, cost_fn: Any) -> None:
    """Refuse what says nothing about where the cost of a step is.

    Raises:
        InvalidArgumentError: `cost_key` is not a key, or `cost_fn` not a function; of several
            costs, a dict of functions.
    """
    keys = list(cost_key.values()) if isinstance(cost_key, Mapping) else cost_key
    listed = isinstance(keys, list | tuple) and all(isinstance(key, str) for key in keys)
    if not (isinstance(cost_key, str) or listed):
        raise InvalidArgumentError(
            f"`cost_key` must be a key of `info`, or keys by the names of the costs, got "
            f"{cost_key!r}."
        )
    check_functions(cost_fn=cost_fn)


def kept_for(cost_fn: CostFunction | None, obs: Any) -> Any:
    """A copy of an observation for a later `cost_fn`: environments may write into theirs."""
    return copy.deepcopy(obs) if cost_fn else None


class Step(NamedTuple):
    """One step; `info` holds the cost as well."""

    obs: Any
    reward: float
    cost: Any
    """A number; (m,) of several costs, by name in `info`."""
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def read_step(
    values: Any,
    *,
    cost_key: CostKey = "cost",
    cost_fn: CostFunction | None = None,
    before: Any = None,
    action: Any = None,
    cost_names: Sequence[str] = ONE_COST,
) -> Step:
    """Read a step of five values (cost in `info`) or six (cost in third place).

    Args:
        values: What `step` returned.
        cost_key: Where in `info` the cost is.
        cost_fn: Computes the cost instead, also of a six-value step.
        before: Observation before the step, for `cost_fn`.
        action: Action taken, for `cost_fn`.
        cost_names: Of the costs.

    Raises:
        InvalidArgumentError: There is no cost, it is no number, negative or not finite, or one of
            several is unknown or missing.
    """
    if len(values) == 6:
        obs, reward, cost, terminated, truncated, info = values
    else:
        obs, reward, terminated, truncated, info = values
        cost = None if cost_fn else cost_in(info, cost_key)
    if cost_fn:
        cost = cost_fn(before, action, obs, info)
    cost = step_cost(cost, cost_names)
    earned = _number(reward)
    if earned is None:
        raise InvalidArgumentError(f"The reward of a step must be one number, got {reward!r}.")
    info = {**info, "cost": by_name(cost, cost_names)}
    return Step(obs, earned, cost, bool(terminated), bool(truncated), info)


def cost_in(info: dict[str, Any], key: CostKey) -> Any:
    """The cost in `info`; its absence is an error, never a zero."""
    if not isinstance(key, str):
        keys = key if isinstance(key, Mapping) else dict(zip(key, key, strict=True))
        return {name: cost_in(info, at) for name, at in keys.items()}
    if key not in info:
        raise InvalidArgumentError(
            f"The environment reported no cost: `cost_key` is {key!r}, `info` holds "
            f"{sorted(info)}. Name the key, or give a `cost_fn`."
        )
    return info[key]


def step_cost(cost: Any, cost_names: Sequence[str] = ONE_COST) -> Any:
    """The cost of a step as a number, finite and >= 0; of several costs (m,), in their order."""
    if len(cost_names) > 1:
        if isinstance(cost, Mapping):
            cost = in_order("The cost of a step", cost, cost_names)
        elif np.shape(cost) != (len(cost_names),):
            raise InvalidArgumentError(
                f"The cost of a step must hold {len(cost_names)} costs "
                f"({', '.join(cost_names)}), got {cost!r}."
            )
        return np.array([step_cost(one) for one in cost])
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
