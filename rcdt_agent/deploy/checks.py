"""Checks of what a user hands to an agent that acts; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.action_range import ActionRange
from rcdt_agent.arguments import as_floats
from rcdt_agent.base_config import is_number
from rcdt_agent.costs import ONE_COST, CostBudget, by_name, in_order
from rcdt_agent.errors import InvalidArgumentError


def check_budget(cost_budget: Any) -> float:
    """One cost budget as a number.

    Raises:
        InvalidArgumentError: Not one number, negative, or not finite.
    """
    if isinstance(cost_budget, Mapping):
        in_order("`cost_budget`", cost_budget, ONE_COST)
    budgets = check_budgets(cost_budget)
    if np.ndim(cost_budget) != 0:
        raise InvalidArgumentError(
            f"`cost_budget` must be one number, got {cost_budget!r}; `agent.begin(n, cost_budget)` "
            f"takes one for each of n environments."
        )
    return float(budgets[0])


def check_cost_budget(cost_budget: Any, cost_names: Sequence[str] | None) -> CostBudget:
    """A cost budget: a number, or one by name for each of several costs.

    Args:
        cost_budget: As given.
        cost_names: Of the costs; None: not known yet, so that any names may be right.

    Raises:
        InvalidArgumentError: A number is missing, negative or not finite, or a name is not a
            cost's.
    """
    if cost_names is None:
        several = isinstance(cost_budget, Mapping)
        cost_names = tuple(map(str, cost_budget)) if several else ONE_COST
        if several and len(cost_names) < 2:
            return check_budget(cost_budget)
    if len(cost_names) == 1:
        return check_budget(cost_budget)
    budget: CostBudget = by_name(check_budgets(cost_budget, 1, cost_names)[0], cost_names)
    return budget


def check_budgets(
    cost_budget: Any, n_envs: int | None = None, cost_names: Sequence[str] = ONE_COST
) -> Float64Array:
    """Cost budgets as numbers: (n_envs,), from one or as many; without it, as many as given.

    Of several costs (n_envs, m), from such numbers by name.

    Raises:
        InvalidArgumentError: Not numbers, negative, not finite, or not as many; or a name is
            unknown or missing.
    """
    if len(cost_names) > 1 or isinstance(cost_budget, Mapping):
        if not isinstance(cost_budget, Mapping):
            raise InvalidArgumentError(
                f"`cost_budget` must be a dict with a budget for each cost "
                f"({', '.join(cost_names)}), got {cost_budget!r}."
            )
        given = in_order("`cost_budget`", cost_budget, cost_names)
        try:
            return np.stack([check_budgets(values, n_envs) for values in given], axis=-1)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error} (in {dict(cost_budget)!r})") from error
    budgets = _numbers(cost_budget)
    if budgets is None or not (np.isfinite(budgets) & (budgets >= 0)).all():
        odd = ", which is no number" if isinstance(cost_budget, str) else ""
        raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {cost_budget!r}{odd}.")
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
    array = as_floats("observation", observation)
    single = array.shape == shape
    if not single and array.shape[1:] != shape:
        raise InvalidArgumentError(
            f"`observation` must have shape {shape}, or (N, {', '.join(map(str, shape))}) for "
            f"N environments, got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"`observation` must be finite, got {observation}.")
    return array.reshape(1 if single else len(array), -1), single


def check_target_request(target_return: Any) -> None:
    """Refuse what is neither `auto`, `paper` nor a finite number.

    Raises:
        InvalidArgumentError: It is not one of them.
    """
    known = isinstance(target_return, str) and target_return in ("auto", "paper")
    if not known and not (is_number(target_return) and np.isfinite(target_return)):
        raise InvalidArgumentError(
            f"`target_return` must be 'auto', 'paper' or a finite number, got {target_return!r}."
        )


def check_episode_start(episode_start: Any, n_envs: int) -> npt.NDArray[np.bool_]:
    """(N,) which episodes begin.

    Raises:
        InvalidArgumentError: Not as many, or neither True nor False.
    """
    given = np.asarray(episode_start)
    starts = given.reshape(-1)
    if len(starts) != n_envs:
        raise InvalidArgumentError(
            f"`episode_start` must have shape ({n_envs},), got {given.shape}."
        )
    if starts.dtype.kind not in "biuf" or not np.isin(starts, (0, 1)).all():
        raise InvalidArgumentError(
            f"`episode_start` must be True or False for each environment, got {episode_start!r}."
        )
    return starts.astype(np.bool_)


def check_outcome(name: str, values: Any, n_envs: int) -> Float32Array:
    """(n_envs,) what a step earned or cost, from one number or as many.

    Raises:
        InvalidArgumentError: Not numbers, not finite, or not as many.
    """
    array = as_floats(name, values)
    if array.size not in (1, n_envs) or array.ndim > 1:
        raise InvalidArgumentError(
            f"`{name}` must be a number or have shape ({n_envs},), got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"`{name}` must be finite, got {array}.")
    return array.reshape(-1) if array.size == n_envs else np.full(n_envs, array)


def check_costs(cost: Any, cost_names: Sequence[str], n_envs: int) -> Float32Array:
    """(n_envs,) what a step cost; of several costs (n_envs, m), from numbers by name or an array.

    Raises:
        InvalidArgumentError: Not numbers, negative, not finite, or not as many; or a cost is
            unknown or missing.
    """
    if isinstance(cost, Mapping):
        values = in_order("`cost`", cost, cost_names)
        spent = np.stack([check_outcome("cost", value, n_envs) for value in values], axis=-1)
    elif len(cost_names) == 1:
        spent = check_outcome("cost", cost, n_envs)
    else:
        spent, shape = as_floats("cost", cost), (n_envs, len(cost_names))
        if spent.shape != shape or not np.isfinite(spent).all():
            raise InvalidArgumentError(
                f"`cost` must be a dict with each of {', '.join(cost_names)}, or finite and "
                f"of shape {shape}, got {cost!r}."
            )
    if (spent < 0).any():
        raise InvalidArgumentError(f"`cost` must be >= 0, got {spent.min():g}.")
    return spent


def check_actions(action: Any, shape: tuple[int, int], allowed: ActionRange | None) -> Float32Array:
    """(N, A) actions that were really done, of `shape`; `allowed` None: any numbers.

    Raises:
        InvalidArgumentError: Not finite, not of that size, or outside of what is allowed.
    """
    done = as_floats("action", action)
    if done.size != shape[0] * shape[1] or not np.isfinite(done).all():
        raise InvalidArgumentError(
            f"`action` must be finite and of shape ({shape[0]}, {shape[1]}), got {action!r}."
        )
    done = done.reshape(shape)
    if allowed is not None and allowed.outside(done).any():
        kind = "whole numbers" if allowed.whole else "numbers"
        raise InvalidArgumentError(
            f"`action` must lie in the action space, {kind} from {allowed.low} to "
            f"{allowed.high}, got {action!r}."
        )
    return done


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
