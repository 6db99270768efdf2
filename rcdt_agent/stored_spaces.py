"""Spaces as plain values, for checkpoints and other files."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rcdt_agent.action_spaces import ActionSpace, discrete_from_dict, discrete_to_dict
from rcdt_agent.errors import CheckpointError
from rcdt_agent.images import image_space, is_image

IMAGE = "Image"
"""Kind of a space of images, whose bounds need not be stored byte by byte."""
SPACE_DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64", "bool",
)  # fmt: skip


def space_to_dict(space: ActionSpace) -> dict[str, Any]:
    """A space as plain values."""
    if not isinstance(space, gym.spaces.Box):
        return discrete_to_dict(space)
    if is_image(space):
        return {"kind": IMAGE, "shape": space.shape}
    bounds = [
        [None if np.isinf(value) else float(value) for value in array.ravel()]
        for array in (space.low, space.high)
    ]
    return {"low": bounds[0], "high": bounds[1], "shape": space.shape, "dtype": str(space.dtype)}


def space_from_dict(values: dict[str, Any]) -> Any:
    """The inverse of `space_to_dict`."""
    if values.get("kind") == IMAGE:
        return image_space(values["shape"])
    if "kind" in values:
        return discrete_from_dict(values)
    low, high = (
        np.array([fill if v is None else v for v in values[key]]).reshape(values["shape"])
        for key, fill in (("low", -np.inf), ("high", np.inf))
    )
    if values["dtype"] not in SPACE_DTYPES:  # numpy would parse any text
        raise CheckpointError(f"`dtype` of a space must be a number's, got {values['dtype']!r}")
    dtype: Any = np.dtype(values["dtype"])
    return gym.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
