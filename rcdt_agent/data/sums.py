"""Sums over trajectories that lie one after the other, and statistics of columns."""

from __future__ import annotations

import numpy as np

from rcdt_agent._types import Float32Array, Float64Array, Int64Array

_CHUNK = 65_536  # steps summed at a time
_VALUES = 64 * _CHUNK  # numbers in float64 at a time


def episode_sums(values: Float32Array, offsets: Int64Array) -> Float32Array:
    """(M,) sum of `values` (N,) over each trajectory; `offsets` (M + 1,) are their first rows."""
    return np.add.reduceat(values, offsets[:-1], dtype=np.float64).astype(np.float32)


def sums_to_go(values: Float32Array, offsets: Int64Array) -> Float32Array:
    """(N,) sums of `values` (N,) from each row to the end of its trajectory.

    Some trajectories at a time, so that the float64 sums never take much memory.
    """
    import torch

    from rcdt_agent.losses import returns_to_go

    sums = np.empty(len(values), dtype=np.float32)
    first, n_trajectories = 0, len(offsets) - 1
    while first < n_trajectories:
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _CHUNK)) - 1)
        rows = slice(offsets[first], offsets[end])
        is_last = torch.zeros(rows.stop - rows.start, dtype=torch.bool)
        is_last[torch.from_numpy(offsets[first + 1 : end + 1] - rows.start - 1)] = True
        sums[rows] = returns_to_go(torch.from_numpy(values[rows]), is_last).numpy()
        first = end
    return sums


def mean_and_std(values: Float32Array) -> tuple[Float64Array, Float64Array]:
    """(O,) of each column of values (N, O), in float64, in chunks: no copy of the data."""
    mean = values.mean(0, dtype=np.float64)
    squares = np.zeros_like(mean)
    rows = min(_CHUNK, max(1, _VALUES // values.shape[1]))
    for start in range(0, len(values), rows):
        squares += np.square(values[start : start + rows] - mean).sum(0)
    return mean, np.sqrt(squares / len(values))
