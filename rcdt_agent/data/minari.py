"""Reading Minari datasets whose infos hold the cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import DatasetError


def read_minari(dataset: Any) -> TrajectoryDataset:
    """Read a `minari.MinariDataset`, or the local one of that id.

    Minari's episodes hold one observation more than steps: what follows the last one is known.
    """
    if isinstance(dataset, str):
        try:
            import minari
        except ImportError as error:
            raise DatasetError(
                "Reading Minari datasets needs the extra: `pip install rcdt_agent[minari]`."
            ) from error
        dataset = minari.load_dataset(dataset)
    name = str(dataset.spec.dataset_id)
    keys = (
        "observations", "next_observations", "actions", "rewards", "costs", "terminals", "timeouts",
    )  # fmt: skip
    columns: dict[str, list[Any]] = {key: [] for key in keys}
    for episode in dataset.iterate_episodes():
        observations = episode.observations
        if not isinstance(observations, np.ndarray):
            raise DatasetError(
                f"{name}: episode {episode.id} has {type(observations).__name__} observations; "
                f"only arrays are supported. Flatten the observation space when recording."
            )
        infos = episode.infos or {}
        if "cost" not in infos:
            raise DatasetError(
                f'{name}: episode {episode.id} has no `infos["cost"]`; found {sorted(infos)}. '
                f"Record with `record_infos=True` in an environment that reports its cost."
            )
        steps = len(episode.rewards)
        columns["observations"].append(observations[:steps].reshape(steps, -1))
        columns["next_observations"].append(observations[1 : steps + 1].reshape(steps, -1))
        columns["actions"].append(np.asarray(episode.actions).reshape(steps, -1))
        columns["rewards"].append(episode.rewards)
        # The infos of `reset` come first: as many as observations.
        columns["costs"].append(np.asarray(infos["cost"], dtype=np.float32).reshape(-1)[-steps:])
        columns["terminals"].append(episode.terminations)
        # An episode without an end flag was cut by the recording.
        ends = np.asarray(episode.truncations).copy()
        ends[-1] |= not episode.terminations[-1]
        columns["timeouts"].append(ends)
    if not columns["rewards"]:
        raise DatasetError(f"{name}: holds no episodes.")
    return TrajectoryDataset.from_arrays(
        **{key: np.concatenate(parts) for key, parts in columns.items()}, name=name
    )
