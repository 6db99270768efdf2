"""Dropout masks, several times cheaper on CPUs than `torch.nn.Dropout`'s.

A mask of 0 and 1 is a comparison of random 16-bit integers, so the probability is rounded to a
multiple of 2^-16. What is kept is scaled by `scale`, wherever that costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_LEVELS = 1 << 16


def draw_seed() -> int:
    """A seed of masks from torch's global state, which whoever trains seeds and stores."""
    return int(torch.randint(2**62, (), dtype=torch.int64))


class Masks:
    """A stream of masks that depends on its seed alone."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Begin the stream."""
        self._device = device
        self._bits = np.random.SFC64(seed)
        self._generator = torch.Generator(device)
        if device.type != "cpu":
            self._generator.manual_seed(seed)

    def draw(
        self, shape: Sequence[int], probability: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Mask of a shape that is 0 with the probability, else 1."""
        threshold = _threshold(probability)
        if self._device.type != "cpu":
            draw = torch.empty(tuple(shape), dtype=dtype, device=self._device)
            return draw.uniform_(generator=self._generator).ge_(threshold / _LEVELS)
        n = math.prod(shape)
        words = self._bits.random_raw(-(-n // 4)).view(np.int16)[:n]
        mask = torch.from_numpy(words).ge_(threshold - _LEVELS // 2)
        return mask.to(dtype).view(tuple(shape))


def kept_scale(probability: float) -> float:
    """What the kept values are multiplied by, so that the mean stays."""
    return _LEVELS / (_LEVELS - _threshold(probability))


def _threshold(probability: float) -> int:
    return min(round(probability * _LEVELS), _LEVELS - 1)
