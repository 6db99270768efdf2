"""A real Ray cluster of one machine, with a worker and a driver that are killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark import collect_results
from rcdt_agent.experiments.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
MARK = "RCDT_TEST_RAY"


@pytest.fixture(scope="module")
def cluster():
    """A cluster as `ray start` makes it, of two cores: its address, and the environment to use it.

    It has a token of its own, and `MARK` in the environment of its processes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), MARK: port,
    }  # fmt: skip
    folder = tempfile.mkdtemp(prefix="ray-")  # short: it holds sockets
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        f"--port={port}", "--num-cpus=2", "--node-ip-address=127.0.0.1", "--disable-usage-stats",
        "--include-dashboard=false", "--object-store-memory=100000000", f"--temp-dir={folder}",
    ]  # fmt: skip
    head = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert any("Ray runtime started" in line for line in head.stdout)
    yield f"127.0.0.1:{port}", environment
    head.terminate()
    head.communicate(timeout=30)
    shutil.rmtree(folder, ignore_errors=True)


def busy_worker(environment, task):
    """A worker process of the cluster that runs this task, or None."""
    mark = f"{MARK}={environment[MARK]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title, environment = (
                (folder / "cmdline").read_bytes(),
                (folder / "environ").read_bytes(),
            )
        except OSError:
            continue
        if title.startswith(f"ray::{task}".encode()) and mark in environment.split(b"\0"):
            return int(folder.name)
    return None


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return found


def finished(output):
    """Finished cells, and when their files were written."""
    return {
        str(path.parent): [path.stat().st_mtime_ns, *(file.stat().st_mtime_ns for file in files)]
        for path in output.glob("cells/*/*/*/training.json")
        if (files := sorted(path.parent.glob("evaluations/*.json")))
    }


def rcdt(*words, env=None):
    command = [sys.executable, "-m", "rcdt_agent", *map(str, words)]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_twelve_cells_survive_a_killed_worker_and_a_killed_driver(cluster, tmp_path):
    address, environment = cluster
    output = tmp_path / "campaign"
    words = ["benchmark", "--tasks", "SpeedLimit", "--methods", "bc", "fisor"]
    words += ["--seeds", *map(str, range(6)), "--preset", "tiny", "--steps", "150"]
    words += ["--episodes", "2", "--output", str(output), "--ray", address]
    command = [sys.executable, "-m", "rcdt_agent", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: len(finished(output)) >= 2)
        os.kill(wait_for(lambda: busy_worker(environment, "work_cell")), signal.SIGKILL)
        wait_for(lambda: len(finished(output)) >= 5)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    wait_for(lambda: busy_worker(environment, "work_cell") is None)
    before = finished(output)
    assert 5 <= len(before) < 12
    again = rcdt(*words, env=environment)
    assert again.returncode == 0, again.stderr[-2000:]
    assert len(collect_results(output)["cells"]) == 12
    after = finished(output)
    assert len(after) == 12
    assert {cell: after[cell] for cell in before} == before  # nothing finished was done again
    assert not list(output.glob("cells/*/*/*/error.txt"))


def test_tuning_on_a_cluster_survives_a_killed_worker(cluster, tmp_path):
    address, environment = cluster
    words = ["tune", "SpeedLimit", "--output", str(tmp_path), "--method", "bc", "--preset", "tiny"]
    words += ["--steps", "400", "--trials", "4", "--episodes", "1", "--ray", address]
    command = [sys.executable, "-m", "rcdt_agent", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        wait_for(lambda: list(tmp_path.glob("trials/*/run.json")))
        os.kill(wait_for(lambda: busy_worker(environment, "_run_on_ray")), signal.SIGKILL)
        said = driver.communicate(timeout=120)[0]
    assert "4 trials, 0 failed" in said
    # The killed trial was tried again in its own folder: four policies, not five.
    assert len(list(tmp_path.glob("trials/*/training.json"))) == 4
    assert len(list(tmp_path.glob("trials/*/run.json"))) == 4
    assert (tmp_path / "study.log").is_file()


def test_errors_of_cells_and_of_addresses_are_said(cluster, tmp_path):
    address, environment = cluster
    words = ["benchmark", "--tasks", "SpeedLimit", "--seeds", "0", "--preset", "tiny", "--steps"]
    words += ["5", "--episodes", "1", "--output", str(tmp_path), "--methods", "bc", "bc-safe"]
    folder = tmp_path / "cells" / "SpeedLimit" / "bc-safe" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "run.json").mkdir()  # no run can be written there
    result = rcdt(*words, "--ray", address, env=environment)
    assert result.returncode == 1
    assert "bc-safe/seed-0 (training): " in result.stdout
    assert len(collect_results(tmp_path)["cells"]) == 1
    with pytest.raises(InvalidArgumentError, match="`gpus` must be >= 0"):
        Cluster(gpus=-1)
