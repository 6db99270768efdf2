"""`ActionRange`: which numbers are actions of a space; numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent._types import BoolArray, Float64Array


@dataclass(frozen=True, kw_only=True, eq=False)
class ActionRange:
    """Bounds of the actions of a space, as data hold them.

    Attributes:
        low: (A,) infinite where there is no bound.
        high: (A,).
        whole: Whether actions are whole numbers, those of options.
    """

    low: Float64Array
    high: Float64Array
    whole: bool

    def outside(self, rows: npt.NDArray[Any]) -> BoolArray:
        """(N,) which of the rows (N, A) are no actions; rounding at a bound is forgiven."""
        if self.whole:
            wrong = (rows < self.low) | (rows > self.high) | (rows != np.floor(rows))
        else:
            sizes = np.abs([self.low, self.high])
            slack = 1e-5 * np.where(np.isfinite(sizes), sizes, 0.0).max(0)
            wrong = (rows < self.low - slack) | (rows > self.high + slack)
        return np.asarray(wrong.any(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file; None where there is no bound."""
        low, high = (
            [value if np.isfinite(value) else None for value in bound.tolist()]
            for bound in (self.low, self.high)
        )
        return {"action_low": low, "action_high": high}

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, size: int, whole: bool) -> ActionRange:
        """The inverse of `to_dict`, of actions of `size` numbers."""
        low, high = (
            np.array([beyond if value is None else float(value) for value in values[key]])
            for key, beyond in (("action_low", -np.inf), ("action_high", np.inf))
        )
        if low.shape != (size,) or high.shape != (size,):
            raise ValueError(f"an action has {size} bounds, got {low.shape} and {high.shape}")
        return cls(low=low, high=high, whole=whole)
