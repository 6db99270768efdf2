"""Dropout masks, several times cheaper on CPUs than `torch.nn.Dropout`'s.

A mask of 0 and 1 is a comparison of random 16-bit integers, so the probability is rounded to a
multiple of 2^-16. What is kept is scaled by `scale`, wherever that costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from rcdt_agent.kernels import Drop, Words

_LEVELS = 1 << 16
_ROOM = np.zeros(4, dtype=np.uint64)


def draw_seed() -> int:
    """A seed of masks from torch's global state, which whoever trains seeds and stores."""
    return int(torch.randint(2**62, (), dtype=torch.int64))


class Masks:
    """A stream of masks that depends on its seed alone."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Begin the stream."""
        self._device = device
        if device.type == "cpu":
            self._bits = np.random.SFC64(seed)
        else:
            self._generator = torch.Generator(device)
            self._generator.manual_seed(seed)

    def draw(
        self, shape: Sequence[int], probability: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Mask of a shape that is 0 with the probability, else 1."""
        if self._device.type != "cpu":
            draw = torch.empty(tuple(shape), dtype=dtype, device=self._device)
            return draw.uniform_(generator=self._generator).ge_(_threshold(probability) / _LEVELS)
        words = self.words([math.prod(shape)])[0]
        mask = torch.from_numpy(words).ge_(_threshold(probability) - _LEVELS // 2)
        return mask.to(dtype).view(tuple(shape))

    def words(self, sizes: Sequence[int]) -> list[Words]:
        """The random words of masks that follow each other, for the CPU; see `as_drop`.

        They lie in one piece of memory with some room behind, so that whole vectors can be read
        at the end of each.
        """
        counts = [-(-n // 4) for n in sizes]
        words = np.concatenate((self._bits.random_raw(sum(counts)), _ROOM)).view(np.int16)
        starts = accumulate((4 * n for n in counts), initial=0)
        return [words[start : start + n] for start, n in zip(starts, sizes, strict=False)]


def as_drop(probability: float) -> Drop | None:
    """What dropout with a probability does to values, given random words; None if nothing."""
    least = _threshold(probability) - _LEVELS // 2
    return Drop(least, kept_scale(probability)) if probability else None


def kept_scale(probability: float) -> float:
    """What the kept values are multiplied by, so that the mean stays."""
    return _LEVELS / (_LEVELS - _threshold(probability))


def _threshold(probability: float) -> int:
    return min(round(probability * _LEVELS), _LEVELS - 1)
