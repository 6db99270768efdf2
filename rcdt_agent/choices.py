"""Discrete actions as networks see them: one-hot, one choice after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rcdt_agent.action_spaces import check_options, options


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
        check_options(self.counts)
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
        found = options(space)
        return None if found is None else cls(*found)

    def encode(self, actions: Tensor) -> Tensor:
        """One-hot form (..., A) of actions (..., k), which may be held as floats."""
        return (actions[..., self.column] == self.value).float()

    def decode(self, scores: Tensor) -> Tensor:
        """(..., k) int64, of each choice the option of the largest score (..., A)."""
        parts = torch.split(scores, list(self.counts), dim=-1)
        chosen = torch.stack([part.argmax(-1) for part in parts], dim=-1)
        return chosen + chosen.new_tensor(self.starts)
