"""Several processes under torchrun: real ones, with Gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ranks
import torch
from safetensors.torch import load_file

from rcdt_agent import RCDT, distributed, load_agent
from rcdt_agent.algorithms import ALGORITHMS

CASES = [*ALGORITHMS, "rcdt+micro"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torchrun")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two ranks wrote; see `ranks.py`."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [*TORCHRUN, str(Path(__file__).parent / "ranks.py"), str(folder), *CASES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


def weights(folder, mode, case):
    return [load_file(folder / f"{mode}-{case}-{rank}.safetensors") for rank in (0, 1)]


def found(folder):
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_ranks_have_equal_weights_bit_for_bit_after_50_steps(folder, case):
    first, second = weights(folder, "natural", case)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("case", ["rcdt", "bc"])
def test_losses_that_go_around_the_wrapped_module_let_replicas_drift(folder, case):
    # What the test above would show if the hooks were not armed: each rank learns from its share.
    first, second = weights(folder, "around", case)
    assert max(float((first[name] - second[name]).abs().max()) for name in first) > 1e-4


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process_at_the_same_global_batch(folder, case):
    ours, _ = weights(folder, "shared", case)
    expected = ranks.weights(ranks.train(case, ranks.STEPS["shared"]))
    assert ours.keys() == expected.keys()
    apart = {name: float((ours[name] - expected[name]).abs().max()) for name in expected}
    assert max(apart.values()) <= 1e-5, apart


def test_resuming_with_as_many_processes_is_exact_and_with_another_number_is_said(folder):
    assert [each["resumed"] for each in found(folder)] == [{"stopped_at": 12, "exact": True}] * 2
    agent = RCDT.load(folder / "half.zip")
    assert agent.n_processes == 2
    with pytest.warns(UserWarning, match="Trained by 2 processes so far, by 1 from here on"):
        agent.learn(ranks.data(), resume=True)
    assert (agent.num_timesteps, agent.n_processes) == (20, 1)


def test_divergence_on_one_rank_stops_all_and_puts_all_back(folder):
    first, second = (each["diverged"] for each in found(folder))
    assert first == second
    assert first["steps"] == 5
    assert "`loss` is nan" in first["message"]


def test_ranks_agree_on_batch_size_and_seed(folder):
    first, second = found(folder)
    assert "must be a multiple of the 2 processes, got 15" in first["odd_batch"]
    assert first["own_seeds"] == second["own_seeds"] == 0.0
    assert (first["main"], second["main"]) == (True, False)


def rank_process(rank):
    """The process of a rank among all that run here, by its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b"RCDT_TEST_KILL=1" in environment and b"RANK=%d" % rank in environment and state != "Z":
            return int(folder.name)
    raise AssertionError(f"rank {rank} does not run")


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_a_killed_rank_stops_the_job_with_a_message_and_resume_goes_on(tmp_path):
    run = tmp_path / "run"
    options = ["--preset", "tiny", "--batch-size", "16", "--embedding-size", "16", "--no-evaluate"]
    options += ["--total-steps", "100000", "--checkpoint-every", "5", "--output", str(run)]
    train = ["-m", "rcdt_agent", "train"]
    with subprocess.Popen(
        [*TORCHRUN, "--max-restarts", "1", *train, "SpeedLimit", *options],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"RCDT_TEST_KILL": "1"},
    ) as job:  # fmt: skip
        wait_for((run / "last.zip").is_file)
        os.kill(rank_process(1), signal.SIGKILL)
        wait_for((run / "logs" / "001").is_dir)  # torchrun restarts all, and the run goes on
        before = load_agent(run / "last.zip").num_timesteps
        wait_for(lambda: load_agent(run / "last.zip").num_timesteps > before)
        os.kill(rank_process(1), signal.SIGKILL)  # no restart is left
        killed_at = time.monotonic()
        said = job.communicate(timeout=60)[1]
    assert job.returncode != 0
    assert time.monotonic() - killed_at < 30
    assert "Rank 0 of 2 stopped at step" in said
    assert "another process of this training has ended" in said
    resume = f"torchrun --nproc-per-node 2 -m rcdt_agent train --resume {run}"
    assert f"Go on with: {resume}" in said
    before = load_agent(run / "last.zip").num_timesteps
    assert before > 0 and before % 5 == 0
    again = [*TORCHRUN, *train, "--resume", str(run), "--total-steps", str(before + 10)]
    result = subprocess.run(again, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("Run folder") == 1  # rank 0 speaks for both
    agent = load_agent(run / "agent.zip")
    assert (agent.num_timesteps, agent.n_processes) == (before + 10, 2)
    assert [path.name for path in sorted((run / "logs").iterdir())] == ["000", "001", "002"]


def test_one_process_needs_nothing(monkeypatch):
    values = torch.arange(3.0, requires_grad=True)
    assert (distributed.world_size(), distributed.rank(), distributed.is_main()) == (1, 0, True)
    assert distributed.total(values) is values
    assert distributed.gather_rows(values) is values
    assert distributed.step_share(values > 0) == 1.0
    assert distributed.launcher() == "rcdt"
    assert distributed.local_device("cuda") == "cuda"
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert distributed.local_device("cuda") == "cuda:1"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert distributed.launcher() == "torchrun --nnodes 2 --nproc-per-node 4 -m rcdt_agent"
