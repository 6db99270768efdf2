"""What a checkpoint holds of an agent: into plain values and tensors, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rcdt_agent._io import versions
from rcdt_agent.checkpoint import (
    flatten_state,
    load_module,
    space_from_dict,
    space_to_dict,
    unflatten_state,
)
from rcdt_agent.deploy.calibration import TokenCalibration
from rcdt_agent.deploy.targets import ReturnTargets
from rcdt_agent.errors import CheckpointError
from rcdt_agent.scaling import Scaling
from rcdt_agent.tasks.registry import get_task

if TYPE_CHECKING:
    from rcdt_agent.agent import RCDT


def agent_contents(agent: RCDT) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Plain values and tensors of a trained agent, from which training continues bit for bit."""
    assert agent.policy is not None
    assert agent.scaling is not None
    assert agent.targets is not None
    training = agent.learner.state() if agent.learner else agent._pending
    tensors, plain = flatten_state(
        {"policy": agent.policy.state_dict(), "training": training, "rng": agent._rng}
    )
    meta = {
        "config": agent.config.to_dict(),
        "scaling": agent.scaling.to_dict(),
        "targets": agent.targets.to_dict(),
        "calibration": agent.calibration.to_dict() if agent.calibration else None,
        "spaces": {
            "observation": space_to_dict(agent.observation_space),
            "action": space_to_dict(agent.action_space),
        },
        "task": agent.task.id if agent.task else None,
        "episode_length": agent.episode_length,
        "cost_limit": agent.cost_limit,
        "asked": list(agent._asked),
        "cost_budget": agent._cost_budget,
        "num_timesteps": agent.num_timesteps,
        "seed": agent.seed,
        "fingerprint": agent._fingerprint,
        "published_data": agent._published_data,
        "versions": versions(),
        "structure": plain,
    }
    return meta, tensors


def fill_agent(agent: RCDT, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give an untrained agent what `agent_contents` took from another.

    Raises:
        CheckpointError: The contents cannot act. Other errors mean that they do not fit together.
    """
    agent.task = get_task(meta["task"]) if meta["task"] else None
    agent.scaling = Scaling.from_dict(meta["scaling"])
    agent.targets = ReturnTargets.from_dict(meta["targets"])
    if meta["calibration"]:
        agent.calibration = TokenCalibration.from_dict(meta["calibration"])
    agent.observation_space = space_from_dict(meta["spaces"]["observation"])
    agent.action_space = space_from_dict(meta["spaces"]["action"])
    agent.episode_length = int(meta["episode_length"])
    agent.cost_limit = float(meta["cost_limit"])
    agent.num_timesteps = int(meta["num_timesteps"])
    agent._fingerprint = meta["fingerprint"]
    agent._published_data = bool(meta["published_data"])
    agent._asked = (meta["asked"][0], meta["asked"][1])
    agent._cost_budget = float(meta["cost_budget"])
    for name in ("episode_length", "cost_limit", "num_timesteps", "cost_budget"):
        if not meta[name] >= 0:
            raise CheckpointError(f"`{name}` must be >= 0, got {meta[name]}")
    state = unflatten_state(tensors, meta["structure"])
    if agent.config.n_layers > len(state["policy"]):
        raise CheckpointError(f"{agent.config.n_layers} layers, but few weights")
    agent.policy = load_module(agent._make_policy, state["policy"]).to(agent.device)
    agent._pending = state["training"]
    agent._rng = state["rng"]
    if agent._rng is not None:
        torch.Generator().set_state(agent._rng)  # raises if it is none
    agent._target_return = agent.resolve_target(agent.cost_budget, agent._asked[1])
    _try_once(agent)


def _try_once(agent: RCDT) -> None:
    """Act once, so that what does not fit shows when loading and not on the robot."""
    if agent.observation_space is None or agent.action_space is None:
        raise CheckpointError("it has no spaces")
    action, _ = agent.predict(np.zeros(agent.observation_space.shape or ()))
    if not np.isfinite(action).all() or action.shape != agent.action_space.shape:
        raise CheckpointError(f"an action of it is {action}")
