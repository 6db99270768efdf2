"""`AnyBudget`: algorithms whose one trained policy serves any cost budget."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from rcdt_agent.algorithms.acting import EpisodeActing
from rcdt_agent.algorithms.agent import ConfigT, PolicyT
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.costs import CostBudget, by_name
from rcdt_agent.data.readers import AnyData, as_dataset
from rcdt_agent.deploy.checks import check_cost_budget
from rcdt_agent.errors import InvalidArgumentError


class AnyBudget(EpisodeActing[PolicyT, ConfigT]):
    """Owns the cost budget in force; it can change at any time."""

    budgets = "any"

    def __init__(
        self,
        env: Env | None = None,
        config: ConfigT | None = None,
        *,
        cost_budget: CostBudget | None = None,
        **kwargs: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: Optional; gives the spaces, and serves evaluation callbacks.
            config: Settings; instead of `variant`, `preset` and its fields.
            cost_budget: What an episode may cost at deployment, by name where the data have
                several costs; default: the task's middle budget, or the median cost of the
                training trajectories.
            **kwargs: As for `Agent`, and any field of the configuration.
        """
        self._cost_budget = None if cost_budget is None else check_cost_budget(cost_budget, None)
        super().__init__(env, config, **kwargs)

    @abstractmethod
    def judge_budget(self) -> None:
        """Warn if the training data, which are known now, do not cover the budget in force."""

    @property
    def cost_budget(self) -> Any:
        """What an episode may cost: a number, or one by name for each of several costs."""
        if self._cost_budget is None:
            raise InvalidArgumentError(
                "There is no cost budget yet: call `set_cost_budget`, or `learn` first, which "
                "sets a default."
            )
        return self._cost_budget

    def set_dataset(self, dataset: AnyData) -> None:
        """Give the agent its training data; see `OfflineAlgorithm.set_dataset`.

        Raises:
            InvalidArgumentError: The budget that was stated is not of the data's costs.
        """
        data = as_dataset(dataset)
        self.check_costs(data)
        if self._cost_budget is not None and not self.has_policy:
            check_cost_budget(self._cost_budget, data.cost_names)
        super().set_dataset(data)
        if self._cost_budget is None:
            names = self.cost_names
            if self.task is not None and len(names) == 1:
                self._cost_budget = self.task.reference_budget
            else:
                self._cost_budget = by_name(self.policy.outcomes.typical_costs, names)
        else:
            self.judge_budget()

    def settings_to_save(self) -> dict[str, Any]:
        """The budget in force."""
        return {"cost_budget": self._cost_budget}

    def load_settings(self, values: dict[str, Any]) -> None:
        """Take over the budget of a checkpoint."""
        self._cost_budget = check_cost_budget(values["cost_budget"], self.cost_names)
