"""How far a trained agent's critics are from what recorded trajectories show."""

from __future__ import annotations

import numpy as np

from rcdt_agent.algorithms import RCDT
from rcdt_agent.algorithms.held_out import critic_errors
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.experiments.sources import AnyAlgorithm

MAX_TRAJECTORIES = 100


def critic_error(agent: AnyAlgorithm, dataset: TrajectoryDataset) -> dict[str, dict[str, float]]:
    """`critic_errors` of an agent on at most `MAX_TRAJECTORIES` trajectories.

    Args:
        agent: A trained agent.
        dataset: Trajectories, best such as were held out.

    Returns:
        For `reward` and `cost`, as far as the critic was trained, its errors and the number of
        `trajectories`. Empty for an algorithm without critics.
    """
    if not isinstance(agent, RCDT):
        return {}
    begin = round(agent.config.critic_start * agent.total_steps)
    if not agent.config.uses_critics or agent.num_timesteps <= begin:
        return {}
    part = dataset.select(np.arange(min(len(dataset), MAX_TRAJECTORIES)), suffix="looked at")
    found = critic_errors(agent.policy, agent.config, part)
    return {name: {**errors, "trajectories": float(len(part))} for name, errors in found.items()}
