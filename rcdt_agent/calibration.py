"""What episodes cost at each token: rolled out, or estimated from logged data alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdt_agent._types import Float64Array
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import MIN_TRAJECTORIES
from rcdt_agent.deploy.token_calibration import TokenCalibration, isotonic_fit, token_grid
from rcdt_agent.errors import DatasetError
from rcdt_agent.evaluation import EnvSource, evaluate_budgets, task_budgets
from rcdt_agent.fitted_q import FQEConfig
from rcdt_agent.offline_evaluation import evaluate_offline

if TYPE_CHECKING:
    from rcdt_agent.algorithms.budgets import BudgetConditioned

ONE_SIDED = 0.975
"""Confidence of the upper end of a 95 % interval; of what bootstrap sees, bias not among it."""


def measure_tokens(
    agent: BudgetConditioned,
    env: EnvSource,
    budgets: Sequence[float] | None,
    *,
    n_episodes: int,
    seed: int,
    n_tokens: int,
    confidence: float,
    **kwargs: Any,
) -> TokenCalibration:
    """Roll the agent out at each token; arguments as for `BudgetConditioned.calibrate`."""
    largest_cost = float(agent.policy.outcomes.costs.max())
    tokens = token_grid(task_budgets(agent, budgets), largest_cost, n_tokens)
    report = evaluate_budgets(
        agent, env, tokens.tolist(), n_episodes=n_episodes, seed=seed, **kwargs
    )
    costs = np.array([result.costs for result in report.results])
    return TokenCalibration.fit(tokens, costs, confidence=confidence, seed=seed)


def measure_tokens_offline(
    agent: BudgetConditioned,
    data: TrajectoryDataset,
    budgets: Sequence[float] | None,
    *,
    n_tokens: int,
    seed: int,
    config: FQEConfig | None,
) -> TokenCalibration:
    """Estimate what episodes cost at each token; the agent has no calibration meanwhile.

    Args:
        agent: Budget-conditioned, with one cost.
        data: Trajectories that the estimates are from.
        budgets: Budgets that will be asked for; None: those of the agent's task.
        n_tokens: Tokens to value, from zero to 1.5 times the largest budget.
        seed: Of the estimates.
        config: Settings of fitted Q evaluation.

    Raises:
        DatasetError: The data do not cover a budget, or do not show a token that keeps it.
    """
    agent.check_costs(data)
    asked = np.unique(task_budgets(agent, budgets))
    tokens = token_grid(asked, float(data.episode_costs.max()), n_tokens)
    for budget in asked.tolist():
        within = int((data.episode_costs <= budget).sum())
        if within < MIN_TRAJECTORIES:
            raise DatasetError(
                f"{data.name}: a calibration for the budget {budget:g} needs at least "
                f"{MIN_TRAJECTORIES} trajectories within it, got {within} of {len(data)} (the "
                f"cheapest costs {data.episode_costs.min():g})."
            )
    report = evaluate_offline(agent, data, tokens.tolist(), seed=seed, config=config)
    found = from_estimates(
        tokens,
        np.array([max(result.mean_cost, result.nearest_cost) for result in report.results]),
        np.array([result.cost_interval[1] for result in report.results]),
        n_episodes=len(data),
        seed=seed,
    )
    if found.upper[0] > asked[0]:
        raise DatasetError(
            f"{data.name}: the data do not show a token that keeps the budget {asked[0]:g}: the "
            f"smallest may cost up to {found.upper[0]:.3g}, as far as they tell (fitted Q "
            f"{report.results[0].mean_cost:.3g}, nearest trajectories "
            f"{report.results[0].nearest_cost:.3g}). Ask for larger budgets alone, or calibrate "
            f"where episodes can be had."
        )
    return found


def from_estimates(
    tokens: Float64Array, costs: Float64Array, upper: Float64Array, *, n_episodes: int, seed: int
) -> TokenCalibration:
    """Curves that never fall with the token, and a bound that no token is below.

    So no budget is given a larger token than itself: estimates that are pulled towards the mean of
    the data are no reason to spend more.

    Args:
        tokens: (T,) increasing.
        costs: (T,) the higher estimate of the mean cost at each.
        upper: (T,) upper end of its interval.
        n_episodes: Trajectories that the estimates are from.
        seed: Of the estimates.
    """
    return TokenCalibration(
        tokens=tokens,
        costs=isotonic_fit(costs),
        upper=np.maximum(isotonic_fit(upper), tokens),
        confidence=ONE_SIDED,
        n_episodes=n_episodes,
        seed=seed,
        offline=True,
    )
