"""Objectives of TraC, FISOR and CAPS: policies that imitate recorded actions by a weight.

One equation, one function. What other baselines use too is in `baseline_losses`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# -------------------------------------------------------------------- TraC


def segment_scores(
    log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor, *, alpha: float, discount: float
) -> Tensor:
    r"""TraC's score of segments (B,): sum_t alpha gamma^t (log pi - log pi_ref)(a_t | s_t).

    Args:
        log_prob: (B, T) of the policy.
        reference_log_prob: (B, T) of the frozen reference.
        mask: (B, T) bool.
        alpha: Temperature, > 0.
        discount: gamma, in (0, 1].
    """
    steps = torch.arange(log_prob.shape[1], device=log_prob.device, dtype=log_prob.dtype)
    margins = torch.where(mask, log_prob - reference_log_prob, 0.0)
    return alpha * (discount**steps * margins).sum(-1)


def classification_loss(
    scores: Tensor, desirable: Tensor, weights: Tensor, *, eta: float, floor: float | None = None
) -> Tensor:
    r"""TraC's weighted logistic loss of segments.

    - mean_i l_i w_i [y_i log sigmoid(s_i) + (1 - y_i) log sigmoid(-s_i)], where l = 1 for desirable
    segments and eta n_desirable / n_undesirable (of the batch) for the others.

    Args:
        scores: (B,) of `segment_scores`.
        desirable: (B,) bool, y.
        weights: (B,) w.
        eta: Weight of all undesirable segments together, relative to the desirable.
        floor: Least argument of the logarithm; a segment below it has no gradient. None: exact.
    """
    n_desirable = desirable.sum()
    n_undesirable = (~desirable).sum().clamp(min=1)
    balance = torch.where(desirable, 1.0, eta * n_desirable / n_undesirable)
    signed = torch.where(desirable, scores, -scores)
    if floor is None:
        log_likelihood = F.logsigmoid(signed)
    else:
        log_likelihood = torch.sigmoid(signed).clamp(min=floor).log()
    return -(balance * weights * log_likelihood).mean()


# -------------------------------------------------------------------- FISOR


def feasibility_target(
    violations: Tensor, next_values: Tensor, ends: Tensor, discount: float
) -> Tensor:
    r"""FISOR's target of Q_h: (1 - gamma) h + gamma max(h, V_h(s')), and h at an end.

    Args:
        violations: (B,) h, positive where the step violates the constraint.
        next_values: (B,) V_h after the step.
        ends: (B,) bool, nothing follows.
        discount: gamma, in [0, 1).
    """
    ahead = (1 - discount) * violations + discount * torch.maximum(violations, next_values)
    return torch.where(ends, violations, ahead)


def feasibility_weights(
    advantages: Tensor,
    q_violation: Tensor,
    v_violation: Tensor,
    *,
    temperatures: tuple[float, float],
    caps: tuple[float, float],
) -> Tensor:
    r"""FISOR's weight (B,) of recorded actions.

    In a feasible state (V_h <= 0) an action that stays feasible (Q_h <= 0) weighs
    exp(t_r (Q - V)), another one nothing. In an infeasible state an action weighs
    exp(t_h (V_h - Q_h)): the way back counts, not the reward.

    Args:
        advantages: (B,) Q - V of reward.
        q_violation: (B,) Q_h of the action.
        v_violation: (B,) V_h of the state.
        temperatures: t_r and t_h.
        caps: Largest weight of each kind.
    """
    rewarding = (temperatures[0] * advantages).exp().clamp(max=caps[0])
    recovering = (temperatures[1] * (v_violation - q_violation)).exp().clamp(max=caps[1])
    feasible = torch.where(q_violation <= 0, rewarding, 0.0)
    return torch.where(v_violation <= 0, feasible, recovering)


# -------------------------------------------------------------------- CAPS


def advantage_weights(advantages: Tensor, temperature: float, cap: float) -> Tensor:
    """min(exp(temperature * A), cap): the weights of advantage-weighted regression."""
    return (temperature * advantages).exp().clamp(max=cap)


def head_weights(reward_weights: Tensor, cost_weights: Tensor, n_heads: int) -> Tensor:
    """CAPS's weights (K, B) of recorded actions for each of K heads, from reckless to careful.

    Head 0 has the weights of reward, the last those of (negated) cost, head k between
    w_r + k / ((K - 1) / 2) w_c.

    Args:
        reward_weights: (B,).
        cost_weights: (B,).
        n_heads: K, >= 2.
    """
    shares = torch.arange(1, n_heads - 1, device=reward_weights.device) / ((n_heads - 1) / 2)
    between = reward_weights + shares[:, None] * cost_weights
    return torch.cat((reward_weights[None], between, cost_weights[None]))


def choose_head(reward_values: Tensor, cost_values: Tensor, allowance: Tensor) -> Tensor:
    """CAPS's switch (B,): of the heads within the allowance the one of highest reward value.

    Where no head is within it, the one of least cost value.

    Args:
        reward_values: (K, B) of each head's action.
        cost_values: (K, B) likewise.
        allowance: (B,) what the cost critic may say for what is left of the budget.
    """
    allowed = cost_values <= allowance
    best = torch.where(allowed, reward_values, -torch.inf).argmax(0)
    return torch.where(allowed.any(0), best, cost_values.argmin(0))
