"""Flat arrays as people have them, checked and turned into the fields of a `TrajectoryDataset`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray
from rcdt_agent.arguments import as_floats, check_texts
from rcdt_agent.costs import check_cost_names, in_order
from rcdt_agent.data.checks import (
    check_finite,
    check_not_negative,
    check_shapes,
    final_observations,
    split_episodes,
)
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.images import images_of
from rcdt_agent.observations import ObservationLayout, is_structured, stacked


def checked_fields(
    *,
    observations: Any,
    actions: npt.ArrayLike,
    rewards: npt.ArrayLike,
    costs: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    terminals: npt.ArrayLike | None,
    timeouts: npt.ArrayLike | None,
    next_observations: Any,
    dones: npt.ArrayLike | None,
    name: str,
    cost_names: Any,
    observation_space: gym.Space[Any] | None,
) -> dict[str, Any]:
    """The fields of a dataset from the arguments of `TrajectoryDataset.from_arrays`, its caller.

    Raises:
        DatasetError: As described there.
    """
    check_texts(name=name)
    reward_rows = as_floats("rewards", rewards, DatasetError, f"{name}: ")
    cost_rows, cost_names = cost_columns(costs, cost_names, name)
    observations, next_observations, layout = flat_observations(
        observations, next_observations, observation_space, len(np.atleast_1d(reward_rows)), name
    )
    arrays = {
        "observations": observation_rows(observations, layout, f"{name}: "),
        "rewards": one_column(reward_rows),
        "costs": one_column(cost_rows),
        "actions": action_rows(actions, name),
    }
    is_terminal, is_timeout, is_unclear = end_flags(terminals, timeouts, dones, name)
    columns: dict[str, Any] = {**arrays, "terminals": is_terminal, "timeouts": is_timeout}
    if next_observations is not None:
        if not hasattr(next_observations, "shape"):
            next_observations = np.asarray(next_observations)
        columns["next_observations"] = next_observations
    check_shapes({key: tuple(column.shape) for key, column in columns.items()}, name)
    for key, array in arrays.items():
        check_finite(array, key, name)
    check_not_negative(arrays["costs"], "costs", name)
    names = check_cost_names(cost_names, len(arrays["costs"].T) if arrays["costs"].ndim > 1 else 1)
    offsets, n_open = split_episodes(is_terminal, is_timeout)
    if n_open:
        warnings.warn(
            f"{name}: the last {n_open} steps belong to an episode without an end; it is "
            f"kept as a truncated trajectory.",
            stacklevel=3,
        )
    last = offsets[1:] - 1
    final, known = final_observations(arrays["observations"], next_observations, last, name)
    terminated = is_terminal[last]
    known &= ~is_unclear[last]
    return {
        **arrays,
        "offsets": offsets,
        "terminated": terminated,
        "truncated": is_timeout[last] | ~terminated,
        "final_observations": final,
        "final_known": known,
        "name": name,
        "cost_names": names,
        "layout": layout,
    }


def one_column(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(N, 1) -> (N,), as some write rewards, costs and flags; others stay."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def observation_rows(values: Any, layout: ObservationLayout | None, where: str) -> npt.NDArray[Any]:
    """Observations as float32, or of their layout's type: images stay uint8."""
    if layout is not None and layout.dtype != np.float32:
        return np.asarray(values, dtype=layout.dtype)
    return as_floats("observations", values, DatasetError, where)


def action_rows(actions: Any, name: str) -> npt.NDArray[Any]:
    """(N, A) float32; discrete actions, which are whole numbers (N,) or (N, k), as int64 (N, k)."""
    rows = as_floats("actions", actions, DatasetError, f"{name}: ")
    given = np.asarray(actions)
    if given.dtype.kind not in "biu":
        return rows
    whole = np.asarray(given, dtype=np.int64)
    return whole[:, None] if whole.ndim == 1 else whole


def cost_columns(
    costs: Any, cost_names: Sequence[str] | None, name: str
) -> tuple[Any, Sequence[str] | None]:
    """Costs as an array, and their names: a mapping of names to (N,) becomes (N, m).

    Raises:
        DatasetError: Costs of a mapping are not as long as each other.
        InvalidArgumentError: `cost_names` are not those of the mapping.
    """
    if not isinstance(costs, Mapping):
        return as_floats("costs", costs, DatasetError, f"{name}: "), cost_names
    names = [str(key) for key in costs] if cost_names is None else cost_names
    given = list(costs.values()) if len(costs) == 1 else in_order("`costs`", costs, names)
    arrays = [one_column(as_floats("costs", values, DatasetError, f"{name}: ")) for values in given]
    shapes = {key: array.shape for key, array in zip(costs, arrays, strict=True)}
    if not arrays or len(set(shapes.values())) > 1 or arrays[0].ndim != 1:
        raise DatasetError(f"{name}: `costs` must be as long as each other, got shapes {shapes}.")
    return np.stack(arrays, axis=1), names


def flat_observations(
    observations: Any, following: Any, space: gym.Space[Any] | None, n: int, name: str
) -> tuple[Any, Any, ObservationLayout | None]:
    """Observations of `n` steps and those that follow as rows, and their layout.

    Plain arrays, and a following h5py dataset of them, stay as they are, and the layout is None.

    Raises:
        DatasetError: They are not of the space; the message names the part.
    """
    try:
        if space is not None:
            layout = ObservationLayout.of(space)
        elif images_of(observations) is not None or is_structured(observations, n):
            layout = ObservationLayout.of_arrays(observations)
        else:
            layout = None
        if layout is None:
            return observations, following, None
        rows, _ = layout.rows(stacked(observations, layout), n)
        if following is not None and not _is_flat(following, layout):
            following, _ = layout.rows(stacked(following, layout), n)
    except InvalidArgumentError as error:
        raise DatasetError(f"{name}: {error}") from error
    return rows, following, layout


def _is_flat(values: Any, layout: ObservationLayout) -> bool:
    """Whether these are rows, possibly on disk."""
    shape: tuple[int, ...] = getattr(values, "shape", ())
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    return len(shape) == 2 and shape[1] == layout.size and kind == np.dtype(layout.dtype).kind


def as_flags(key: str, values: npt.ArrayLike, name: str) -> BoolArray:
    """(N,) or (N, 1) bool of numbers or bools; neither blanks nor words are an answer.

    Raises:
        DatasetError: With the first row that is neither.
    """
    array = np.asarray(values)
    if array.dtype == object:  # a data frame's column with blanks
        odd = [not isinstance(value, bool | int | float | np.generic) for value in array.ravel()]
        if any(odd):
            row = odd.index(True)
            raise DatasetError(
                f"{name}: `{key}` must hold 0 and 1, or bools; row {row} is {array.ravel()[row]!r}."
            )
    numbers = as_floats(key, values, DatasetError, f"{name}: ")
    if np.isnan(numbers).any():
        row = int(np.flatnonzero(np.isnan(numbers).ravel())[0])
        raise DatasetError(f"{name}: `{key}` is not a number in row {row}: write 0 or 1.")
    return np.asarray(numbers != 0)


def end_flags(
    terminals: npt.ArrayLike | None,
    timeouts: npt.ArrayLike | None,
    dones: npt.ArrayLike | None,
    name: str,
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Where the task, something else, or nobody knows what ended an episode.

    Returns:
        Terminals, timeouts, and the timeouts that may have been terminals: (N,) each.

    Raises:
        DatasetError: None of the three is given, or lengths differ.
    """
    given = {"terminals": terminals, "timeouts": timeouts, "dones": dones}
    flags = {
        key: one_column(as_flags(key, flag, name))
        for key, flag in given.items()
        if flag is not None
    }
    if not flags:
        raise DatasetError(
            f"{name}: `terminals` and `timeouts`, or `dones`, must say where episodes end."
        )
    never = np.zeros_like(next(iter(flags.values())))
    done, terminal, timeout = (flags.get(key, never) for key in ("dones", "terminals", "timeouts"))
    if dones is None:
        return terminal, timeout, never
    if not done.shape == terminal.shape == timeout.shape:
        shapes = {key: flag.shape for key, flag in flags.items()}
        raise DatasetError(f"{name}: flags of different shapes, {shapes}.")
    if terminals is None and timeouts is None:
        return never, done, done
    if terminals is None:
        return done & ~timeout, timeout, never
    return terminal, timeout | (done & ~terminal), never
