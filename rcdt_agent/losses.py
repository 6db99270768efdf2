"""Every training equation of the paper, one pure function each.

Arguments are tensors and floats only; `docs/equations.md` maps equation, function and test.
"""

from __future__ import annotations

import math

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


def frontier_weights(
    returns_to_go: Tensor, best: Tensor, typical: Tensor, sharpness: float
) -> Tensor:
    r"""Weight by closeness to the return-cost frontier: W = exp(sharpness (u - 1)).

    u = (R - typical) / (best - typical), at most 1. The paper's W compares all trajectories with
    one cost limit, so that costly ones count for nothing, whatever budget their tokens state. Here
    a step is compared with those that may spend as much: W asks for return at every budget alike,
    and a cheap trajectory counts at a large budget only if nobody earned more there.

    Args:
        returns_to_go: (...,) R, of recorded steps.
        best: (...,) a high quantile of the returns-to-go at that step of the episode among
            trajectories that still spend no more than the token allows.
        typical: (...,) their median; below `best`.
        sharpness: How steeply weights fall, at least 0; 0 weighs all alike.
    """
    closeness = (returns_to_go - typical) / (best - typical)
    return torch.exp(sharpness * (closeness.clamp(max=1.0) - 1.0))


def expert_weights(is_expert: Tensor, alpha: float) -> Tensor:
    r"""Weight of the KL-regularised objective: W = 1 + alpha I[tau in D_e], Proposition 1.

    Args:
        is_expert: (M,) bool, membership of the near-optimal subset.
        alpha: KL coefficient, >= 0.
    """
    return 1.0 + alpha * is_expert.float()


def effective_sample_size(weights: Tensor) -> Tensor:
    """Kish's effective sample size of weights (B,), as a share of B."""
    return weights.sum() ** 2 / weights.square().sum() / len(weights)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` where `mask` is True; the only reducer over padded windows.

    Args:
        values: (B, T).
        mask: (B, T) bool.
    """
    return (values * mask).sum() / mask.sum().clamp(min=1)


def gaussian_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, averaged over action dimensions (row 8 of decisions).

    Args:
        actions: (..., A).
        mean: (..., A).
        log_std: (..., A).

    Returns:
        (...,).
    """
    z = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).mean(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of a diagonal Gaussian, averaged over action dimensions: (..., A) -> (...,)."""
    return log_std.mean(-1) + 0.5 * math.log(2 * math.pi * math.e)


def temperature_loss(temperature: Tensor, entropy: Tensor, target: float) -> Tensor:
    """Raises the entropy temperature where the entropy is below its target, else lowers it.

    Args:
        temperature: () the coefficient that is learned.
        entropy: () of the policy; a constant here.
        target: Wanted entropy.
    """
    return temperature * (entropy.detach() - target)


def weighted_nll(log_prob: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    r"""Weighted imitation: - W_tau log pi(a_t | s_t, R_t, C_t, tau), Eq. (wcdt-loss).

    Differs: a mean over real steps instead of the paper's sum, so that batch size does not act as
    a learning rate.

    Args:
        log_prob: (B, T) log density of the recorded actions.
        weights: (B,) weight of each window's trajectory.
        mask: (B, T) bool.
    """
    return -masked_mean(weights[:, None] * log_prob, mask)


def q_scale(q_b: Tensor, mask: Tensor) -> Tensor:
    r"""Mean magnitude of one twin's values, a constant for the gradient: the unit of Q guidance.

    It is a statistic of the whole batch: micro-batches are given that of their batch.

    Args:
        q_b: (B, T) values at the policy's actions.
        mask: (B, T) bool.
    """
    return masked_mean(q_b.detach().abs(), mask).clamp(min=1e-6)


def q_guidance(q_a: Tensor, scale: Tensor, mask: Tensor) -> Tensor:
    r"""Value of the policy's own actions, the term E[Q(s_t, a_t)] of Eq. (algwb-loss).

    Differs: divided by `q_scale` of the other twin, as in QT: one grid of eta serves returns from
    15 to 3400.

    Args:
        q_a: (B, T) one twin's values at the policy's actions.
        scale: () from `q_scale`.
        mask: (B, T) bool.

    Returns:
        The scaled mean value; the policy loss subtracts eta times it.
    """
    return masked_mean(q_a, mask) / scale


def cost_penalty(cost_values: Tensor, mask: Tensor) -> Tensor:
    r"""Cost of the policy's own actions, J_c = E[C(s_t, a_t)] of Eq. (algc-loss).

    Args:
        cost_values: (B, T) cost critic at the policy's actions, in units of cost.
        mask: (B, T) bool.

    Returns:
        The mean; the policy loss adds lambda times it, dual ascent compares it with kappa.
    """
    return masked_mean(cost_values, mask)


def cost_allowance(
    to_go: Tensor, steps_left: Tensor, discount: float, *, finite: bool = True
) -> Tensor:
    """A cost critic's value of spending what is left evenly over the steps left.

    The horizon must be the critic's own: with k steps left, a rate of spending rho is worth
    rho (1 - discount^k) / (1 - discount) to a critic that ends with the episode, and
    rho / (1 - discount) to one that looks beyond.

    Args:
        to_go: (...,) what is left of the budget; below zero counts as zero.
        steps_left: (...,) to the end of the longest episode; at least one is assumed.
        discount: Of the cost critic, in [0, 1).
        finite: Whether the critic ends with the episode.
    """
    steps = steps_left.clamp(min=1)
    for_ever = to_go.clamp(min=0.0) / steps / (1 - discount)
    allowed: Tensor = for_ever * (1 - discount**steps) if finite else for_ever
    return allowed


def cost_threshold(
    cost_budget: float,
    discount: float,
    episode_length: int,
    *,
    normalised: bool = False,
    finite: bool = True,
) -> float:
    """What a cost critic may say at the start of an episode that keeps its budget.

    `cost_allowance` of the whole budget: budget (1 - discount^T) / (1 - discount) / T, costs
    spread evenly over T steps.

    Args:
        cost_budget: What an episode may cost, >= 0.
        discount: Of the cost critic, in [0, 1).
        episode_length: T.
        normalised: Times 1 - discount: a mean cost per step of the discounted state
            distribution, which methods that estimate that distribution compare.
        finite: Whether the critic ends with the episode, as for `cost_allowance`.
    """
    allowance = cost_allowance(
        torch.tensor(cost_budget, dtype=torch.float64),
        torch.tensor(episode_length),
        discount,
        finite=finite,
    )
    return float(allowance) * (1 - discount if normalised else 1.0)


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Asymmetric squared error: the mean of |expectile - 1[u < 0]| u^2.

    Args:
        difference: (...,) u, target minus estimate.
        expectile: In (0, 1); above one half the estimate tends to the largest targets.
    """
    weights = torch.where(difference < 0, 1 - expectile, expectile)
    return (weights * difference.square()).mean()


def pessimistic(twins: Tensor, pessimism: float) -> Tensor:
    """Mean of the twins, moved by a share of their difference.

    0.5 gives the larger twin, -0.5 the smaller, 0 the mean.

    Args:
        twins: (2, ...).
        pessimism: In units of the twins' difference; positive for costs, negative for rewards.
    """
    first, second = twins.unbind(0)
    return (first + second) / 2 + pessimism * (first - second).abs()


def cost_excess(cost_values: Tensor, allowance: Tensor, mask: Tensor) -> Tensor:
    """What actions cost beyond what their tokens allow (`kappa_mode="token"` and `"data"`).

    The paper's penalty compares one kappa with the mean over all budgets: a policy that keeps every
    budget it was given is still pushed to cost less. Here each step has the kappa of its own token,
    and what is within it is left alone.

    Args:
        cost_values: (B, T) cost critic at the actions, in units of cost.
        allowance: (B, T) what the cost-to-go token allows, in the same unit.
        mask: (B, T) bool.
    """
    return masked_mean((cost_values - allowance).clamp(min=0.0), mask)


def relative_excess(excess: Tensor, reference: Tensor, share: float) -> Tensor:
    """J_c / kappa - 1 of `kappa_mode="data"`: kappa is a share of what recorded actions exceed.

    Recorded trajectories kept the tokens that they are shown with. What the critic nevertheless
    expects them to cost beyond is luck and the critic's own error; the policy shall stay below.

    Args:
        excess: () `cost_excess` of the policy's actions, J_c.
        reference: () `cost_excess` of the recorded actions of the same steps.
        share: In (0, 1]: kappa = share x reference.
    """
    return excess / (share * reference).clamp(min=1e-8) - 1.0


def cost_head_loss(logit: Tensor, costs: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of predicting whether a step costs anything (auxiliary, off by default).

    Args:
        logit: (B, T) predicted log odds.
        costs: (B, T) cost of each step; fractional costs count as costing.
        mask: (B, T) bool.
    """
    target = (costs > 0).float()
    errors = torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="none")
    return masked_mean(errors, mask)


def td_target(reward: Tensor, next_value: Tensor, terminal: Tensor, discount: float) -> Tensor:
    r"""Temporal-difference target y = r_t + discount (1 - terminal) V(s_{t+1}), Algorithm 1.

    Only a terminal stops the bootstrap: after a timeout the episode could have gone on.

    Args:
        reward: (B, T) r_t or c_t.
        next_value: (B, T) target critic at (s_{t+1}, a_{t+1}).
        terminal: (B, T) bool.
        discount: In [0, 1).
    """
    return reward + discount * torch.where(terminal, 0.0, next_value)


def td_loss(values: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Squared error of each twin against one target, summed over twins.

    Args:
        values: (2, B, T).
        target: (B, T), a constant for the gradient.
        mask: (B, T) bool.
    """
    errors = (values - target.detach()).square().sum(0)
    return masked_mean(errors, mask)


def dual_ascent(
    lmbda: Tensor, cost_estimate: Tensor, *, kappa: float, step_size: float, maximum: float
) -> Tensor:
    r"""Projected step lambda <- [lambda + beta (J_c - kappa)]_+, Eq. (lambda-update).

    Differs: capped at `maximum`, so that a critic gone wrong cannot silence imitation.
    """
    return torch.clamp(lmbda + step_size * (cost_estimate - kappa), 0.0, maximum)


def episode_cost_factor(discount: float, horizon: int) -> float:
    """Episode cost per unit of mean discounted cost-to-go, for costs spread evenly over time.

    With k steps left, a cost of 1 per step has the value (1 - discount^k) / (1 - discount); the
    mean over k = 1 .. horizon is compared with the episode's total, horizon.
    """
    if discount == 0:
        return float(horizon)
    geometric = discount * (1 - discount**horizon) / (1 - discount)
    return horizon / ((1 - geometric / horizon) / (1 - discount))


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
