"""`ObservationLayout`: observations of any supported space as flat rows.

`Dict` and `Tuple` are laid out in the order of their space, numbers as they are, `Discrete` and
`MultiDiscrete` one-hot: the same numbers as `gymnasium.spaces.utils.flatten`, but also for batches,
and checked by name. An image is a row of its bytes, see `rcdt_agent.images`. Any other plain `Box`
has no layout: its rows are the array itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.images import (
    ImageShape,
    image_rows,
    image_shape,
    image_space,
    images_of,
    is_image,
)
from rcdt_agent.observation_parts import (
    CONTAINERS,
    Leaf,
    check_finite,
    count_rows,
    inner_spaces,
    leaf_array,
    leaf_bounds,
    leaf_columns,
    leaf_values,
    leaves_of,
)
from rcdt_agent.stored_spaces import observation_space_from_dict, observation_space_to_dict

Rows = npt.NDArray[Any]
"""float32; of images uint8."""


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
        self.leaves: tuple[Leaf, ...] = tuple(leaves_of(space))
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
            for bounds in zip(*(leaf_bounds(leaf) for _, leaf in self.leaves), strict=True)
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
                check_finite("observation", observation)
                return observation.reshape(-1, self.size).astype(np.float32), len(shape) == 1
        values = list(leaf_values(self.space, observation))
        arrays = [leaf_array(leaf, value) for leaf, value in zip(self.leaves, values, strict=True)]
        counts = [
            count_rows(leaf, array, n) for leaf, array in zip(self.leaves, arrays, strict=True)
        ]
        for (name, _), array, count in zip(self.leaves, arrays, counts, strict=True):
            if count != counts[0]:
                raise InvalidArgumentError(
                    f"`{name}` of the observation has shape {array.shape}: "
                    f"{'one' if count is None else count}, but `{self.leaves[0][0]}` has "
                    f"{'one' if counts[0] is None else counts[0]}."
                )
        single, n_rows = counts[0] is None, 1 if counts[0] is None else counts[0]
        parts = [
            leaf_columns(leaf, array.reshape(n_rows, -1))
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
        return json.dumps(observation_space_to_dict(self.space))

    @classmethod
    def from_json(cls, text: str, size: int) -> ObservationLayout:
        """The inverse of `to_json`.

        Raises:
            InvalidArgumentError: It is no such text, or not of rows of this size.
        """
        try:
            layout = cls(observation_space_from_dict(json.loads(text)))
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
    return isinstance(space, CONTAINERS) and any(
        isinstance(inner, CONTAINERS) for _, inner in inner_spaces(space, "")
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


def _space_of(observations: Any) -> gym.Space[Any]:
    if isinstance(observations, Mapping):
        return gym.spaces.Dict({key: _space_of(part) for key, part in observations.items()})
    if isinstance(observations, tuple):
        return gym.spaces.Tuple([_space_of(part) for part in observations])
    images = images_of(observations)
    if images is not None:
        return images
    return gym.spaces.Box(-np.inf, np.inf, np.shape(observations)[1:], dtype=np.float32)
