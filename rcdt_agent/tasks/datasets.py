"""The dataset of a task: DSRL's file, or SpeedLimit's recorded drivers."""

from __future__ import annotations

from typing import Any

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.tasks.download import download_dataset
from rcdt_agent.tasks.registry import Task, get_task
from rcdt_agent.tasks.speed_limit import record_drivers

SPEED_LIMIT_EPISODES = 1_000


def load_task_dataset(task: str | Task, *, progress_bar: bool = False) -> TrajectoryDataset:
    """Read the dataset of a task, downloading it unless the cache holds it.

    Args:
        task: Any spelling that `get_task` accepts. SpeedLimit's data are made on the spot.
        progress_bar: Show the download, if one is needed.

    Raises:
        UnknownTaskError: The id is not in the registry.
        DownloadError: The file is not in the cache and cannot be fetched.
        DatasetError: The file is damaged.
    """
    task = get_task(task)
    if task.suite == "embedded":
        arrays: dict[str, Any] = record_drivers(SPEED_LIMIT_EPISODES)
        return TrajectoryDataset.from_arrays(**arrays, name="SpeedLimit drivers")
    return TrajectoryDataset.from_hdf5(download_dataset(task.dataset_file, progress=progress_bar))
