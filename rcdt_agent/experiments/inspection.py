"""What `rcdt inspect` finds in a dataset file: tables of text and one plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcdt_agent._types import Float32Array
from rcdt_agent.config import Config
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import ReturnToGoTable
from rcdt_agent.data.weights import FrontierWeights, normalize_weights, outcome_weights
from rcdt_agent.deploy.conditioning import Conditioning
from rcdt_agent.plots import plot_return_cost, save_figure
from rcdt_agent.tasks.registry import get_task, guess_task
from rcdt_agent.variants import make_config

Rows = list[tuple[str, ...]]


def inspect_file(
    file: Path,
    picture: Path,
    *,
    task: str | None = None,
    budgets: Sequence[float] = (),
    cost_limit: float | None = None,
    alpha: float | None = None,
    gamma: float | None = None,
) -> dict[str, Rows]:
    """Read and check a file, write the picture, and return tables by title; row 0 is the head.

    Args:
        file: HDF5 file in DSRL's layout.
        picture: PNG to write.
        task: Task whose budgets are shown; default: guessed from the file name.
        budgets: Cost budgets to look at, >= 0; default: the task's, or some that fit the data.
        cost_limit: c_lim of Eq. (w-def); default: the middle budget.
        alpha: Of Eq. (w-def); default: the configuration's, as `gamma`.
        gamma: Of Eq. (w-def).

    With one of the last three the weights are those of Eq. (w-def), without them the default
    agent's: how close a trajectory's steps are to the frontier, on average.

    Raises:
        DatasetError: The file cannot be read.
        UnknownTaskError: There is no such task.
    """
    dataset = TrajectoryDataset.from_hdf5(file)
    refuse_several(dataset.cost_names, "`rcdt inspect`")
    known = get_task(task) if task else guess_task(file.name)
    shown = tuple(sorted(budgets)) or (known.budgets if known else fitting_budgets(dataset))
    limit = shown[len(shown) // 2] if cost_limit is None else cost_limit
    given: dict[str, Any] = {"alpha": alpha, "gamma": gamma}
    given = {name: value for name, value in given.items() if value is not None}
    by_equation = bool(given) or cost_limit is not None
    if by_equation:
        given["weighting"] = "return_cost"
    config = make_config("cpu", **given)  # else what `rcdt train` uses
    if by_equation:
        raw = outcome_weights(dataset.outcomes, config, limit)
    else:
        frontier = FrontierWeights.from_config(dataset, config, max(limit, 1e-3))
        raw = frontier.of_trajectories(dataset)
    weights = normalize_weights(raw, torch.ones_like(raw), config.max_weight).numpy()
    figure = plot_return_cost(
        dataset.episode_returns,
        dataset.episode_costs,
        weights,
        cost_limit=limit if by_equation else None,
        budgets=shown,
        title=file.name,
    )
    save_figure(figure, picture)
    origin = known.id if known else "of no known task"
    return {
        f"{file.name} ({origin})": _figures(dataset, weights),
        "what the data hold at each cost budget": _coverage(dataset, shown, config, limit),
    }


def fitting_budgets(dataset: TrajectoryDataset) -> tuple[float, ...]:
    """Round figures near the quartiles of the trajectories' costs, for data of no known task."""
    quartiles = np.quantile(dataset.episode_costs, (0.25, 0.5, 0.75))
    return tuple(sorted({float(f"{cost:.2g}") for cost in quartiles}))


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


def _coverage(
    dataset: TrajectoryDataset, budgets: Sequence[float], config: Config, cost_limit: float
) -> Rows:
    """What an agent with this configuration asks for at each budget, and what the data hold."""
    unit = max(cost_limit, 1e-3)
    table = ReturnToGoTable.fit(dataset, quantile=config.target_quantile, cost_unit=unit)
    conditioning = Conditioning.from_config(config, outcomes=dataset.outcomes, table=table)
    frontier = dataset.frontier()
    rows: Rows = [
        ("budget", "within", "best return", "cost asked for", "return asked for", "alpha_F there")
    ]
    for budget in budgets:
        within = dataset.episode_costs <= budget
        token, target = float(conditioning.token(budget)), conditioning.target_return(budget)
        rows.append(
            (
                f"{budget:g}",
                f"{within.mean():.0%}",
                f"{frontier.best_return(budget):.4g}" if within.any() else "none",
                f"{token:.4g}",
                f"{target:.4g}",
                f"{dataset.coverage(target, token):.3f}",
            )
        )
    return rows


def _range(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"
