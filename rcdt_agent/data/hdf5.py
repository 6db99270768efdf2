"""Reading and writing DSRL's HDF5 layout."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from rcdt_agent._io import atomic_write
from rcdt_agent._types import BoolArray
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.images import images_of
from rcdt_agent.observations import ObservationLayout

OBSERVATIONS, NEXT_OBSERVATIONS = "observations", "next_observations"
FLOAT_KEYS = (OBSERVATIONS, "actions", "rewards")
COSTS, COST_NAMES = "costs", "cost_names"
"""Dataset of one cost, or of several in columns, and its attribute that names them. In a file
without it, each `costs_NAME` is a cost."""
LAYOUT = "observation_space"
"""Attribute of `observations` that holds the layout of Dict, Tuple and discrete ones, as JSON."""
FLAG_KEYS = ("terminals", "timeouts")
_FRAME = "from_dataframe(pandas.{reader}(path), episode=..., ...)"
_HOW_TO_READ = {
    ".csv": _FRAME.format(reader="read_csv"),
    ".tsv": _FRAME.format(reader="read_table"),
    ".parquet": _FRAME.format(reader="read_parquet"),
    ".xlsx": _FRAME.format(reader="read_excel"),
    ".npz": "from_arrays(**numpy.load(path))",
}
"""Of files that people have instead, by suffix: the method that reads one."""
_THEN = "whose `to_hdf5` writes a file that every command takes: see docs/own_data.md."
_DEEPEST = 8  # groups in groups
_LARGEST_CHUNK = 2**24  # bytes
_MOST_PER_BYTE = 1100  # deflate makes a byte of at most 1032
_ALWAYS_ALLOWED = 64 * 2**20  # never written, hence zeros: harmless at this size


def read_hdf5(path: Path, cost_names: Sequence[str] | None = None) -> TrajectoryDataset:
    """Read a file straight into arrays; `next_observations` of rows are never held as a whole.

    Args:
        path: The file.
        cost_names: Read these costs alone, in this order; default: all.

    Raises:
        DatasetError: Whatever is wrong with the file. Nothing outside of it is ever read.
    """
    if cost_names is not None and not isinstance(cost_names, list | tuple):
        raise InvalidArgumentError(f"`cost_names` must be a list of texts, got {cost_names!r}.")
    with _opened(path) as file:
        # Each is opened again when it is read: an open dataset holds a cache of its own.
        grouped = _is_group(file, OBSERVATIONS)
        for key in (*FLOAT_KEYS, *FLAG_KEYS):
            if not (grouped and key == OBSERVATIONS):
                _dataset(file, key, path)
        costs = _read_costs(file, path, cost_names)
        arrays: dict[str, Any] = {
            key: _read_group(file, key, path)
            if grouped and key == OBSERVATIONS
            else _read_numbers(_dataset(file, key, path), key)
            for key in FLOAT_KEYS
        }
        flags = {key: _read_flags(_dataset(file, key, path), key, path) for key in FLAG_KEYS}
        next_observations = None
        if _is_group(file, NEXT_OBSERVATIONS):
            next_observations = _read_group(file, NEXT_OBSERVATIONS, path)
        elif NEXT_OBSERVATIONS in file:
            next_observations = _dataset(file, NEXT_OBSERVATIONS, path)
        space = None if grouped else _space(_dataset(file, OBSERVATIONS, path), path)
        return TrajectoryDataset.from_arrays(
            **arrays,
            **costs,
            **flags,
            next_observations=next_observations,
            observation_space=space,
            name=str(path),
        )


@contextmanager
def open_hdf5(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The large datasets of a file, not read yet, and its per-step numbers and flags, read.

    Raises:
        DatasetError: Whatever is wrong with the file.
    """
    with _opened(path) as file:
        small: dict[str, Any] = {
            "rewards": _read_numbers(_dataset(file, "rewards", path), "rewards"),
            **_read_costs(file, path),
        }
        small |= {key: _read_flags(_dataset(file, key, path), key, path) for key in FLAG_KEYS}
        large = {key: _dataset(file, key, path) for key in ("observations", "actions")}
        if "next_observations" in file:
            large["next_observations"] = _dataset(file, "next_observations", path)
        space = _space(large[OBSERVATIONS], path)
        small[LAYOUT] = images_of(large[OBSERVATIONS]) if space is None else space
        yield large, small


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file; whatever fails while it is open is its fault, for it may hold anything."""
    if not path.is_file():
        raise DatasetError(f"{path}: there is no such file.")
    try:
        file = h5py.File(path, "r")
    except Exception as error:
        how = _HOW_TO_READ.get(path.suffix.lower())
        said = f"It is read by `TrajectoryDataset.{how}`, {_THEN}" if how else ""
        raise DatasetError(
            f"{path}: not an HDF5 file, or cut short ({error}).{said and ' ' + said}"
        ) from error
    try:
        with file:
            yield file
    except (DatasetError, InvalidArgumentError, Warning):
        raise
    except Exception as error:
        raise DatasetError(f"{path}: damaged, a block cannot be read ({error}).") from error


def write_hdf5(dataset: TrajectoryDataset, path: Path, compression: int = 1) -> None:
    """Write to a neighbour file and rename, so that `path` is complete or untouched.

    Args:
        dataset: What to write.
        path: Where to.
        compression: Level of gzip, 0 .. 9: 9 takes several times as long as 1, for a file that is
            a fifth smaller.

    Raises:
        DatasetError: The disk is full or the folder read-only.
    """
    content = _as_bytes(dataset, compression)
    with atomic_write(path, DatasetError) as partial:
        partial.write_bytes(content)


def _as_bytes(dataset: TrajectoryDataset, compression: int) -> bytes:
    """The file in memory: libhdf5 takes the process down with it when a disk is full.

    Apart from the writing, so that an error's traceback holds no HDF5 object: Python 3.12 crashes
    when it collects one at its end.
    """
    last = dataset.offsets[1:] - 1
    terminals, timeouts = np.zeros((2, dataset.n_transitions), dtype=np.bool_)
    terminals[last] = dataset.terminated
    timeouts[last] = dataset.truncated
    next_observations = np.concatenate((dataset.observations[1:], dataset.observations[:1]))
    next_observations[last] = dataset.final_observations
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for key, values in (
            ("observations", dataset.observations),
            ("actions", dataset.actions),
            ("rewards", dataset.rewards),
            ("costs", dataset.costs),
            ("terminals", terminals),
            ("timeouts", timeouts),
        ):
            _write(file, key, values, compression)
        if dataset.n_costs > 1:
            file[COSTS].attrs[COST_NAMES] = list(dataset.cost_names)
        if dataset.layout is not None:
            file[OBSERVATIONS].attrs[LAYOUT] = dataset.layout.to_json()
        if dataset.final_known.all():
            _write(file, "next_observations", next_observations, compression)
    return content.getvalue()


def _dataset(file: Any, key: str, path: Path) -> Any:
    """A dataset of numbers that lies in this file and is no larger than the file can tell."""
    link = file.get(key, getlink=True)
    item = None if isinstance(link, h5py.ExternalLink) else file.get(key)
    if isinstance(link, h5py.ExternalLink) or (
        isinstance(item, h5py.Dataset)
        and (item.external or item.is_virtual or item.file.id != file.id)
    ):
        raise DatasetError(f"{path}: `{key}` lies in another file, which is not read.")
    if not isinstance(item, h5py.Dataset):
        raise DatasetError(f"{path}: key `{key}` is missing; found {sorted(file)}.")
    if item.dtype.kind not in "biuf":
        raise DatasetError(f"{path}: `{key}` must be numeric, got {item.dtype}.")
    stored = item.id.get_storage_size()
    for shape in (item.shape or (), item.chunks or ()):
        if math.prod(shape) * item.dtype.itemsize > _MOST_PER_BYTE * stored + _ALWAYS_ALLOWED:
            raise DatasetError(
                f"{path}: `{key}` claims shape {shape}, but only {stored} bytes of it are there."
            )
    return item


def _is_group(file: Any, key: str) -> bool:
    return key in file and file.get(key, getclass=True) is h5py.Group


def _read_group(file: Any, key: str, path: Path) -> dict[str, Any]:
    """Parts of Dict observations, each a dataset of the group, or a group again."""
    link = file.get(key, getlink=True)
    if isinstance(link, h5py.ExternalLink) or key.count("/") > _DEEPEST:
        raise DatasetError(f"{path}: `{key}` lies in another file or too deep; it is not read.")
    return {
        part: _read_group(file, f"{key}/{part}", path)
        if _is_group(file, f"{key}/{part}")
        else _read_numbers(_dataset(file, f"{key}/{part}", path), OBSERVATIONS)
        for part in file[key]
    }


def _space(item: Any, path: Path) -> Any:
    """The space of flat observations that the attribute tells of; None without it."""
    text = item.attrs.get(LAYOUT)
    if text is None:
        return None
    try:
        return ObservationLayout.from_json(text, math.prod(item.shape[1:])).space
    except InvalidArgumentError as error:
        raise DatasetError(f"{path}: {error}") from error


def _read_costs(file: Any, path: Path, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """The costs of a file and their names, None where it has none; arguments of `from_arrays`."""
    separate = sorted(key for key in file if key.startswith(f"{COSTS}_"))
    if (COSTS not in file and separate) or (wanted and _all_separate(separate, wanted)):
        keys = separate if wanted is None else [f"{COSTS}_{name}" for name in wanted]
        parts = {key: _read_numbers(_dataset(file, key, path), COSTS) for key in keys}
        for key, part in parts.items():
            if part.ndim != 1 or len(part) != len(parts[keys[0]]):
                raise DatasetError(f"{path}: `{key}` must be one row of numbers, got {part.shape}.")
        names = [key.removeprefix(f"{COSTS}_") for key in keys]
        return {COSTS: np.stack(list(parts.values()), axis=1), COST_NAMES: names}
    item = _dataset(file, COSTS, path)
    costs, stored = _read_numbers(item, COSTS), _attribute_names(item, path)
    if wanted is not None:
        known = stored or [f"cost_{j}" for j in range(costs.shape[1] if costs.ndim == 2 else 0)]
        missing = [name for name in wanted if name not in known]
        if missing or not wanted:
            found = known or separate or [COSTS]
            raise DatasetError(f"{path}: there is no cost {missing}; found {found}.")
        costs, stored = costs[:, [known.index(name) for name in wanted]], list(wanted)
    return {COSTS: costs, COST_NAMES: stored}


def _all_separate(separate: Sequence[str], wanted: Sequence[str]) -> bool:
    return all(f"{COSTS}_{name}" in separate for name in wanted)


def _attribute_names(item: Any, path: Path) -> list[str] | None:
    """What the attribute names, if it names the columns; None without it."""
    if COST_NAMES not in item.attrs or len(item.shape) != 2:
        return None
    values = np.ravel(item.attrs[COST_NAMES]).tolist()
    names = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values]
    if not all(isinstance(name, str) for name in names) or len(names) != item.shape[1]:
        raise DatasetError(
            f"{path}: `{COST_NAMES}` must name the {item.shape[1]} columns of `{COSTS}`, got "
            f"{names}."
        )
    return names


def _read_numbers(item: Any, key: str) -> Any:
    """The values as float32; discrete actions, which are whole numbers, as int64; images uint8."""
    values: Any = np.empty(item.shape, dtype=stored_dtype(item, key))
    if item.shape and 0 not in item.shape:
        item.read_direct(values)
    if key in ("rewards", "costs") and values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    return values


def stored_dtype(item: Any, key: str) -> npt.DTypeLike:
    """Of a file's dataset once it is read; images have four axes, or the attribute `LAYOUT`."""
    if key == "actions" and item.dtype.kind in "biu":
        return np.int64
    is_image = key == OBSERVATIONS and (item.ndim == 4 or LAYOUT in item.attrs)
    return np.uint8 if is_image and item.dtype == np.uint8 else np.float32


def _read_flags(item: Any, key: str, path: Path) -> BoolArray:
    values = np.asarray(item[()])
    if not np.isfinite(values).all():
        raise DatasetError(f"{path}: `{key}` must be finite.")
    flags: BoolArray = values != 0
    return flags[:, 0] if flags.ndim == 2 and flags.shape[1] == 1 else flags


def _write(file: Any, key: str, values: Any, compression: int) -> None:
    row_bytes = values.dtype.itemsize * math.prod(values.shape[1:])
    n_rows = min(len(values), 8192, max(1, _LARGEST_CHUNK // row_bytes))
    chunks = (n_rows, *values.shape[1:])  # whole rows: read in one go
    file.create_dataset(
        key,
        data=values,
        chunks=chunks,
        compression="gzip",
        compression_opts=compression,
        shuffle=True,
    )
