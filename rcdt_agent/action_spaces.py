"""Action spaces: which are supported, and the one-hot form of the discrete ones.

`Discrete` is one choice among some options, `MultiDiscrete` several choices, `MultiBinary` several
between two. The networks see them in one-hot form, one choice after the other.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent.action_range import ActionRange
from rcdt_agent.errors import InvalidArgumentError

DiscreteSpace: TypeAlias = gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
ActionSpace: TypeAlias = gym.spaces.Box | DiscreteSpace
DISCRETE = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
MAX_OPTIONS = 1_000_000
"""Of all choices of an action together."""


def options(space: gym.Space[Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """How many options each choice of a discrete space has, and the first one's number.

    None of a Box.

    Raises:
        InvalidArgumentError: There is no option, or there are too many.
    """
    if isinstance(space, gym.spaces.Discrete):
        found: tuple[list[int], list[int]] = [int(space.n)], [int(space.start)]
    elif isinstance(space, gym.spaces.MultiBinary):
        n = min(math.prod(space.shape), MAX_OPTIONS)
        found = [2] * n, [0] * n
    elif isinstance(space, gym.spaces.MultiDiscrete):
        found = space.nvec.ravel().tolist(), _starts(space).ravel().tolist()
    else:
        return None
    counts, starts = (tuple(int(value) for value in values) for values in found)
    check_options(counts)
    return counts, starts


def check_options(counts: tuple[int, ...]) -> None:
    """Refuse choices without an option, and too many options.

    Raises:
        InvalidArgumentError: They are such.
    """
    if not counts or min(counts) < 1 or sum(counts) > MAX_OPTIONS:
        raise InvalidArgumentError(
            f"`action_space` must have 1 to {MAX_OPTIONS} options, got {counts[:8]}."
        )


def check_space(name: str, value: object) -> None:
    """Refuse what is no Gymnasium space.

    Raises:
        InvalidArgumentError: It is none.
    """
    if not isinstance(value, gym.Space):
        raise InvalidArgumentError(f"`{name}` must be a Gymnasium space, got {value!r}.")


def check_action_space(space: gym.Space[Any]) -> ActionSpace:
    """The space, if an agent can have such actions.

    Raises:
        InvalidArgumentError: It is neither a Box of floating-point numbers nor discrete.
    """
    if isinstance(space, DISCRETE):
        options(space)
        return space
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return space
    raise InvalidArgumentError(
        f"`action_space` must be a Box of floating-point numbers, Discrete, MultiDiscrete or "
        f"MultiBinary, got {space}."
    )


def action_width(space: gym.Space[Any]) -> int:
    """Numbers of an action as data hold it: those of a Box, or one for each choice."""
    if isinstance(space, DISCRETE):
        return math.prod(space.shape or ())
    return gym.spaces.flatdim(space)


def action_range(space: gym.Space[Any]) -> ActionRange:
    """Bounds of the actions as data hold them: of a Box, or the options of each choice."""
    found = options(space)
    if found is not None:
        counts, starts = found
        low = np.array(starts, dtype=np.float64)
        return ActionRange(low=low, high=low + counts - 1, whole=True)
    assert isinstance(space, gym.spaces.Box)
    low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
    return ActionRange(low=low, high=high, whole=False)


def same_actions(first: gym.Space[Any], second: gym.Space[Any]) -> bool:
    """Whether actions of one space are actions of the other: equal choices, or equal sizes."""
    mine, yours = options(first), options(second)
    if mine is None or yours is None:
        return mine is yours and action_width(first) == action_width(second)
    return mine == yours


def as_space(actions: npt.ArrayLike, space: gym.Space[Any]) -> Any:
    """Actions (N, k) in the shape and type of the space, with a leading axis."""
    rows = np.asarray(actions).reshape(-1, *(space.shape or ()))
    return rows.astype(space.dtype) if isinstance(space, DISCRETE) else rows


def discrete_to_dict(space: DiscreteSpace) -> dict[str, Any]:
    """A discrete space as plain values."""
    found = options(space)
    assert found is not None
    kind = type(space).__name__
    shape = [int(size) for size in space.shape or ()]
    return {"kind": kind, "counts": found[0], "starts": found[1], "shape": shape}


def discrete_from_dict(values: dict[str, Any]) -> DiscreteSpace:
    """The inverse of `discrete_to_dict`.

    Raises:
        InvalidArgumentError: No such space.
    """
    counts, starts, shape = (tuple(values[key]) for key in ("counts", "starts", "shape"))
    check_options(counts)
    if not len(counts) == len(starts) == math.prod(shape):
        raise InvalidArgumentError(f"{len(counts)} choices, but a shape of {shape}")
    if values["kind"] == "Discrete":
        return gym.spaces.Discrete(counts[0], start=starts[0])
    if values["kind"] == "MultiBinary":
        return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if values["kind"] != "MultiDiscrete":
        raise InvalidArgumentError(f"`kind` of a space must be known, got {values['kind']!r}")
    return gym.spaces.MultiDiscrete(np.reshape(counts, shape), start=np.reshape(starts, shape))


def _starts(space: gym.spaces.MultiDiscrete) -> np.ndarray[Any, Any]:
    return np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
