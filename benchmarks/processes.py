"""Two processes of one thread each under torchrun, against one process of two threads.

    python benchmarks/processes.py [--rounds 5] [--shared] [--json FILE]

Both make the same gradient steps at the same global batch size. They take turns; each turn is a new
start whose first steps are not timed. On a shared machine turns wait until the cores are free, and
a pair of turns during which others computed is made again (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_OTHERS = 0.2
"""Cores that others may use during a turn."""

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "RCDT, preset cpu": ("rcdt", {"preset": "cpu", "variant": "rcdt", "critic_start": 0.0}, 40),
    "RCDT, paper's width, batch 256": (
        "rcdt",
        {"preset": "paper", "variant": "rcdt", "critic_start": 0.0, "batch_size": 256},
        3,
    ),
    "BC, preset cpu": ("bc", {"preset": "cpu"}, 300),
}


def turn(name: str) -> None:
    """Train, and print the seconds of the timed steps on rank 0."""
    import numpy as np

    from rcdt_agent import TrajectoryDataset, distributed
    from rcdt_agent.algorithms import get_algorithm

    algorithm, settings, steps = CASES[name]
    rng = np.random.default_rng(0)
    n, length = 200, 200
    ends = np.arange(n * length) % length == length - 1
    data = TrajectoryDataset.from_arrays(
        observations=rng.normal(size=(n * length, 17)),
        actions=rng.uniform(-1, 1, (n * length, 6)),
        rewards=rng.normal(size=n * length),
        costs=rng.integers(0, 2, n * length),
        terminals=np.zeros(n * length),
        timeouts=ends,
    )
    agent = get_algorithm(algorithm)(**settings, seed=0, device="cpu")
    agent.learn(data, max(steps // 4, 2))
    distributed.barrier()
    started = time.perf_counter()
    agent.learn(None, steps, reset_num_timesteps=False)
    if distributed.is_main():
        print("SECONDS", time.perf_counter() - started)


def busy_seconds() -> float:
    """Core-seconds that all processes of the machine have computed since it started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def others(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and how many cores other processes than its own used meanwhile."""

    def own() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    busy, ours, started = busy_seconds(), own(), time.perf_counter()
    result = function()
    used = busy_seconds() - busy - (own() - ours)
    return result, used / (time.perf_counter() - started)


def pair_of_turns(name: str, *, shared: bool) -> tuple[float, float, float]:
    """Seconds of two processes and of one, and the cores that others used meanwhile.

    Made again until others left the cores alone, unless they may be `shared`.
    """
    while True:
        while not shared and others(lambda: time.sleep(1.0))[1] > MOST_OTHERS:
            time.sleep(1.0)
        (two, one), disturbance = others(lambda: (seconds(name, 2), seconds(name, 1)))
        if shared or disturbance <= MOST_OTHERS:
            return two, one, disturbance


def seconds(name: str, processes: int) -> float:
    """One turn of a contestant."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [str(processes)]
    command += [str(Path(__file__).resolve()), "--turn", name]
    environment = os.environ | {"OMP_NUM_THREADS": str(2 // processes)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise RuntimeError(f"{name}, {processes} processes:\n{result.stderr}")
    line = next(line for line in result.stdout.splitlines() if line.startswith("SECONDS"))
    return float(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shared", action="store_true", help="do not wait for free cores")
    parser.add_argument("--turn")
    arguments = parser.parse_args()
    if arguments.turn:
        turn(arguments.turn)
        return
    rows = []
    for name, (_, _, steps) in CASES.items():
        found = [pair_of_turns(name, shared=arguments.shared) for _ in range(arguments.rounds)]
        twos, ones, used = zip(*found, strict=True)
        ratios = [one / two for two, one in zip(twos, ones, strict=True)]
        row = {
            "what": name,
            "two_processes": steps / statistics.median(twos),
            "one_process": steps / statistics.median(ones),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "others_cores": statistics.median(used),
        }
        rows.append(row)
        print(
            f"{name:<32} {row['two_processes']:8.1f} steps/s in two processes "
            f"{row['one_process']:8.1f} in one  {row['ratio']:.2f}x "
            f"({row['least']:.2f} to {row['most']:.2f}); others: {row['others_cores']:.1f} cores",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
