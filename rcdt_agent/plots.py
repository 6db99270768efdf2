"""Pictures: the return-cost plane of a dataset, its frontier, and agents on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from rcdt_agent.data.dataset import TrajectoryDataset


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
