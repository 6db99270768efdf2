"""`rcdt inspect`: figures that are right, and a picture that is there."""

from __future__ import annotations

import numpy as np
import pytest
from test_cli import rcdt

from rcdt_agent import make_config
from rcdt_agent.data import TrajectoryDataset
from rcdt_agent.experiments.inspection import inspect_file
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
    assert coverage["20"][0] == f"{within.mean():.0%}"
    assert coverage["20"][1] == f"{data.episode_returns[within].max():.1f}"
    quantile = make_config().target_quantile  # what an agent of the default variant asks for
    target = data.outcomes.target_return(20.0, quantile)
    assert (
        np.quantile(data.episode_returns[within], quantile) <= target
    )  # it never falls with the budget
    assert coverage["20"][2:] == (f"{target:.1f}", f"{data.coverage(target, 20.0):.3f}")


def test_command(drivers, tmp_path):
    path, _ = drivers
    result = rcdt("inspect", str(path), "--output", str(tmp_path / "out.png"))
    assert result.returncode == 0, result.stderr
    assert "OfflineBallRun-v0" in result.stdout
    assert (tmp_path / "out.png").exists()


def test_command_refuses_a_broken_file(tmp_path):
    path = tmp_path / "broken.hdf5"
    path.write_text("hello")
    result = rcdt("inspect", str(path), "--output", str(tmp_path / "out.png"))
    assert result.returncode == 2
    assert "not an HDF5 file" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.png").exists()
