"""Evaluations and estimates that a run folder keeps as JSON, checked before anything shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rcdt_agent._io import read_json
from rcdt_agent.base_config import is_number, is_whole
from rcdt_agent.errors import InvalidArgumentError

Rule = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _number_or_none(value: Any) -> bool:
    return value is None or _number(value)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_number, value))


def _pair(value: Any) -> bool:
    return _numbers(value) and len(value) == 2


def _text(value: Any) -> bool:
    return isinstance(value, str)


_RESULT: dict[str, Rule] = {
    "target_return": _number_or_none,
    "mean_return": _number,
    "return_interval": _pair,
    "passed": lambda value: isinstance(value, bool),
}
_PER_COST: dict[str, Rule] = {
    "budget": _not_negative,
    "mean_cost": _number,
    "cost_interval": _pair,
}
_MEASURED = {
    **_RESULT, "returns": _numbers, "normalized_return": _number, "over_budget": _share,
    "interventions": _share, "ended_early": _share,
}  # fmt: skip
_MEASURED_PER_COST = {**_PER_COST, "costs": _numbers, "normalized_cost": _number_or_none}
_ESTIMATED = {**_RESULT, "nearest_return": _number, "action_gap": _number}
_ESTIMATED_PER_COST = {**_PER_COST, "nearest_cost": _number}
_OPTIONAL = {"interventions", "ended_early"}  # files of earlier versions have none


def read_evaluation(path: Path) -> dict[str, Any] | None:
    """A stored `BudgetReport`, or None if there is no such file.

    Raises:
        InvalidArgumentError: The file does not hold one.
    """
    rules: dict[str, Rule] = {
        "env": _text, "seed": is_whole, "return_range": _pair, "range_source": _text,
    }  # fmt: skip
    found = _checked(path, _load(path), rules, _MEASURED, _MEASURED_PER_COST)
    for result in found["results"] if found else ():
        costs = result["costs"]
        columns = costs.values() if isinstance(costs, Mapping) else [costs]
        if {len(column) for column in columns} != {len(result["returns"])}:
            raise _damaged(path, "as many `costs` as `returns`", costs)
        if not is_whole(result.get("seed", 0)):
            raise _damaged(path, "`seed`", result["seed"])
    return found


def read_estimates(path: Path, agent_digest: str) -> dict[str, Any] | None:
    """A stored `OfflineReport`, or None if there is none, or it is of another agent.

    Raises:
        InvalidArgumentError: The file does not hold one.
    """
    rules: dict[str, Rule] = {
        "dataset": _text, "limits": _text, "check": lambda value: isinstance(value, Mapping),
    }  # fmt: skip
    found = _load(path)
    if isinstance(found, dict) and found.get("agent_sha256") != agent_digest:
        return None
    found = _checked(path, found, rules, _ESTIMATED, _ESTIMATED_PER_COST)
    for result in found["results"] if found else ():
        budget = result["budget"]
        names = {"return", *(budget if isinstance(budget, Mapping) else ["cost"])}
        if found is not None and set(found["check"]) != names:
            raise _damaged(path, "`check`", found["check"])
    return found


def _load(path: Path) -> Any:
    try:
        return read_json(path)
    except (ValueError, RecursionError) as error:  # no JSON, or no text
        raise InvalidArgumentError(f"{path}: damaged, not JSON ({error}).") from error


def _checked(
    path: Path,
    found: Any,
    rules: Mapping[str, Rule],
    plain: Mapping[str, Rule],
    per_cost: Mapping[str, Rule],
) -> dict[str, Any] | None:
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise _damaged(path, "`results`", found)
    _check(path, found, rules)
    costs: set[Any] = set()
    for result in found["results"]:
        if not isinstance(result, dict):
            raise _damaged(path, "`results`", result)
        _check(path, result, plain)
        names = set(result["budget"]) if isinstance(result.get("budget"), dict) else None
        costs.add(frozenset(names) if names is not None else None)
        for key, rule in per_cost.items():
            value = result.get(key)
            values = {"": value} if names is None else value
            whole = isinstance(values, dict) and (names is None or set(values) == names)
            if not (isinstance(values, dict) and whole and all(map(rule, values.values()))):
                raise _damaged(path, f"`{key}`", value)
    if len(costs) != 1 or frozenset() in costs:
        raise _damaged(path, "`results` of the same costs", found["results"])
    return found


def _check(path: Path, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    for key, rule in rules.items():
        if not (key in _OPTIONAL and key not in values) and not rule(values.get(key)):
            raise _damaged(path, f"`{key}`", values.get(key))


def _damaged(path: Path, what: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path}: damaged, {what} cannot be read from {str(value)[:80]!r}: evaluate again into a "
        f"folder without this file."
    )
