"""Critic shield: when the policy's action looks too costly, the best of some others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rcdt_agent._types import BoolArray
from rcdt_agent.actions import ActionDistribution
from rcdt_agent.critics import TwinCritics
from rcdt_agent.losses import pessimistic


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticShield:
    """Chooses among actions near the policy's by the critics' estimates.

    The candidates are `ActionDistribution.candidates`, by the same rule at every step: a shielded
    policy remains a function of what it sees.

    Attributes:
        critics: `cost`, by which actions fit or do not; and, if trained, `reward`, whose smaller
            twin ranks the actions that fit (else the nearest to the mean).
        n_candidates: Actions besides the policy's own.
        cost_pessimism: As in `Config`: 0.5 believes the larger twin.
    """

    critics: TwinCritics
    n_candidates: int
    cost_pessimism: float = 0.5

    def choose(
        self,
        obs: Tensor,
        policy: ActionDistribution,
        own: Tensor,
        allowed: Tensor,
        context: Tensor | None = None,
    ) -> tuple[Tensor, BoolArray]:
        """Actions (N, A), and where (N,) they are not the policy's own.

        The policy's action stays if its estimated cost-to-go is allowed. Otherwise the candidate of
        the best value among those that are, or the one of the least cost if none is.

        Args:
            obs: (N, O) normalised.
            policy: Of (N, A) actions.
            own: (N, A) the action it would take.
            allowed: (N,) what the cost critic may say, in its unit.
            context: (N, X) what the critics see besides, if anything.
        """
        candidates = torch.cat((own[None], policy.candidates(self.n_candidates)))  # (1 + M, N, A)
        n = len(candidates)
        repeated = None if context is None else context.expand(n, *context.shape)
        values = self.critics(obs.expand(n, *obs.shape), candidates, repeated)
        costs = pessimistic(values["cost"], self.cost_pessimism).clamp(min=0.0)  # (1 + M, N)
        fits = costs <= allowed
        by_reward = "reward" in values
        merit = values["reward"].amin(0) if by_reward else policy.nearness(candidates)
        merit = torch.where(fits, merit, -torch.inf)
        pick = torch.where(fits.any(0), merit.argmax(0), costs.argmin(0))
        pick = torch.where(fits[0], torch.zeros_like(pick), pick)
        rows = torch.arange(len(own), device=own.device)
        return candidates[pick, rows], (pick > 0).cpu().numpy()
