"""What is worth knowing of a dataset before training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset


@dataclass(frozen=True, kw_only=True)
class DatasetSummary:
    """The figures of a dataset that `rcdt inspect` prints."""

    name: str
    trajectories: int
    transitions: int
    observation_size: int
    action_size: int
    return_range: tuple[float, float]
    cost_range: tuple[float, float]
    """Of several costs: of all of them; `cost_ranges` has each."""
    length_range: tuple[int, int]
    terminated: int
    truncated: int
    cost_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By name, of several costs; empty for one."""

    @classmethod
    def of(cls, dataset: TrajectoryDataset) -> DatasetSummary:
        """The figures of a dataset."""
        returns, costs, lengths = dataset.episode_returns, dataset.episode_costs, dataset.lengths
        return cls(
            name=dataset.name,
            trajectories=len(dataset),
            transitions=dataset.n_transitions,
            observation_size=dataset.observation_size,
            action_size=dataset.action_size,
            return_range=(float(returns.min()), float(returns.max())),
            cost_range=(float(costs.min()), float(costs.max())),
            length_range=(int(lengths.min()), int(lengths.max())),
            terminated=int(dataset.terminated.sum()),
            truncated=int((~dataset.terminated).sum()),
            cost_ranges={}
            if dataset.n_costs == 1
            else {
                name: (float(column.min()), float(column.max()))
                for name, column in zip(dataset.cost_names, costs.T, strict=True)
            },
        )

    def __str__(self) -> str:
        """A few lines to read."""
        shortest, longest = self.length_range
        steps = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        costs = self.cost_ranges or {"cost": self.cost_range}
        return "\n".join(
            [
                f"{self.name}: {self.trajectories:,} trajectories of {steps} steps, "
                f"{self.transitions:,} transitions",
                f"observations of size {self.observation_size}, actions of size {self.action_size}",
                f"return {_span(self.return_range)}",
                *(f"{name} {_span(values)}" for name, values in costs.items()),
                f"{self.terminated:,} ended by the task, {self.truncated:,} cut off",
            ]
        )


def _span(values: tuple[float, float]) -> str:
    return f"{values[0]:.4g} .. {values[1]:.4g}"
