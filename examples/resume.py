"""Training that is interrupted, and goes on as if it had not been."""

from pathlib import Path

import torch
from stable_baselines3.common.callbacks import BaseCallback

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.tasks.speed_limit import record_drivers


class PowerCut(BaseCallback):
    """Any callback that returns False ends training; so does a kill."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.num_timesteps < self.step


def main(total_steps: int = 400, folder: str | Path = "build") -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(200))
    checkpoint = Path(folder) / "last.zip"

    agent = RCDT(preset="tiny", seed=0)
    keep = LatestCheckpoint(checkpoint, every=max(total_steps // 8, 1))
    agent.learn(data, total_steps, callback=[keep, PowerCut(total_steps // 2)])
    print(f"interrupted at step {agent.num_timesteps} of {total_steps}")

    resumed = RCDT.load(checkpoint)
    print(f"the file holds step {resumed.num_timesteps}")
    resumed.learn(data, resume=True)  # to where the interrupted training would have ended

    straight = RCDT(preset="tiny", seed=0).learn(data, total_steps)
    same = all(
        torch.equal(weights, straight.get_parameters()["policy"][name])
        for name, weights in resumed.get_parameters()["policy"].items()
    )
    print(f"step {resumed.num_timesteps}, the same weights as without the interruption: {same}")


if __name__ == "__main__":
    main()
