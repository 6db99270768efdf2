"""How far critics are from what recorded trajectories show, best on ones they never trained on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rcdt_agent import losses
from rcdt_agent._types import BoolArray, Float64Array
from rcdt_agent.config import Config
from rcdt_agent.costs import columns
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.deploy.policy import ConditionedPolicy

IMAGES = 1024
"""Encoded together when critics are checked."""


def held_out_trajectories(n: int, fraction: float, seed: int) -> BoolArray:
    """(n,) bool, which trajectories critics are not trained on: a share of them, at least one."""
    held_out = np.zeros(n, dtype=np.bool_)
    if fraction:
        size = min(max(1, round(fraction * n)), n - 1)
        held_out[np.random.default_rng(seed).permutation(n)[:size]] = True
    return held_out


@torch.no_grad()
def critic_errors(
    policy: ConditionedPolicy, config: Config, dataset: TrajectoryDataset
) -> dict[str, dict[str, float]]:
    """Compare the critics with the discounted sums along recorded trajectories: a proxy.

    It is no more than a proxy, because the recorded actions continue differently from the
    policy's. Critics that look beyond time limits (`critic_inputs="state"`) are compared with sums
    that are bootstrapped, at a truncated trajectory's last recorded step, from the critic's own
    estimate; that step is not counted.

    Args:
        policy: Trained, with critics.
        config: Its settings.
        dataset: Trajectories, best such as were held out.

    Returns:
        For `reward` and `cost` (or `cost_NAME` of several), as far as there is a critic: `rmse`,
        `bias` (estimate minus sum), `correlation`, `deviation`, the sums' own standard deviation,
        which is the rmse of a constant, and `error`, rmse / deviation: below 1 the critic is better
        than a constant.
    """
    signals = {
        "reward": (dataset.rewards, config.discount),
        **{
            signal: (costs, config.cost_discount)
            for signal, costs in columns(dataset.costs, dataset.cost_names).items()
        },
    }
    found = {}
    for name, twins in _estimates(policy, dataset).items():
        values, discount = signals[name]
        estimate = _numpy(losses.pessimistic(twins, 0.0))
        ends_known = policy.finite_critics
        sums, counted = _sums(
            dataset, estimate, values.astype(np.float64), discount, ends_known=ends_known
        )
        found[name] = _compare(estimate[counted], sums[counted])
    return found


def _estimates(policy: ConditionedPolicy, dataset: TrajectoryDataset) -> dict[str, Tensor]:
    """(2, N) of each critic at all recorded steps; of images some steps at a time."""
    device, n = policy.device, dataset.n_transitions
    actions = policy.normalizer.actions(torch.from_numpy(dataset.actions).to(device))
    steps = np.concatenate([np.arange(length) for length in dataset.lengths])
    context = policy.critic_context(
        torch.from_numpy(dataset.costs_to_go).to(device), torch.from_numpy(steps).to(device)
    )
    size, parts = n if dataset.image_shape is None else IMAGES, []
    for start in range(0, n, size):
        rows = slice(start, start + size)
        obs = policy.normalizer.obs(torch.from_numpy(dataset.observations[rows]).to(device))
        seen = None if context is None else context[rows]
        parts.append(policy.critics(obs, actions[rows], seen))
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def discounted_sums(rewards: Float64Array, discount: float, beyond: float = 0.0) -> Float64Array:
    """(T,) sum of discounted rewards from each step on; `beyond` follows the last one."""
    sums = np.empty(len(rewards))
    for t in range(len(rewards) - 1, -1, -1):
        beyond = rewards[t] + discount * beyond
        sums[t] = beyond
    return sums


def trajectory_sums(
    dataset: TrajectoryDataset, rewards: npt.NDArray[np.floating[Any]], discount: float
) -> Float64Array:
    """(N,) `discounted_sums` of every trajectory; nothing follows its last step."""
    values = rewards.astype(np.float64)
    bounds = pairwise(dataset.offsets.tolist())
    return np.concatenate([discounted_sums(values[i:j], discount) for i, j in bounds])


def _sums(
    dataset: TrajectoryDataset,
    estimate: Float64Array,
    rewards: Float64Array,
    discount: float,
    *,
    ends_known: bool,
) -> tuple[Float64Array, BoolArray]:
    """(N,) discounted sums of all steps, and which of them count."""
    sums, counted = np.empty(len(rewards)), np.ones(len(rewards), dtype=np.bool_)
    for i in range(len(dataset)):
        first, end = dataset.offsets[i], dataset.offsets[i + 1]
        if ends_known or dataset.terminated[i]:
            sums[first:end] = discounted_sums(rewards[first:end], discount)
        else:
            last = end - 1
            counted[last] = False
            beyond = float(estimate[last])
            sums[first:last] = discounted_sums(rewards[first:last], discount, beyond)
    return sums, counted


def _compare(estimate: Float64Array, sums: Float64Array) -> dict[str, float]:
    if not len(sums):
        return {}
    deviation = float(sums.std())
    rmse = float(np.sqrt(np.mean((estimate - sums) ** 2)))
    varied = deviation > 0 and estimate.std() > 0
    return {
        "rmse": rmse,
        "bias": float(np.mean(estimate - sums)),
        "correlation": float(np.corrcoef(estimate, sums)[0, 1]) if varied else 0.0,
        "deviation": deviation,
        "error": rmse / deviation if deviation > 0 else float(rmse > 0),
    }


def _numpy(values: Tensor) -> Float64Array:
    return np.asarray(values.cpu().numpy(), dtype=np.float64)
