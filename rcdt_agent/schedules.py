"""Rates by the number of steps: of learning, of averages and of target networks."""

from __future__ import annotations

import math


def learning_rate(
    step: int, *, peak: float, warmup_steps: int, total_steps: int, final_share: float
) -> float:
    """Learning rate of a step: a linear warm-up, then half a cosine down to a share of the peak.

    Args:
        step: Steps made so far.
        peak: Rate after the warm-up.
        warmup_steps: Length of the warm-up.
        total_steps: Where the cosine ends; later steps stay there.
        final_share: What is left of the peak; 1 keeps it constant, as the paper does.
    """
    warm = min(1.0, (step + 1) / (warmup_steps + 1))
    progress = min(1.0, step / total_steps)
    share = final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * progress))
    return peak * warm * share


def ema_rate(step: int, decay: float) -> float:
    """Share of the newest weights in the moving average, after a step.

    Early averages forget faster, so that the initial weights are soon gone.

    Args:
        step: Steps made before this one.
        decay: Of the average, once it is under way; in (0, 1).
    """
    return 1.0 - min(decay, (step + 1) / (step + 10))


def target_rate(n_steps: int, discount: float, *, least: float = 0.01) -> float:
    """Rate of soft target updates at which TD learning converges within some critic steps.

    A soft update of rate tau shrinks the error of the targets by 1 - tau (1 - discount) a step:
    tau (1 - discount) n >= 5 leaves less than one per cent of it.

    Args:
        n_steps: Critic steps of the whole training.
        discount: Of the critic.
        least: The paper's rate, which long trainings keep.
    """
    return min(1.0, max(least, 5.0 / ((1 - discount) * max(n_steps, 1))))
