"""Which trajectories the paper's degraded datasets keep (Tables 6 and 7), as row indices."""

from __future__ import annotations

import math

import numpy as np

from rcdt_agent._types import Float32Array, Int64Array
from rcdt_agent.base_config import is_number
from rcdt_agent.errors import InvalidArgumentError


def bottom_rows(returns: Float32Array, rho: float) -> Int64Array:
    """Rows of the `rho` percent of trajectories with the smallest returns, in file order."""
    order, keep = _ranked(returns, rho, largest=100.0)
    return np.sort(order[:keep])


def extreme_rows(returns: Float32Array, rho: float) -> Int64Array:
    """Rows of the `rho` percent with the smallest and with the largest returns, in file order."""
    order, keep = _ranked(returns, rho, largest=50.0)
    return np.sort(np.concatenate((order[:keep], order[max(keep, len(order) - keep) :])))


def _ranked(returns: Float32Array, rho: float, largest: float) -> tuple[Int64Array, int]:
    if not is_number(rho) or not 0 < rho <= largest:
        raise InvalidArgumentError(f"`rho` must be in (0, {largest:g}] percent, got {rho!r}.")
    order = np.argsort(returns, kind="stable")
    return order, math.ceil(len(order) * rho / 100 - 1e-9)
