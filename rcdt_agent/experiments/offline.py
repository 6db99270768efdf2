"""What can be compared without an environment: how well policies predict recorded actions.

It is not return and not cost: a policy that improves on the data differs from them. It tells
whether a method has learned the behaviour within a budget, and whether it learned anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rcdt_agent._types import Float32Array
from rcdt_agent.algorithms.agent import Agent
from rcdt_agent.algorithms.recorded import actions_along
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset


@dataclass(frozen=True, kw_only=True)
class ImitationError:
    """Errors of a policy's actions on held-out trajectories within a budget.

    Attributes:
        budget: The cost budget.
        errors: Of each trajectory: squared error of its actions, in units of [-1, 1], averaged
            over steps and dimensions.
        variance: Of the recorded actions: the error of always giving their mean.
    """

    budget: float
    errors: tuple[float, ...]
    variance: float


def imitation_error(
    agent: Agent[Any, Any], held_out: TrajectoryDataset, budget: float, *, most: int
) -> ImitationError:
    """Predict the actions of recorded trajectories, step by step, from what was recorded before.

    An agent that is told a budget is told this one; one that is told a return too, the
    trajectory's own.

    Args:
        agent: Any trained algorithm.
        held_out: Trajectories that it was not trained on.
        budget: Only trajectories that cost at most this much.
        most: Trajectories to look at, at most; evenly spaced.
    """
    refuse_several(held_out.cost_names, "The imitation error at a budget")
    within = np.flatnonzero(held_out.episode_costs <= budget)
    if not len(within):
        return ImitationError(budget=budget, errors=(), variance=0.0)
    rows = within[np.unique(np.linspace(0, len(within) - 1, min(most, len(within))).astype(int))]
    looked_at = held_out.select(rows)
    scale = agent.policy.normalizer
    recorded = _scaled(scale, looked_at.actions)
    actions, _ = actions_along(agent, looked_at, budget, looked_at.episode_returns)
    squared = np.square(_scaled(scale, actions) - recorded)
    errors = [float(part.mean()) for part in np.split(squared, looked_at.offsets[1:-1])]
    return ImitationError(
        budget=budget, errors=tuple(errors), variance=float(recorded.var(axis=0).mean())
    )


def _scaled(normalizer: Any, actions: Float32Array) -> Float32Array:
    tensor = torch.from_numpy(actions).to(normalizer.action_low.device)
    return np.asarray(normalizer.actions(tensor).cpu().numpy(), dtype=np.float32)
