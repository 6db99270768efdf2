"""What is installed beside the package, noted with everything that is measured or recorded."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from rcdt_agent.version import __version__


def versions() -> dict[str, str]:
    """Versions of what decides about the numbers; packages that are not installed are left out."""
    found = {"rcdt_agent": __version__, "python": platform.python_version()}
    for package in (
        "numpy", "gymnasium", "torch", "stable-baselines3", "bullet-safety-gym", "pybullet",
        "safety-gymnasium", "mujoco", "metadrive-simulator",
    ):  # fmt: skip
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
