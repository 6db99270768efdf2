"""From a cost budget, and what an episode has earned and spent, to the policy's tokens.

Everything that decides about tokens is here: target returns, margin, replanning, the exhausted
budget and calibration. Wrappers and states only report what happened.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.config import Config
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dominance import DominanceTable
from rcdt_agent.data.frontier import (
    MIN_TRAJECTORIES,
    Outcomes,
    ReturnToGoTable,
    table_from_dict,
)
from rcdt_agent.deploy.checks import check_target_request
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.token_calibration import TokenCalibration
from rcdt_agent.errors import InvalidArgumentError

TargetReturn = str | float
"""`auto` (from the data), `paper` (the published table), or a number."""

NO_RETURN_TOKEN = (
    "`target_return` cannot be asked of this agent: its policy is told the cost budget alone, and "
    "returns as much as it has learned to within it. Train with `return_token=True`, or a variant "
    "that has it, such as `cdt`."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditioning:
    """The rules by which tokens are set; with all switches off, the paper's.

    Attributes:
        outcomes: Returns and costs of the training episodes.
        table: What the data still earned from a step on, given what they still spent.
        cautious_table: The same at a lower quantile, for episodes that spend ahead of pace; None:
            `table` serves them too.
        published: Budget -> target return, as published with CDT; empty without a DSRL task.
        quantile: Which return among the episodes within the budget `auto` asks for.
        margin: Share of the budget held back: the tokens ask for the rest.
        ctg_floor: Smallest cost-to-go asked for; None lets it go below zero.
        replan: Never ask for more return than the data show from here on.
        exhausted_mode: The same once the budget is spent, with a cost-to-go of zero.
        calibration: From a budget to the token that keeps it; None: the budget itself.
        return_token: Whether the policy is told a return; if not, none can be asked for.
    """

    outcomes: Outcomes
    table: ReturnToGoTable | DominanceTable
    cautious_table: ReturnToGoTable | DominanceTable | None = None
    published: tuple[tuple[float, float], ...] = ()
    quantile: float = 0.9
    margin: float = 0.0
    ctg_floor: float | None = None
    replan: bool = False
    exhausted_mode: bool = False
    calibration: TokenCalibration | None = None
    return_token: bool = True

    @classmethod
    def from_config(cls, config: Config, **data: Any) -> Conditioning:
        """The rules that a configuration asks for; `data` are the other fields."""
        return cls(
            quantile=config.target_quantile,
            margin=config.budget_margin,
            ctg_floor=config.ctg_floor,
            replan=config.replan,
            exhausted_mode=config.exhausted_mode,
            return_token=config.return_token,
            **data,
        )

    def token(self, cost_budget: npt.ArrayLike) -> Float32Array:
        """What the policy is asked to spend in an episode with this budget, of the same shape."""
        budget = np.asarray(cost_budget, dtype=np.float32)
        if self.calibration is not None:
            budget = self.calibration.token(budget)
        return np.asarray(budget * np.float32(1 - self.margin))

    @property
    def cost_names(self) -> tuple[str, ...]:
        """Of the costs, in the order of (N, m) budgets; one cost has budgets (N,)."""
        return self.outcomes.cost_names

    def target_return(self, cost_budget: npt.ArrayLike, request: TargetReturn = "auto") -> float:
        """The return that an episode at this budget is asked for.

        Args:
            cost_budget: What the episode may cost; (m,) of several costs.
            request: `auto`, `paper` or a number.

        Raises:
            InvalidArgumentError: Unknown word, no published table, not a finite number, or the
                policy is not told a return.
        """
        check_target_request(request)
        if request == "auto":
            token = self.token(cost_budget)
            return self.outcomes.target_return(token if token.ndim else float(token), self.quantile)
        if not self.return_token:
            raise InvalidArgumentError(NO_RETURN_TOKEN)
        if request == "paper":
            if not self.published:
                raise InvalidArgumentError(
                    "`target_return='paper'` needs a DSRL task: the agent was not made by "
                    "`from_dsrl`. Use 'auto' or a number."
                )
            refuse_several(self.cost_names, "`target_return='paper'`")
            budgets, targets = zip(*self.published, strict=True)
            return float(np.interp(np.asarray(cost_budget), budgets, targets))
        return float(request)

    def targets(self, state: AgentState) -> tuple[Float64Array, Float64Array]:
        """Target return and budget (N,) of the tokens at the present step of each episode.

        Earlier tokens of the window follow from them by what was earned and spent since, as in
        the data. Of several costs the budgets are (N, m); whichever is spent first, or spends
        furthest ahead of its pace, decides about the return.
        """
        token = self.token(state.cost_budget)
        if state.rolling is not None:
            left = state.rolling.allowance(token, state.total_cost)
            pace = np.ones(state.n_envs, dtype=np.float32)  # it is part of the allowance
        else:
            left = (token - state.total_cost).astype(np.float32)
            pace = self._pace(token, left, state.clock)
        exhausted = left <= 0 if left.ndim == 1 else (left <= 0).any(-1)
        floor = max(self.ctg_floor or 0.0, 0.0) if self.exhausted_mode else self.ctg_floor
        if floor is not None:
            left = np.maximum(left, np.float32(floor))
        target = state.target_return.astype(np.float64)
        capped = exhausted if self.exhausted_mode and not self.replan else self.replan
        if np.any(capped) or state.rolling is not None:
            most = state.total_return + self._return_to_go(state.clock, left, pace)
            target = np.where(capped, np.minimum(target, most), target)
            target = target if state.rolling is None else most  # an episode's says nothing here
        return target, state.total_cost + left

    def _return_to_go(
        self, steps: npt.ArrayLike, left: Float32Array, pace: Float32Array
    ) -> Float32Array:
        """(N,) what to ask for from these steps on."""
        most = self.table(steps, left)
        if self.cautious_table is None:
            return most
        cautious = self.cautious_table(steps, left)
        return cautious + pace * (most - cautious)

    def _pace(
        self, token: Float32Array, left: Float32Array, steps: npt.NDArray[np.int64]
    ) -> Float32Array:
        """(N,) what is left, as a share of what an even pace would have left; in [0, 1].

        Of several costs, the smallest share.
        """
        if left.ndim == 2:
            pairs = zip(token.T, left.T, strict=True)
            return np.asarray(np.min([self._pace(*pair, steps) for pair in pairs], axis=0))
        passed = np.clip(steps / (self.table.steps[-1] + 1), 0.0, 1.0)
        even = token * (1 - passed)  # float64: the smallest token has a share too
        within = (left >= 0).astype(np.float64)  # nothing should be left: kept or not
        share = np.divide(left, even, out=within, where=even > 0)
        return np.clip(share, 0.0, 1.0).astype(np.float32)

    def warn_if_uncovered(
        self, cost_budget: npt.ArrayLike, target_return: float, meaning: str = ""
    ) -> None:
        """Say aloud, with the numbers, when the data do not cover the request.

        Args:
            cost_budget: What an episode may cost; (m,) of several costs.
            target_return: What it is asked to return.
            meaning: Said first: where the budget comes from.
        """
        outcomes = self.outcomes
        budget = np.asarray(cost_budget, dtype=np.float64)
        asked = np.maximum(budget, self.token(cost_budget).astype(np.float64))
        best = outcomes.frontier.best_return(asked)
        if few := too_few_within(outcomes, asked):
            warnings.warn(meaning + few, stacklevel=3)
        elif target_return > best + 1e-6 * abs(best):
            warnings.warn(
                f"{meaning}The target return {target_return:g} exceeds the best return {best:g} "
                f"that any training trajectory reached within the "
                f"{budget_text(asked, self.cost_names)}: the policy is asked for what nobody "
                f"showed it.",
                stacklevel=3,
            )
        if beyond := beyond_all_costs(outcomes, budget):
            warnings.warn(meaning + beyond, stacklevel=3)
        if self.calibration is not None:
            self.calibration.warn_if_uncovered(float(budget))

    def to_dict(self) -> dict[str, Any]:
        """What is not in the configuration, as plain values for a checkpoint."""
        return {
            "outcomes": self.outcomes.to_dict(),
            "table": self.table.to_dict(),
            "cautious_table": self.cautious_table.to_dict() if self.cautious_table else None,
            "published": [list(pair) for pair in self.published],
            "calibration": self.calibration.to_dict() if self.calibration else None,
        }

    @classmethod
    def from_dict(cls, config: Config, values: dict[str, Any]) -> Conditioning:
        """The inverse of `to_dict`."""
        calibration, cautious = values["calibration"], values["cautious_table"]
        outcomes = Outcomes.from_dict(values["outcomes"])
        if calibration:
            refuse_several(outcomes.cost_names, "A calibration")
        return cls.from_config(
            config,
            outcomes=outcomes,
            table=table_from_dict(values["table"], outcomes.cost_names),
            cautious_table=table_from_dict(cautious, outcomes.cost_names) if cautious else None,
            published=tuple((float(b), float(t)) for b, t in values["published"]),
            calibration=TokenCalibration.from_dict(calibration) if calibration else None,
        )


def budget_text(cost_budget: npt.ArrayLike, cost_names: Sequence[str]) -> str:
    """A budget () or budgets (m,) in words: `cost budget 5`, `cost budgets a=5, b=20`."""
    budgets = np.ravel(np.asarray(cost_budget, dtype=np.float64)).tolist()
    if len(cost_names) == 1:
        return f"cost budget {budgets[0]:g}"
    named = (f"{name}={b:g}" for name, b in zip(cost_names, budgets, strict=True))
    return f"cost budgets {', '.join(named)}"


def too_few_within(outcomes: Outcomes, cost_budget: npt.ArrayLike) -> str:
    """What to say of a budget that hardly any training trajectory kept; empty if enough did.

    Of several costs: of budgets (m,) that hardly any kept together, and of each.
    """
    within = outcomes.n_within(cost_budget)
    if within >= min(MIN_TRAJECTORIES, len(outcomes)):
        return ""
    text = budget_text(cost_budget, outcomes.cost_names)
    if len(outcomes.cost_names) > 1:
        pairs = zip(outcomes.cost_names, np.ravel(cost_budget), outcomes.costs.T, strict=True)
        alone = [f"{name}: {int((c <= b).sum())}, cheapest {c.min():g}" for name, b, c in pairs]
        return (
            f"The {text} are covered together by {within} of {len(outcomes)} training "
            f"trajectories (alone {'; '.join(alone)}): expect a budget to be exceeded."
        )
    return (
        f"The {text} is covered by {within} of {len(outcomes)} training "
        f"trajectories (the cheapest costs {outcomes.costs.min():g}): expect the budget to be "
        f"exceeded."
    )


def beyond_all_costs(outcomes: Outcomes, cost_budget: npt.ArrayLike) -> str:
    """What to say of a budget above all that training trajectories cost; empty if it is not.

    Of several costs: of all whose budgets are.
    """
    if len(outcomes.cost_names) > 1:
        pairs = zip(outcomes.cost_names, np.ravel(cost_budget), outcomes.costs.T, strict=True)
        found = [
            (name, b, float(costs.max())) for name, b, costs in pairs if b > float(costs.max())
        ]
        if not found:
            return ""
        named = ", ".join(f"{name}={b:g} above {largest:g}" for name, b, largest in found)
        return (
            f"Cost budgets are above the largest cost of the {len(outcomes)} training "
            f"trajectories: {named}. They show nothing that costs as much."
        )
    cost_budget = float(np.asarray(cost_budget))
    largest = float(outcomes.costs.max())
    if cost_budget <= largest:
        return ""
    return (
        f"The cost budget {cost_budget:g} is above {largest:g}, the largest cost of the "
        f"{len(outcomes)} training trajectories: they show nothing that costs as much, so do not "
        f"expect more of it than of {largest:g}."
    )
