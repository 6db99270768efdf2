"""Statistics of methods over all tasks: the table that compares the first with every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rcdt_agent.experiments.benchmark.markdown import method_name, span, table
from rcdt_agent.experiments.benchmark.results import MethodSummary, Results
from rcdt_agent.stats import (
    interquartile_mean,
    paired_interval,
    probability_of_improvement,
    share_interval,
    stratified_bootstrap,
)

BOOTSTRAP_SEEDS = 5
"""Fewer give no bootstrap interval: it would be too narrow, by sqrt((n - 1) / n) for n seeds."""


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
        enough = seeds[0] >= BOOTSTRAP_SEEDS
        spread = f" {span(stratified_bootstrap(_pooled, scores), 3)}" if enough else ""
        sure = sum(budget.upper_limit_kept for budget in budgets)
        rows.append(
            [
                method_name(method),
                f"{len(shared)}",
                "-".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))),
                f"{center:.3f}{spread}",
                f"{sum(budget.passed for budget in budgets)} of {len(budgets)}",
                f"{sure} of {len(budgets)}" if several else "-",
                f"{np.mean([budget.over_budget for budget in budgets]):.0%}",
                f"{np.mean([budget.mean_cost / budget.budget for budget in budgets]):.0%}",
                *_compared(found, first, method),
            ]
        )
    head = [
        "method", "tasks", "seeds", "score (IQM)", "kept on average", "upper limit kept",
        "episodes over budget", "of the budget spent", f"P({ours} better)", "of paired seeds",
        f"{ours} minus method",
    ]  # fmt: skip
    note = (
        f"Score: normalised return, mean over budgets and episodes of a seed; interquartile mean "
        f"over tasks and seeds, with a 95 % bootstrap interval, which draws seeds within tasks, "
        f"from {BOOTSTRAP_SEEDS} seeds on. Kept: (task, budget) cells whose mean cost is within "
        f"the budget; upper limit: its one-sided 95 % t limit over seeds, too. "
        f"P({ours} better): rliable's probability of improvement, that a seed of {ours} scores "
        f"higher than one of the other on a task. Of paired seeds: in how many, task by task, "
        f"{ours} scores higher than the same seed of the other, and the 95 % Clopper-Pearson "
        f"interval of that share. {ours} minus method: paired difference of scores, averaged over "
        f"tasks, with a 95 % t interval over the seeds within tasks. Both over the seeds that the "
        f"two share, and for these tasks only."
    )
    return table(head, rows) + f"\n\n{note}"


def _pooled(scores: Sequence[Any]) -> float:
    return interquartile_mean(np.concatenate(scores))


def _compared(
    found: dict[str, dict[str, MethodSummary]], first: str, method: str
) -> tuple[str, str, str]:
    """Probability of improvement, seeds won and paired difference of the first over another."""
    pairs = [(r[first], r[method]) for r in found.values() if first in r and method in r]
    if first == method or not pairs:
        return "", "", ""
    ours, theirs = [], []
    for f, other in pairs:
        seeds = [seed for seed in f.seeds if seed in other.seeds]
        if seeds:
            ours.append([f.scores[f.seeds.index(seed)] for seed in seeds])
            theirs.append([other.scores[other.seeds.index(seed)] for seed in seeds])
    if not ours:
        return "-", "-", "-"
    gaps = [np.subtract(a, b) for a, b in zip(ours, theirs, strict=True)]
    wins, n = sum(int((gap > 0).sum()) for gap in gaps), sum(map(len, gaps))
    low, high = paired_interval(gaps)
    spread = f"[{low:+.3f}, {high:+.3f}]" if low == low else "(one seed)"
    return (
        f"{probability_of_improvement(ours, theirs):.2f}",
        f"{wins} of {n} {span(share_interval(wins, n), 2)}",
        f"{np.mean([gap.mean() for gap in gaps]):+.3f} {spread}",
    )
