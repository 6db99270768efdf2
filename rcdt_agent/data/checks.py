"""Checks of flat trajectory arrays; messages name the array and the first offending row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray, Float32Array, Int64Array
from rcdt_agent.action_range import ActionRange
from rcdt_agent.errors import DatasetError

_CHUNK = 16_384  # rows checked at a time: checks must not cost a second copy of the data
_CHUNK_BYTES = 2**26


def rows_at_a_time(row_bytes: int) -> int:
    """How many rows of a size are looked at or copied together."""
    return max(1, min(_CHUNK, _CHUNK_BYTES // max(1, row_bytes)))


def split_episodes(terminals: BoolArray, timeouts: BoolArray) -> tuple[Int64Array, int]:
    """Offsets of the episodes, and how many trailing steps have no end flag (0: none)."""
    ends = np.flatnonzero(terminals | timeouts) + 1
    n = len(terminals)
    open_end = n - (int(ends[-1]) if len(ends) else 0)
    tail = [n] if open_end else []
    return np.concatenate(([0], ends, tail)).astype(np.int64), open_end


def check_shapes(shapes: dict[str, tuple[int, ...]], name: str) -> None:
    """Refuse wrong ranks, lengths that differ, and emptiness; `costs` may be several: rank 2."""
    ranks = {"observations": 2, "next_observations": 2, "actions": 2}
    for key, shape in shapes.items():
        rank = ranks.get(key, 2 if key == "costs" and len(shape) == 2 else 1)
        if len(shape) != rank or 0 in shape[1:]:
            raise DatasetError(f"{name}: `{key}` must have rank {rank}, got shape {shape}.")
    rows = shapes["observations"][0]
    for key, shape in shapes.items():
        if shape[0] != rows:
            raise DatasetError(
                f"{name}: `{key}` has {shape[0]} rows, but `observations` has {rows}."
            )
    if rows == 0:
        raise DatasetError(f"{name}: `observations` holds no rows, so there is no trajectory.")
    next_shape = shapes.get("next_observations")
    if next_shape is not None and next_shape != shapes["observations"]:
        raise DatasetError(
            f"{name}: `next_observations` has shape {next_shape}, but `observations` has "
            f"{shapes['observations']}."
        )


def check_finite(array: npt.NDArray[Any], key: str, name: str, *, first_row: int = 0) -> None:
    """Refuse NaN and infinity, naming the first row that holds one.

    `first_row` is the row at which `array` begins, when it is a part of something larger.
    """
    if array.dtype.kind != "f":
        return
    for start in range(0, len(array), _CHUNK):
        finite = np.isfinite(array[start : start + _CHUNK])
        if not finite.all():
            row = start + int(np.argwhere(~finite)[0, 0])
            raise DatasetError(
                f"{name}: `{key}` must be finite, row {first_row + row} is {array[row]}."
            )


def check_not_negative(array: Float32Array, key: str, name: str) -> None:
    """Refuse negative entries, naming the first row."""
    if array.min() < 0:
        row = int(np.argwhere(array < 0)[0, 0])
        raise DatasetError(f"{name}: `{key}` must be >= 0, row {row} is {array[row]}.")


def check_within(array: npt.NDArray[Any], allowed: ActionRange, key: str, name: str) -> None:
    """Refuse rows (N, A) outside a range, but for rounding; names the first, and how many."""
    n_outside, first = 0, 0
    for start in range(0, len(array), _CHUNK):
        outside = allowed.outside(array[start : start + _CHUNK])
        if not n_outside and outside.any():
            first = start + int(np.argmax(outside))
        n_outside += int(outside.sum())
    if n_outside:
        raise DatasetError(
            f"{name}: `{key}` must lie in the environment's action space, from {allowed.low} to "
            f"{allowed.high}; {n_outside} of {len(array)} rows do not, the first is row {first}: "
            f"{array[first]}. They range from {array.min(axis=0)} to {array.max(axis=0)}."
        )


def final_observations(
    observations: npt.NDArray[Any], next_observations: Any, last: Int64Array, name: str
) -> tuple[npt.NDArray[Any], BoolArray]:
    """The observation after the last step of each trajectory, and whether it was recorded.

    Warns where `next_observations` contradicts `observations` within a trajectory.

    Args:
        observations: (N, O).
        next_observations: (N, O), anything that can be sliced by rows; it is read in chunks. None
            where it was not recorded: the last observation is then repeated.
        last: (M,) last row of each trajectory.
        name: Used in messages.

    Returns:
        (M, O) final observations and (M,) whether they are known.
    """
    if next_observations is None:
        return observations[last], np.zeros(len(last), dtype=np.bool_)
    final = np.empty((len(last), observations.shape[1]), dtype=observations.dtype)
    is_last = np.zeros(len(observations), dtype=np.bool_)
    is_last[last] = True
    n_differing = n_found = 0
    n_rows = rows_at_a_time(observations[:1].nbytes)
    for start in range(0, len(observations), n_rows):
        chunk = np.asarray(next_observations[start : start + n_rows], dtype=observations.dtype)
        check_finite(chunk, "next_observations", name, first_row=start)
        ends = is_last[start : start + len(chunk)]
        n_ends = int(ends.sum())
        final[n_found : n_found + n_ends] = chunk[ends]
        n_found += n_ends
        inner = np.flatnonzero(~ends)
        differs = chunk[inner] != observations[start + inner + 1]
        n_differing += int(differs.any(axis=1).sum())
    if n_differing:
        warnings.warn(
            f"{name}: `next_observations` differs from the following row of `observations` in "
            f"{n_differing} of {len(observations) - len(last)} places; the following row is used.",
            stacklevel=4,  # whoever called `TrajectoryDataset.from_arrays`
        )
    return final, np.ones(len(last), dtype=np.bool_)
