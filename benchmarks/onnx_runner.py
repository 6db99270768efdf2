"""One action: `OnnxAgent.predict` against `predict` of the agent it was exported from.

    python benchmarks/onnx_runner.py [--rounds 40] [--json FILE]

One thread each, a full window, by turns in one process. Ours is the runner, the peer is torch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import timing
import torch
from data import make_arrays
from predict import ACTION, EPISODE, OBSERVATION, our_step

from rcdt_agent import RCDT
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.onnx_agent import OnnxAgent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = TrajectoryDataset.from_arrays(**make_arrays(3_000, EPISODE, OBSERVATION, ACTION))
    timing.heading("One action by onnxruntime and by torch")
    rows = []
    for preset in ("cpu", "paper"):
        agent = RCDT(preset=preset, variant="rcdt-plus", batch_size=2, seed=0).learn(data, 1)
        with tempfile.TemporaryDirectory() as folder:
            agent.export_onnx(Path(folder) / "policy.onnx")
            runner = OnnxAgent(Path(folder) / "policy.onnx")
        runner.episode_length = agent.policy.episode_length = 10**9  # these episodes never end
        for n_envs in (1, 64):
            entry = timing.compare(
                f"preset {preset}, {n_envs} environment{'s' if n_envs > 1 else ''}",
                our_step(runner, n_envs),
                our_step(agent, n_envs),
                rounds=options.rounds,
                inner=max(3, 30 // n_envs),
                inner_theirs=max(3, 30 // n_envs),
            )
            rows.append(entry)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
