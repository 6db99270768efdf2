"""Every training equation of the paper, one pure function each.

Arguments are tensors and floats only; `docs/equations.md` maps equation, function and test.
"""

from __future__ import annotations

import torch
from torch import Tensor


def returns_to_go(rewards: Tensor, ends: Tensor) -> Tensor:
    r"""Return-to-go (or cost-to-go) of flat trajectories: \bar R_t = \sum_{i=t}^{H} r_i (Eq. NLL).

    Args:
        rewards: (N,) per-step rewards or costs, trajectories one after the other.
        ends: (N,) bool, True at the last step of each trajectory; the last entry must be True.

    Returns:
        (N,) undiscounted sums to the end of the trajectory, in the dtype of `rewards`.
    """
    (last_rows,) = torch.nonzero(ends, as_tuple=True)
    lengths = torch.diff(last_rows, prepend=last_rows.new_tensor([-1]))
    # Sum in float64: a float32 sum over millions of steps drifts.
    total = torch.cumsum(rewards, dim=0, dtype=torch.float64)
    to_go = torch.repeat_interleave(total[last_rows], lengths)
    return to_go.sub_(total).add_(rewards).to(rewards.dtype)


def trajectory_weights(
    returns: Tensor, costs: Tensor, *, alpha: float, gamma: float, cost_limit: float
) -> Tensor:
    r"""Return-cost weight W = exp(alpha R) sigmoid(gamma (c_lim - C)), Eq. (w-def).

    Differs: R is scaled to [0, 1] by the smallest and largest of `returns` first, because raw
    returns run from 15 to 3400 over the benchmark and exp(alpha R) would overflow.

    Args:
        returns: (M,) returns of all trajectories of the dataset.
        costs: (M,) their costs, unscaled.
        alpha: Sensitivity to the scaled return.
        gamma: Sensitivity to cost, per unit of cost.
        cost_limit: c_lim, the cost at which the safety factor is one half.

    Returns:
        (M,) positive weights, before normalisation.
    """
    low, high = returns.min(), returns.max()
    span = torch.where(high > low, high - low, torch.ones_like(high))
    scaled = (returns - low) / span
    return torch.exp(alpha * scaled) * torch.sigmoid(gamma * (cost_limit - costs))


def expert_weights(is_expert: Tensor, alpha: float) -> Tensor:
    r"""Weight of the KL-regularised objective: W = 1 + alpha I[tau in D_e], Proposition 1.

    Args:
        is_expert: (M,) bool, membership of the near-optimal subset.
        alpha: KL coefficient, >= 0.
    """
    return 1.0 + alpha * is_expert.float()


def alignment_bound(epsilon: float, coverage: float, horizon: int, constant: float = 1.0) -> float:
    r"""How far return and cost can miss their targets: C eps (1 / alpha_F + 2) H^2, Theorem 1.

    Args:
        epsilon: Probability that one step deviates from deterministic dynamics.
        coverage: alpha_F, the probability of the target return and cost in the data.
        horizon: Episode length H.
        constant: The theorem's universal constant, for rewards and costs of at most 1 per step.

    Returns:
        The bound; infinite when the data hold no such trajectory.
    """
    if epsilon == 0:
        return 0.0 if coverage > 0 else float("inf")
    if coverage <= 0:
        return float("inf")
    return constant * epsilon * (1.0 / coverage + 2.0) * horizon**2
