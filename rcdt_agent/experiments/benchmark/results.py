"""All finished cells of a folder as one JSON, and summaries per task, method and budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import read_json, versions
from rcdt_agent._types import Float64Array
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark.cells import cell_folder, evaluation_file, training_file
from rcdt_agent.experiments.benchmark.data import TaskData
from rcdt_agent.experiments.benchmark.methods import Method
from rcdt_agent.experiments.benchmark.protocol import Protocol, rerun_command
from rcdt_agent.stats import normalized_score, t_interval, upper_limit

Results = dict[str, Any]


def collect_results(folder: Path, tasks: Sequence[str] = ()) -> Results:
    """Everything finished in a benchmark's folder.

    Args:
        folder: As given to `run_benchmark`.
        tasks: Labels of the tasks to keep, in this order; all by default.

    Raises:
        InvalidArgumentError: It is no such folder, or has no such task.
    """
    noted = read_json(folder / "protocol.json")
    if noted is None:
        raise InvalidArgumentError(f"{folder} is not a benchmark folder: no protocol.json in it.")
    if unknown := set(tasks) - set(noted["tasks"]):
        raise InvalidArgumentError(f"{folder} has no results for {', '.join(sorted(unknown))}.")
    noted["tasks"] = {label: noted["tasks"][label] for label in tasks or noted["tasks"]}
    protocol = Protocol(**noted["protocol"])
    cells, trainings = [], {}
    for label, task in noted["tasks"].items():
        data = TaskData.from_dict(task)
        task["best_each"] = _best_each(folder, label, data)
        if not data.published:
            task["best_within"] = task["best_each"] and task["best_each"][-1]
        for name, values in noted["methods"].items():
            method = Method.from_dict(values)
            for seed in noted["seeds"]:
                place = cell_folder(folder, label, method, seed)
                evaluation = read_json(evaluation_file(place, method))
                training = read_json(training_file(place))
                if evaluation is None or training is None:
                    continue
                key = str(place.relative_to(folder / "cells"))
                trainings[key] = training
                evaluation["results"] = [_rounded(entry) for entry in evaluation["results"]]
                cells.append(
                    {
                        "task": label,
                        "method": name,
                        "seed": seed,
                        "training": key,
                        "evaluation": evaluation,
                        "command": rerun_command(data, name, seed, protocol),
                    }
                )
    return {
        "format": 1,
        "commands": noted["commands"],
        "protocol": noted["protocol"],
        "tasks": noted["tasks"],
        "methods": noted["methods"],
        "seeds": noted["seeds"],
        "versions": versions(),
        "trainings": trainings,
        "cells": cells,
    }


def dump_results(results: Results) -> str:
    """JSON with one line a cell and a training: small, and readable as a difference."""
    parts = []
    for key, value in results.items():
        if key == "cells":
            lines = ",\n".join(f"  {json.dumps(cell)}" for cell in value)
            text = f"[\n{lines}\n ]"
        elif key in ("trainings", "tasks", "methods"):
            lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            text = f"{{\n{lines}\n }}"
        else:
            text = json.dumps(value)
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@dataclass(frozen=True, kw_only=True)
class BudgetSummary:
    """One method on one task at one budget, over all seeds and episodes.

    Attributes:
        budget: The cost budget.
        mean_return: Mean return.
        mean_cost: Mean cost.
        return_interval: 95 % t interval, seeds as the unit; NaN for one seed.
        cost_interval: Likewise.
        return_range: Lowest and highest mean return of a seed.
        cost_range: Likewise.
        over_budget: Share of episodes over the budget.
        passed: Mean cost <= budget.
        upper_limit_kept: The one-sided upper 95 % t limit of the mean cost, over seeds, is within
            the budget.
        seeds_passed: In how many seeds by itself.
        interventions: Share of steps at which the critic shield acted.
    """

    budget: float
    mean_return: float
    mean_cost: float
    return_interval: tuple[float, float]
    cost_interval: tuple[float, float]
    return_range: tuple[float, float]
    cost_range: tuple[float, float]
    over_budget: float
    passed: bool
    upper_limit_kept: bool
    seeds_passed: int
    interventions: float


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """One method on one task.

    Attributes:
        task: Label of the task.
        method: Name of the method.
        seeds: The seeds there are results of.
        normalized_return: Mean over budgets, seeds and episodes.
        normalized_cost: Mean over budgets of mean cost / budget.
        return_interval: 95 % t interval of the normalised return over seeds.
        cost_interval: Likewise of the normalised cost.
        over_budget: Share of episodes over their budget.
        scores: (S,) normalised return of each seed.
        budgets: Summary of each budget.
    """

    task: str
    method: str
    seeds: tuple[int, ...]
    normalized_return: float
    normalized_cost: float
    return_interval: tuple[float, float]
    cost_interval: tuple[float, float]
    over_budget: float
    scores: tuple[float, ...]
    budgets: tuple[BudgetSummary, ...]

    @property
    def safe(self) -> bool:
        """The paper's rule: normalised cost, averaged over the budgets, below 1."""
        return self.normalized_cost < 1

    @property
    def kept(self) -> int:
        """How many budgets were kept on average."""
        return sum(budget.passed for budget in self.budgets)

    @property
    def keeps_all(self) -> bool:
        """The stricter rule: every budget kept on average."""
        return self.kept == len(self.budgets)


def summarize(results: Results, task: str, method: str) -> MethodSummary | None:
    """The summary of a method on a task; None if no cell is finished."""
    cells = [c for c in results["cells"] if c["task"] == task and c["method"] == method]
    if not cells:
        return None
    entries = [cell["evaluation"]["results"] for cell in cells]
    returns = np.array([[entry["returns"] for entry in entry_list] for entry_list in entries])
    costs = np.array([[entry["costs"] for entry in entry_list] for entry_list in entries])
    budgets = np.array([entry["budget"] for entry in entries[0]])  # (B,) of (S, B, E)
    if any([entry["budget"] for entry in entry_list] != budgets.tolist() for entry_list in entries):
        raise InvalidArgumentError(f"{task}: seeds of {method} have different budgets.")
    scores = normalized_score(returns, score_range(results["tasks"][task]))
    ratios = costs / budgets[:, None]
    each = tuple(
        BudgetSummary(
            budget=float(budget),
            mean_return=float(returns[:, b].mean()),
            mean_cost=float(costs[:, b].mean()),
            return_interval=t_interval(returns[:, b].mean(-1)),
            cost_interval=t_interval(costs[:, b].mean(-1)),
            return_range=_extremes(returns[:, b].mean(-1)),
            cost_range=_extremes(costs[:, b].mean(-1)),
            over_budget=float((costs[:, b] > budget).mean()),
            passed=bool(costs[:, b].mean() <= budget),
            upper_limit_kept=bool(upper_limit(costs[:, b].mean(-1)) <= budget),
            seeds_passed=int((costs[:, b].mean(-1) <= budget).sum()),
            interventions=float(np.mean([seed[b].get("interventions", 0.0) for seed in entries])),
        )
        for b, budget in enumerate(budgets)
    )
    return MethodSummary(
        task=task,
        method=method,
        seeds=tuple(cell["seed"] for cell in cells),
        normalized_return=float(scores.mean()),
        normalized_cost=float(ratios.mean()),
        return_interval=t_interval(scores.mean((1, 2))),
        cost_interval=t_interval(ratios.mean((1, 2))),
        over_budget=float((costs > budgets[:, None]).mean()),
        scores=tuple(scores.mean((1, 2)).tolist()),
        budgets=each,
    )


def _extremes(values: Float64Array) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def score_range(task: dict[str, Any]) -> tuple[float, float]:
    """What is 0 and 1: the lowest return of the file, and the best within the largest budget.

    DSRL's published range for its own data; the file's where nothing within the budget returns more
    than the lowest. An unsafe outlier of another file sets no scale.
    """
    low, high = task["return_range"]
    best = task.get("best_within")
    return low, high if best is None or best <= low else best


def best_of(found: Sequence[MethodSummary], *, strict: bool) -> str | None:
    """The method of highest normalised return among those that are safe; one seed is not enough."""
    safe = [f for f in found if len(f.seeds) > 1 and (f.keeps_all if strict else f.safe)]
    return max(safe, key=lambda f: f.normalized_return).method if safe else None


def _best_each(folder: Path, label: str, data: TaskData) -> list[float | None] | None:
    """Best return of the file's trajectories within each budget; None where there is none."""
    points = read_json(folder / "data" / f"{label.replace(' ', '-')}.json")
    if points is None:
        return None
    returns, costs = np.array(points["returns"]), np.array(points["costs"])
    within = [returns[costs <= budget] for budget in sorted(data.budgets)]
    return [float(found.max()) if len(found) else None for found in within]


def _rounded(entry: dict[str, Any]) -> dict[str, Any]:
    """Episodes to four decimals: below what a simulator repeats across machines."""
    return {
        key: [round(value, 4) for value in values] if key in ("returns", "costs") else values
        for key, values in entry.items()
    }
