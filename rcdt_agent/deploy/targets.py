"""From a cost budget to the return worth asking for: what the data show at that cost."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from rcdt_agent._types import Float32Array
from rcdt_agent.data.frontier import MIN_TRAJECTORIES, Frontier, Outcomes, ReturnToGoTable
from rcdt_agent.errors import InvalidArgumentError

TargetReturn = str | float
"""`auto` (from the data), `paper` (the published table), or a number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnTargets:
    """Returns and costs of the training trajectories, and the published targets of the task.

    Attributes:
        returns: (M,).
        costs: (M,).
        quantile: Which return among the trajectories within the budget `auto` asks for.
        published: Budget -> target return, as published with CDT; empty without a task.
        to_go: The same question in mid-episode; None for a file that does not hold it.
    """

    returns: Float32Array
    costs: Float32Array
    quantile: float = 0.9
    published: tuple[tuple[float, float], ...] = ()
    to_go: ReturnToGoTable | None = None

    def __post_init__(self) -> None:
        """Refuse what no dataset gives."""
        assert self.outcomes

    @property
    def outcomes(self) -> Outcomes:
        """Returns and costs of the training trajectories."""
        return Outcomes(returns=self.returns, costs=self.costs)

    @property
    def frontier(self) -> Frontier:
        """The non-dominated points."""
        return self.outcomes.frontier

    def resolve(self, cost_budget: float, target_return: TargetReturn = "auto") -> float:
        """The target return of a request.

        Raises:
            InvalidArgumentError: Unknown word, no published table, or not a finite number.
        """
        if target_return == "auto":
            return self.auto(cost_budget)
        if target_return == "paper":
            if not self.published:
                raise InvalidArgumentError(
                    "`target_return='paper'` needs a DSRL task: the agent was not made by "
                    "`from_dsrl`. Use 'auto' or a number."
                )
            budgets, targets = zip(*self.published, strict=True)
            return float(np.interp(cost_budget, budgets, targets))
        if isinstance(target_return, str) or not np.isfinite(target_return):
            raise InvalidArgumentError(
                f"`target_return` must be 'auto', 'paper' or a finite number, got "
                f"{target_return!r}."
            )
        return float(target_return)

    def auto(self, cost_budget: float) -> float:
        """A high quantile of the returns seen within the budget; see `Outcomes`."""
        return self.outcomes.target_return(cost_budget, self.quantile)

    def warn_if_uncovered(self, cost_budget: float, target_return: float) -> None:
        """Say aloud, with the numbers, when the data do not cover the request."""
        within = self.outcomes.n_within(cost_budget)
        if within < min(MIN_TRAJECTORIES, len(self.costs)):
            warnings.warn(
                f"The cost budget {cost_budget:g} is covered by {within} of {len(self.costs)} "
                f"training trajectories (the cheapest costs {self.costs.min():g}): expect the "
                f"budget to be exceeded.",
                stacklevel=3,
            )
            return
        best = self.frontier.best_return(cost_budget)
        if target_return > best + 1e-6 * abs(best):
            warnings.warn(
                f"The target return {target_return:g} exceeds the best return {best:g} that any "
                f"training trajectory reached within the cost budget {cost_budget:g}: the policy "
                f"is asked for what nobody showed it.",
                stacklevel=3,
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return {
            "returns": self.returns.tolist(),
            "costs": self.costs.tolist(),
            "quantile": self.quantile,
            "published": [list(pair) for pair in self.published],
            "to_go": self.to_go.to_dict() if self.to_go else None,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ReturnTargets:
        """The inverse of `to_dict`."""
        return cls(
            returns=np.asarray(values["returns"], dtype=np.float32),
            costs=np.asarray(values["costs"], dtype=np.float32),
            quantile=float(values["quantile"]),
            published=tuple((float(b), float(t)) for b, t in values["published"]),
            to_go=ReturnToGoTable.from_dict(values["to_go"]) if values["to_go"] else None,
        )
