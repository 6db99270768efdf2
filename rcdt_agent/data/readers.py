"""Trajectories in the forms that people have them in: episodes, data frames, files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent.arguments import as_floats, check_texts
from rcdt_agent.data.arrays import (
    action_rows,
    as_flags,
    cost_columns,
    flat_observations,
    observation_rows,
    one_column,
)
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.images import images_of
from rcdt_agent.observations import ObservationLayout, is_structured, stacked

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset

AnyData: TypeAlias = "TrajectoryDataset | str | Path | Mapping[str, Any] | Sequence[Any] | Any"
"""What `as_dataset` takes."""

_FLOATS = ("observations", "actions", "rewards", "costs")
_TERMINATED = "terminated"


def as_dataset(data: AnyData) -> TrajectoryDataset:
    """Trajectories from whatever says clearly what it is.

    Args:
        data: A `TrajectoryDataset`; the path of an HDF5 file, or of a folder as `to_npy` writes
            it; a dict of arrays, as for `from_arrays`; a list of episodes, as for
            `from_episodes`; a data frame with the usual columns, as for `from_dataframe`; or a
            Minari dataset.

    Raises:
        InvalidArgumentError: None of these.
        DatasetError: One of these, but wrong.
    """
    from rcdt_agent.data.dataset import TrajectoryDataset

    if isinstance(data, TrajectoryDataset):
        return data
    if isinstance(data, str | Path):
        is_folder = Path(data).is_dir()
        return TrajectoryDataset.from_npy(data) if is_folder else TrajectoryDataset.from_hdf5(data)
    if isinstance(data, Mapping):
        required = (*_FLOATS, "terminals, timeouts or dones")
        optional = (
            "terminals", "timeouts", "dones", "next_observations", "name", "cost_names",
            "observation_space",
        )  # fmt: skip
        unknown = sorted(set(data) - {*_FLOATS, *optional})
        if unknown or set(_FLOATS) - set(data):
            raise DatasetError(
                f"A dict of arrays must hold {', '.join(required)}, got {sorted(map(str, data))}. "
                f"`TrajectoryDataset.from_episodes` reads a list of episodes."
            )
        return TrajectoryDataset.from_arrays(**data)
    if hasattr(data, "columns"):
        return TrajectoryDataset.from_dataframe(data)
    if hasattr(data, "iterate_episodes"):
        return TrajectoryDataset.from_minari(data)
    if isinstance(data, list | tuple) and all(isinstance(part, Mapping) for part in data):
        return TrajectoryDataset.from_episodes(data)
    raise InvalidArgumentError(
        f"`dataset` must be a TrajectoryDataset or the path of an HDF5 file, got "
        f"{type(data).__name__}. `TrajectoryDataset.from_arrays`, `from_episodes`, "
        f"`from_dataframe` and `from_minari` make one."
    )


def episode_arrays(
    episodes: Sequence[Mapping[str, Any]],
    name: str,
    cost_names: Sequence[str] | None = None,
    observation_space: gym.Space[Any] | None = None,
) -> dict[str, Any]:
    """Arguments of `from_arrays` from a list of episodes, as `from_episodes` describes them."""
    parts: dict[str, list[Any]] = {key: [] for key in (*_FLOATS, "terminals", "timeouts")}
    following: list[Any] = []
    if not isinstance(episodes, Sequence) or not all(isinstance(e, Mapping) for e in episodes):
        raise InvalidArgumentError(f"`episodes` must be a list of dicts, got {episodes!r:.80}.")
    for i, episode in enumerate(episodes):
        missing = sorted(set(_FLOATS) - set(episode))
        if missing:
            raise DatasetError(
                f"{name}: episode {i} lacks {missing}; it holds {sorted(map(str, episode))}."
            )
        costs, cost_names = cost_columns(episode["costs"], cost_names, f"{name}, episode {i}")
        where = f"{name}, episode {i}: "
        episode, layout = _flat_episode(episode, observation_space, f"{name}, episode {i}")
        if i == 0 and layout is not None:
            observation_space = layout.space
        arrays: dict[str, npt.NDArray[Any]] = {
            "observations": observation_rows(episode["observations"], layout, where),
            "rewards": as_floats("rewards", episode["rewards"], DatasetError, where),
            "costs": as_floats("costs", costs, DatasetError, where),
            "actions": action_rows(episode["actions"], f"{name}, episode {i}"),
        }
        n_steps, seen = len(arrays["actions"]), arrays["observations"]
        if len(seen) == n_steps + 1:
            arrays["observations"] = seen[:-1]
            following.append(seen[1:])
        elif "next_observations" in episode:
            following.append(observation_rows(episode["next_observations"], layout, where))
        for key, array in arrays.items():
            if not n_steps or len(array) != n_steps:
                raise DatasetError(
                    f"{name}: episode {i} has {len(array)} rows of `{key}`, but {n_steps} actions."
                )
            parts[key].append(one_column(array) if key in ("rewards", "costs") else array)
        last = np.arange(n_steps) == n_steps - 1
        terminated = bool(np.any(episode.get("terminated", episode.get("terminals", False))))
        parts["terminals"].append(last & terminated)
        parts["timeouts"].append(last & (not terminated))
    if not episodes:
        raise DatasetError(f"{name}: there is no episode.")
    if following and len(following) < len(episodes):
        raise DatasetError(
            f"{name}: the observation after the last step is there in {len(following)} of "
            f"{len(episodes)} episodes; give it in all or in none."
        )
    if following:
        parts["next_observations"] = following
    try:
        joined = {key: np.concatenate(arrays) for key, arrays in parts.items()}
    except ValueError as error:
        raise DatasetError(f"{name}: episodes of different shapes ({error}).") from error
    return {**joined, "cost_names": cost_names, "observation_space": observation_space}


def _flat_episode(
    episode: Mapping[str, Any], space: gym.Space[Any] | None, name: str
) -> tuple[Mapping[str, Any], ObservationLayout | None]:
    """An episode whose observations are rows, and the layout that they had; None: plain arrays."""
    layout = None if space is None else ObservationLayout.of(space)
    seen, n_steps = stacked(episode["observations"], layout), len(episode["actions"])
    structured = any(is_structured(seen, n) for n in (n_steps, n_steps + 1))
    if layout is None and images_of(seen) is None and not structured:
        return episode, None
    flat = dict(episode)
    first = seen
    while isinstance(first, Mapping | tuple | list) and len(first):
        first = next(iter(first.values())) if isinstance(first, Mapping) else first[0]
    n_seen = len(seen) if isinstance(seen, np.ndarray) else len(np.atleast_1d(first))
    parts = {"observations": (seen, n_seen)}
    if "next_observations" in episode:
        parts["next_observations"] = (episode["next_observations"], n_steps)
    for key, (values, n) in parts.items():
        flat[key], _, layout = flat_observations(values, None, space, n, name)
        space = layout.space if layout else space
    return flat, layout


def frame_arrays(
    frame: Any,
    name: str,
    *,
    observations: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    reward: str = "reward",
    cost: str | Sequence[str] = "cost",
    episode: str = "episode",
    terminated: str = _TERMINATED,
    **unknown: Any,
) -> dict[str, Any]:
    """Arguments of `from_arrays` from a data frame, as `from_dataframe` describes it."""
    if unknown:
        raise InvalidArgumentError(
            f"`from_dataframe` takes the names of columns as observations, actions, reward, cost, "
            f"episode and terminated, not as {', '.join(sorted(unknown))}."
        )
    if not hasattr(frame, "columns"):
        hint = ""
        if isinstance(frame, str | Path):
            hint = " Read the file first: `pandas.read_csv(path)`, say."
        raise InvalidArgumentError(
            f"`frame` must be a data frame of pandas or polars, got {frame!r:.80}.{hint}"
        )
    check_texts(reward=reward, episode=episode, terminated=terminated)
    for key, names in {"observations": observations, "actions": actions, "cost": cost}.items():
        if not (names is None or isinstance(names, str | list | tuple)):
            raise InvalidArgumentError(f"`{key}` must be names of columns, got {names!r}.")
    found = [str(column) for column in frame.columns]
    groups = {
        "observations": observations or [c for c in found if c.startswith("obs")],
        "actions": actions or [c for c in found if c.startswith("action")],
    }
    groups = {key: [names] if isinstance(names, str) else names for key, names in groups.items()}
    costs = [cost] if isinstance(cost, str) else list(cost)
    wanted = [*groups["observations"], *groups["actions"], reward, *costs, episode]
    wanted += [terminated] if terminated != _TERMINATED else []  # asked for: not optional
    missing = [column for column in wanted if column not in found]
    for key, names in groups.items():
        missing += [] if names else [f"of `{key}`"]
    if missing:
        raise DatasetError(
            f"{name}: columns missing: {', '.join(missing)}; there are {', '.join(found)}. "
            f"`TrajectoryDataset.from_dataframe` takes names of your own: "
            f'`from_dataframe(frame, episode="run", observations=["speed", "load"], ...)`.'
        )
    ids = np.asarray(frame[episode])
    blank = np.array([i is None or i != i for i in ids.tolist()])
    if blank.any():
        raise DatasetError(f"{name}: `{episode}` is blank in row {int(blank.argmax())}.")
    _, first, number = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first[number], kind="stable")  # episodes as they first appear
    ends = np.append(ids[order][1:] != ids[order][:-1], True)
    ended = np.zeros(len(ids), dtype=np.bool_)
    if terminated in found:
        ended = as_flags(terminated, np.asarray(frame[terminated]), name)[order]
    return {
        "observations": _columns(frame, groups["observations"], name)[order],
        "actions": _columns(frame, groups["actions"], name, whole=True)[order],
        "rewards": _columns(frame, [reward], name)[order, 0],
        "costs": _columns(frame, costs, name)[order],
        "cost_names": costs,
        "terminals": ended & ends,
        "timeouts": ends & ~ended,
    }


def _columns(
    frame: Any, names: Sequence[str], frame_name: str, *, whole: bool = False
) -> npt.NDArray[Any]:
    """(N, K) float32 of columns of numbers, or of one column of vectors.

    With `whole`, whole numbers stay so.

    Raises:
        DatasetError: A column holds something else, such as text; with its first such row.
    """
    columns = [np.asarray(frame[name]) for name in names]
    for name, column in zip(names, columns, strict=True):
        _check_numbers(name, column, frame_name)
    vectors = len(columns) == 1 and _holds_vectors(columns[0])
    if vectors and len({np.shape(value) for value in columns[0]}) > 1:
        raise DatasetError(f"{frame_name}: column `{names[0]}` holds vectors of different sizes.")
    table = np.stack(
        [np.asarray(v) for v in columns[0]] if vectors else columns, axis=0 if vectors else 1
    )
    return action_rows(table, frame_name) if whole else table.astype(np.float32)


def _holds_vectors(column: npt.NDArray[Any]) -> bool:
    """Whether each row of a column is a list or an array."""
    return column.dtype == object and len(column) > 0 and np.ndim(column[0]) == 1


def _is_number(value: Any) -> bool:
    """Whether a cell is a number, or the text of one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_numbers(column: str, values: npt.NDArray[Any], name: str) -> None:
    """Refuse text and dates; blanks of a column of numbers are NaN, which `from_arrays` refuses.

    Raises:
        DatasetError: With the first row that is no number, and what to write instead.
    """
    if values.dtype.kind in "biuf" or _holds_vectors(values):
        return
    rows = list(values) if values.dtype.kind in "mM" else values.tolist()
    for row, value in enumerate(rows):
        if value is None or (values.dtype.kind not in "mM" and _is_number(value)):
            continue
        advice = "Convert the column to numbers, or leave it out."
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d*,\d+\s*", value):
            advice = "Decimal commas: `pandas.read_csv(path, decimal=',')`."
        raise DatasetError(
            f"{name}: column `{column}` must hold numbers, row {row} is {value!r}. {advice}"
        )
