"""Why a policy is not better: how far its critics are from what recorded trajectories show."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from rcdt_agent.agent import RCDT
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.networks.critics import TwinCritic

Floats = npt.NDArray[np.float64]

_MOST = 100  # trajectories looked at


@torch.no_grad()
def critic_error(agent: RCDT, dataset: TrajectoryDataset) -> dict[str, dict[str, float]]:
    """Compare the critics with the discounted sums along recorded trajectories: a proxy.

    It is no more than a proxy, because the recorded actions continue differently from the
    policy's. The critics look beyond time limits, so the sum of a truncated trajectory goes on
    with the critic's own estimate at its last recorded step, which is not counted itself.

    Args:
        agent: With the learner of its training, see `RCDT.learn`.
        dataset: Trajectories, best such as were held out.

    Returns:
        For `reward` and `cost`, as far as the critic was trained: `rmse`, `bias` (estimate minus
        sum), `correlation` and `deviation`, the sums' own standard deviation, which is the rmse
        of a constant.
    """
    learner = agent.learner
    if learner is None or not learner.critics_active:
        return {}
    part = dataset.select(np.arange(min(len(dataset), _MOST)), suffix="looked at")
    scaled = learner.scaling.scale_dataset(part)
    obs = torch.as_tensor(scaled.observations, device=learner.device)
    actions = torch.as_tensor(scaled.actions, device=learner.device)
    config = agent.config
    found = {}
    for name, critic, trained, rewards, discount in (
        ("reward", learner.critics.reward, config.q_guidance, part.rewards, config.discount),
        ("cost", learner.critics.cost, config.cost_penalty, part.costs, config.cost_discount),
    ):
        if trained:
            estimate = _estimates(critic, obs, actions, largest=name == "cost")
            found[name] = _compare(part, estimate, rewards.astype(np.float64), discount)
    return found


def discounted_sums(rewards: Floats, discount: float, beyond: float = 0.0) -> Floats:
    """(T,) sum of discounted rewards from each step on; `beyond` follows the last one."""
    sums = np.empty(len(rewards))
    for t in range(len(rewards) - 1, -1, -1):
        beyond = rewards[t] + discount * beyond
        sums[t] = beyond
    return sums


def _estimates(
    critic: TwinCritic, obs: torch.Tensor, actions: torch.Tensor, *, largest: bool
) -> Floats:
    twins = critic(obs, actions)
    chosen = twins.amax(0) if largest else twins.amin(0)
    return np.asarray(chosen.cpu().numpy(), dtype=np.float64)


def _compare(
    part: TrajectoryDataset, estimate: Floats, rewards: Floats, discount: float
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
