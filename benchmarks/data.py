"""Data loading: ours against the peer's `SequenceDataset`, alternating, in one process.

    python benchmarks/data.py [--transitions 1000000] [--json FILE]

Splitting a flat file into trajectories, sampling batches of windows, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peer
import timing
import torch

from rcdt_agent.data import TrajectoryDataset, WindowSampler

EPISODE, OBSERVATION, ACTION, CONTEXT = 1000, 11, 3, 10

MEASURE_MEMORY = """
import sys, h5py, torch
sys.path.insert(0, sys.argv[2])
from data import peak_bytes
from rcdt_agent.data import TrajectoryDataset, WindowSampler
torch.zeros(1000, 1000) @ torch.zeros(1000, 1000)
before = peak_bytes()
data = TrajectoryDataset.from_hdf5(sys.argv[1])
sampler = WindowSampler(
    data, context_length=10, batch_size=2048, generator=torch.Generator()
)
sampler.sample()
print(peak_bytes() - before)
"""


def make_arrays(
    transitions: int, episode: int = EPISODE, observation: int = OBSERVATION, action: int = ACTION
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(transitions) % episode == episode - 1
    ends[-1] = True
    states = rng.normal(size=(transitions + 1, observation)).astype(np.float32)
    return {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": rng.uniform(-1, 1, (transitions, action)).astype(np.float32),
        "rewards": rng.normal(size=transitions).astype(np.float32),
        "costs": rng.integers(0, 2, transitions).astype(np.float32),
        "terminals": np.zeros(transitions, dtype=bool),
        "timeouts": ends,
    }


def peak_bytes() -> int:
    """The most memory this process ever held, or since `forget_peak`."""
    return _status("VmHWM")


def held_bytes() -> int:
    """The memory this process holds now."""
    return _status("VmRSS")


def forget_peak() -> None:
    """Count the peak from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    theirs = peer.load("common/dataset.py")
    arrays = make_arrays(options.transitions)
    n_bytes = sum(values.nbytes for values in arrays.values())
    timing.heading(
        f"{options.transitions} transitions, episodes of {EPISODE}, observation {OBSERVATION}, "
        f"action {ACTION}, windows of {CONTEXT}"
    )
    rows = [
        timing.compare(
            f"split {options.transitions} transitions",
            lambda: TrajectoryDataset.from_arrays(**arrays),
            timing.quietly(lambda: theirs.process_sequence_dataset(arrays)),
            rounds=options.rounds,
        )
    ]
    dataset = TrajectoryDataset.from_arrays(**arrays)
    sequences = timing.quietly(lambda: theirs.SequenceDataset(arrays, seq_len=CONTEXT))()
    for size in (256, 2048):
        sampler = WindowSampler(
            dataset,
            context_length=CONTEXT,
            batch_size=size,
            generator=torch.Generator().manual_seed(0),
        )
        loader = iter(torch.utils.data.DataLoader(sequences, batch_size=size))
        rows.append(
            timing.compare(
                f"batch of {size} windows",
                sampler.sample,
                lambda loader=loader: next(loader),
                rounds=10 * options.rounds,
                inner=20,
                wanted=40.0 if size == 2048 else None,
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.hdf5"
        dataset.to_hdf5(path)
        load = statistics.median(
            timing.seconds(lambda: TrajectoryDataset.from_hdf5(path)) for _ in "abc"
        )
        result = subprocess.run(
            [sys.executable, "-c", MEASURE_MEMORY, str(path), str(Path(__file__).resolve().parent)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    memory = int(result.stdout) / n_bytes
    print(f"reading and checking the HDF5 file: {load:.2f} s")
    print(f"peak memory, dataset and sampler:   {memory:.2f} times the arrays of the file")
    if options.json:
        options.json.write_text(
            json.dumps({"rows": rows, "load_seconds": load, "memory_ratio": memory}, indent=2)
        )


if __name__ == "__main__":
    main()
