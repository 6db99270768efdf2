"""Reading and writing Minari datasets whose infos hold the cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent.action_spaces import DISCRETE
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.images import as_images, image_space, is_image
from rcdt_agent.observations import ObservationLayout

LAID_OUT = (gym.spaces.Dict, gym.spaces.Tuple, *DISCRETE)
"""Observation spaces that become a row by their layout."""


def read_minari(dataset: Any) -> TrajectoryDataset:
    """Read a `minari.MinariDataset`, or the local one of that id.

    Minari's episodes hold one observation more than steps: what follows the last one is known.
    """
    if isinstance(dataset, str):
        minari = _minari()
        try:
            dataset = minari.load_dataset(dataset)
        except (FileNotFoundError, ValueError) as error:
            raise DatasetError(f"{dataset}: no such Minari dataset ({error}).") from error
    if not hasattr(dataset, "iterate_episodes"):
        raise InvalidArgumentError(
            f"`dataset` must be a Minari dataset or the id of one, got {dataset!r}."
        )
    name = str(dataset.spec.dataset_id)
    keys = (
        "observations", "next_observations", "actions", "rewards", "costs", "terminals", "timeouts",
    )  # fmt: skip
    columns: dict[str, list[Any]] = {key: [] for key in keys}
    space: Any = getattr(dataset, "observation_space", None)
    laid_out = isinstance(space, LAID_OUT) or is_image(space)
    layout = ObservationLayout(space) if laid_out else None
    for episode in dataset.iterate_episodes():
        observations = episode.observations
        if layout is not None:
            try:
                observations, _ = layout.rows(observations)
            except InvalidArgumentError as error:
                raise DatasetError(f"{name}: episode {episode.id}: {error}") from error
        if not isinstance(observations, np.ndarray):
            raise DatasetError(
                f"{name}: episode {episode.id} has {type(observations).__name__} observations; "
                f"only arrays, dicts and tuples are supported. Flatten the space when recording."
            )
        infos = episode.infos or {}
        if "cost" not in infos:
            raise DatasetError(
                f'{name}: episode {episode.id} has no `infos["cost"]`; found {sorted(infos)}. '
                f"Record with `record_infos=True` in an environment that reports its cost."
            )
        steps = len(episode.rewards)
        columns["observations"].append(observations[:steps].reshape(steps, -1))
        columns["next_observations"].append(observations[1 : steps + 1].reshape(steps, -1))
        columns["actions"].append(np.asarray(episode.actions).reshape(steps, -1))
        columns["rewards"].append(episode.rewards)
        columns["costs"].append(_costs(infos["cost"], steps, f"{name}: episode {episode.id}"))
        columns["terminals"].append(episode.terminations)
        # An episode without an end flag was cut by the recording.
        ends = np.asarray(episode.truncations).copy()
        ends[-1] |= not episode.terminations[-1]
        columns["timeouts"].append(ends)
    if not columns["rewards"]:
        raise DatasetError(f"{name}: holds no episodes.")
    return TrajectoryDataset.from_arrays(
        **{key: np.concatenate(parts) for key, parts in columns.items() if key != "costs"},
        costs=_joined_costs(columns["costs"], name),
        observation_space=layout.space if layout else None,
        name=name,
    )


def _costs(cost: Any, steps: int, where: str) -> dict[str, npt.NDArray[Any]]:
    """The costs of an episode's steps by name; one cost, or columns of several, are numbered.

    The infos of `reset` come first: as many as observations.
    """
    if isinstance(cost, Mapping):
        return {str(key): _costs(value, steps, where)["0"] for key, value in cost.items()}
    values = np.asarray(cost, dtype=np.float32)
    values = values.reshape(len(values), -1) if values.ndim else values.reshape(0, 1)
    if len(values) not in (steps, steps + 1):
        raise DatasetError(
            f'{where}: `infos["cost"]` must be as long as its {steps} steps, or one longer, got '
            f"shape {np.shape(cost)}."
        )
    return {str(j): column for j, column in enumerate(values[-steps:].T)}


def _joined_costs(episodes: list[dict[str, npt.NDArray[Any]]], name: str) -> Any:
    """The costs of all episodes: an array, or a mapping of names where they have names."""
    first = episodes[0]
    for costs in episodes:
        if set(costs) != set(first):
            raise DatasetError(
                f'{name}: every episode must have the same costs in `infos["cost"]`, got '
                f"{sorted(first)} and {sorted(costs)}."
            )
    joined = {key: np.concatenate([costs[key] for costs in episodes]) for key in first}
    numbered = list(joined) == [str(j) for j in range(len(joined))]
    return np.stack(list(joined.values()), axis=1) if numbered else joined


def write_minari(
    dataset: TrajectoryDataset,
    dataset_id: str,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    **metadata: Any,
) -> Any:
    """Write a new local Minari dataset; the cost of each step is in `infos["cost"]`.

    Several costs are a dict by name there.

    Args:
        dataset: Trajectories whose last observations are known: Minari's episodes hold them.
        dataset_id: Such as `robot/pick-v0`.
        observation_space: A Box; default: an unbounded one, or of images (C, H, W). Dicts are
            written flat, as they are held.
        action_space: Default: a Box of [-1, 1]; of discrete actions, as the data are.
        **metadata: For `minari.create_dataset_from_buffers`: `env`, `author`, `description`, ...

    Returns:
        The `minari.MinariDataset`.

    Raises:
        DatasetError: A last observation is unknown, the id is malformed or taken, or the disk is
            full; nothing is left behind.
    """
    minari = _minari()
    unknown = int(np.sum(~dataset.final_known))
    if unknown:
        raise DatasetError(
            f"{dataset.name}: the observation after the last step is not known for {unknown} of "
            f"{len(dataset)} trajectories, and Minari's episodes hold it. Record "
            f"`next_observations`."
        )
    if observation_space is None:
        numbers = gym.spaces.Box(-np.inf, np.inf, (dataset.observation_size,), np.float32)
        observation_space = image_space(dataset.image_shape) if dataset.image_shape else numbers
    spaces = {
        "observation_space": observation_space,
        "action_space": action_space or _default_actions(dataset),
    }
    if not isinstance(spaces["observation_space"], gym.spaces.Box):
        raise DatasetError(
            f"{dataset.name}: `observation_space` must be a Box, as observations are written flat, "
            f"got {observation_space}."
        )
    dataset.check_spaces(spaces["observation_space"], spaces["action_space"])
    episodes = [
        minari.data_collector.EpisodeBuffer(**_episode(dataset, m, **spaces))
        for m in range(len(dataset))
    ]
    with warnings.catch_warnings():
        # It would like an author, a permalink, ...: the caller's choice.
        warnings.filterwarnings("ignore", category=UserWarning)
        try:
            if dataset_id in minari.list_local_datasets():
                raise DatasetError(f"{dataset_id}: this Minari dataset exists already.")
            return minari.create_dataset_from_buffers(dataset_id, episodes, **spaces, **metadata)
        except (OSError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            with suppress(OSError, ValueError):
                minari.delete_dataset(dataset_id)
            raise DatasetError(f"{dataset_id}: could not be written ({error}).") from error


def _default_actions(dataset: TrajectoryDataset) -> gym.Space[Any]:
    from rcdt_agent.normalizer import data_action_space

    if dataset.discrete_actions:
        return data_action_space(dataset)
    return gym.spaces.Box(-1.0, 1.0, (dataset.action_size,), np.float32)


def _episode(
    dataset: TrajectoryDataset,
    m: int,
    *,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
) -> dict[str, Any]:
    """The columns of one trajectory, in the shapes of the spaces."""
    rows = slice(dataset.offsets[m], dataset.offsets[m + 1])
    steps = int(dataset.lengths[m])
    observations = np.concatenate((dataset.observations[rows], dataset.final_observations[m, None]))
    last = np.arange(steps) == steps - 1
    # The infos of `reset` come first: as many as observations.
    spent = np.concatenate((np.zeros_like(dataset.costs[:1]), dataset.costs[rows]))
    costs = dict(zip(dataset.cost_names, np.atleast_2d(spent.T), strict=True))
    if dataset.image_shape:
        observations = as_images(observations, observation_space)
    return {
        "id": m,
        "observations": observations.reshape(-1, *(observation_space.shape or ())),
        "actions": dataset.actions[rows].reshape(-1, *(action_space.shape or ())),
        "rewards": dataset.rewards[rows],
        "terminations": last & dataset.terminated[m],
        "truncations": last & dataset.truncated[m],
        "infos": {"cost": costs if len(costs) > 1 else spent},
    }


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise DatasetError(
            "Minari datasets need the extra: `pip install rcdt_agent[minari]`."
        ) from error
    return minari
