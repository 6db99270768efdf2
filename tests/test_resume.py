"""A training process killed at a random moment and resumed ends with the same weights."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
import time
import zipfile

import pytest
from conftest import QUICK

from rcdt_agent import RCDT
from rcdt_agent.checkpoint import META, TENSORS

# A real user's script: dropout, critics and a checkpoint every five steps.
SCRIPT = """
import sys
from pathlib import Path
from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.tasks.speed_limit import record_drivers

folder = Path(sys.argv[1])
data = TrajectoryDataset.from_arrays(**record_drivers(50, seed=1))
latest = folder / "last.zip"
if latest.exists():
    agent = RCDT.load(latest)
else:
    agent = RCDT(preset="tiny", batch_size=16, embedding_size=16, dropout=0.1, seed=3,
                 total_steps=120, critic_start=0.1)
print("ready", flush=True)
agent.learn(data, 120, callback=LatestCheckpoint(latest, 5), log_interval=7)
agent.save(folder / "final.zip")
print("done", flush=True)
"""


def start(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def contents(path):
    """Tensors and metadata; versions and the like are the same here."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(TENSORS), json.loads(archive.read(META))


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    process = start(whole)
    assert process.wait(timeout=300) == 0
    process.stdout.close()
    kills = 0
    for _ in range(2):
        process = start(broken)
        time.sleep(random.uniform(0.1, 0.8))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        process.stdout.close()
    assert kills >= 1
    assert not (broken / "final.zip").exists() or kills < 2
    process = start(broken)
    assert process.wait(timeout=300) == 0
    process.stdout.close()
    ours, theirs = contents(broken / "final.zip"), contents(whole / "final.zip")
    assert ours[1] == theirs[1]
    assert ours[0] == theirs[0]  # every weight, optimiser moment, lambda and random state


def test_saved_and_loaded_continues_as_if_nothing_happened(drivers):
    whole = RCDT(**{**QUICK, "critic_start": 0.1}).learn(drivers, 40)
    part = RCDT(**{**QUICK, "critic_start": 0.1})

    def stop_at_17(_locals, _globals):
        return part.num_timesteps < 17

    part.learn(drivers, 40, callback=stop_at_17)
    buffer = io.BytesIO()
    part.save(buffer)
    buffer.seek(0)
    resumed = RCDT.load(buffer).learn(drivers, 40)
    one, two = io.BytesIO(), io.BytesIO()
    whole.save(one)
    resumed.save(two)
    assert contents(one)[0] == contents(two)[0]
