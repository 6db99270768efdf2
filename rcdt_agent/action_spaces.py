"""Action spaces: which are supported, and the one-hot form of the discrete ones.

`Discrete` is one choice among some options, `MultiDiscrete` several choices, `MultiBinary` several
between two. The networks see them in one-hot form, one choice after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rcdt_agent.action_range import ActionRange
from rcdt_agent.errors import InvalidArgumentError

DiscreteSpace: TypeAlias = gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
ActionSpace: TypeAlias = gym.spaces.Box | DiscreteSpace
DISCRETE = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
MAX_OPTIONS = 1_000_000
"""Of all choices of an action together."""


class Choices(nn.Module):
    """The choices of a discrete space, and their one-hot form; A options in k choices.

    Attributes:
        counts: (k,) options of each choice.
        starts: (k,) number of the first option of each choice.
    """

    column: Tensor
    value: Tensor

    def __init__(self, counts: Sequence[int], starts: Sequence[int] | None = None) -> None:
        """Take the options of each choice; they are numbered from `starts`, default 0."""
        super().__init__()
        self.counts = tuple(int(count) for count in counts)
        self.starts = tuple(int(start) for start in starts or (0,) * len(self.counts))
        if not self.counts or min(self.counts) < 1 or sum(self.counts) > MAX_OPTIONS:
            raise InvalidArgumentError(
                f"`action_space` must have 1 to {MAX_OPTIONS} options, got {self.counts[:8]}."
            )
        values = [
            torch.arange(n) + start for n, start in zip(self.counts, self.starts, strict=True)
        ]
        columns = [torch.full((n,), j) for j, n in enumerate(self.counts)]
        # Of each place of the one-hot form: which choice, and which option of it.
        self.register_buffer("column", torch.cat(columns), persistent=False)
        self.register_buffer("value", torch.cat(values), persistent=False)

    @classmethod
    def of(cls, space: gym.Space[Any]) -> Choices | None:
        """Those of a discrete space; None of a Box."""
        if isinstance(space, gym.spaces.Discrete):
            return cls([int(space.n)], [int(space.start)])
        if isinstance(space, gym.spaces.MultiBinary):
            return cls((2,) * min(math.prod(space.shape), MAX_OPTIONS))
        if isinstance(space, gym.spaces.MultiDiscrete):
            return cls(space.nvec.ravel().tolist(), _starts(space).ravel().tolist())
        return None

    def encode(self, actions: Tensor) -> Tensor:
        """One-hot form (..., A) of actions (..., k), which may be held as floats."""
        return (actions[..., self.column] == self.value).float()

    def decode(self, scores: Tensor) -> Tensor:
        """(..., k) int64, of each choice the option of the largest score (..., A)."""
        parts = torch.split(scores, list(self.counts), dim=-1)
        chosen = torch.stack([part.argmax(-1) for part in parts], dim=-1)
        return chosen + chosen.new_tensor(self.starts)


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
        Choices.of(space)
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
    choices = Choices.of(space)
    if choices is not None:
        low = np.array(choices.starts, dtype=np.float64)
        return ActionRange(low=low, high=low + choices.counts - 1, whole=True)
    assert isinstance(space, gym.spaces.Box)
    low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
    return ActionRange(low=low, high=high, whole=False)


def same_actions(first: gym.Space[Any], second: gym.Space[Any]) -> bool:
    """Whether actions of one space are actions of the other: equal choices, or equal sizes."""
    mine, yours = Choices.of(first), Choices.of(second)
    if mine is None or yours is None:
        return mine is yours and action_width(first) == action_width(second)
    return (mine.counts, mine.starts) == (yours.counts, yours.starts)


def as_space(actions: Tensor | np.ndarray[Any, Any], space: gym.Space[Any]) -> Any:
    """Actions (N, k) in the shape and type of the space, with a leading axis."""
    rows = np.asarray(actions).reshape(-1, *(space.shape or ()))
    return rows.astype(space.dtype) if isinstance(space, DISCRETE) else rows


def discrete_to_dict(space: DiscreteSpace) -> dict[str, Any]:
    """A discrete space as plain values."""
    choices = Choices.of(space)
    assert choices is not None
    kind = type(space).__name__
    shape = [int(size) for size in space.shape or ()]
    return {"kind": kind, "counts": choices.counts, "starts": choices.starts, "shape": shape}


def discrete_from_dict(values: dict[str, Any]) -> DiscreteSpace:
    """The inverse of `discrete_to_dict`.

    Raises:
        InvalidArgumentError: No such space.
    """
    choices, shape = Choices(values["counts"], values["starts"]), tuple(values["shape"])
    if len(choices.counts) != math.prod(shape):
        raise InvalidArgumentError(f"{len(choices.counts)} choices, but a shape of {shape}")
    if values["kind"] == "Discrete":
        return gym.spaces.Discrete(choices.counts[0], start=choices.starts[0])
    if values["kind"] == "MultiBinary":
        return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if values["kind"] != "MultiDiscrete":
        raise InvalidArgumentError(f"`kind` of a space must be known, got {values['kind']!r}")
    counts = np.reshape(choices.counts, shape)
    return gym.spaces.MultiDiscrete(counts, start=np.reshape(choices.starts, shape))


def _starts(space: gym.spaces.MultiDiscrete) -> np.ndarray[Any, Any]:
    return np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
