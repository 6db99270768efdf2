"""Frontier plots: several methods at every budget on one task's return-cost plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from rcdt_agent._io import read_json
from rcdt_agent._types import Float32Array
from rcdt_agent.data.frontier import non_dominated
from rcdt_agent.experiments.benchmark.results import MethodSummary, Results, summarize
from rcdt_agent.plots import save_figure

_MARKERS = "osD^vP*Xhp<>"


def plot_methods(returns: Float32Array, costs: Float32Array, found: list[MethodSummary]) -> Figure:
    """Cost (in the budgets' own scale) and return of each method at each budget.

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
        spans = np.array([b.cost_interval for b in entry.budgets]).T
        heights = np.array([b.return_interval for b in entry.budgets]).T
        outside = x > right
        off |= bool(outside.any())
        axes.errorbar(
            np.minimum(x, right), y,
            xerr=np.abs(spans - x) * ~outside, yerr=np.abs(heights - y),
            color=colours[i % len(colours)], marker=_MARKERS[i % len(_MARKERS)], markersize=6,
            linewidth=1.1, elinewidth=0.7, capsize=2, zorder=3,
            label=f"{entry.method}: {entry.kept} of {len(budgets)} kept",
        )  # fmt: skip
    means = [budget.mean_return for entry in found for budget in entry.budgets]
    low = min(float(np.quantile(returns[shown], 0.05)) if shown.any() else means[0], *means)
    high = max(frontier.best_return(right), *means)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.08 * (high - low))
    axes.set_xlim(-0.03 * right, 1.03 * right)
    beyond = "; points at the right edge lie beyond it" if off else ""
    axes.set_xlabel(f"mean cost of an episode (dotted: the budgets asked for{beyond})")
    axes.set_ylabel("mean return of an episode")
    axes.set_title(f"{found[0].task}: every method at every budget", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def draw_frontiers(folder: Path, results: Results) -> list[Path]:
    """One plot a task, in the benchmark's folder."""
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
    return written
