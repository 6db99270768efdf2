"""Pictures: the return-cost plane of a dataset, its frontier, and agents on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.figure import Figure

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import non_dominated


def plot_return_cost(
    dataset: TrajectoryDataset,
    weights: npt.ArrayLike,
    *,
    cost_limit: float,
    budgets: Sequence[float] = (),
    title: str | None = None,
) -> Figure:
    """Return over cost of every trajectory, coloured by its weight, with the frontier.

    Args:
        dataset: The trajectories.
        weights: (M,) trajectory weights, Eq. (w-def).
        cost_limit: c_lim of the weights, drawn as a line.
        budgets: Cost budgets, drawn as ticks on the cost axis.
        title: Defaults to the dataset's name.
    """
    weight = np.asarray(weights)
    order = np.argsort(weight)  # heavy trajectories on top
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.subplots()
    points = axes.scatter(
        dataset.costs[order],
        dataset.returns[order],
        c=weight[order],
        s=14,
        cmap="viridis_r",
        linewidths=0,
        label="trajectory",
    )
    figure.colorbar(points, label="weight W (mean 1)")
    frontier = dataset.frontier()
    axes.step(
        [*frontier.costs, max(float(dataset.costs.max()), *budgets, float(frontier.costs[-1]))],
        [*frontier.returns, frontier.returns[-1]],
        where="post",
        color="crimson",
        linewidth=1.2,
        label="frontier of the data",
    )
    axes.axvline(cost_limit, color="grey", linestyle="--", linewidth=1, label="$c_{lim}$ of W")
    _mark_budgets(axes, budgets)
    axes.set_xlabel("cost of the trajectory")
    axes.set_ylabel("return of the trajectory")
    axes.set_title(title or Path(dataset.name).name, fontsize=10)
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the folder is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _mark_budgets(axes: Any, budgets: Sequence[float]) -> None:
    for budget in budgets:
        axes.plot(
            budget, 0, marker="^", color="black", markersize=6, clip_on=False, linestyle="none",
            transform=axes.get_xaxis_transform(), zorder=5,
            label="evaluation budgets" if budget == budgets[0] else None,
        )  # fmt: skip


def plot_frontier(
    returns: npt.NDArray[np.float32], costs: npt.NDArray[np.float32], report: dict[str, Any]
) -> Figure:
    """The data's return-cost plane with one policy's outcome at each budget on it.

    Args:
        returns: (M,) returns of the training trajectories.
        costs: (M,) their costs.
        report: A `BudgetReport` as a dict (`json.loads(report.to_json())`).
    """
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.subplots()
    results = report["results"]
    budgets = [result["budget"] for result in results]
    right = 1.6 * max(*budgets, *(result["mean_cost"] for result in results))
    shown = costs <= right
    axes.scatter(
        costs[shown], returns[shown], s=9, color="lightgrey", linewidths=0, label="training data"
    )
    frontier = non_dominated(returns, costs)
    axes.step(
        [*frontier.costs, right],
        [*frontier.returns, frontier.best_return(right)],
        where="post",
        color="grey",
        linewidth=1,
        label="frontier of the data",
    )
    colours = colormaps["viridis"](np.linspace(0.05, 0.85, len(results)))
    for result, colour in zip(results, colours, strict=True):
        x, y = result["mean_cost"], result["mean_return"]
        axes.axvline(result["budget"], color=colour, linestyle=":", linewidth=1.2)
        axes.errorbar(
            x,
            y,
            xerr=[[x - result["cost_interval"][0]], [result["cost_interval"][1] - x]],
            yerr=[[y - result["return_interval"][0]], [result["return_interval"][1] - y]],
            fmt="o" if result["passed"] else "X",
            color=colour,
            markersize=8,
            capsize=3,
            label=f"budget {result['budget']:g}: {'kept' if result['passed'] else 'exceeded'}",
        )
    axes.set_xlim(-0.03 * right, right)
    low = min(float(returns[shown].min()), *(result["mean_return"] for result in results))
    high = max(frontier.best_return(right), *(result["mean_return"] for result in results))
    axes.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))
    axes.set_xlabel("cost of an episode (dotted: the budgets asked for)")
    axes.set_ylabel("return of an episode")
    axes.set_title(f"One policy at {len(results)} cost budgets: {report['env']}", fontsize=10)
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)
    return figure


def plot_learning_curves(log: Sequence[dict[str, float]]) -> Figure:
    """Losses, critic estimates and lambda over training steps.

    Args:
        log: Rows as the csv log holds them, with `time/total_timesteps`.
    """
    panels = (
        ("imitation", ("nll", "weighted_nll", "entropy")),
        ("critics: TD loss", ("q_loss", "cost_loss")),
        ("critics: value of the policy's actions", ("q_policy", "cost_policy")),
        ("lambda", ("lambda",)),
    )
    present = [
        (title, [name for name in names if any(f"train/{name}" in row for row in log)])
        for title, names in panels
    ]
    present = [(title, names) for title, names in present if names]
    figure = Figure(figsize=(9.0, 2.6 * ((len(present) + 1) // 2)), layout="constrained")
    grid = figure.subplots((len(present) + 1) // 2, 2, squeeze=False).ravel()
    for axes, (title, names) in zip(grid, present, strict=False):
        for name in names:
            key = f"train/{name}"
            rows = [row for row in log if key in row]
            steps = [row["time/total_timesteps"] for row in rows]
            axes.plot(steps, [row[key] for row in rows], label=name, linewidth=1.2)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.legend(fontsize=8)
    for axes in grid[len(present) :]:
        axes.set_visible(False)
    return figure
