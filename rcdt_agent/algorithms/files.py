"""What a checkpoint holds of an agent: into plain values and tensors, and back."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rcdt_agent._io import versions
from rcdt_agent.algorithms.agent import Provenance
from rcdt_agent.algorithms.arguments import LearningRate, missing_schedule
from rcdt_agent.checkpoint import (
    as_checkpoint_error,
    flatten_state,
    load_module,
    read_checkpoint,
    to_path,
    unflatten_state,
    write_checkpoint,
)
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.images import image_shape
from rcdt_agent.observations import ObservationLayout
from rcdt_agent.stored_spaces import space_from_dict, space_to_dict
from rcdt_agent.tasks.registry import get_task

if TYPE_CHECKING:
    from rcdt_agent.algorithms.saved import SavedAgent

AgentT = TypeVar("AgentT", bound="SavedAgent[Any, Any]")

RUN_FILES = ("agent.zip", "last.zip")
"""What a run folder holds: the final agent, and the latest of an unfinished run."""
PARTS = ("training", "optimizers")
"""What a file can do without: all that only training needs, or of it the optimisers' state."""


def checkpoint_path(path: Any) -> Any:
    """The checkpoint that a path stands for: a file, with or without `.zip`, or a run folder.

    Raises:
        CheckpointError: A folder without a checkpoint.
    """
    target = to_path(path)
    if not isinstance(target, Path) or target.is_file() or not Path(path).is_dir():
        return target
    for name in RUN_FILES:
        if (Path(path) / name).is_file():
            return Path(path) / name
    raise CheckpointError(
        f"{path}: a folder without {' or '.join(RUN_FILES)}: it is no run folder, or nothing has "
        f"been trained in it yet."
    )


def write_agent(
    agent: SavedAgent[Any, Any],
    path: Any,
    *,
    exclude: Iterable[str] = (),
    include: Iterable[str] = (),
) -> None:
    """Write an agent: what it needs to act, and its training state but for what is excluded."""
    policy = agent.policy
    left_out = _names("exclude", exclude) - _names("include", include)
    training = {} if "training" in left_out else dict(agent.training.state_dict())
    if "optimizers" in left_out:
        training.pop("optimizers", None)
    tensors, structure = flatten_state({"policy": policy.state_dict(), "training": training})
    meta = {
        "config": agent.config.to_dict(),
        "policy": policy.to_dict(),
        "spaces": {
            "observation": space_to_dict(policy.observation_space),
            "action": space_to_dict(policy.action_space),
        },
        "observation_layout": policy.layout.to_json() if policy.layout else None,
        "settings": agent.settings_to_save(),
        "task": agent.task.id if agent.task else None,
        "num_timesteps": agent.num_timesteps,
        "total_steps": agent.total_steps,
        "lr_schedule": agent.lr_schedule is not None,
        "n_processes": agent.n_processes,
        "seed": agent.seed,
        "fingerprint": agent.provenance.fingerprint,
        "published_data": agent.provenance.published,
        "data_name": agent.provenance.name,
        "versions": versions(),
        "structure": structure,
    }
    write_checkpoint(to_path(path), type(agent).__name__, meta, tensors)


def read_agent(kind: type[AgentT], path: Any, changes: Mapping[str, Any], **options: Any) -> AgentT:
    """Read an agent of a class.

    It acts once, so that what does not fit shows when loading and not on the robot.

    Args:
        kind: Its class.
        path: Checkpoint, open file or run folder.
        changes: Fields of the configuration to change, as `SavedAgent.load` takes them.
        **options: Arguments of its constructor.

    Raises:
        CheckpointError: The file does not hold such an agent.
        InvalidArgumentError: A field cannot be changed.
    """
    source = checkpoint_path(path)
    meta, tensors = read_checkpoint(source, kind.__name__)
    with as_checkpoint_error(path):
        config = kind.config_class.from_dict(meta["config"])
        seed, task = int(meta["seed"]), get_task(meta["task"]) if meta["task"] else None
        num_timesteps = int(meta["num_timesteps"])
        total_steps = int(meta.get("total_steps", config.total_steps))
        n_processes = meta.get("n_processes") and int(meta["n_processes"])
        if min(num_timesteps, total_steps) < 0:
            raise CheckpointError(f"`num_timesteps` must be >= 0, got {num_timesteps}")
        kind(config=config, seed=seed, device="cpu")  # what fails here is the file's fault
    schedule, fields = _split_changes(kind, changes)
    agent = kind(config=replace(config, **fields), seed=seed, **options)
    agent.task, agent.num_timesteps = task, num_timesteps
    agent.total_steps = fields.get("total_steps", total_steps)
    agent.n_processes = n_processes
    if schedule is None and meta.get("lr_schedule") and "learning_rate" not in fields:
        schedule = missing_schedule
    agent.lr_schedule = schedule
    with as_checkpoint_error(path):
        _restore(agent, meta, tensors)
    agent.loaded_from = source if isinstance(source, Path) and not fields else None
    return agent


def _restore(agent: SavedAgent[Any, Any], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give an agent the policy and the training state of a checkpoint, and try it."""
    agent.provenance = Provenance(
        fingerprint=str(meta["fingerprint"]),
        published=bool(meta["published_data"]),
        name=str(meta.get("data_name", "")),  # files of earlier versions have none
    )
    spaces = [space_from_dict(meta["spaces"][name]) for name in ("observation", "action")]
    state = unflatten_state(tensors, meta["structure"])
    n_layers = getattr(agent.config, "n_layers", 0)
    if n_layers > len(state["policy"]):
        raise CheckpointError(f"{n_layers} layers, but few weights")
    policy = load_module(lambda: agent.restore_policy(meta["policy"], *spaces), state["policy"])
    policy.normalizer.check()
    if meta.get("observation_layout") is not None:
        size = policy.normalizer.observation_size
        policy.layout = ObservationLayout.from_json(meta["observation_layout"], size)
    if (policy.layout.image if policy.layout else None) != image_shape(policy.observation_space):
        raise CheckpointError("the observation layout is not that of the observation space")
    agent.adopt(policy)
    agent.training.store(state["training"])
    agent.load_settings(meta["settings"])
    rows = np.zeros((1, policy.normalizer.observation_size), dtype=policy.observation_dtype)
    actions, _ = agent.choose_actions(
        rows, agent.begin(), facts=None, episode_start=None, deterministic=True
    )
    if not np.isfinite(actions).all() or actions[0].size != policy.normalizer.action_width:
        raise CheckpointError(f"an action of it is {actions[0]}")


def _split_changes(
    kind: type[SavedAgent[Any, Any]], changes: Mapping[str, Any]
) -> tuple[LearningRate | None, dict[str, Any]]:
    """A learning-rate schedule, and plain fields of the configuration that may be changed."""
    fields = {n: v.item() if isinstance(v, np.generic) else v for n, v in changes.items()}
    if "lr_schedule" in fields:  # stable-baselines3's name of it
        fields["learning_rate"] = fields.pop("lr_schedule")
    for name in fields:
        if name not in kind.changeable:
            raise InvalidArgumentError(
                f"`{name}` cannot be changed in a trained {kind.__name__}. What can be: "
                f"{', '.join(sorted(kind.changeable))}."
            )
    if callable(fields.get("learning_rate")):
        return fields.pop("learning_rate"), fields
    return None, fields


def _names(argument: str, names: Iterable[str]) -> set[str]:
    if not (names is None or isinstance(names, Iterable)):
        raise InvalidArgumentError(f"`{argument}` must be of {PARTS}, got {names!r}.")
    given = {names} if isinstance(names, str) else set(names or ())
    if given - set(PARTS):
        raise InvalidArgumentError(
            f"`{argument}` must be of {PARTS}, got {sorted(given - set(PARTS))}."
        )
    return given


def print_versions(kind: type[SavedAgent[Any, Any]], path: Any) -> None:
    """Print the versions here and those that wrote a file, as stable-baselines3 does."""
    meta, _ = read_checkpoint(checkpoint_path(path), kind.__name__)
    if hasattr(path, "seek"):
        path.seek(0)
    for title, found in (("Versions here", versions()), ("Of the file", meta.get("versions"))):
        print(f"{title}: {found}")  # noqa: T201


# ------------------------------------------------------------ pickles and copies

_KEPT = ("device", "verbose", "tensorboard_log", "preset", "_preset_to_tell")


def agent_to_bytes(agent: SavedAgent[Any, Any]) -> tuple[bytes | None, dict[str, Any]]:
    """An agent's checkpoint, None before it has a policy, and what else a copy needs.

    Data, environment and logger stay behind, and so does a learning-rate schedule.
    """
    left_behind = {"dataset", "training", "acting_generator", "_policy", "_env", "_logger"}
    if not agent.has_policy:
        plain = {name: v for name, v in vars(agent).items() if name not in left_behind}
        if agent.lr_schedule is not None:
            plain["lr_schedule"] = missing_schedule
        return None, plain
    buffer = io.BytesIO()
    write_agent(agent, buffer)
    return buffer.getvalue(), {
        **{name: getattr(agent, name) for name in _KEPT},
        "acting": agent.acting_generator.get_state(),
    }


def bytes_to_agent(kind: type[AgentT], file: bytes | None, values: dict[str, Any]) -> AgentT:
    """The inverse of `agent_to_bytes`."""
    values = dict(values)
    if values["device"].type == "cuda" and not torch.cuda.is_available():
        values["device"] = torch.device("cpu")
    if file is None:
        agent = kind(config=values["config"], seed=values["seed"], device=values["device"])
    else:
        agent = read_agent(kind, io.BytesIO(file), {}, device=values["device"])
        agent.acting_generator.set_state(values.pop("acting"))
    vars(agent).update(values)
    return agent
