"""What a checkpoint holds of an agent: into plain values and tensors, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rcdt_agent._io import versions
from rcdt_agent.algorithms.agent import Provenance
from rcdt_agent.checkpoint import (
    as_checkpoint_error,
    flatten_state,
    load_module,
    read_checkpoint,
    space_from_dict,
    space_to_dict,
    to_path,
    unflatten_state,
    write_checkpoint,
)
from rcdt_agent.errors import CheckpointError
from rcdt_agent.tasks.registry import get_task

if TYPE_CHECKING:
    from rcdt_agent.algorithms.base import OfflineAlgorithm

AlgorithmT = TypeVar("AlgorithmT", bound="OfflineAlgorithm[Any, Any]")


def write_agent(agent: OfflineAlgorithm[Any, Any], path: Any) -> None:
    """Write an agent: what it needs to act, and its training state."""
    policy = agent.policy
    tensors, structure = flatten_state(
        {"policy": policy.state_dict(), "training": agent.training.state_dict()}
    )
    meta = {
        "config": agent.config.to_dict(),
        "policy": policy.to_dict(),
        "spaces": {
            "observation": space_to_dict(policy.observation_space),
            "action": space_to_dict(policy.action_space),
        },
        "settings": agent.settings_to_save(),
        "task": agent.task.id if agent.task else None,
        "num_timesteps": agent.num_timesteps,
        "seed": agent.seed,
        "fingerprint": agent.provenance.fingerprint,
        "published_data": agent.provenance.published,
        "versions": versions(),
        "structure": structure,
    }
    write_checkpoint(to_path(path), type(agent).__name__, meta, tensors)


def read_agent(kind: type[AlgorithmT], path: Any, **options: Any) -> AlgorithmT:
    """Read an agent of a class; `options` are arguments of its constructor.

    It acts once, so that what does not fit shows when loading and not on the robot.

    Raises:
        CheckpointError: The file does not hold such an agent.
    """
    meta, tensors = read_checkpoint(to_path(path), kind.__name__)
    with as_checkpoint_error(path):
        config = kind.config_class.from_dict(meta["config"])
        agent = kind(config=config, seed=int(meta["seed"]), **options)
        agent.task = get_task(meta["task"]) if meta["task"] else None
        agent.num_timesteps = int(meta["num_timesteps"])
        if agent.num_timesteps < 0:
            raise CheckpointError(f"`num_timesteps` must be >= 0, got {agent.num_timesteps}")
        agent.provenance = Provenance(
            fingerprint=str(meta["fingerprint"]), published=bool(meta["published_data"])
        )
        spaces = [space_from_dict(meta["spaces"][name]) for name in ("observation", "action")]
        state = unflatten_state(tensors, meta["structure"])
        n_layers = getattr(config, "n_layers", 0)
        if n_layers > len(state["policy"]):
            raise CheckpointError(f"{n_layers} layers, but few weights")
        policy = load_module(lambda: agent.restore_policy(meta["policy"], *spaces), state["policy"])
        policy.normalizer.check()
        agent.adopt(policy)
        agent.training.store(state["training"])
        agent.load_settings(meta["settings"])
        rows = np.zeros((1, policy.normalizer.obs_mean.numel()), dtype=np.float32)
        actions, _ = agent.choose_actions(
            rows, agent.begin(), facts=None, episode_start=None, deterministic=True
        )
        if not np.isfinite(actions).all() or actions[0].size != np.prod(policy.action_space.shape):
            raise CheckpointError(f"an action of it is {actions[0]}")
    return agent
