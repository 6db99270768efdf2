"""Equations of the baselines, one pure function each; arguments are tensors and numbers only.

`losses` has those of the paper, and what both share.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Kernel = Literal["gaussian", "laplacian"]

# ------------------------------------------------------------ shared


def gaussian_kl(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL divergence of a diagonal Gaussian from N(0, I), averaged over dimensions.

    Args:
        mean: (..., L).
        log_std: (..., L).

    Returns:
        (...,).
    """
    return 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).mean(-1)


def vae_loss(
    reconstructed: Tensor, actions: Tensor, mean: Tensor, log_std: Tensor, beta: float = 0.5
) -> Tensor:
    """Squared error of the reconstruction, and beta times the KL of the latent; means of both.

    Args:
        reconstructed: (B, A).
        actions: (B, A) recorded.
        mean: (B, L) of the latent.
        log_std: (B, L) of the latent.
        beta: Weight of the KL.
    """
    return F.mse_loss(reconstructed, actions) + beta * gaussian_kl(mean, log_std).mean()


def ensemble_td_loss(values: Tensor, target: Tensor) -> Tensor:
    """Squared error against one target, a mean over the batch and a sum over networks.

    Args:
        values: (..., B).
        target: As values, or with fewer leading axes; a constant for the gradient.
    """
    return (values - target.detach()).square().mean(-1).sum()


def mixed_value(values: Tensor, share: float, *, pessimism: Literal["low", "high"]) -> Tensor:
    """Soft clipped value of two groups of networks, as in BCQ.

    Each group is worth the minimum of its networks; share min + (1 - share) max of the groups.

    Args:
        values: (2, N, ...) estimates of two groups.
        share: Of the pessimistic group, in [0, 1].
        pessimism: `low` for rewards; `high` takes maxima for minima, for costs.

    Returns:
        (...,).
    """
    groups = values.amin(1) if pessimism == "low" else values.amax(1)
    low, high = groups.amin(0), groups.amax(0)
    first, second = (low, high) if pessimism == "low" else (high, low)
    return share * first + (1 - share) * second


def lagrangian_loss(values: Tensor, cost_values: Tensor, lmbda: Tensor, threshold: float) -> Tensor:
    """The actor's -E[Q] + lambda (E[Q_c] - threshold).

    Args:
        values: (B,) reward critic at the actor's actions.
        cost_values: (B,) cost critic there.
        lmbda: () a constant for the gradient.
        threshold: Of the cost critic.
    """
    return -values.mean() + lmbda.detach() * (cost_values.mean() - threshold)


# ------------------------------------------------------------ BEAR


def mmd(x: Tensor, y: Tensor, sigma: float, kernel: Kernel = "gaussian") -> Tensor:
    """Maximum mean discrepancy of two samples, per row.

    sqrt(E k(x, x') + E k(y, y') - 2 E k(x, y) + 1e-6), k = exp(-d / (2 sigma)) with d the squared
    Euclidean distance (gaussian) or the sum of absolute differences (laplacian).

    Args:
        x: (B, N, A).
        y: (B, M, A).
        sigma: Width of the kernel.
        kernel: `gaussian` or `laplacian`.

    Returns:
        (B,).
    """

    def similarity(a: Tensor, b: Tensor) -> Tensor:
        apart = a[:, :, None] - b[:, None]  # (B, N, M, A)
        distance = apart.square().sum(-1) if kernel == "gaussian" else apart.abs().sum(-1)
        return torch.exp(-distance / (2 * sigma)).mean((1, 2))

    squared = similarity(x, x) + similarity(y, y) - 2 * similarity(x, y)
    return (squared.clamp(min=0.0) + 1e-6).sqrt()


# ------------------------------------------------------------ CPQ


def penalised_value(values: Tensor, cost_values: Tensor, threshold: float) -> Tensor:
    """Constraints-penalised value 1[Q_c <= threshold] Q: what is unsafe is worth nothing.

    The indicator passes no gradient.

    Args:
        values: (...,) reward critic.
        cost_values: (...,) cost critic at the same actions.
        threshold: Of the cost critic.
    """
    return values * (cost_values.detach() <= threshold)


def out_of_distribution(divergence: Tensor, quantile: float) -> Tensor:
    """Bool: actions whose latent is as far from the prior as the batch's quantile, or farther.

    Args:
        divergence: (...,) KL of the encoded latent.
        quantile: In [0, 1].
    """
    return divergence >= torch.quantile(divergence.flatten(), quantile)


def ood_cost(cost_values: Tensor, is_ood: Tensor, *, zeros_included: bool = False) -> Tensor:
    """Mean cost value of out-of-distribution actions.

    Args:
        cost_values: (...,).
        is_ood: (...,) bool.
        zeros_included: Average over all actions, those in the distribution counting zero, as the
            published code does.
    """
    n = is_ood.numel() if zeros_included else is_ood.sum().clamp(min=1)
    return (cost_values * is_ood).sum() / n


# ------------------------------------------------------------ COptiDICE


def soft_chi_square(x: Tensor) -> Tensor:
    """f(x) = x log x - x + 1 below 1, (x - 1)^2 / 2 above; f(0) = 1."""
    entropy = torch.special.xlogy(x, x) - x + 1
    return torch.where(x < 1, entropy, 0.5 * (x - 1).square())


def soft_chi_square_weight(y: Tensor) -> Tensor:
    """The inverse of f', never negative: exp(y) below 0, y + 1 above."""
    return torch.where(y < 0, y.clamp(max=0.0).exp(), y + 1)


def dice_advantage(
    rewards: Tensor, costs: Tensor, nu: Tensor, next_nu: Tensor, lmbda: Tensor | float
) -> Tensor:
    """E = r - lambda c + discount (1 - stop) nu(s') - nu(s).

    Args:
        rewards: (B,).
        costs: (B,).
        nu: (B,).
        next_nu: (B,) discounted, and zero where the episode stops.
        lmbda: () multiplier of the cost.
    """
    return rewards - lmbda * costs + next_nu - nu


def dice_nu_loss(initial_nu: Tensor, advantage: Tensor, alpha: float, discount: float) -> Tensor:
    """(1 - discount) E[nu(s_0)] + E[w e - alpha f(w)], w = (f')^-1(e / alpha).

    Args:
        initial_nu: (B,) at first states.
        advantage: (B,) e.
        alpha: Weight of the divergence from the data.
        discount: In [0, 1).
    """
    weights = soft_chi_square_weight(advantage / alpha)
    gain = weights * advantage - alpha * soft_chi_square(weights)
    return (1 - discount) * initial_nu.mean() + gain.mean()


def dice_cost_term(
    initial_chi: Tensor,
    weights: Tensor,
    costs: Tensor,
    chi: Tensor,
    next_chi: Tensor,
    discount: float,
) -> Tensor:
    """Ell = (1 - discount) chi(s_0) + w (c + discount (1 - stop) chi(s') - chi(s)).

    Args:
        initial_chi: (B,) at first states.
        weights: (B,) w, constants.
        costs: (B,).
        chi: (B,).
        next_chi: (B,) discounted, and zero where the episode stops.
        discount: In [0, 1).
    """
    return (1 - discount) * initial_chi + weights.detach() * (costs + next_chi - chi)


def dice_cost_weights(ell: Tensor, tau: Tensor) -> Tensor:
    """U = B softmax(ell / tau): the batch reweighted towards what costs most, of mean 1."""
    return len(ell) * torch.softmax(ell / tau.detach(), dim=0)


def dice_divergence(weights: Tensor) -> Tensor:
    """D = mean of u log u - u + 1: how far weights (B,) of mean 1 are from uniform."""
    entropy: Tensor = torch.special.xlogy(weights, weights)
    return (entropy - weights + 1).mean()


def normal_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, summed over action dimensions: (..., A) -> (...,)."""
    z = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
