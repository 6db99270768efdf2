"""Datasets of one's own: record any safe environment, or collect with varied behaviours."""

from __future__ import annotations

from rcdt_agent.collect.balance import balanced_rows
from rcdt_agent.collect.behaviours import (
    BEHAVIOURS,
    Controller,
    default_behaviour,
    make_controller,
)
from rcdt_agent.collect.collector import PENALTIES, collect_dataset
from rcdt_agent.collect.recorder import Trajectory, TrajectoryRecorder, join_trajectories
from rcdt_agent.collect.store import TrajectoryStore, read_parts

__all__ = [
    "BEHAVIOURS",
    "PENALTIES",
    "Controller",
    "Trajectory",
    "TrajectoryRecorder",
    "TrajectoryStore",
    "balanced_rows",
    "collect_dataset",
    "default_behaviour",
    "join_trajectories",
    "make_controller",
    "read_parts",
]
