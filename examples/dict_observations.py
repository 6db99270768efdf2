"""Dict observations: Bullet's BallRun with its sensors by name.

The recording in `datasets/` is read as one flat array; here its columns get names, as a robot's
log has them, and so do the observations of the simulator.

    python examples/dict_observations.py
    python examples/dict_observations.py --total-steps 20 --n-episodes 1

Needs the extra `bullet`, and the repository's folder `datasets`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt
import tyro
from gymnasium.spaces import Box, Dict

from rcdt_agent import RCDT, TrajectoryDataset, make_env
from rcdt_agent.evaluation import BudgetReport

TASK = "OfflineBallRun-v0"
RECORDING = Path(__file__).parents[1] / "datasets" / "OfflineBallRun-v0-mixed-800.hdf5"
SENSORS = {"position": slice(0, 2), "velocity": slice(2, 4), "rotation": slice(4, 7)}
SPACE = Dict({name: Box(-np.inf, np.inf, (s.stop - s.start,)) for name, s in SENSORS.items()})


def by_name(rows: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Observations (..., 7) as a dict of sensors."""
    return {name: rows[..., columns] for name, columns in SENSORS.items()}


class NamedSensors(gym.ObservationWrapper[Any, Any, Any]):
    """The simulator with a `Dict` of position, velocity and rotation."""

    observation_space = SPACE

    def observation(self, observation: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Name the columns."""
        return by_name(np.asarray(observation, dtype=np.float32))


def main(total_steps: int = 3_000, n_episodes: int = 20, seed: int = 0) -> BudgetReport:
    """Train once, run at three budgets.

    Args:
        total_steps: Gradient steps.
        n_episodes: Episodes at each budget.
        seed: Of training.
    """
    with h5py.File(RECORDING) as file:
        log = {
            key: file[key][:] for key in ("actions", "rewards", "costs", "terminals", "timeouts")
        }
        log["observations"] = by_name(file["observations"][:])
    data = TrajectoryDataset.from_arrays(**log, observation_space=SPACE)
    agent = RCDT(preset="cpu", seed=seed).learn(data, total_steps=total_steps, progress_bar=True)
    report = agent.evaluate(
        lambda: NamedSensors(make_env(TASK)), [10, 20, 40], n_episodes=n_episodes, seed=5_000
    )
    print(report.as_table())
    return report


if __name__ == "__main__":
    tyro.cli(main)
