"""`ObservationLayout`: observations of any supported space as flat rows.

`Dict` and `Tuple` are laid out in the order of their space, numbers as they are, `Discrete` and
`MultiDiscrete` one-hot: the same numbers as `gymnasium.spaces.utils.flatten`, but also for batches,
and checked by name. An image is a row of its bytes, see `rcdt_agent.images`. Any other plain `Box`
has no layout: its rows are the array itself.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.images import (
    ImageShape,
    image_rows,
    image_shape,
    image_space,
    images_of,
    is_image,
)
from rcdt_agent.stored_spaces import space_from_dict, space_to_dict

Leaf = tuple[str, gym.Space[Any]]
Rows = npt.NDArray[Any]
"""float32; of images uint8."""
_CONTAINERS = gym.spaces.Dict | gym.spaces.Tuple
_LEAVES = gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary


class ObservationLayout:
    """Where each part of an observation lies in the flat row.

    Attributes:
        space: Of the observations.
        leaves: Name and space of each part, in the order of the row; `a/b` is within `a`.
        sizes: Numbers of each part.
        image: (C, H, W), if the observation is one image; its rows are uint8, others float32.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        """Lay out a space.

        Raises:
            InvalidArgumentError: It is of a kind that is not supported, or empty.
        """
        self.space = space
        self.image: ImageShape | None = image_shape(space)
        self.leaves: tuple[Leaf, ...] = tuple(_leaves(space, ""))
        self.sizes = tuple(gym.spaces.flatdim(leaf) for _, leaf in self.leaves)
        if not self.size:
            raise InvalidArgumentError(f"`observation_space` must not be empty, got {space}.")

    @classmethod
    def of(cls, space: gym.Space[Any]) -> ObservationLayout | None:
        """The layout of a space; None for a `Box` of no images, which needs none."""
        return None if isinstance(space, gym.spaces.Box) and not is_image(space) else cls(space)

    @classmethod
    def of_arrays(cls, observations: Any) -> ObservationLayout:
        """The layout of recorded images, or of arrays (N, ...) in dicts and tuples, all numbers."""
        return cls(_space_of(observations))

    @property
    def size(self) -> int:
        """O, the length of a row."""
        return sum(self.sizes)

    @property
    def flat_space(self) -> gym.spaces.Box:
        """The space of the rows."""
        if self.image:
            return gym.spaces.Box(0, 255, (self.size,), dtype=np.uint8)
        low, high = (
            np.concatenate([np.ravel(bound).astype(np.float32) for bound in bounds])
            for bounds in zip(*(_bounds(leaf) for _, leaf in self.leaves), strict=True)
        )
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def policy_space(self) -> gym.spaces.Box:
        """The space that a policy is made for: `flat_space`, or of images (C, H, W)."""
        return image_space(self.image) if self.image else self.flat_space

    @property
    def dtype(self) -> npt.DTypeLike:
        """Of the rows."""
        return np.uint8 if self.image else np.float32

    @property
    def parts(self) -> dict[str, int]:
        """Numbers of each part, by name."""
        return {name: size for (name, _), size in zip(self.leaves, self.sizes, strict=True)}

    def __eq__(self, other: object) -> bool:
        """Whether names, order and kinds of all parts are the same."""
        return isinstance(other, ObservationLayout) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        """Of the parts."""
        return hash(tuple(self.parts.items()))

    def rows(self, observation: Any, n: int | None = None) -> tuple[Rows, bool]:
        """Observations (N, O), and whether a single one was given.

        Args:
            observation: One, or a batch: the same structure with a leading axis in each array. A
                floating-point array (O,) or (N, O), of an image one of uint8, is taken as rows
                that are flat already.
            n: Number of observations of a batch, where it is known: shapes may then differ as long
                as the numbers are there.

        Raises:
            InvalidArgumentError: A key is unknown or missing, a shape is wrong, or a value is not
                in its space; the message names the part.
        """
        if self.image:
            return image_rows(observation, self.image, n)
        if isinstance(observation, np.ndarray) and observation.dtype.kind == "f":
            shape = observation.shape
            if shape[-1:] == (self.size,) and len(shape) in (1, 2) and 0 not in shape:
                _check_finite("observation", observation)
                return observation.reshape(-1, self.size).astype(np.float32), len(shape) == 1
        values = list(_values(self.space, observation, ""))
        arrays = [_array(leaf, value) for leaf, value in zip(self.leaves, values, strict=True)]
        counts = [_count(leaf, array, n) for leaf, array in zip(self.leaves, arrays, strict=True)]
        for (name, _), array, count in zip(self.leaves, arrays, counts, strict=True):
            if count != counts[0]:
                raise InvalidArgumentError(
                    f"`{name}` of the observation has shape {array.shape}: "
                    f"{'one' if count is None else count}, but `{self.leaves[0][0]}` has "
                    f"{'one' if counts[0] is None else counts[0]}."
                )
        single, n_rows = counts[0] is None, 1 if counts[0] is None else counts[0]
        parts = [
            _flat(leaf, array.reshape(n_rows, -1))
            for leaf, array in zip(self.leaves, arrays, strict=True)
        ]
        return np.concatenate(parts, axis=1), single

    def row(self, observation: Any) -> Rows:
        """(O,) of one observation, a copy."""
        rows, single = self.rows(observation)
        if not single:
            raise InvalidArgumentError("One observation is wanted, got a batch.")
        first: Rows = rows[0].copy()
        return first

    def to_json(self) -> str:
        """The space as JSON."""
        return json.dumps(_to_dict(self.space))

    @classmethod
    def from_json(cls, text: str, size: int) -> ObservationLayout:
        """The inverse of `to_json`.

        Raises:
            InvalidArgumentError: It is no such text, or not of rows of this size.
        """
        try:
            layout = cls(_from_dict(json.loads(text)))
        except Exception as error:  # a file may hold anything
            raise InvalidArgumentError(f"the observation layout is damaged ({error}).") from error
        if layout.size != size:
            raise InvalidArgumentError(
                f"the observation layout is of size {layout.size}, the observations of {size}."
            )
        return layout


class FlatObservation(gym.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations are rows of a layout."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment; one with a `Box` stays as it is."""
        super().__init__(env)
        self.layout = ObservationLayout.of(env.observation_space)
        if self.layout is not None:
            self.observation_space = self.layout.flat_space

    def observation(self, observation: Any) -> Any:
        """The row of an observation."""
        return observation if self.layout is None else self.layout.row(observation)


def is_nested(space: gym.Space[Any]) -> bool:
    """Whether a `Dict` or `Tuple` holds another, which stable-baselines3 does not take."""
    return isinstance(space, _CONTAINERS) and any(
        isinstance(inner, _CONTAINERS) for _, inner in _inner(space, "")
    )


def is_structured(observations: Any, n: int) -> bool:
    """Whether recorded observations of `n` steps are a dict or a tuple of arrays."""
    if isinstance(observations, Mapping):
        return True
    if not isinstance(observations, tuple) or len(observations) == n or not observations:
        return False
    return all(isinstance(part, Mapping | tuple) or len(part) == n for part in observations)


def stacked(observations: Any, layout: ObservationLayout | None = None) -> Any:
    """A list of dicts (or, of a `Tuple` layout, of tuples) as one of arrays; others stay."""
    if not isinstance(observations, list) or not observations:
        return observations
    first = observations[0]
    if isinstance(first, Mapping):
        keys = set(first)
        for i, one in enumerate(observations):
            if set(one) != keys:
                raise InvalidArgumentError(
                    f"Observation {i} has the keys {sorted(one)}, the first {sorted(keys)}."
                )
        return {key: stacked([one[key] for one in observations]) for key in first}
    if isinstance(first, tuple) and layout and isinstance(layout.space, gym.spaces.Tuple):
        return tuple(stacked(list(parts)) for parts in zip(*observations, strict=True))
    return np.asarray(observations) if layout is None or layout.image else observations


def pick(observations: Any, i: int) -> Any:
    """Observation i of a batch."""
    if isinstance(observations, Mapping):
        return {key: pick(part, i) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(pick(part, i) for part in observations)
    return observations[i]


def _inner(space: Any, path: str) -> Iterator[Leaf]:
    """The spaces in a container, and their names."""
    named = isinstance(space, gym.spaces.Dict)
    for key, inner in space.spaces.items() if named else enumerate(space.spaces):
        if named and (not isinstance(key, str) or not key or "/" in key):
            raise InvalidArgumentError(
                f"Keys of `observation_space` must be texts without '/', got {key!r}."
            )
        yield f"{path}/{key}" if path else str(key), inner


def _leaves(space: gym.Space[Any], path: str) -> Iterator[Leaf]:
    if isinstance(space, _CONTAINERS):
        for name, inner in _inner(space, path):
            yield from _leaves(inner, name)
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


def _values(space: gym.Space[Any], value: Any, path: str) -> Iterator[Any]:
    """The values of all leaves; names of keys are checked."""
    if not isinstance(space, _CONTAINERS):
        yield value
        return
    what, inner = f"`{path or 'observation'}`", list(_inner(space, path))
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
        yield from _values(part, value[key], name)


def _array(leaf: Leaf, value: Any) -> npt.NDArray[Any]:
    name, _ = leaf
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"`{name}` of the observation is no array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"`{name}` of the observation must be numbers, got {value!r}.")
    _check_finite(name, array)
    return array


def _check_finite(name: str, array: npt.NDArray[Any]) -> None:
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"`{name}` of the observation must be finite, got {array}.")


def _count(leaf: Leaf, array: npt.NDArray[Any], n: int | None) -> int | None:
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


def _flat(leaf: Leaf, values: npt.NDArray[Any]) -> Float32Array:
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


def _bounds(space: Any) -> tuple[Any, Any]:
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    size = gym.spaces.flatdim(space)
    return np.zeros(size), np.ones(size)


def _space_of(observations: Any) -> gym.Space[Any]:
    if isinstance(observations, Mapping):
        return gym.spaces.Dict({key: _space_of(part) for key, part in observations.items()})
    if isinstance(observations, tuple):
        return gym.spaces.Tuple([_space_of(part) for part in observations])
    images = images_of(observations)
    if images is not None:
        return images
    return gym.spaces.Box(-np.inf, np.inf, np.shape(observations)[1:], dtype=np.float32)


def _to_dict(space: Any) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Dict):
        return {"dict": [[key, _to_dict(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, gym.spaces.Tuple):
        return {"tuple": [_to_dict(inner) for inner in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        return {"box": space_to_dict(space)}
    if isinstance(space, gym.spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return {"multi_discrete": space.nvec.tolist(), "start": np.asarray(start).tolist()}
    return {"multi_binary": list(space.shape)}


def _from_dict(values: dict[str, Any]) -> gym.Space[Any]:
    if "dict" in values:  # in the stored order: gymnasium sorts plain dicts
        return gym.spaces.Dict(OrderedDict((str(k), _from_dict(v)) for k, v in values["dict"]))
    if "tuple" in values:
        return gym.spaces.Tuple([_from_dict(inner) for inner in values["tuple"]])
    if "box" in values:
        box: gym.spaces.Box = space_from_dict(values["box"])
        return box
    if "discrete" in values:
        return gym.spaces.Discrete(int(values["discrete"]), start=int(values["start"]))
    if "multi_discrete" in values:
        start = np.asarray(values["start"], dtype=np.int64)
        given: dict[str, Any] = {"start": start} if start.any() else {}
        return gym.spaces.MultiDiscrete(np.asarray(values["multi_discrete"], np.int64), **given)
    shape = [int(n) for n in values["multi_binary"]]
    return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
