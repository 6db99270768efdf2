"""`rcdt inspect`: figures that are right, and a picture that is there."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from commands import rcdt

from rcdt_agent import RCDT
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.data.weights import FrontierWeights
from rcdt_agent.experiments.inspection import fitting_budgets, inspect_file
from rcdt_agent.tasks.registry import guess_task
from rcdt_agent.tasks.speed_limit import record_drivers


@pytest.fixture
def drivers(tmp_path):
    data = TrajectoryDataset.from_arrays(**record_drivers(60, seed=2))
    path = tmp_path / "OfflineBallRun-v0-mine.hdf5"
    data.to_hdf5(path)
    return path, data


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("SafetyCarCircle1Gymnasium-v0-250-1271.hdf5", "OfflineCarCircle1Gymnasium-v0"),
        ("SafetyCarCircle-v0-100-1450.hdf5", "OfflineCarCircle-v0"),
        ("OfflineHopperVelocityGymnasium-v1-mixed.hdf5", "OfflineHopperVelocityGymnasium-v1"),
        ("SafeMetaDrive-hardmean-v0-85-1000.hdf5", "OfflineMetadrive-hardmean-v0"),
        ("SpeedLimit-mine.hdf5", "rcdt_agent/SpeedLimit-v0"),
    ],
)
def test_task_is_guessed_from_the_file_name(name, task):
    assert guess_task(name).id == task
    assert guess_task("robot_arm.hdf5") is None


def test_figures(drivers, tmp_path):
    path, data = drivers
    picture = tmp_path / "deep" / "plane.png"
    tables = inspect_file(path, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    figures, coverage = (dict((row[0], row[1:]) for row in rows) for rows in tables.values())
    assert figures["trajectories"] == ("60",)
    assert figures["transitions"] == ("3600",)
    assert figures["ended by the task / cut"] == ("0 / 60",)
    within = data.episode_costs <= 20
    head, shares = coverage["budget"], coverage["20"]
    assert head == (
        "within", "best return", "cost asked for", "return asked for", "alpha_F there",
    )  # fmt: skip
    assert shares[0] == f"{within.mean():.0%}"
    assert shares[1] == f"{data.episode_returns[within].max():.4g}"


def test_trajectories_weigh_as_in_the_default_agent(drivers):
    """The mean over a trajectory's steps of what its sampler draws windows by."""
    _, data = drivers
    agent = RCDT(preset="cpu")
    agent.learn(data, 1)
    weights = agent.sampler._frontier
    found = FrontierWeights.from_config(data, agent.config, agent.policy.cost_limit)
    means = found.of_trajectories(data)
    for i in (0, 17, 59):
        rows = slice(data.offsets[i], data.offsets[i + 1])
        rtg, ctg = (torch.from_numpy(a[rows]) for a in (data.returns_to_go, data.costs_to_go))
        assert means[i] == pytest.approx(weights(torch.arange(len(rtg)), rtg, ctg).mean(), rel=1e-5)
    assert means.max() > 2 * means.min()  # and they tell trajectories apart


def test_fields_of_the_papers_weights_show_those(drivers, tmp_path):
    path, data = drivers
    default, paper = (
        inspect_file(path, tmp_path / "plane.png", **fields)
        for fields in ({}, {"alpha": 1.0, "cost_limit": 20.0})
    )
    raw = torch.exp(torch.from_numpy(scaled(data.episode_returns))) * torch.sigmoid(
        0.1 * (20.0 - torch.from_numpy(data.episode_costs))
    )
    weights = (raw / raw.mean()).clamp(max=10.0)
    effective = f"{(weights.sum() ** 2 / (weights**2).sum()).item():.0f} of 60"
    name = "effective trajectories under W"
    shown = [dict(next(iter(tables.values())))[name] for tables in (default, paper)]
    assert shown[1] == effective
    assert shown[0] not in (effective, "60 of 60")


def scaled(returns):
    return (returns - returns.min()) / (returns.max() - returns.min())


def test_what_is_asked_for_is_what_the_default_agent_asks_for(drivers, tmp_path):
    """Margin and quantile included: an agent of `rcdt train`'s defaults on the same data."""
    path, data = drivers
    agent = RCDT(preset="cpu")
    agent.set_dataset(data)
    table = inspect_file(path, tmp_path / "plane.png", budgets=(20.0, 7.5))
    rows = {row[0]: row[1:] for row in list(table.values())[1][1:]}
    assert list(rows) == ["7.5", "20"]
    for budget in (7.5, 20.0):
        token = float(agent.policy.conditioning.token(budget))
        target = agent.resolve_target(budget)
        assert token < budget  # the default holds some of it back
        assert rows[f"{budget:g}"][2:] == (
            f"{token:.4g}", f"{target:.4g}", f"{data.coverage(target, token):.3f}",
        )  # fmt: skip


def test_budgets_fit_data_of_no_known_task(tmp_path):
    arrays = record_drivers(40)
    arrays["costs"] = arrays["costs"] / 100  # the dearest trajectory costs less than 1
    data = TrajectoryDataset.from_arrays(**arrays)
    data.to_hdf5(tmp_path / "arm.hdf5")
    tables = inspect_file(tmp_path / "arm.hdf5", tmp_path / "arm.png")
    (title, _), (_, rows) = tables.items()
    assert title == "arm.hdf5 (of no known task)"
    budgets = [float(row[0]) for row in rows[1:]]
    assert budgets == pytest.approx(np.quantile(data.episode_costs, (0.25, 0.5, 0.75)), rel=0.05)
    assert 0 < budgets[0] < budgets[2] < 1
    free = TrajectoryDataset.from_arrays(**{**arrays, "costs": 0 * arrays["costs"]})
    assert fitting_budgets(free) == (0.0,)
    free.to_hdf5(tmp_path / "free.hdf5")
    inspect_file(tmp_path / "free.hdf5", tmp_path / "free.png")


def test_command(drivers, tmp_path):
    path, _ = drivers
    result = rcdt(
        "inspect", str(path), "--output", str(tmp_path / "out.png"), "--budgets", "3", "9"
    )
    assert result.returncode == 0, result.stderr
    assert "OfflineBallRun-v0" in result.stdout
    assert re.search(r"│ 3 +│", result.stdout) and re.search(r"│ 9 +│", result.stdout)
    assert (tmp_path / "out.png").exists()


def test_command_refuses_a_broken_file(tmp_path):
    path = tmp_path / "broken.hdf5"
    path.write_text("hello")
    result = rcdt("inspect", str(path), "--output", str(tmp_path / "out.png"))
    assert result.returncode == 2
    assert "not an HDF5 file" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.png").exists()
