"""Frontier plots: several methods at every budget on one task's return-cost plane."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from rcdt_agent._io import read_json
from rcdt_agent._types import Float32Array
from rcdt_agent.data.frontier import non_dominated
from rcdt_agent.experiments.benchmark.markdown import method_name
from rcdt_agent.experiments.benchmark.results import MethodSummary, Results, summarize
from rcdt_agent.plots import save_figure

_MARKERS = "osD^vP*Xhp<>"
_MOST_COLUMNS = 4
"""Panels beside each other; more tasks are spread over further rows."""


def plot_methods(returns: Float32Array, costs: Float32Array, found: list[MethodSummary]) -> Figure:
    """Cost (in the budgets' own scale) and return of each method at each budget.

    Bars reach from the lowest to the highest seed; t intervals of two seeds would hide the rest.

    Args:
        returns: (M,) returns of the training trajectories.
        costs: (M,) their costs.
        found: One entry a method.
    """
    budgets = [entry.budget for entry in found[0].budgets]
    right = 1.8 * max(budgets)
    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    axes = figure.subplots()
    shown = costs <= right
    axes.scatter(costs[shown], returns[shown], s=7, color="0.85", linewidths=0, zorder=1)
    frontier = non_dominated(returns, costs)
    axes.step(
        [*frontier.costs, max(right, float(frontier.costs[-1]))],
        [*frontier.returns, frontier.returns[-1]],
        where="post", color="grey", linewidth=1, label="frontier of the data",
    )  # fmt: skip
    for budget in budgets:
        axes.axvline(budget, color="black", linestyle=":", linewidth=0.8)
    colours = colormaps["tab10" if len(found) <= 10 else "tab20"].colors  # type: ignore[attr-defined]
    off = False
    for i, entry in enumerate(found):
        x = np.array([budget.mean_cost for budget in entry.budgets])
        y = np.array([budget.mean_return for budget in entry.budgets])
        spans = np.array([b.cost_range for b in entry.budgets]).T
        heights = np.array([b.return_range for b in entry.budgets]).T
        outside = x > right
        off |= bool(outside.any())
        axes.errorbar(
            np.minimum(x, right), y,
            xerr=np.abs(spans - x) * ~outside, yerr=np.abs(heights - y),
            color=colours[i % len(colours)], marker=_MARKERS[i % len(_MARKERS)], markersize=6,
            linewidth=1.1, elinewidth=0.7, capsize=2, zorder=3,
            label=f"{method_name(entry.method)}: {entry.kept} of {len(budgets)} kept",
        )  # fmt: skip
    means = [budget.mean_return for entry in found for budget in entry.budgets]
    low = min(float(np.quantile(returns[shown], 0.05)) if shown.any() else means[0], *means)
    high = max(frontier.best_return(right), *means)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.08 * (high - low))
    axes.set_xlim(-0.03 * right, 1.03 * right)
    beyond = "; points at the right edge lie beyond it" if off else ""
    bars = "; bars: lowest and highest seed" if len(found[0].seeds) > 1 else ""
    axes.set_xlabel(f"mean cost of an episode (dotted: the budgets asked for{bars}{beyond})")
    axes.set_ylabel("mean return of an episode")
    axes.set_title(f"{found[0].task}: every method at every budget", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def plot_profile(results: Results) -> Figure:
    """Performance profile: share of (task, seed) runs whose score exceeds each level."""
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for i, (method, found) in enumerate(_complete(results).items()):
        scores = np.sort(np.concatenate([f.scores for f in found]))
        levels = np.linspace(0, 1.05, 211)
        share = 1 - np.searchsorted(scores, levels, side="right") / len(scores)
        axes.plot(levels, share, label=method_name(method), **_style(i), markevery=20)
    axes.set_xlabel("score: normalised return")
    axes.set_ylabel("share of runs above it")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def plot_budgets(results: Results) -> Figure:
    """Mean cost of each method, as a share of the budget asked for, task by task."""
    methods = _complete(results)
    tasks = list(results["tasks"])
    n_rows = math.ceil(len(tasks) / _MOST_COLUMNS)
    n_columns = math.ceil(len(tasks) / n_rows)
    figure = Figure(figsize=(2.2 * n_columns + 1.6, 2.8 * n_rows + 0.6), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False)
    for panel in panels.flat[len(tasks) :]:
        panel.set_axis_off()
    for place, (task, axes) in enumerate(zip(tasks, panels.flat, strict=False)):
        for i, (method, found) in enumerate(methods.items()):
            (f,) = [f for f in found if f.task == task]
            asked = range(len(f.budgets))
            share = [min(b.mean_cost / b.budget, 2.0) for b in f.budgets]
            label = method_name(method) if place == 0 else None
            axes.plot(asked, share, label=label, **_style(i))
        axes.axhline(1.0, color="black", linewidth=0.9, linestyle=":")
        axes.set_xticks(range(len(f.budgets)), [f"{b.budget:g}" for b in f.budgets])
        axes.set_title(task, fontsize=9)
        axes.set_xlabel("budget")
    for first, *_ in panels:
        first.set_ylabel("mean cost / budget (at most 2)")
        first.set_ylim(-0.05, 2.1)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _complete(results: Results) -> dict[str, list[MethodSummary]]:
    """The methods that have results on every task, and those."""
    found = {
        method: [f for task in results["tasks"] if (f := summarize(results, task, method))]
        for method in results["methods"]
    }
    return {m: rows for m, rows in found.items() if len(rows) == len(results["tasks"])}


def _style(i: int) -> dict[str, Any]:
    """A colour, a marker and a dash of its own: told apart in grey, too."""
    colours = colormaps["tab10" if i < 10 else "tab20"].colors  # type: ignore[attr-defined]
    return {
        "color": colours[i % len(colours)],
        "marker": _MARKERS[i % len(_MARKERS)],
        "linestyle": ("-", "--", "-.", ":")[i % 4],
        "markersize": 5,
        "linewidth": 1.2,
    }


def draw_frontiers(folder: Path, results: Results) -> list[Path]:
    """One plot a task, and two over all tasks, in the benchmark's folder."""
    written = []
    for label in results["tasks"]:
        found = [f for m in results["methods"] if (f := summarize(results, label, m)) is not None]
        points = read_json(folder / "data" / f"{label.replace(' ', '-')}.json")
        if not found or points is None:
            continue
        path = folder / f"frontier-{label.replace(' ', '-')}.png"
        returns, costs = (np.array(points[key], dtype=np.float32) for key in ("returns", "costs"))
        save_figure(plot_methods(returns, costs, found), path)
        written.append(path)
    if _complete(results):
        for name, plot in (("profile", plot_profile), ("budgets", plot_budgets)):
            path = folder / f"{name}.png"
            save_figure(plot(results), path)
            written.append(path)
    return written
