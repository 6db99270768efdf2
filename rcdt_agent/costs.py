"""Names of costs: one (`cost`), or several with a budget each.

One cost has no axis of its own: costs are (N,), a budget is a number. Several have a last axis, in
the order of their names, and whoever states them outside of arrays states them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.errors import InvalidArgumentError

ONE_COST = ("cost",)
"""The names where there is one cost."""

CostBudget = float | dict[str, float]
"""A number; of several costs, one by name for each."""


def check_cost_names(names: Sequence[str] | None, n_costs: int) -> tuple[str, ...]:
    """The names of `n_costs` costs; default: `cost`, or `cost_0`, `cost_1` and so on.

    The name of a single cost is not kept.

    Raises:
        InvalidArgumentError: Not as many as costs, no text, or not distinct.
    """
    if names is not None:
        if not isinstance(names, Iterable):
            raise InvalidArgumentError(f"`cost_names` must be texts, got {names!r}.")
        given = [names] if isinstance(names, str) else list(names)
        if len(given) != n_costs:
            raise InvalidArgumentError(
                f"`cost_names` must name {n_costs} {'cost' if n_costs == 1 else 'costs'}, got "
                f"{given}."
            )
        plain = all(isinstance(name, str) and name and name.isprintable() for name in given)
        if not plain or len(set(given)) < n_costs or any("/" in name for name in given):
            raise InvalidArgumentError(
                f"`cost_names` must be distinct texts without '/', got {given}."
            )
        if n_costs > 1:
            return tuple(given)
    return ONE_COST if n_costs == 1 else tuple(f"cost_{i}" for i in range(n_costs))


def named_costs(names: Any) -> tuple[str, ...]:
    """The names of the costs that are named.

    Raises:
        InvalidArgumentError: No texts, or not distinct.
    """
    if not isinstance(names, list | tuple):
        raise InvalidArgumentError(f"`cost_names` must be a list of texts, got {names!r}.")
    return check_cost_names(names, len(names))


def cost_signals(names: Sequence[str]) -> tuple[str, ...]:
    """What critics, multipliers and metrics call the costs: `cost`, or `cost_NAME` for each."""
    return ONE_COST if len(names) == 1 else tuple(f"cost_{name}" for name in names)


def in_order(what: str, values: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The values of all costs in the order of their names.

    Args:
        what: What they are, for messages.
        values: By name.
        names: Of the costs.

    Raises:
        InvalidArgumentError: A name is unknown or missing, or there is one cost, without a name.
    """
    if len(names) == 1:
        raise InvalidArgumentError(
            f"{what} must be a number: there is one cost, without a name; got {dict(values)!r}."
        )
    unknown = sorted(str(name) for name in values if name not in names)
    missing = [name for name in names if name not in values]
    if unknown or missing:
        found = [f"{' and '.join(unknown)} unknown"] * bool(unknown)
        found += [f"{' and '.join(missing)} missing"] * bool(missing)
        raise InvalidArgumentError(
            f"{what} must name the costs {', '.join(names)}, each once: {'; '.join(found)}."
        )
    return [values[name] for name in names]


def by_name(values: npt.ArrayLike, names: Sequence[str]) -> Any:
    """A number; of several costs (m,), a dict of numbers by name."""
    row = np.asarray(values, dtype=np.float64)
    return float(row) if len(names) == 1 else dict(zip(names, row.tolist(), strict=True))


def budget_label(cost_budget: Any) -> str:
    """A budget in short: `5`, or `collision=5 speeding=20`."""
    if isinstance(cost_budget, Mapping):
        return " ".join(f"{name}={budget:g}" for name, budget in cost_budget.items())
    return f"{cost_budget:g}"


def parse_budget(text: str) -> dict[str, float]:
    """The inverse of `budget_label` of several costs; commas may part them, too.

    Raises:
        InvalidArgumentError: Not of the form `collision=5,speeding=20`.
    """
    parts = [part.partition("=") for part in text.replace(",", " ").split()]
    try:
        found = {name: float(value) for name, _, value in parts}
    except ValueError:
        found = {}
    if not parts or len(found) < len(parts) or not all(found):
        raise InvalidArgumentError(
            f"A budget of several costs is written name=number,name=number, got {text!r}."
        )
    return found


def columns(values: Any, names: Sequence[str]) -> dict[str, Any]:
    """Each cost (...,) of an array or tensor (...,) or (..., m), by its signal."""
    if len(names) == 1:
        return {ONE_COST[0]: values}
    return {signal: values[..., j] for j, signal in enumerate(cost_signals(names))}


def refuse_several(names: Sequence[str], what: str) -> None:
    """Refuse what knows one cost only.

    Raises:
        InvalidArgumentError: There are several costs.
    """
    if len(names) > 1:
        raise InvalidArgumentError(
            f"{what} knows one cost, but there are {len(names)}: {', '.join(names)}."
        )
