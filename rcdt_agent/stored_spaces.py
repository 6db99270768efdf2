"""Spaces as plain values, for checkpoints and other files."""

from __future__ import annotations

from collections import OrderedDict
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


def observation_space_to_dict(space: Any) -> dict[str, Any]:
    """A space of observations, nested or not, as plain values: what `ObservationLayout` stores."""
    if isinstance(space, gym.spaces.Dict):
        return {
            "dict": [[key, observation_space_to_dict(inner)] for key, inner in space.spaces.items()]
        }
    if isinstance(space, gym.spaces.Tuple):
        return {"tuple": [observation_space_to_dict(inner) for inner in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        return {"box": space_to_dict(space)}
    if isinstance(space, gym.spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return {"multi_discrete": space.nvec.tolist(), "start": np.asarray(start).tolist()}
    return {"multi_binary": list(space.shape)}


def observation_space_from_dict(values: dict[str, Any]) -> gym.Space[Any]:
    """The inverse of `observation_space_to_dict`."""
    if "dict" in values:  # in the stored order: gymnasium sorts plain dicts
        return gym.spaces.Dict(
            OrderedDict((str(k), observation_space_from_dict(v)) for k, v in values["dict"])
        )
    if "tuple" in values:
        return gym.spaces.Tuple([observation_space_from_dict(inner) for inner in values["tuple"]])
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
