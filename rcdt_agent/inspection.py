"""What `rcdt inspect` finds in a dataset file: tables of text and one picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sampler import normalize_weights
from rcdt_agent.losses import trajectory_weights
from rcdt_agent.plots import plot_return_cost, save_figure
from rcdt_agent.tasks.registry import BUDGETS, get_task, guess_task

Rows = list[tuple[str, ...]]


def inspect_file(
    file: Path,
    picture: Path,
    *,
    task: str | None = None,
    cost_limit: float | None = None,
    alpha: float = 1.0,
    gamma: float = 0.1,
) -> dict[str, Rows]:
    """Read and check a file, write the picture, and return tables by title; row 0 is the head."""
    dataset = TrajectoryDataset.from_hdf5(file)
    known = get_task(task) if task else guess_task(file.name)
    budgets = known.budgets if known else BUDGETS["safety-gymnasium"]
    limit = budgets[len(budgets) // 2] if cost_limit is None else cost_limit
    raw = trajectory_weights(
        torch.from_numpy(dataset.episode_returns),
        torch.from_numpy(dataset.episode_costs),
        alpha=alpha,
        gamma=gamma,
        cost_limit=limit,
    )
    weights = normalize_weights(raw, torch.ones_like(raw), maximum=10.0).numpy()
    figure = plot_return_cost(
        dataset.episode_returns,
        dataset.episode_costs,
        weights,
        cost_limit=limit,
        budgets=budgets,
        title=file.name,
    )
    save_figure(figure, picture)
    title = f"{file.name} ({known.id if known else 'unknown task, budgets of Safety-Gymnasium'})"
    return {
        title: _figures(dataset, weights),
        "what the data hold at each cost budget": _coverage(dataset, budgets),
    }


def _figures(dataset: TrajectoryDataset, weights: np.ndarray) -> Rows:  # type: ignore[type-arg]
    summary = dataset.summary()
    lengths = dataset.lengths
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    return [
        ("figure", "value"),
        ("trajectories", f"{summary.trajectories}"),
        ("transitions", f"{summary.transitions}"),
        ("observation, action size", f"{summary.observation_size}, {summary.action_size}"),
        ("return", _range(*summary.return_range)),
        ("cost", _range(*summary.cost_range)),
        ("cost of one step", _range(dataset.costs.min(), dataset.costs.max())),
        (
            "episode length",
            f"{_range(*summary.length_range)}, median {np.median(lengths):g}",
        ),
        ("ended by the task / cut", f"{summary.terminated} / {summary.truncated}"),
        ("actions", _range(dataset.actions.min(), dataset.actions.max())),
        ("NaN or infinite", "0 (such files are refused)"),
        ("effective trajectories under W", f"{effective:.0f} of {summary.trajectories}"),
    ]


def _coverage(dataset: TrajectoryDataset, budgets: tuple[float, ...]) -> Rows:
    frontier = dataset.frontier()
    rows: Rows = [("budget", "within", "best return", "0.9 quantile", "alpha_F there")]
    for budget in budgets:
        within = dataset.episode_costs <= budget
        if not within.any():
            rows.append((f"{budget:g}", "0 %", "none", "none", "0"))
            continue
        target = float(np.quantile(dataset.episode_returns[within], 0.9))
        rows.append(
            (
                f"{budget:g}",
                f"{within.mean():.0%}",
                f"{frontier.best_return(budget):.1f}",
                f"{target:.1f}",
                f"{dataset.coverage(target, budget):.3f}",
            )
        )
    return rows


def _range(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"
