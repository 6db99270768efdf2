"""One training in several processes, on the cores or the GPUs of one machine or of many.

    torchrun --nproc-per-node 2 examples/several_processes.py

The script is the same as for one process: `python examples/several_processes.py` runs it, too.
"""

from __future__ import annotations

from pathlib import Path

from rcdt_agent import RCDT, TrajectoryDataset, distributed
from rcdt_agent.tasks.speed_limit import record_drivers


def main(total_steps: int = 400, folder: str | Path = "build") -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(200))
    agent = RCDT(preset="tiny", seed=0, batch_size=64)  # of all processes together
    agent.learn(data, total_steps)  # joins the others, if torchrun started any
    agent.save(Path(folder) / "driver.zip")  # rank 0 writes

    if distributed.is_main():  # and evaluates
        report = agent.evaluate("SpeedLimit", budgets=[5, 20], n_episodes=2)
        print(f"{agent.n_processes} processes, {agent.num_timesteps} steps")
        print(report.as_table())


if __name__ == "__main__":
    main()
