"""Evaluation of policies that know no budget, on the same seeded episodes as those that do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.baselines.bc import BC
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.targets import ReturnTargets
from rcdt_agent.tasks.registry import Task


class BudgetBlind:
    """A policy for `evaluate_budgets` that is told the budget and does not listen."""

    trained_on_published_data = False

    def __init__(self, policy: BC, targets: ReturnTargets, task: Task | None = None) -> None:
        """Wrap a trained policy.

        Args:
            policy: What acts.
            targets: Returns and costs of the data, which name the range of returns.
            task: Where it acts, and at which budgets.
        """
        self.policy = policy
        self.targets: ReturnTargets | None = targets
        self.task = task

    def resolve_target(self, cost_budget: float, target_return: Any = "auto") -> float:
        """What a policy that listened would be asked for."""
        assert self.targets is not None
        return self.targets.resolve(cost_budget, target_return)

    def begin(
        self,
        n_envs: int = 1,
        *,
        cost_budget: npt.ArrayLike | None = None,
        target_return: npt.ArrayLike | None = None,
    ) -> AgentState:
        """A state that only adds up what episodes earn and cost."""
        return AgentState.begin(
            n_envs,
            context_length=1,
            observation_size=1,
            action_size=1,
            target_return=0.0 if target_return is None else target_return,
            cost_budget=0.0 if cost_budget is None else cost_budget,
            follows_agent=False,
        )

    def predict(
        self,
        observation: Any,
        state: AgentState | None = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.float32], AgentState]:
        """The policy's actions for a batch of observations, and the state that awaits them."""
        actions, _ = self.policy.predict(observation, deterministic=deterministic)
        state = self.begin(len(actions)) if state is None else state
        if episode_start is not None:
            state = state.restart(episode_start)
        nothing = np.zeros((len(actions), 1), dtype=np.float32)
        return actions, state.push(nothing).with_action(nothing)
