"""The gathering of batches."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.kernels.library import instruction_set, loaded


def runs(
    arrays: Sequence[npt.NDArray[Any]],
    rows: Sequence[int],
    first: npt.NDArray[np.int64],
    there: npt.NDArray[np.int64],
) -> list[npt.NDArray[Any]] | None:
    """Runs of consecutive rows of several arrays.

    None without the compiled part, or where an array is not laid out row by row.

    Args:
        arrays: (N, ...) each, contiguous.
        rows: Length of a run in each of them.
        first: (B,) where the runs begin.
        there: (B,) how many rows of a run exist; the rest is zero.

    Returns:
        (B, rows, ...) of each.
    """
    places = (first, there)
    if instruction_set() is None or not all(x.flags.c_contiguous for x in (*arrays, *places)):
        return None
    assert first.dtype == there.dtype == np.int64
    compiled = loaded()
    found = [
        np.empty((len(first), n, *array.shape[1:]), dtype=array.dtype)
        for array, n in zip(arrays, rows, strict=True)
    ]
    row_bytes = [array.itemsize * math.prod(array.shape[1:]) for array in arrays]
    count = len(arrays)
    compiled.functions.rcdt_runs(
        ctypes.c_int(count),
        (ctypes.c_void_p * count)(*[array.ctypes.data for array in arrays]),
        (ctypes.c_int64 * count)(*row_bytes),
        (ctypes.c_int64 * count)(*rows),
        ctypes.c_int64(len(first)),
        ctypes.c_void_p(first.ctypes.data),
        ctypes.c_void_p(there.ctypes.data),
        (ctypes.c_void_p * count)(*[array.ctypes.data for array in found]),
    )
    return found
