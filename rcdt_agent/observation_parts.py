"""The parts of an observation: which there are, their values by name, their columns in a row.

A part is a space that holds no other, within `Dict` and `Tuple` under a name such as `a/b`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.images import is_image

Leaf = tuple[str, gym.Space[Any]]
"""Name and space of a part."""
CONTAINERS = gym.spaces.Dict | gym.spaces.Tuple
_LEAVES = gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary


def inner_spaces(space: Any, path: str) -> Iterator[Leaf]:
    """The spaces in a container, and their names."""
    named = isinstance(space, gym.spaces.Dict)
    for key, inner in space.spaces.items() if named else enumerate(space.spaces):
        if named and (not isinstance(key, str) or not key or "/" in key):
            raise InvalidArgumentError(
                f"Keys of `observation_space` must be texts without '/', got {key!r}."
            )
        yield f"{path}/{key}" if path else str(key), inner


def leaves_of(space: gym.Space[Any], path: str = "") -> Iterator[Leaf]:
    """All parts of a space, in the order of the row; refuses what is not supported."""
    if isinstance(space, CONTAINERS):
        for name, inner in inner_spaces(space, path):
            yield from leaves_of(inner, name)
    elif path and is_image(space):
        raise InvalidArgumentError(
            f"`observation_space`: an image must be the whole observation, got one beside others, "
            f"`{path}`: {space}."
        )
    elif isinstance(space, _LEAVES):
        yield path or "observation", space
    else:
        where = f", in it `{path}`" if path else ""
        raise InvalidArgumentError(
            f"`observation_space` must be a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict "
            f"or Tuple of these, got {space}{where}."
        )


def leaf_values(space: gym.Space[Any], value: Any, path: str = "") -> Iterator[Any]:
    """The values of all leaves; names of keys are checked."""
    if not isinstance(space, CONTAINERS):
        yield value
        return
    what, inner = f"`{path or 'observation'}`", list(inner_spaces(space, path))
    keys: Sequence[Any]
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(
                f"{what} must be a dict of {', '.join(space.spaces)}, got {type(value).__name__}"
                f"{f' of shape {value.shape}' if isinstance(value, np.ndarray) else ''}."
            )
        keys = list(space.spaces)
        unknown = sorted(str(key) for key in value if key not in space.spaces)
        missing = [key for key in keys if key not in value]
        if unknown or missing:
            found = [f"{' and '.join(missing)} missing"] * bool(missing)
            found += [f"{' and '.join(unknown)} unknown"] * bool(unknown)
            raise InvalidArgumentError(
                f"{what} must have the keys {', '.join(keys)}: {'; '.join(found)}."
            )
    else:
        if not isinstance(value, tuple | list) or len(value) != len(inner):
            raise InvalidArgumentError(
                f"{what} must be a tuple of {len(inner)}, got {type(value).__name__}"
                f"{f' of {len(value)}' if isinstance(value, tuple | list) else ''}."
            )
        keys = range(len(inner))
    for key, (name, part) in zip(keys, inner, strict=True):
        yield from leaf_values(part, value[key], name)


def leaf_array(leaf: Leaf, value: Any) -> npt.NDArray[Any]:
    """The value of a part as finite numbers."""
    name, _ = leaf
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"`{name}` of the observation is no array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"`{name}` of the observation must be numbers, got {value!r}.")
    check_finite(name, array)
    return array


def check_finite(name: str, array: npt.NDArray[Any]) -> None:
    """Refuse NaN and infinity."""
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"`{name}` of the observation must be finite, got {array}.")


def count_rows(leaf: Leaf, array: npt.NDArray[Any], n: int | None) -> int | None:
    """How many observations an array holds; None: one, without a leading axis."""
    (name, space), shape = leaf, leaf[1].shape or ()
    if n is not None and array.shape[:1] == (n,) and array.size == n * int(np.prod(shape)):
        return n
    if n is None and array.shape == shape:
        return None
    if array.ndim and array.shape[1:] == shape and len(array) and n in (None, len(array)):
        return len(array)
    batch = f"({', '.join(map(str, ('N' if n is None else n, *shape)))})"
    raise InvalidArgumentError(
        f"`{name}` of the observation must have shape {shape}, or {batch} for a batch, got "
        f"{array.shape}; its space is {space}."
    )


def leaf_columns(leaf: Leaf, values: npt.NDArray[Any]) -> Float32Array:
    """(N, K) values of a part as its (N, size) columns of the rows."""
    name, space = leaf
    if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return values.astype(np.float32)
    n_values, start = _one_hots(space)
    index = values - start
    bad = (index < 0) | (index >= n_values) | (index != np.floor(index))
    if bad.any():
        raise InvalidArgumentError(
            f"`{name}` of the observation must be in {space}, got {values[bad][0]}."
        )
    rows = np.zeros((len(values), int(n_values.sum())), dtype=np.float32)
    first = np.concatenate(([0], np.cumsum(n_values)[:-1]))
    np.put_along_axis(rows, index.astype(np.int64) + first, 1.0, axis=1)
    return rows


def _one_hots(space: Any) -> tuple[Any, Any]:
    """(K,) number of values of each component, and the smallest."""
    if isinstance(space, gym.spaces.Discrete):
        return np.array([int(space.n)]), np.array([int(space.start)])
    n_values = np.ravel(space.nvec).astype(np.int64)
    return n_values, np.ravel(getattr(space, "start", np.zeros_like(n_values)))


def leaf_bounds(space: Any) -> tuple[Any, Any]:
    """The smallest and largest values of a part's columns."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    size = gym.spaces.flatdim(space)
    return np.zeros(size), np.ones(size)
