"""Budgets over a rolling window of steps, for plants that never reset."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rcdt_agent._types import BoolArray, Float32Array, Float64Array


@dataclass(frozen=True, kw_only=True, eq=False)
class RollingWindow:
    """What was spent before each of the last steps of each environment.

    Attributes:
        before: (N, P) total cost before each of the last P steps, oldest first, the present one
            last; (N, P, m) of several costs. Zero before the episode began.
        horizon: Steps that the tokens speak of: P, or an episode of the data if that is shorter.
        clock: Step of such an episode from which that many are left.
    """

    before: Float64Array
    horizon: int
    clock: int

    @classmethod
    def begin(cls, total_cost: Float64Array, steps: int, episode_length: int) -> RollingWindow:
        """A window of `steps` in which all that was spent so far, (N,) or (N, m), counts."""
        horizon = min(steps, episode_length)
        n_envs, *per_cost = total_cost.shape
        before = np.zeros((n_envs, steps, *per_cost))
        return cls(before=before, horizon=horizon, clock=episode_length - horizon)

    @property
    def steps(self) -> int:
        """P, the steps of the window."""
        return self.before.shape[1]

    def push(self, total_cost: Float64Array) -> RollingWindow:
        """Move on to the next step, before which `total_cost` (N,) or (N, m) was spent."""
        before = np.concatenate((self.before[:, 1:], total_cost[:, None]), axis=1)
        return replace(self, before=before)

    def restart(self, keep: BoolArray) -> RollingWindow:
        """Nothing was spent where `keep` (N,) is False: new episodes begin there."""
        return replace(self, before=self.before * keep.reshape(-1, *[1] * (self.before.ndim - 1)))

    def spent(self, total_cost: Float64Array) -> Float64Array:
        """(N,) or (N, m) what was spent within the window that ends at the present step."""
        return total_cost - self.before[:, 0]

    def allowance(self, budget: Float32Array, total_cost: Float64Array) -> Float32Array:
        """(N,) or (N, m) what the next `horizon` steps may spend at an even pace.

        The next j steps may spend the budget less what is still in the window at the last of them.
        The pace is the largest one that keeps this for every j up to P. Below zero: the window
        holds more than the budget already.
        """
        allowed = (budget - total_cost)[:, None] + self.before
        ahead = np.arange(1, self.steps + 1, dtype=np.float32)
        pace = (allowed / ahead.reshape(-1, *[1] * (self.before.ndim - 2))).min(axis=1)
        return np.asarray(pace * self.horizon, dtype=np.float32)
