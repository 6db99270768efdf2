"""Trajectories with rewards and costs: reading, checking, describing, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset
    from rcdt_agent.data.frontier import Frontier, Outcomes
    from rcdt_agent.data.sampler import Batch, WindowSampler
    from rcdt_agent.data.summary import DatasetSummary

__all__ = [
    "Batch",
    "DatasetSummary",
    "Frontier",
    "Outcomes",
    "TrajectoryDataset",
    "WindowSampler",
]

# Loaded when first used: the sampler needs torch, a dataset Gymnasium, the others numpy alone.
_LAZY = {
    "Batch": "sampler",
    "DatasetSummary": "summary",
    "Frontier": "frontier",
    "Outcomes": "frontier",
    "TrajectoryDataset": "dataset",
    "WindowSampler": "sampler",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rcdt_agent.data.{_LAZY[name]}"), name)
