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
