"""Training: our step against the peer's, alternating, in one process on the same sizes.

    python benchmarks/train.py [--json FILE]

The paper's model: 3 layers, 128 wide, 8 heads, windows of 10 steps, dropout 0.1. Our step draws
its batch; the peer's is given one. The share of the machine is the floating-point operations that
the step needs over those that a large matrix product would have done in the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import peer
import timing
import torch
from data import make_arrays

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.config import Config
from rcdt_agent.data import WindowSampler

EPISODE, OBSERVATION, ACTION = 300, 7, 2

SIZES = {"the sizes above": (OBSERVATION, ACTION), "HopperVelocity's sizes": (11, 3)}

MEASURE_MEMORY = """
import sys
sys.path.insert(0, sys.argv[2])
from data import forget_peak, held_bytes, peak_bytes
from rcdt_agent import RCDT, TrajectoryDataset

def train(path, batch_size):
    agent = RCDT(preset="paper", variant="cdt", batch_size=batch_size, seed=0)
    return agent.learn(TrajectoryDataset.from_hdf5(path), 2)

train(sys.argv[3], 2)  # loads whatever code is loaded late
forget_peak()
before = held_bytes()
agent = train(sys.argv[1], 2048)
weights = sum(p.numel() * 4 for p in agent.policy.parameters())
print(peak_bytes() - before, weights)
"""


def make_agent(data: TrajectoryDataset, variant: str, batch_size: int) -> RCDT:
    """An agent whose critics act from the first step on, ready to train."""
    agent = RCDT(preset="paper", variant=variant, batch_size=batch_size, critic_start=0.0, seed=0)
    agent.set_dataset(data)
    agent.setup(data)
    return agent


def peer_step(data: TrajectoryDataset, batch_size: int) -> Any:
    trainer = peer.make_cdt(OBSERVATION, ACTION, episode_length=EPISODE)
    batch = WindowSampler(
        data, context_length=10, batch_size=batch_size, generator=torch.Generator()
    ).sample()
    arguments = (
        batch.obs, batch.actions, batch.rtg * 0.1, batch.ctg, batch.timesteps, batch.mask.float(),
        torch.zeros(batch_size), batch.costs,
    )  # fmt: skip
    return lambda: trainer.train_one_step(*arguments)


def needed_flops(config: Config, observation_size: int, action_size: int) -> float:
    """Floating-point operations of one policy update, nothing counted that nobody reads.

    Twice the multiplications of a forward pass, times three for the backward pass. The last block
    answers at the states alone; attention looks at earlier tokens only.
    """
    width, steps = config.embedding_size, config.context_length
    per_step = 4 if config.cost_token else 3
    tokens = steps * per_step - 1  # no state looks at the last action
    looked_at = tokens * (tokens + 1) / 2  # pairs of tokens
    whole = 12 * width**2 * tokens + 2 * width * looked_at
    states = range(per_step - 2, tokens, per_step)
    last = (2 * tokens + 10 * steps) * width**2 + 2 * width * sum(at + 1 for at in states)
    ends = (2 + observation_size + action_size + 2 * action_size) * width * steps
    forward = 2 * (whole * (config.n_layers - 1) + last + ends)
    return 3 * forward * config.batch_size


def measure_memory(transitions: int, observation_size: int, action_size: int) -> dict[str, float]:
    """Peak memory of `learn` at batch 2048, over that of the file's arrays and the model."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for n in (transitions, EPISODE):
            arrays = make_arrays(n, EPISODE, observation_size, action_size)
            files.append(str(Path(folder) / f"{n}.hdf5"))
            TrajectoryDataset.from_arrays(**arrays).to_hdf5(files[-1])
            n_bytes = sum(values.nbytes for values in arrays.values()) * transitions // n
        here = str(Path(__file__).resolve().parent)
        result = subprocess.run(
            [sys.executable, "-c", MEASURE_MEMORY, files[0], here, files[1]],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    peak, weights = map(int, result.stdout.split())
    return {
        "arrays_mb": n_bytes / 1e6,
        "model_mb": weights / 1e6,
        "peak_mb": peak / 1e6,
        "peak_ratio": peak / (n_bytes + weights),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--transitions", type=int, default=1_000_000, help="of the memory test")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    arrays = make_arrays(100_000, EPISODE, OBSERVATION, ACTION)
    data = TrajectoryDataset.from_arrays(**arrays)
    timing.heading("Training step, 3 layers, 128 wide, 8 heads, K 10, dropout 0.1")
    rows, shares = [], []
    for size in options.batches:
        theirs = peer_step(data, size)
        rounds = max(2, options.rounds * 256 // size)
        for variant, wanted in (("cdt", 1.5 if size < 2048 else 4.0), ("rcdt", None)):
            agent = make_agent(data, variant, size)
            peaks = [timing.matmul_peak()]
            name = f"{variant} against the peer's cdt, batch {size}"
            entry = timing.compare(name, agent.step, theirs, rounds=rounds, wanted=wanted)
            rows.append(entry)
            if variant == "cdt":
                peaks.append(timing.matmul_peak())
                flops = needed_flops(agent.config, OBSERVATION, ACTION)
                share = flops / (entry["ours_ms"] / 1e3) / statistics.median(peaks)
                shares.append({"batch": size, "share": share, "peak_gflops": max(peaks) / 1e9})
    for entry in shares:
        print(
            f"batch {entry['batch']}: {entry['share']:.0%} of the {entry['peak_gflops']:.0f} "
            f"GFLOP/s of a large matrix product"
        )
    memory = {}
    for name, sizes in SIZES.items():
        memory[name] = found = measure_memory(options.transitions, *sizes)
        print(
            f"memory, {options.transitions} transitions of {name} ({found['arrays_mb']:.0f} MB) "
            f"and model ({found['model_mb']:.0f} MB): {found['peak_ratio']:.2f} times that "
            f"({found['peak_mb']:.0f} MB) at the peak"
        )
    if options.json:
        found = {"rows": rows, "shares": shares, "memory": memory}
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
