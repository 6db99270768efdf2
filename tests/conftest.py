"""Shared test material: random trajectory data as flat arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

# Tests run in as many processes as there are cores: more threads would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch

from rcdt_agent.data import TrajectoryDataset


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one process of xdist: it is made once."""
    for item in items:
        if item.get_closest_marker("xdist_group") or not isinstance(item, pytest.Function):
            continue
        definitions = item._fixtureinfo.name2fixturedefs.values()
        if any(definition[-1].scope == "module" for definition in definitions if definition):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def random_arrays(
    lengths: list[int],
    *,
    terminated: list[bool] | None = None,
    observation_size: int = 3,
    action_size: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Flat arrays in DSRL's layout; each trajectory has its own final observation."""
    rng = np.random.default_rng(seed)
    terminated = terminated or [False] * len(lengths)
    parts: dict[str, list[Any]] = {
        key: []
        for key in (
            "observations", "next_observations", "actions", "rewards", "costs", "terminals",
            "timeouts",
        )
    }  # fmt: skip
    for length, ended in zip(lengths, terminated, strict=True):
        states = rng.normal(size=(length + 1, observation_size)).astype(np.float32)
        last = np.arange(length) == length - 1
        parts["observations"].append(states[:-1])
        parts["next_observations"].append(states[1:])
        parts["actions"].append(rng.uniform(-1, 1, (length, action_size)).astype(np.float32))
        parts["rewards"].append(rng.normal(size=length).astype(np.float32))
        parts["costs"].append(rng.integers(0, 2, length).astype(np.float32))
        parts["terminals"].append(last & ended)
        parts["timeouts"].append(last & (not ended))
    return {key: np.concatenate(values) for key, values in parts.items()}


@pytest.fixture
def dataset() -> TrajectoryDataset:
    return TrajectoryDataset.from_arrays(
        **random_arrays([4, 1, 7, 12, 3], terminated=[True, False, False, True, True])
    )


@pytest.fixture(scope="session")
def drivers() -> TrajectoryDataset:
    """SpeedLimit's drivers: enough to train on for a moment."""
    from rcdt_agent.tasks.speed_limit import record_drivers

    return TrajectoryDataset.from_arrays(**record_drivers(100, seed=1), name="drivers")


QUICK = {
    "preset": "tiny",
    "variant": "rcdt",
    "batch_size": 16,
    "embedding_size": 16,
    "seed": 3,
    "total_steps": 40,
}


def small_settings(name: str) -> dict[str, Any]:
    """Settings of any algorithm for a few steps; what it needs besides is there."""
    from rcdt_agent.algorithms import get_algorithm

    settings: dict[str, Any] = {"preset": "tiny", "batch_size": 16, "seed": 5}
    if name == "rcdt":  # dropout and critics draw random numbers, too
        settings |= {"dropout": 0.1, "critic_start": 0.1, "cost_budget": 7.0, "embedding_size": 16}
    if get_algorithm(name).budgets == "one":
        settings["cost_budget"] = 7.0
    return settings


@pytest.fixture(scope="session")
def trained(drivers: TrajectoryDataset) -> bytes:
    """An agent after 40 steps, as the bytes of its file: tests load their own copy."""
    import io

    from rcdt_agent import RCDT

    agent = RCDT(**QUICK).learn(drivers)
    buffer = io.BytesIO()
    agent.save(buffer)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def speed_limit_driver() -> tuple[bytes, float]:
    """RCDT on SpeedLimit as the preset trains it: its file, and the seconds of CPU it took.

    For tests of the group `speed_limit_driver`: it is trained once.
    """
    import io
    import time

    from rcdt_agent import RCDT
    from rcdt_agent.tasks.speed_limit import record_drivers

    data = TrajectoryDataset.from_arrays(**record_drivers(1000, seed=0))
    agent = RCDT(preset="tiny", seed=0)
    started = time.process_time()
    agent.learn(data)
    seconds = time.process_time() - started
    buffer = io.BytesIO()
    agent.save(buffer)
    return buffer.getvalue(), seconds


@pytest.fixture
def agent(trained: bytes) -> Any:
    import io

    from rcdt_agent import RCDT

    return RCDT.load(io.BytesIO(trained))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """`torch.set_num_threads` for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
