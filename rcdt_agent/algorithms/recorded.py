"""What an agent would do along recorded trajectories, from what was recorded before each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Int64Array
from rcdt_agent.algorithms.agent import Agent
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.deploy.checks import check_budgets
from rcdt_agent.deploy.state import AgentState

GROUP = 256
"""Trajectories that are walked side by side, of like lengths."""


def actions_along(
    agent: Agent[Any, Any],
    data: TrajectoryDataset,
    budget: Any,
    target_return: npt.ArrayLike | None,
    *,
    deterministic: bool = True,
) -> tuple[Float32Array, Float32Array]:
    """The agent's actions along every trajectory, with recorded actions, rewards and costs.

    The agent's state sees what was recorded, not what the agent would have done: at each step it
    is asked what it would do with the budget that the record has left.

    Args:
        agent: Any trained algorithm.
        data: Trajectories.
        budget: The cost budget of an agent that serves any; a dict of several costs.
        target_return: What it is asked to return: a number or (M,).
        deterministic: The most likely action; otherwise a sampled one.

    Returns:
        (N, A) actions at all steps, and (M, A) at the observations after the last steps; these are
        zero after the steps of a longest trajectory, and where there is no such observation.
    """
    actions = np.zeros_like(data.actions)
    final = np.zeros((len(data), data.action_size), dtype=data.actions.dtype)
    targets = np.broadcast_to(0.0 if target_return is None else target_return, len(data))
    order = np.argsort(data.lengths, kind="stable")
    longest = int(data.lengths.max())
    for rows in np.array_split(order, -(-len(order) // GROUP)):
        _walk(agent, data, rows, budget, targets[rows], actions, final, longest, deterministic)
    return actions, final


def _walk(
    agent: Agent[Any, Any],
    data: TrajectoryDataset,
    rows: Int64Array,
    budget: Any,
    targets: npt.NDArray[Any],
    actions: Float32Array,
    final: Float32Array,
    longest: int,
    deterministic: bool,
) -> None:
    """Fill in the actions of trajectories `rows`."""
    first, lengths, n = data.offsets[rows], data.lengths[rows], len(rows)
    goes_on = (lengths < longest) & ~data.terminated[rows] & data.final_known[rows]
    state = None  # others act the same at every budget
    if agent.budgets == "any":
        allowed = check_budgets(budget, 1, agent.cost_names)[0]
        state = agent.begin(n).with_own_targets(targets, allowed)
    for step in range(int((lengths + goes_on).max())):
        now = first + np.minimum(step, lengths - 1)  # ended ones stand still, and are not noted
        running = step < lengths
        after = (step == lengths) & goes_on
        obs = np.where(after[:, None], data.final_observations[rows], data.observations[now])
        starts = np.full(n, step == 0)
        given, state = agent.predict(obs, state, starts, deterministic)
        given = given.reshape(n, -1)
        actions[now[running]] = given[running]
        final[rows[after]] = given[after]
        if isinstance(state, AgentState):  # what was done, not what would have been
            state = state.with_action(data.actions[now])
            on = running.reshape(n, *[1] * (data.costs.ndim - 1))
            state = state.observe(data.rewards[now] * running, data.costs[now] * on)
