"""Preset `cpu` end to end: seconds of training, ours against the peer's CDT at the same sizes.

    python benchmarks/preset.py [--previous FOLDER] [--json FILE]

`--previous` names another checkout of this package, which is then timed too. Every contestant is a
process of its own that makes some steps when told to; they take turns, so that a slow moment of the
machine hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import timing

HERE = Path(__file__).resolve().parent
EPISODE, OBSERVATION, ACTION = 200, 8, 2

CONTESTANT = """
import sys, time
import torch
name, path, threads, here = sys.argv[1:5]
torch.set_num_threads(int(threads))
sys.path.insert(0, here)
if name.startswith("peer"):
    import h5py
    import peer
    from rcdt_agent.variants import make_config
    with h5py.File(path) as file:
        arrays = {key: file[key][:] for key in file}
    run = peer.training_loop(arrays, make_config("cpu", "cdt"), workers=int(name[-1]))
else:
    from rcdt_agent import RCDT
    agent = RCDT(preset="cpu", variant=name, seed=0, critic_start=0.0)
    def run(n):
        agent.learn(path if agent.num_timesteps == 0 else None, n, reset_num_timesteps=False)
run(50)
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    run(int(line))
    print(time.perf_counter() - started, flush=True)
"""

WANTED = {"the peer's cdt": 2.0, "the previous version": 1 / 1.1}


class Contestant:
    """A process that trains some steps when told to."""

    def __init__(self, name: str, data: Path, threads: int, package: Path) -> None:
        command = [sys.executable, "-c", CONTESTANT, name, str(data), str(threads), str(HERE)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(package)}, cwd=package,
        )  # fmt: skip
        self.read()  # ready

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a contestant ended early")
        return line

    def seconds(self, steps: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.read())


def compare(
    variant: str, data: Path, options: argparse.Namespace, total_steps: int
) -> list[dict[str, Any]]:
    """Ours against the peer's CDT, and against the previous checkout if one is named.

    The peer draws its batches in its own process or in a worker, whichever is faster here.
    """
    here, threads = HERE.parent, options.threads
    runners = {"ours": Contestant(variant, data, threads, here)}
    if variant == "cdt":
        for workers in (0, 1):
            runners[f"peer, {workers} workers"] = Contestant(f"peer{workers}", data, threads, here)
    if options.previous:
        runners["the previous version"] = Contestant(variant, data, threads, options.previous)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(options.rounds):
        for name, runner in runners.items():
            # A round's time, as if all steps of the preset took as long.
            times[name].append(runner.seconds(options.steps) * total_steps / options.steps)
    for runner in runners.values():
        runner.process.kill()
    totals = {name: statistics.median(seconds) for name, seconds in times.items()}
    print(f"{total_steps} steps: " + ", ".join(f"{name} {t:.0f} s" for name, t in totals.items()))
    peers = [name for name in times if name.startswith("peer")]
    if peers:
        times["the peer's cdt"] = times[min(peers, key=totals.__getitem__)]
    return [
        timing.row(f"preset cpu, {variant}, against {o}", times["ours"], times[o], WANTED[o])
        for o in WANTED
        if o in times
    ]


def main() -> None:
    from data import make_arrays

    from rcdt_agent.data import TrajectoryDataset
    from rcdt_agent.variants import PRESETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100, help="of a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--variants", nargs="+", default=["cdt", "rcdt"])
    parser.add_argument("--previous", type=Path, help="another checkout of this package")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    timing.heading("Training with preset cpu, all steps, in ms")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.hdf5"
        arrays = make_arrays(100_000, EPISODE, OBSERVATION, ACTION)
        TrajectoryDataset.from_arrays(**arrays).to_hdf5(data)
        for variant in options.variants:
            rows += compare(variant, data, options, PRESETS["cpu"]["total_steps"])
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
