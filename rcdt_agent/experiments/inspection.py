"""What `rcdt inspect` finds in a dataset file: tables of text and one plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rcdt_agent._types import Float32Array
from rcdt_agent.config import make_config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.weights import normalize_weights, outcome_weights
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
    config = make_config(alpha=alpha, gamma=gamma)
    raw = outcome_weights(dataset.outcomes, config, limit)
    weights = normalize_weights(raw, torch.ones_like(raw), config.max_weight).numpy()
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
        "what the data hold at each cost budget": _coverage(
            dataset, budgets, config.target_quantile
        ),
    }


def _figures(dataset: TrajectoryDataset, weights: Float32Array) -> Rows:
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


def _coverage(dataset: TrajectoryDataset, budgets: tuple[float, ...], quantile: float) -> Rows:
    frontier = dataset.frontier()
    rows: Rows = [("budget", "within", "best return", "target return", "alpha_F there")]
    for budget in budgets:
        within = dataset.episode_costs <= budget
        if not within.any():
            rows.append((f"{budget:g}", "0 %", "none", "none", "0"))
            continue
        target = dataset.outcomes.target_return(budget, quantile)
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
