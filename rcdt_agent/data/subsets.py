"""Which trajectories a part of a dataset keeps, as row indices."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Int64Array
from rcdt_agent.arguments import check_number, check_whole
from rcdt_agent.base_config import is_number
from rcdt_agent.errors import InvalidArgumentError


def chosen_rows(rows: npt.ArrayLike, n: int) -> Int64Array:
    """Rows of `n` trajectories as they were asked for; negative ones count from the end.

    Raises:
        InvalidArgumentError: They are no whole numbers, or there is no such trajectory.
    """
    given = np.asarray(rows)
    if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
        raise InvalidArgumentError(f"`rows` must be whole numbers (n,), got {rows!r}.")
    chosen = given.astype(np.int64)
    beyond = (chosen < -n) | (chosen >= n)
    if beyond.any():
        raise InvalidArgumentError(f"`rows` must be of {n} trajectories, got {chosen[beyond][0]}.")
    return chosen


def split_rows(n: int, fraction: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Rows of `n` trajectories at random: `fraction` of them, and the rest, in file order.

    Raises:
        InvalidArgumentError: A number is outside its rule, or nothing is left on one side.
    """
    check_whole("seed", seed)
    first = round(n * check_number("fraction", fraction, 0, 1))
    if not 0 < first < n:
        raise InvalidArgumentError(
            f"`fraction` must leave trajectories on both sides, got {fraction} of {n}."
        )
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[:first]), np.sort(order[first:])


def bottom_rows(returns: Float32Array, rho: float) -> Int64Array:
    """Rows of the `rho` percent with the smallest returns, in file order (paper, Tables 6, 7)."""
    order, keep = _ranked(returns, rho, largest=100.0)
    return np.sort(order[:keep])


def extreme_rows(returns: Float32Array, rho: float) -> Int64Array:
    """Rows of the `rho` percent with the smallest and with the largest returns; same tables."""
    order, keep = _ranked(returns, rho, largest=50.0)
    return np.sort(np.concatenate((order[:keep], order[max(keep, len(order) - keep) :])))


def _ranked(returns: Float32Array, rho: float, largest: float) -> tuple[Int64Array, int]:
    if not is_number(rho) or not 0 < rho <= largest:
        raise InvalidArgumentError(f"`rho` must be in (0, {largest:g}] percent, got {rho!r}.")
    order = np.argsort(returns, kind="stable")
    return order, math.ceil(len(order) * rho / 100 - 1e-9)
