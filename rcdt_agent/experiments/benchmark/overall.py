"""Statistics of methods over all tasks: the table that compares the first with every other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rcdt_agent.experiments.benchmark.markdown import method_name, span, table
from rcdt_agent.experiments.benchmark.results import MethodSummary, Results
from rcdt_agent.stats import (
    interquartile_mean,
    probability_of_improvement,
    stratified_bootstrap,
    t_interval,
)


def overall_table(results: Results, found: dict[str, dict[str, MethodSummary]]) -> str:
    """Rows methods: statistics over all tasks, and the first method compared with each other."""
    first, *_ = results["methods"]
    ours = method_name(first)
    rows = []
    for method in results["methods"]:
        shared = [rows_of[method] for rows_of in found.values() if method in rows_of]
        if not shared:
            continue
        budgets = [budget for f in shared for budget in f.budgets]
        seeds = sorted({len(f.seeds) for f in shared})
        scores = [f.scores for f in shared]
        several = seeds[0] > 1
        center = interquartile_mean(np.concatenate(scores))
        spread = stratified_bootstrap(_pooled, scores) if several else (math.nan, math.nan)
        sure = sum(budget.surely for budget in budgets)
        rows.append(
            [
                method_name(method),
                f"{len(shared)}",
                "-".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))),
                f"{center:.3f} {span(spread, 3)}",
                f"{sum(budget.passed for budget in budgets)} of {len(budgets)}",
                f"{sure} of {len(budgets)}" if several else "-",
                f"{np.mean([budget.over_budget for budget in budgets]):.0%}",
                f"{np.mean([budget.mean_cost / budget.budget for budget in budgets]):.0%}",
                *_compared(found, first, method),
            ]
        )
    head = [
        "method", "tasks", "seeds", "score (IQM)", "kept on average", "kept surely",
        "episodes over budget", "of the budget spent", f"P({ours} better)", f"{ours} minus method",
    ]  # fmt: skip
    note = (
        f"Score: normalised return, mean over budgets and episodes of a seed; interquartile mean "
        f"over tasks and seeds, with a 95 % bootstrap interval that draws seeds within tasks. "
        f"Kept: (task, budget) cells whose mean cost is within the budget; surely: the upper 95 % "
        f"t limit over seeds, too. P({ours} better): probability that a seed of {ours} scores "
        f"more than one of the other on a task, with the same kind of interval. {ours} minus "
        f"method: difference of scores, paired by seed and averaged over tasks, with a 95 % t "
        f"interval over seeds. Both over the tasks and seeds that the two share."
    )
    return table(head, rows) + f"\n\n{note}"


def _pooled(scores: Sequence[Any]) -> float:
    return interquartile_mean(np.concatenate(scores))


def _compared(
    found: dict[str, dict[str, MethodSummary]], first: str, method: str
) -> tuple[str, str]:
    """Probability of improvement and paired difference of the first method over another."""
    pairs = [(r[first], r[method]) for r in found.values() if first in r and method in r]
    if first == method or not pairs:
        return "", ""
    seeds = sorted(set.intersection(*(set(f.seeds) for pair in pairs for f in pair)))
    if not seeds:
        return "-", "-"
    ours, theirs = (
        [[f.scores[f.seeds.index(seed)] for seed in seeds] for f in side]
        for side in zip(*pairs, strict=True)
    )
    better = probability_of_improvement(ours, theirs)
    gaps = (np.array(ours) - np.array(theirs)).mean(0)  # (seeds,)
    if len(seeds) < 2:
        return f"{better:.2f} (one seed)", f"{gaps.mean():+.3f} (one seed)"
    spread = stratified_bootstrap(probability_of_improvement, ours, theirs)
    low, high = t_interval(gaps)
    return f"{better:.2f} {span(spread, 2)}", f"{gaps.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
