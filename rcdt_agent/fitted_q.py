"""Fitted Q evaluation: what policies would earn and cost, from logged steps alone.

Undiscounted, with a finite horizon, backwards in time. At every time, from the last to the first, Q
is a ridge regression on random features of state, time and action, fitted to the logged steps of
that time and of a window after it. Its targets are the step's own reward and costs plus the value
of what follows: of the next state with the policy's action there. Values are clipped to the range
of what the data show from that time on.

All policies and all signals (reward, costs) share the features of the logged steps and their Gram
matrix. An ensemble of such fits, each on a bootstrap resample of the trajectories with features of
its own, gives the mean and the spread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rcdt_agent.errors import InvalidArgumentError

DEVIATIONS = 4.0
"""Inputs are clipped at so many deviations of their window: beyond, Q stays constant."""
SMALLEST_DEVIATION = 1e-3
"""Of an input within a window, as a share of its deviation over all steps."""


@dataclass(frozen=True, kw_only=True)
class FQEConfig:
    """Settings of fitted Q evaluation.

    Attributes:
        n_members: Fits in the ensemble, each on its own bootstrap resample of trajectories.
        n_features: Random features of each.
        ridge: Penalty, as a share of the features' mean square.
        window_rows: Logged steps that each regression is fitted to, about.
        holdout: Share of trajectories whose initial states are valued and that no fit sees.
    """

    n_members: int = 5
    n_features: int = 128
    ridge: float = 1e-3
    window_rows: int = 3000
    holdout: float = 0.2

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("n_members", "n_features", "window_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidArgumentError(f"`{name}` must be a whole number >= 1, got {value!r}.")
        if not self.ridge > 0:
            raise InvalidArgumentError(f"`ridge` must be > 0, got {self.ridge!r}.")
        if not 0 < self.holdout < 1:
            raise InvalidArgumentError(f"`holdout` must be in (0, 1), got {self.holdout!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedSteps:
    """N logged steps of M trajectories, and what P policies do at the states that follow them.

    Attributes:
        states: (N, X) state, time and whatever else the policies act on.
        actions: (N, A).
        signals: (N, S) reward and costs.
        next_states: (N, X).
        next_actions: (P, N, A) of each policy in the next state.
        follows: (N,) whether anything follows the step.
        times: (N,) place in the episode.
        trajectories: (N,) index of the trajectory.
        to_go: (N, S) recorded sums of the signals from each step on.
    """

    states: Tensor
    actions: Tensor
    signals: Tensor
    next_states: Tensor
    next_actions: Tensor
    follows: Tensor
    times: Tensor
    trajectories: Tensor
    to_go: Tensor

    def select(self, rows: Tensor) -> LoggedSteps:
        """Some of the steps."""
        return LoggedSteps(
            states=self.states[rows],
            actions=self.actions[rows],
            signals=self.signals[rows],
            next_states=self.next_states[rows],
            next_actions=self.next_actions[:, rows],
            follows=self.follows[rows],
            times=self.times[rows],
            trajectories=self.trajectories[rows],
            to_go=self.to_go[rows],
        )


def window_ends(times: Tensor, window_rows: int) -> list[int]:
    """For each time of the horizon, the end of its window of `window_rows` logged steps.

    Args:
        times: (N,) in order.
        window_rows: Steps in a window, at least; fewer towards the end of the horizon.
    """
    first = torch.searchsorted(times, torch.arange(int(times[-1]) + 1))
    return [int(times[min(i + window_rows, len(times)) - 1]) + 1 for i in first.tolist()]


class Features:
    """A constant, the inputs and random ReLU units of them; inputs standardised by some rows."""

    def __init__(
        self, inputs: Tensor, floor: Tensor, n_features: int, generator: torch.Generator
    ) -> None:
        """Draw the units and take mean and deviation of `inputs` (n, I), at least `floor` (I,)."""
        size = inputs.shape[1]
        self.mean = inputs.mean(0)
        self.deviation = torch.maximum(inputs.std(0, correction=0), floor)
        directions = torch.randn(size, n_features, generator=generator)
        self.directions = directions / directions.norm(dim=0)
        self.offsets = 4 * torch.rand(n_features, generator=generator) - 2

    def __call__(self, inputs: Tensor) -> Tensor:
        """(n, 1 + I + n_features)."""
        x = ((inputs - self.mean) / self.deviation).clamp_(-DEVIATIONS, DEVIATIONS)
        units = torch.addmm(self.offsets, x, self.directions).relu_()
        return torch.cat((torch.ones(len(x), 1), x, units), dim=1)


class Ridge:
    """Weighted ridge regression with one set of features for many targets; bias not penalised."""

    def __init__(self, features: Tensor, weights: Tensor, penalty: float) -> None:
        """Factor the Gram matrix of features (n, D) with weights (n,)."""
        self.weighted = (features * weights[:, None]).T.contiguous()
        gram = (self.weighted @ features).double()
        scale = penalty * gram.diagonal().mean()
        ridge = torch.full((len(gram),), float(scale), dtype=torch.float64)
        ridge[0] = 1e-6 * gram[0, 0]
        self.factor = torch.linalg.cholesky(gram + torch.diag(ridge))

    def fit(self, targets: Tensor) -> Tensor:
        """(D, T) coefficients for targets (n, T)."""
        moments = (self.weighted @ targets).double()
        return torch.cholesky_solve(moments, self.factor).float()


def fit_member(
    steps: LoggedSteps,
    start_states: Tensor,
    start_actions: Tensor,
    *,
    weights: Tensor,
    config: FQEConfig,
    generator: torch.Generator,
) -> Tensor:
    """One backward pass; the value of every policy at the start states, (P, M, S).

    Args:
        steps: To fit on, in order of time.
        start_states: (M, X) states that episodes begin in.
        start_actions: (P, M, A) what the policies do there.
        weights: (N,) of the steps, > 0.
        config: Settings.
        generator: Of the random features.
    """
    n_policies, n_signals = len(steps.next_actions), steps.signals.shape[1]
    inputs = torch.cat((steps.states, steps.actions), dim=1)
    floor = (SMALLEST_DEVIATION * inputs.std(0, correction=0)).clamp_min_(1e-8)
    next_values = torch.zeros(n_policies, len(inputs), n_signals)
    starts = torch.zeros(n_policies, len(start_states), n_signals)
    low, high = torch.zeros(2, n_signals)
    ends = window_ends(steps.times, config.window_rows)
    bounds = torch.searchsorted(steps.times, torch.arange(len(ends) + 1)).tolist()
    for time in range(len(ends) - 1, -1, -1):
        window = slice(bounds[time], bounds[ends[time]])
        shown = steps.to_go[bounds[time] : bounds[time + 1]]
        if len(shown):
            low, high = torch.minimum(low, shown.amin(0)), torch.maximum(high, shown.amax(0))
        features = Features(inputs[window], floor, config.n_features, generator)
        regression = Ridge(features(inputs[window]), weights[window], config.ridge)
        for p in range(n_policies):
            q = regression.fit(steps.signals[window] + next_values[p, window])
            if time == 0:
                at_start = torch.cat((start_states, start_actions[p]), dim=1)
                starts[p] = (features(at_start) @ q).clamp(low, high)
                continue
            before = slice(bounds[time - 1], bounds[time])
            ahead = torch.cat((steps.next_states[before], steps.next_actions[p, before]), dim=1)
            values = (features(ahead) @ q).clamp(low, high)
            next_values[p, before] = values * steps.follows[before, None]
    return starts


def fitted_q_values(
    steps: LoggedSteps,
    start_states: Tensor,
    start_actions: Tensor,
    config: FQEConfig,
    seed: int,
) -> Tensor:
    """(members, P, M, S) values of P policies at M start states.

    Args:
        steps: To fit on; start states are best of other trajectories.
        start_states: (M, X).
        start_actions: (P, M, A).
        config: Settings.
        seed: Of resamples and features.
    """
    generator = torch.Generator().manual_seed(seed)
    steps = steps.select(torch.argsort(steps.times, stable=True))
    owners, index = torch.unique(steps.trajectories, return_inverse=True)
    found = []
    for _ in range(config.n_members):
        drawn = torch.randint(len(owners), (len(owners),), generator=generator)
        weights = torch.bincount(drawn, minlength=len(owners)).float()[index]
        rows = weights.nonzero()[:, 0]
        found.append(
            fit_member(
                steps.select(rows),
                start_states,
                start_actions,
                weights=weights[rows],
                config=config,
                generator=generator,
            )
        )
    return torch.stack(found)
