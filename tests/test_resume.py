"""A training process killed in the middle and resumed ends with the same weights."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import zipfile

import pytest
from conftest import small_settings

from rcdt_agent import RCDT
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.checkpoint import META, TENSORS

# A real user's script: dropout, critics and a checkpoint every five steps.
SCRIPT = """
import sys
from pathlib import Path
from stable_baselines3.common.callbacks import ConvertCallback
from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.tasks.speed_limit import record_drivers

folder, pause_at = Path(sys.argv[1]), int(sys.argv[2])
data = TrajectoryDataset.from_arrays(**record_drivers(50, seed=1))
latest = folder / "last.zip"
if latest.exists():
    agent = RCDT.load(latest)
else:
    agent = RCDT(preset="tiny", batch_size=16, embedding_size=16, dropout=0.1, seed=3,
                 total_steps=120, critic_start=0.1)
def wait_to_be_killed(_locals, _globals):
    if agent.num_timesteps == pause_at:
        print("at", pause_at, flush=True)
        sys.stdin.read()
    return True

agent.learn(data, resume=True, callback=[LatestCheckpoint(latest, 5),
                                         ConvertCallback(wait_to_be_killed)], log_interval=7)
agent.save(folder / "final.zip")
print("done", flush=True)
"""


def train(folder, *, kill_at=0):
    """Run the script to its end, or kill it when it has made so many steps in all."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(kill_at)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        expected = f"at {kill_at}\n" if kill_at else "done\n"
        assert process.stdout.readline() == expected
        if kill_at:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == (-signal.SIGKILL if kill_at else 0)


def contents(path):
    """Tensors and metadata; versions and the like are the same here."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(TENSORS), json.loads(archive.read(META))


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    train(whole)
    # Between two checkpoints and log entries, right at a checkpoint, and before the critics begin.
    for step, kept in ((8, 5), (60, 60), (103, 100)):
        train(broken, kill_at=step)
        assert RCDT.load(broken / "last.zip").num_timesteps == kept
        assert not (broken / "final.zip").exists()
    train(broken)
    ours, theirs = contents(broken / "final.zip"), contents(whole / "final.zip")
    assert ours[1] == theirs[1]
    assert ours[0] == theirs[0]  # every weight, optimiser moment, lambda and random state


@pytest.mark.parametrize("name", ALGORITHMS)
def test_saved_and_loaded_continues_as_if_nothing_happened(name, drivers):
    kind = get_algorithm(name)
    whole = kind(**small_settings(name)).learn(drivers, 40)
    part = kind(**small_settings(name))

    def stop_at_17(_locals, _globals):
        return part.num_timesteps < 17

    part.learn(drivers, 40, callback=stop_at_17)
    buffer = io.BytesIO()
    part.save(buffer)
    buffer.seek(0)
    resumed = kind.load(buffer)
    assert (resumed.num_timesteps, resumed.total_steps) == (17, 40)
    resumed.learn(drivers, resume=True)
    one, two = io.BytesIO(), io.BytesIO()
    whole.save(one)
    resumed.save(two)
    assert contents(one)[0] == contents(two)[0]
