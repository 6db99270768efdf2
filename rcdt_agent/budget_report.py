"""`BudgetReport`: what rollouts at every cost budget brought, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import write_text
from rcdt_agent._types import Float64Array
from rcdt_agent.stats import bootstrap_interval, normalized_score


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """What happened at one budget.

    Of several costs, `budget` and everything about cost are by name: `budget["collision"]`.

    Attributes:
        budget: The cost budget.
        target_return: The return that was asked for; None of an algorithm that is not asked.
        returns: Return of each episode.
        costs: Cost of each episode.
        mean_return: Mean of `returns`.
        mean_cost: Mean of `costs`.
        return_interval: 95 % bootstrap interval of the mean return.
        cost_interval: 95 % bootstrap interval of the mean cost.
        normalized_return: Mean return scaled by the reference range.
        normalized_cost: Mean cost / budget; None for a budget of zero.
        passed: Mean cost <= budget; of several costs, of every one.
        over_budget: Share of episodes that cost more than the budget; of several, of any.
        interventions: Share of steps at which the critic shield replaced the policy's action.
        ended_early: Share of episodes that the task ended, by a fall or a crash (or a goal that was
            reached), before the time limit did.
    """

    budget: Any
    target_return: float | None
    returns: tuple[float, ...]
    costs: Any
    mean_return: float
    mean_cost: Any
    return_interval: tuple[float, float]
    cost_interval: Any
    normalized_return: float
    normalized_cost: Any
    passed: bool
    over_budget: float
    interventions: float = 0.0
    ended_early: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """An agent's results at every budget.

    Attributes:
        env: What was evaluated on.
        seed: Episode e of every budget was reset with `seed + e`.
        return_range: The returns that normalise to 0 and 1.
        range_source: Where that range is from, always named.
        results: One entry a budget, in the order asked for.
    """

    env: str
    seed: int
    return_range: tuple[float, float]
    range_source: str
    results: tuple[BudgetResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every budget was kept on average."""
        return all(result.passed for result in self.results)

    def as_table(self) -> str:
        """A plain-text table; several costs have a pair of columns each."""
        if isinstance(self.results[0].budget, dict):
            return self._several_costs_table()
        head = (
            f"{'budget':>8} {'return':>18} {'cost':>18} {'norm. return':>13} {'norm. cost':>11} "
            f"{'kept':>5} {'episodes over':>14}"
        )
        early = any(r.ended_early for r in self.results)
        lines = [head + (f" {'ended early':>12}" if early else "")]
        for r in self.results:
            half_return = (r.return_interval[1] - r.return_interval[0]) / 2
            half_cost = (r.cost_interval[1] - r.cost_interval[0]) / 2
            cost = "-" if r.normalized_cost is None else f"{r.normalized_cost:.2f}"
            lines.append(
                f"{r.budget:>8g} {r.mean_return:>10.2f} ± {half_return:<5.2f} "
                f"{r.mean_cost:>10.2f} ± {half_cost:<5.2f} {r.normalized_return:>13.3f} "
                f"{cost:>11} {'yes' if r.passed else 'no':>5} {r.over_budget:>14.0%}"
                + (f" {r.ended_early:>12.0%}" if early else "")
            )
        return "\n".join([*lines, self._note()])

    def _several_costs_table(self) -> str:
        names = list(self.results[0].budget)
        heads = [f"{name} (budget)" for name in names]
        widths = [max(len(head), 24) for head in heads]
        head = f"{'return':>18} {'norm. return':>13}"
        head += "".join(f"  {h:>{width}}" for h, width in zip(heads, widths, strict=True))
        lines = [f"{head} {'kept':>5} {'episodes over':>14}"]
        for r in self.results:
            half = (r.return_interval[1] - r.return_interval[0]) / 2
            line = f"{r.mean_return:>10.2f} ± {half:<5.2f} {r.normalized_return:>13.3f}"
            for name, width in zip(names, widths, strict=True):
                low, high = r.cost_interval[name]
                cost = f"{r.mean_cost[name]:.2f} ± {(high - low) / 2:.2f} ({r.budget[name]:g})"
                line += f"  {cost:>{width}}"
            lines.append(f"{line} {'yes' if r.passed else 'no':>5} {r.over_budget:>14.0%}")
        return "\n".join([*lines, self._note()])

    def _note(self) -> str:
        episodes = len(self.results[0].returns)
        return (
            f"{self.env}: {episodes} episodes a budget, seed {self.seed}, 95 % bootstrap "
            f"intervals; returns normalised by {self.range_source}."
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole report as JSON, also written to `path` if given."""
        text = json.dumps({**asdict(self), "passed": self.passed}, indent=2)
        if path is not None:
            write_text(Path(path), text + "\n")
        return text


def budget_result(
    budget: Any,
    target: float | None,
    returns: Float64Array,
    costs: Any,
    return_range: tuple[float, float],
    seed: int,
    interventions: float,
    ended_early: float,
) -> BudgetResult:
    """What episodes with these returns (E,) and costs (E,), several by name, say of a budget."""
    mean_return = float(returns.mean())
    mean_cost = _each(lambda c: float(c.mean()), costs)
    over = _each(lambda c, k: c > k, costs, budget)
    kept = _each(lambda mean, k: bool(mean <= k), mean_cost, budget)
    several = isinstance(budget, Mapping)
    return BudgetResult(
        budget=_each(float, budget),
        target_return=target,
        returns=tuple(map(float, returns)),
        costs=_each(lambda c: tuple(map(float, c)), costs),
        mean_return=mean_return,
        mean_cost=mean_cost,
        return_interval=bootstrap_interval(returns, seed),
        cost_interval=_each(lambda c: bootstrap_interval(c, seed), costs),
        normalized_return=float(normalized_score(mean_return, return_range)),
        normalized_cost=_each(lambda mean, k: mean / k if k > 0 else None, mean_cost, budget),
        passed=all(kept.values()) if several else kept,
        over_budget=float(np.mean(np.any(list(over.values()), axis=0) if several else over)),
        interventions=float(interventions),
        ended_early=float(ended_early),
    )


def _each(function: Callable[..., Any], *values: Any) -> Any:
    """Of a value, or by name of each of several costs."""
    if isinstance(values[0], Mapping):
        return {name: function(*(value[name] for value in values)) for name in values[0]}
    return function(*values)
