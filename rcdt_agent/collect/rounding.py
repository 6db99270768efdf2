"""Observations rounded to fewer bits: a compressed file becomes several times smaller."""

from __future__ import annotations

import numpy as np

from rcdt_agent._types import Float32Array

MANTISSA_BITS = 23  # stored ones of float32


def round_mantissa(values: Float32Array, bits: int) -> Float32Array:
    """The nearest values with so many stored bits of mantissa; relative error <= 2^-(bits + 1).

    Args:
        values: Finite float32 of any shape.
        bits: 1 .. 23; 23 changes nothing.
    """
    mantissa, exponent = np.frexp(values)  # 0.5 <= |mantissa| < 1: one bit less is stored
    scale = 2.0 ** (bits + 1)
    return np.ldexp(np.rint(mantissa * scale) / scale, exponent).astype(np.float32)
