"""Trajectories with rewards and costs: reading, checking, describing, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rcdt_agent.data.dataset import DatasetSummary, TrajectoryDataset
from rcdt_agent.data.frontier import Frontier, Outcomes

if TYPE_CHECKING:
    from rcdt_agent.data.sampler import Batch, WindowSampler

__all__ = [
    "Batch",
    "DatasetSummary",
    "Frontier",
    "Outcomes",
    "TrajectoryDataset",
    "WindowSampler",
]


def __getattr__(name: str) -> Any:
    """Load the sampler, which needs torch, when it is first used."""
    if name not in ("Batch", "WindowSampler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rcdt_agent.data import sampler

    return getattr(sampler, name)
