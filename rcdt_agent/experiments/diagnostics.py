"""How far a policy's critics are from what recorded trajectories show."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rcdt_agent._types import Float64Array
from rcdt_agent.algorithms import RCDT
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.experiments.sources import AnyAlgorithm

MAX_TRAJECTORIES = 100


@torch.no_grad()
def critic_error(agent: AnyAlgorithm, dataset: TrajectoryDataset) -> dict[str, dict[str, float]]:
    """Compare the critics with the discounted sums along recorded trajectories: a proxy.

    It is no more than a proxy, because the recorded actions continue differently from the
    policy's. The critics look beyond time limits, so the sum of a truncated trajectory is
    bootstrapped from the critic's own estimate at its last recorded step, which is not counted.

    Args:
        agent: A trained agent.
        dataset: Trajectories, best such as were held out.

    Returns:
        For `reward` and `cost`, as far as the critic was trained: `rmse`, `bias` (estimate minus
        sum), `correlation` and `deviation`, the sums' own standard deviation, which is the rmse
        of a constant. Empty for an algorithm without critics.
    """
    if not isinstance(agent, RCDT):
        return {}
    config, policy = agent.config, agent.policy
    begin = round(config.critic_start * agent.total_steps)
    if not config.uses_critics or agent.num_timesteps <= begin:
        return {}
    part = dataset.select(np.arange(min(len(dataset), MAX_TRAJECTORIES)), suffix="looked at")
    obs = policy.normalizer.obs(torch.from_numpy(part.observations).to(policy.device))
    actions = policy.normalizer.actions(torch.from_numpy(part.actions).to(policy.device))
    signals = {
        "reward": (part.rewards, config.discount),
        "cost": (part.costs, config.cost_discount),
    }
    found = {}
    for name, twins in policy.critics(obs, actions).items():
        values, discount = signals[name]
        pessimistic = name == "cost" and config.cost_reduction == "max"
        estimate = _estimates(twins, largest=pessimistic)
        found[name] = _compare(part, estimate, values.astype(np.float64), discount)
    return found


def discounted_sums(rewards: Float64Array, discount: float, beyond: float = 0.0) -> Float64Array:
    """(T,) sum of discounted rewards from each step on; `beyond` follows the last one."""
    sums = np.empty(len(rewards))
    for t in range(len(rewards) - 1, -1, -1):
        beyond = rewards[t] + discount * beyond
        sums[t] = beyond
    return sums


def _estimates(twins: Tensor, *, largest: bool) -> Float64Array:
    chosen = twins.amax(0) if largest else twins.amin(0)
    return np.asarray(chosen.cpu().numpy(), dtype=np.float64)


def _compare(
    part: TrajectoryDataset, estimate: Float64Array, rewards: Float64Array, discount: float
) -> dict[str, float]:
    estimates, sums = [], []
    for i in range(len(part)):
        first, end = part.offsets[i], part.offsets[i + 1]
        if part.terminated[i]:
            sums.append(discounted_sums(rewards[first:end], discount))
        else:
            end -= 1
            sums.append(discounted_sums(rewards[first:end], discount, float(estimate[end])))
        estimates.append(estimate[first:end])
    guess, truth = np.concatenate(estimates), np.concatenate(sums)
    if not len(truth):
        return {}
    varied = truth.std() > 0 and guess.std() > 0
    return {
        "rmse": float(np.sqrt(np.mean((guess - truth) ** 2))),
        "bias": float(np.mean(guess - truth)),
        "correlation": float(np.corrcoef(guess, truth)[0, 1]) if varied else 0.0,
        "deviation": float(truth.std()),
        "trajectories": float(len(part)),
    }
