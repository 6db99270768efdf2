"""Trajectories with rewards and costs: reading, checking, describing, sampling."""

from rcdt_agent.data.dataset import DatasetSummary, TrajectoryDataset
from rcdt_agent.data.frontier import Frontier
from rcdt_agent.data.sampler import Batch, WindowSampler

__all__ = ["Batch", "DatasetSummary", "Frontier", "TrajectoryDataset", "WindowSampler"]
