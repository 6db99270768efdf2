"""Data loading: ours against the peer's `SequenceDataset`, alternating, in one process.

    python benchmarks/data.py [--transitions 1000000] [--json FILE]

Splitting a flat file into trajectories, sampling batches of windows, and peak memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import peer
import torch

from rcdt_agent.data import TrajectoryDataset, WindowSampler

EPISODE, OBSERVATION, ACTION, CONTEXT = 1000, 11, 3, 10

MEASURE_MEMORY = """
import sys, h5py, torch
from rcdt_agent.data import TrajectoryDataset, WindowSampler
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
torch.zeros(1000, 1000) @ torch.zeros(1000, 1000)
before = peak()
data = TrajectoryDataset.from_hdf5(sys.argv[1])
sampler = WindowSampler(data, context_length=10, batch_size=2048)
sampler.sample()
print(peak() - before)
"""


def make_arrays(transitions: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(transitions) % EPISODE == EPISODE - 1
    states = rng.normal(size=(transitions + 1, OBSERVATION)).astype(np.float32)
    return {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": rng.uniform(-1, 1, (transitions, ACTION)).astype(np.float32),
        "rewards": rng.normal(size=transitions).astype(np.float32),
        "costs": rng.integers(0, 2, transitions).astype(np.float32),
        "terminals": np.zeros(transitions, dtype=bool),
        "timeouts": ends,
    }


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(name: str, ours, theirs, *, rounds: int, inner: int = 1) -> dict[str, float | str]:
    """Alternate both; `inner` repeats ours within a round because it is too short to time."""
    ours()
    ratios, ours_times, theirs_times = [], [], []
    for _ in range(rounds):
        mine = seconds(lambda: [ours() for _ in range(inner)]) / inner
        other = seconds(theirs)
        ours_times.append(mine)
        theirs_times.append(other)
        ratios.append(other / mine)
    row = {
        "what": name,
        "ours_ms": 1e3 * statistics.median(ours_times),
        "peer_ms": 1e3 * statistics.median(theirs_times),
        "times_faster": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }
    print(
        f"{name:<34} {row['ours_ms']:>10.2f} ms {row['peer_ms']:>12.1f} ms "
        f"{row['times_faster']:>8.0f}x  ({row['least']:.0f} to {row['most']:.0f})",
        flush=True,
    )
    return row


def quietly(function):
    def run():
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return function()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    theirs = peer.load("common/dataset.py")
    arrays = make_arrays(options.transitions)
    n_bytes = sum(values.nbytes for values in arrays.values())
    print(
        f"{options.transitions} transitions, episodes of {EPISODE}, observation {OBSERVATION}, "
        f"action {ACTION}, windows of {CONTEXT}, {torch.get_num_threads()} threads"
    )
    print(f"{'':<34} {'ours':>13} {'peer':>15} {'faster':>9}")
    rows = [
        compare(
            f"split {options.transitions} transitions",
            lambda: TrajectoryDataset.from_arrays(**arrays),
            quietly(lambda: theirs.process_sequence_dataset(arrays)),
            rounds=options.rounds,
        )
    ]
    dataset = TrajectoryDataset.from_arrays(**arrays)
    sequences = quietly(lambda: theirs.SequenceDataset(arrays, seq_len=CONTEXT))()
    for size in (256, 2048):
        sampler = WindowSampler(dataset, context_length=CONTEXT, batch_size=size)
        loader = iter(torch.utils.data.DataLoader(sequences, batch_size=size))
        rows.append(
            compare(
                f"batch of {size} windows",
                sampler.sample,
                lambda loader=loader: next(loader),
                rounds=10 * options.rounds,
                inner=20,
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.hdf5"
        dataset.to_hdf5(path)
        load = statistics.median(seconds(lambda: TrajectoryDataset.from_hdf5(path)) for _ in "abc")
        result = subprocess.run(
            [sys.executable, "-c", MEASURE_MEMORY, str(path)],
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
