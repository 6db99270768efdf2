"""Critic shield: when the policy's action looks too costly, the best of some others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rcdt_agent._types import BoolArray, Float32Array, Int64Array
from rcdt_agent.critics import TwinCritics
from rcdt_agent.losses import cost_allowance
from rcdt_agent.model import Gaussian


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticShield:
    """Chooses among actions near the policy's by the critics' estimates.

    The candidates are fixed multiples of the policy's standard deviation around its mean, the
    same at every step: a shielded policy remains a function of what it sees.

    Attributes:
        critics: `cost`, whose larger twin is what an action is believed to cost; and, if trained,
            `reward`, whose smaller twin ranks the actions that fit (else the nearest to the mean).
        cost_discount: Of the cost critic.
        episode_length: Longest episode.
        n_candidates: Actions besides the policy's own.
    """

    critics: TwinCritics
    cost_discount: float
    episode_length: int
    n_candidates: int

    def choose(
        self, obs: Tensor, policy: Gaussian, own: Tensor, left: Float32Array, steps: Int64Array
    ) -> tuple[Tensor, BoolArray]:
        """Actions (N, A), and where (N,) they are not the policy's own.

        The policy's action stays if its estimated cost-to-go fits what is left of the budget.
        Otherwise the candidate of the best value among those that fit, or the one of the least
        cost if none does.

        Args:
            obs: (N, O) normalised.
            policy: Of (N, A) actions.
            own: (N, A) the action it would take.
            left: (N,) what is left of the budget.
            steps: (N,) the present step of the episode.
        """
        mean, std = policy.mean, policy.log_std.exp()
        offsets = _offsets(self.n_candidates, mean.shape[1]).to(mean)
        around = (mean + offsets[:, None] * std).clamp(-1.0, 1.0)
        candidates = torch.cat((own[None], around))  # (1 + M, N, A)
        repeated = obs.expand(len(candidates), *obs.shape)
        values = self.critics(repeated, candidates)
        costs = values["cost"].amax(0).clamp(min=0.0)  # (1 + M, N)
        steps_left = torch.from_numpy(self.episode_length - steps).to(costs)
        allowed = cost_allowance(torch.from_numpy(left).to(costs), steps_left, self.cost_discount)
        fits = costs <= allowed
        if "reward" in values:
            merit = values["reward"].amin(0)
        else:
            merit = -((candidates - mean) / std).square().sum(-1)
        merit = torch.where(fits, merit, -torch.inf)
        pick = torch.where(fits.any(0), merit.argmax(0), costs.argmin(0))
        pick = torch.where(fits[0], torch.zeros_like(pick), pick)
        rows = torch.arange(len(mean), device=mean.device)
        return candidates[pick, rows], (pick > 0).cpu().numpy()


def _offsets(n: int, size: int) -> Tensor:
    """(n, size) standard normal draws, always the same."""
    return torch.randn((n, size), generator=torch.Generator().manual_seed(0))
