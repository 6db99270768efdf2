"""Critic shield: when the policy's action looks too costly, the best of some others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rcdt_agent.losses import cost_allowance
from rcdt_agent.networks.critics import TwinCritic

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticShield:
    """Chooses among actions near the policy's by the critics' estimates.

    The candidates are fixed multiples of the policy's standard deviation around its mean, the
    same at every step: a shielded policy remains a function of what it sees.

    Attributes:
        cost_critic: Its larger twin is what an action is believed to cost.
        reward_critic: Its smaller twin ranks actions that fit; None: the one nearest the mean.
        cost_discount: Of the cost critic.
        episode_length: Longest episode.
        n_candidates: Actions besides the policy's own.
    """

    cost_critic: TwinCritic
    reward_critic: TwinCritic | None
    cost_discount: float
    episode_length: int
    n_candidates: int

    def choose(
        self,
        obs: Tensor,
        mean: Tensor,
        std: Tensor,
        own: Tensor,
        left: Floats,
        steps: npt.NDArray[np.int64],
    ) -> tuple[Tensor, npt.NDArray[np.bool_]]:
        """Actions (N, A), and where (N,) they are not the policy's own.

        The policy's action stays if its estimated cost-to-go fits what is left of the budget.
        Otherwise the candidate of the best value among those that fit, or the one of the least
        cost if none does.

        Args:
            obs: (N, O) scaled.
            mean: (N, A) of the policy.
            std: (N, A) of the policy.
            own: (N, A) the action it would take.
            left: (N,) what is left of the budget.
            steps: (N,) the present step of the episode.
        """
        offsets = _offsets(self.n_candidates, mean.shape[1]).to(mean)
        around = (mean + offsets[:, None] * std).clamp(-1.0, 1.0)
        candidates = torch.cat((own[None], around))  # (1 + M, N, A)
        seen = obs.expand(len(candidates), *obs.shape)
        costs = self.cost_critic(seen, candidates).amax(0).clamp(min=0.0)  # (1 + M, N)
        steps_left = torch.as_tensor(self.episode_length - steps).to(costs)
        allowed = cost_allowance(torch.as_tensor(left).to(costs), steps_left, self.cost_discount)
        fits = costs <= allowed
        if self.reward_critic is not None:
            merit = self.reward_critic(seen, candidates).amin(0)
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
