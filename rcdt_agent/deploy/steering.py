"""From what was asked and what has happened to what the policy is asked for at this step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcdt_agent.data.frontier import ReturnToGoTable
from rcdt_agent.deploy.calibration import TokenCalibration
from rcdt_agent.deploy.state import AgentState

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Steering:
    """The rules by which tokens are set; with none of them on, the paper's.

    Attributes:
        margin: Share of the budget that is held back: the tokens ask for the rest.
        ctg_floor: Smallest cost-to-go asked for; None lets it go below zero.
        replan: Never ask for more return than the data show from here on.
        exhausted_mode: The same once the budget is spent, with a cost-to-go of zero.
        return_to_go: What the data show; needed by `replan` and `exhausted_mode`.
        calibration: From a budget to the token that keeps it; None: the budget itself.
    """

    margin: float = 0.0
    ctg_floor: float | None = None
    replan: bool = False
    exhausted_mode: bool = False
    return_to_go: ReturnToGoTable | None = None
    calibration: TokenCalibration | None = None

    def token(self, budget: Floats) -> Floats:
        """What the policy is asked to spend for a budget (N,)."""
        if self.calibration is not None:
            budget = self.calibration.token(budget)
        return budget * np.float32(1 - self.margin)

    def aim(self, state: AgentState) -> tuple[Floats, Floats]:
        """Target return and budget (N,) of the tokens at the present step of each episode.

        Earlier tokens of the window follow from them by what was earned and spent since, as in
        the data.
        """
        left = self.token(state.cost_budget) - state.total_cost
        exhausted = left <= 0
        floor = max(self.ctg_floor or 0.0, 0.0) if self.exhausted_mode else self.ctg_floor
        if floor is not None:
            left = np.maximum(left, np.float32(floor))
        target = state.target_return
        capped = exhausted if self.exhausted_mode and not self.replan else self.replan
        if np.any(capped):
            assert self.return_to_go is not None
            most = state.total_return + self.return_to_go(state.steps - 1, left)
            target = np.where(capped, np.minimum(target, most), target)
        return target, state.total_cost + left
