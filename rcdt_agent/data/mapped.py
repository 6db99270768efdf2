"""Datasets larger than memory: a folder of .npy files whose large arrays are memory-mapped.

The operating system reads the rows that a batch touches and keeps what fits; processes on one
machine share these pages. Per-step numbers (rewards, costs, sums to go) are held in memory.
"""

from __future__ import annotations

import math
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from rcdt_agent.costs import ONE_COST, check_cost_names
from rcdt_agent.data.checks import (
    check_finite,
    check_not_negative,
    check_shapes,
    rows_at_a_time,
)
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import DatasetError
from rcdt_agent.images import images_of
from rcdt_agent.observations import ObservationLayout

SUFFIX = ".npy"
"""Of such a folder, on the command line."""
MAPPED = ("observations", "actions")
_COST_NAMES, _LAYOUT = "cost_names", "observation_space"
_FIELDS: dict[str, tuple[str, int]] = {
    "observations": ("f", 2), "actions": ("f", 2), "rewards": ("f", 1), "costs": ("f", 1),
    "offsets": ("i", 1), "terminated": ("b", 1), "truncated": ("b", 1),
    "final_observations": ("f", 2), "final_known": ("b", 1),
}  # fmt: skip


def read_npy(folder: Path) -> TrajectoryDataset:
    """Open a folder that `write_npy` or `hdf5_to_npy` made; every value is checked once.

    Raises:
        DatasetError: A file is missing, damaged or contradicts the others.
    """
    arrays = {key: _load(folder, key) for key in _FIELDS}
    n_steps, n_trajectories = len(arrays["rewards"]), len(arrays["offsets"]) - 1
    check_shapes({k: arrays[k].shape for k in ("observations", "actions", "rewards", "costs")},
                 str(folder))  # fmt: skip
    offsets = arrays["offsets"]
    if (
        n_trajectories < 1
        or offsets[0] != 0
        or offsets[-1] != n_steps
        or np.diff(offsets).min() < 1
    ):
        raise DatasetError(f"{folder}: `offsets` must rise from 0 to {n_steps}, the steps.")
    for key in ("terminated", "truncated", "final_observations", "final_known"):
        if len(arrays[key]) != n_trajectories:
            raise DatasetError(
                f"{folder}: `{key}` has {len(arrays[key])} rows, but there are {n_trajectories} "
                f"trajectories."
            )
    if arrays["final_observations"].shape[1] != arrays["observations"].shape[1]:
        raise DatasetError(f"{folder}: `final_observations` are not of the observations' size.")
    for key in ("observations", "actions", "rewards", "costs", "final_observations"):
        check_finite(arrays[key], key, str(folder))
    check_not_negative(arrays["costs"], "costs", str(folder))
    layout = _layout(folder, arrays["observations"].shape[1])
    dtype = layout.dtype if layout else np.float32
    for key in ("observations", "final_observations"):
        if arrays[key].dtype != dtype:
            raise DatasetError(
                f"{folder}: `{key}` must hold {np.dtype(dtype).name} by `{_LAYOUT}.npy`, got "
                f"{arrays[key].dtype.name}."
            )
    return TrajectoryDataset(
        **arrays, name=str(folder), cost_names=_cost_names(folder, arrays), layout=layout
    )


def write_npy(dataset: TrajectoryDataset, folder: Path) -> None:
    """Write a dataset as such a folder, whole or not at all.

    Raises:
        DatasetError: The folder exists, or cannot be written.
    """
    with _new_folder(folder) as partial:
        for key in _FIELDS:
            np.save(partial / f"{key}.npy", getattr(dataset, key))
        _save_names(partial, dataset)


def hdf5_to_npy(path: Path, folder: Path) -> None:
    """Copy a file in DSRL's layout into such a folder, some rows at a time.

    Raises:
        DatasetError: Whatever is wrong with the file, or the folder exists.
    """
    from rcdt_agent.data.hdf5 import open_hdf5

    with _new_folder(folder) as partial, open_hdf5(path) as (large, small):
        copies: dict[str, Any] = {key: _copy(large[key], partial / f"{key}.npy") for key in MAPPED}
        dataset = TrajectoryDataset.from_arrays(
            **copies, **small, next_observations=large.get("next_observations"), name=str(path)
        )
        for key in _FIELDS:
            if key not in MAPPED:
                np.save(partial / f"{key}.npy", getattr(dataset, key))
        _save_names(partial, dataset)


def _save_names(folder: Path, dataset: TrajectoryDataset) -> None:
    """Several costs, and the parts of observations, are named in files of their own."""
    if dataset.n_costs > 1:
        np.save(folder / f"{_COST_NAMES}.npy", np.array(dataset.cost_names, dtype=np.str_))
    if dataset.layout is not None:
        np.save(folder / f"{_LAYOUT}.npy", np.array([dataset.layout.to_json()], dtype=np.str_))


def _layout(folder: Path, size: int) -> ObservationLayout | None:
    path = folder / f"{_LAYOUT}.npy"
    if not path.exists():
        return None
    try:
        text = str(np.load(path, allow_pickle=False).ravel()[0])
        return ObservationLayout.from_json(text, size)
    except Exception as error:  # the file may hold anything
        raise DatasetError(f"{path}: cannot be read ({error}).") from error


def _cost_names(folder: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[str, ...]:
    if arrays["costs"].ndim == 1:
        return ONE_COST
    path = folder / f"{_COST_NAMES}.npy"
    try:
        names = np.load(path, allow_pickle=False).ravel().tolist()
        found = check_cost_names(names, arrays["costs"].shape[1])
    except Exception as error:  # the file may hold anything
        raise DatasetError(f"{path}: cannot be read ({error}).") from error
    if len(found) == 1:
        raise DatasetError(f"{folder}: `costs` of one cost must have rank 1.")
    return found


def is_mapped(values: Any) -> bool:
    """Whether an array, or the one that it is a view of, is memory-mapped."""
    while isinstance(values, np.ndarray):
        if isinstance(values, np.memmap):
            return True
        values = values.base
    return False


def as_tensor(values: np.ndarray[Any, Any], device: torch.device | str) -> Tensor:
    """An array as a tensor on the device; a memory-mapped one stays in its file."""
    if not is_mapped(values):
        return torch.from_numpy(values).to(device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(values)


def take(values: Tensor, rows: Tensor) -> Tensor:
    """`values[rows]` on the device of the rows, wherever the values are."""
    return values[rows.to(values.device)].to(rows.device)


def _load(folder: Path, key: str) -> np.ndarray[Any, Any]:
    path, (kind, rank) = folder / f"{key}.npy", _FIELDS[key]
    try:
        values = np.load(path, mmap_mode="r" if key in MAPPED else None, allow_pickle=False)
    except Exception as error:  # the file may hold anything
        raise DatasetError(f"{path}: cannot be read ({error}).") from error
    expected = {"f": np.float32, "i": np.int64, "b": np.bool_}[kind]
    several = key == "costs" and values.ndim == 2
    discrete = key == "actions" and values.dtype == np.int64
    images = key in ("observations", "final_observations") and values.dtype == np.uint8
    if (values.dtype != expected and not discrete and not images) or (
        values.ndim != rank and not several
    ):
        raise DatasetError(
            f"{path}: must hold {np.dtype(expected).name} of rank {rank}, got {values.dtype.name} "
            f"of shape {values.shape}."
        )
    return np.asanyarray(values)


def _copy(item: h5py.Dataset, path: Path) -> np.ndarray[Any, Any]:
    """The rows of an HDF5 dataset in a .npy file, memory-mapped; images lie channels first."""
    from rcdt_agent.data.hdf5 import stored_dtype

    key, dtype = path.stem, np.dtype(stored_dtype(item, path.stem))
    images = images_of(item) if key == "observations" else None
    shape = (*item.shape, 1) if dtype == np.int64 and len(item.shape) == 1 else item.shape
    if images is not None:
        shape = len(item), math.prod(item.shape[1:])
    if len(shape) != 2:
        raise DatasetError(f"{item.file.filename}: `{item.name[1:]}` must have rank 2.")
    target: np.ndarray[Any, Any] = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        path, mode="w+", dtype=dtype, shape=shape
    )
    layout = None if images is None else ObservationLayout(images)
    n_rows = rows_at_a_time(shape[1] * dtype.itemsize)
    for start in range(0, len(item), n_rows):
        rows = item[start : start + n_rows]
        copied = rows.reshape(-1, shape[1]) if layout is None else layout.rows(rows)[0]
        target[start : start + n_rows] = copied
    del target  # opened again for reading: its pages can be dropped at any time
    return np.asanyarray(np.load(path, mmap_mode="r"))


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end."""
    if folder.exists():
        raise DatasetError(f"{folder}: exists already; name another folder.")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(folder)
    except OSError as error:
        raise DatasetError(f"{folder}: could not be written ({error}).") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
