"""`OfflineReport`: estimates from logged data at every budget, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rcdt_agent._io import write_text
from rcdt_agent.costs import budget_label

LIMITS = (
    "Estimates, not roll-outs. An interval spans the bootstrap intervals of two estimates, fitted "
    "Q and the nearest recorded trajectories; it is no 95 % interval of what a roll-out would "
    "measure, and where the two disagree, at least one is wrong. docs/offline_evaluation.md has "
    "how far off they were on three tasks."
)


@dataclass(frozen=True, kw_only=True)
class OfflineResult:
    """What the data say of one budget. Of several costs, everything about cost is by name.

    Attributes:
        budget: The cost budget.
        target_return: The return that was asked for; None of an algorithm that is not asked.
        mean_return: Fitted Q estimate of the mean return of an episode.
        mean_cost: Fitted Q estimate of the mean cost of an episode.
        nearest_return: Mean return of the trajectories (`offline_evaluation.NEAREST` of them)
            whose actions are the closest to the agent's.
        nearest_cost: Their mean cost.
        return_interval: From the lower to the upper end of the 95 % bootstrap intervals of
            `mean_return` and `nearest_return` over trajectories.
        cost_interval: The same of `mean_cost` and `nearest_cost`.
        passed: Both estimates of the mean cost <= budget; of several costs, of every one.
        action_gap: Root mean square distance of the agent's actions from the recorded ones, in
            deviations of the recorded ones. Near 1.4, they are as good as unrelated.
    """

    budget: Any
    target_return: float | None
    mean_return: float
    mean_cost: Any
    nearest_return: float
    nearest_cost: Any
    return_interval: tuple[float, float]
    cost_interval: Any
    passed: bool
    action_gap: float


@dataclass(frozen=True, kw_only=True)
class HeldOutCheck:
    """The same fit for the behaviour in the data, whose sums are known, on held-out trajectories.

    Attributes:
        recorded: Mean recorded sum of an episode.
        estimate: Its fitted Q estimate.
        error: `estimate` - `recorded`, as a share of the recorded sums' deviation.
        rmse: Root mean square error over trajectories.
        deviation: Of the recorded sums over trajectories: the rmse of a constant.
    """

    recorded: float
    estimate: float
    error: float
    rmse: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class OfflineReport:
    """An agent's estimates at every budget.

    Attributes:
        dataset: Name of the data.
        seed: Of the split, the resamples and the random features.
        trajectories: Fitted on.
        held_out: Trajectories whose initial states were valued, and that no fit saw.
        horizon: Steps of an episode.
        results: One entry a budget, in the order asked for.
        check: Of `return` and each cost: how well the fit does on the data's own behaviour.
        limits: What the estimates are not.
    """

    dataset: str
    seed: int
    trajectories: int
    held_out: int
    horizon: int
    results: tuple[OfflineResult, ...]
    check: dict[str, HeldOutCheck] = field(default_factory=dict)
    limits: str = LIMITS

    @property
    def passed(self) -> bool:
        """Whether every budget is kept on average, as far as the data can tell."""
        return all(result.passed for result in self.results)

    def as_table(self) -> str:
        """A plain-text table, the held-out check and the limits."""
        names = [name for name in self.check if name != "return"]
        labels = [budget_label(r.budget) for r in self.results]
        width = max(8, *map(len, labels))
        columns = ["return", *names]
        head = f"{'budget':>{width}}"
        head += "".join(f" {f'{name}: Q, nearest [interval]':>36}" for name in columns)
        lines = [f"{head} {'kept':>5} {'action gap':>11}"]
        for label, r in zip(labels, self.results, strict=True):
            several = isinstance(r.mean_cost, Mapping)
            by_cost = (r.mean_cost, r.nearest_cost, r.cost_interval)
            costs = zip(*(v.values() for v in by_cost), strict=True) if several else [by_cost]
            line = f"{label:>{width}}"
            for mean, near, (low, high) in [
                (r.mean_return, r.nearest_return, r.return_interval),
                *costs,
            ]:
                line += f" {f'{mean:.2f}, {near:.2f} [{low:.2f}, {high:.2f}]':>36}"
            lines.append(f"{line} {'yes' if r.passed else 'no':>5} {r.action_gap:>11.2f}")
        lines += [
            f"Held-out check, {name}: the data's behaviour {c.recorded:.2f}, estimated "
            f"{c.estimate:.2f} (rmse {c.rmse:.2f}, of a constant {c.deviation:.2f})."
            for name, c in self.check.items()
        ]
        lines.append(
            f"{self.dataset}: fitted on {self.trajectories} trajectories, {self.held_out} held "
            f"out, {self.horizon} steps, seed {self.seed}."
        )
        return "\n".join([*lines, self.limits])

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole report as JSON, also written to `path` if given."""
        text = json.dumps({**asdict(self), "passed": self.passed}, indent=2)
        if path is not None:
            write_text(Path(path), text + "\n")
        return text
