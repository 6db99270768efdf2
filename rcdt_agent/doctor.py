"""What `rcdt doctor` reports: versions, device, datasets, and whether each simulator steps."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rcdt_agent.tasks.download import dataset_dir
from rcdt_agent.tasks.registry import DSRL_TASKS, SUITES, Suite
from rcdt_agent.tasks.simulators import is_installed
from rcdt_agent.version import __version__

PROBE_TASKS: dict[Suite, str] = {
    "bullet": "OfflineBallRun-v0",
    "safety-gymnasium": "OfflinePointGoal1Gymnasium-v0",
    "metadrive": "OfflineMetadrive-easysparse-v0",
}
PACKAGES = (
    "torch", "numpy", "gymnasium", "h5py", "stable-baselines3", "safetensors", "dsrl",
    "pybullet", "bullet-safety-gym", "mujoco", "safety-gymnasium", "metadrive-simulator", "optuna",
    "ray",
)  # fmt: skip

_PROBE = """
import json, sys, time
import numpy as np
from rcdt_agent import make_env
env = make_env(sys.argv[1])
env.reset(seed=0)
start = time.perf_counter()
steps = 0
while time.perf_counter() - start < 0.5:
    action = np.zeros(env.action_space.shape, env.action_space.dtype)
    _, _, terminated, truncated, info = env.step(action)
    steps += 1
    if terminated or truncated:
        env.reset()
speed = steps / (time.perf_counter() - start)
assert info["cost"] >= 0
env.close()
print("PROBE", json.dumps({"steps_per_second": round(speed)}))
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str
    status: str
    """`ok`, `missing` (not installed: not a fault) or `broken`."""
    detail: str


def check_simulator(suite: Suite, *, timeout: float = 180.0) -> Check:
    """Start the simulator in a process of its own and step it for half a second."""
    name = f"simulator {suite}"
    if not is_installed(suite):
        return Check(name=name, status="missing", detail=f"run `rcdt install-simulators {suite}`")
    task = PROBE_TASKS[suite]
    try:
        result = subprocess.run(
            [sys.executable, "-c", _PROBE, task],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(name=name, status="broken", detail=f"{task}: no step within {timeout:.0f} s")
    for line in result.stdout.splitlines():
        if line.startswith("PROBE "):
            speed = json.loads(line.removeprefix("PROBE "))["steps_per_second"]
            return Check(name=name, status="ok", detail=f"{task} steps at {speed} steps/s")
    lines = (result.stderr or result.stdout).strip().splitlines()
    reason = lines[-1] if lines else f"exit code {result.returncode}"
    return Check(name=name, status="broken", detail=f"{task}: {reason}")


def check_packages() -> list[Check]:
    """Installed versions of the packages that matter."""
    checks = []
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
            checks.append(Check(name=package, status="ok", detail=version))
        except importlib.metadata.PackageNotFoundError:
            checks.append(Check(name=package, status="missing", detail="not installed"))
    return checks


def check_device() -> Check:
    """The device that `device="auto"` would choose, and a product computed on it."""
    try:
        import torch

        name = "cuda" if torch.cuda.is_available() else "cpu"
        ones = torch.ones(8, 8, device=name)
        assert float((ones @ ones).sum()) == 512.0
    except Exception as error:
        return Check(name="device", status="broken", detail=repr(error))
    detail = (
        torch.cuda.get_device_name() if name == "cuda" else f"{torch.get_num_threads()} threads"
    )
    return Check(name="device", status="ok", detail=f"{name} ({detail})")


def check_gpus() -> list[Check]:
    """Each GPU with its memory, and whether `precision="bf16"` is fast on it."""
    import torch

    if not torch.cuda.is_available():
        return [Check(name="gpu", status="missing", detail="torch finds none: training on the CPU")]
    checks = []
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        bf16 = "bf16" if found.major >= 8 else "no bf16 (use fp16)"
        detail = f"{found.name}, {found.total_memory / 2**30:.0f} GiB, {bf16}"
        checks.append(Check(name=f"gpu {i}", status="ok", detail=detail))
    return checks


def check_scale() -> list[Check]:
    """What several processes and `compile=True` need."""
    import torch
    from torch import distributed

    backends = [
        name
        for name in ("gloo", "nccl")
        if distributed.is_available() and getattr(distributed, f"is_{name}_available")()
    ]
    several = ", ".join(backends) or "torch was built without distributed training"
    if torch.cuda.is_available():
        compiler = "triton" if importlib.util.find_spec("triton") else None
    else:
        names = (os.environ.get("CXX"), "c++", "g++", "clang++")
        compiler = next((name for name in names if name and shutil.which(name)), None)
    return [
        Check(name="torchrun", status="ok" if backends else "missing", detail=several),
        Check(
            name="compile",
            status="ok" if compiler else "missing",
            detail=compiler or "`compile=True` needs a C++ compiler on a CPU, triton on a GPU",
        ),
        Check(name="cores", status="ok", detail=f"{len(_cores())} to use, of {os.cpu_count()}"),
    ]


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def check_datasets() -> Check:
    """Where dataset files are looked for and how many of DSRL's are there."""
    folder = dataset_dir()
    found = sum((folder / task.dataset_file).is_file() for task in DSRL_TASKS.values())
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        return Check(name="datasets", status="broken", detail=f"{folder} cannot be read")
    return Check(
        name="datasets", status="ok", detail=f"{folder}: {found} of {len(DSRL_TASKS)} files"
    )


def run_checks(simulators: Sequence[Suite] = SUITES) -> list[Check]:
    """Every check, cheap ones first, and those of the named simulators."""
    python = Check(
        name="python", status="ok", detail=f"{platform.python_version()} on {platform.platform()}"
    )
    return [
        Check(name="rcdt_agent", status="ok", detail=f"{__version__} in {Path(__file__).parent}"),
        python,
        *check_packages(),
        check_device(),
        *check_gpus(),
        *check_scale(),
        check_datasets(),
        *(check_simulator(suite) for suite in simulators),
    ]
