"""One action: `OnnxAgent.predict` beside `predict` of the agent it was exported from.

    python benchmarks/onnx_runner.py [--rounds 1000]

One thread each, a full window, one action each by turns in one process. On a machine that does
other work too, the 10 % quantile is what an action takes when nothing interrupts it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import timing
import torch
from data import make_arrays
from predict import ACTION, EPISODE, OBSERVATION, our_step

from rcdt_agent import RCDT
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.onnx_agent import OnnxAgent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = TrajectoryDataset.from_arrays(**make_arrays(3_000, EPISODE, OBSERVATION, ACTION))
    print("| preset | | median, ms | 10 % quantile, ms |\n|---|---|---|---|")
    for preset in ("cpu", "paper"):
        agent = RCDT(preset=preset, batch_size=2, seed=0).learn(data, 1)
        with tempfile.TemporaryDirectory() as folder:
            agent.export_onnx(Path(folder) / "policy.onnx")
            runner = OnnxAgent(Path(folder) / "policy.onnx")
        runner.episode_length = agent.policy.episode_length = 10**9  # this episode never ends
        steps = {"`OnnxAgent`": our_step(runner, 1), "`predict`": our_step(agent, 1)}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, step in steps.items():
                times[name].append(1e3 * timing.seconds(step))
        for name, taken in times.items():
            median, low = np.median(taken), np.quantile(taken, 0.1)
            print(f"| `{preset}` | {name} | {median:.2f} | {low:.2f} |", flush=True)


if __name__ == "__main__":
    main()
