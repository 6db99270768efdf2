"""Training that diverges stops, says which term, and leaves the last good agent behind."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from commands import rcdt
from conftest import QUICK
from stable_baselines3.common.callbacks import CheckpointCallback, ConvertCallback

from rcdt_agent import RCDT
from rcdt_agent.callbacks import LatestCheckpoint
from rcdt_agent.checkpoint import META, TENSORS, write_checkpoint
from rcdt_agent.errors import TrainingError

SETTINGS = {**QUICK, "critic_start": 0.1, "dropout": 0.1}


def saved(agent):
    """Everything in the agent's file: every tensor's bytes, and the rest."""
    buffer = io.BytesIO()
    agent.save(buffer)
    with zipfile.ZipFile(buffer) as archive:
        return archive.read(TENSORS), json.loads(archive.read(META))


def stopped_at(step, drivers):
    agent = RCDT(**SETTINGS)
    return agent.learn(drivers, 40, callback=lambda *_: agent.num_timesteps < step)


def spoil(agent, step, value=float("inf")):
    """A callback that puts `value` into one weight after `step` steps."""

    def callback(_locals, _globals):
        if agent.num_timesteps == step:
            with torch.no_grad():
                agent.online.head.layers[-1].weight[0, 0] = value
        return True

    return callback


def test_a_spoiled_weight_puts_the_agent_back(drivers):
    agent = RCDT(**SETTINGS)
    with pytest.raises(TrainingError, match=r"stopped at step 30: .*put back to step 20") as error:
        agent.learn(drivers, 40, callback=spoil(agent, 25), log_interval=10)
    assert "not finite: " in str(error.value) and "nll" in str(error.value)
    assert agent.num_timesteps == 20
    assert np.isfinite(agent.predict(drivers.observations[:5])[0]).all()
    assert saved(agent) == saved(stopped_at(20, drivers))
    # And it trains on as if nothing had happened.
    agent.learn(drivers, resume=True, log_interval=10)
    assert saved(agent) == saved(RCDT(**SETTINGS).learn(drivers, 40))


def test_a_weight_spoiled_after_the_figures_were_taken_is_not_kept(drivers):
    """Step 20's terms are finite, its weights are not: a callback runs after the log entry."""
    agent = RCDT(**SETTINGS)
    with pytest.raises(TrainingError, match="put back to step 20"):
        agent.learn(drivers, 40, callback=spoil(agent, 20), log_interval=10)
    assert saved(agent) == saved(stopped_at(20, drivers))


@pytest.mark.parametrize(
    ("settings", "term"),
    [({"learning_rate": 1e25, "warmup_steps": 0}, "nll"), ({"critic_learning_rate": 1e25}, "q_")],
)
def test_a_learning_rate_that_really_diverges(drivers, settings, term):
    agent = RCDT(**{**SETTINGS, **settings})
    with pytest.raises(TrainingError) as error:
        agent.learn(drivers, 40)  # one log entry, at the end
    message = str(error.value)
    assert term in message
    # The replay found the step itself, not only the log entry: most of the 40 were in vain.
    step = int(message.split("stopped at step ")[1].split(":")[0])
    assert step < 10, message
    assert "put back to step 0" in message
    assert all(torch.isfinite(p).all() for p in agent.policy.parameters())


def test_only_the_guilty_terms_are_named(drivers):
    """The critic diverges; the imitation of that step is still sound and not accused."""
    settings = {
        "critic_learning_rate": 1e25,
        "q_guidance": False,
        "held_out_fraction": 0.0,
        "critic_targets": "td",
    }
    agent = RCDT(**{**SETTINGS, **settings})
    with pytest.raises(TrainingError, match=r"`cost_\w+` is (nan|inf)") as error:
        agent.learn(drivers, 40)
    named = str(error.value).split("not finite: ")[1].split(")")[0].split(", ")
    assert "cost_policy" in named
    assert not {"nll", "weighted_nll", "entropy"} & set(named)


@pytest.mark.parametrize("kind", ["ours", "stable_baselines3"])
def test_checkpoints_on_the_way_stay_good(drivers, tmp_path, kind):
    """A checkpoint is due between the damage and the next log entry: it must not be written."""
    agent = RCDT(**SETTINGS)
    saver = (
        LatestCheckpoint(tmp_path / "last.zip", 4)
        if kind == "ours"
        else CheckpointCallback(4, str(tmp_path))
    )
    with pytest.raises(TrainingError, match=r"Not saved to .*is not finite.*put back to step 20"):
        agent.learn(
            drivers, 40, callback=[ConvertCallback(spoil(agent, 22)), saver], log_interval=10
        )
    files = {RCDT.load(path).num_timesteps for path in tmp_path.iterdir()}
    assert files == ({20} if kind == "ours" else {4, 8, 12, 16, 20})


def test_nothing_spoiled_is_written(tmp_path):
    path = tmp_path / "old.zip"
    path.write_text("precious")
    with pytest.raises(TrainingError, match=f"Not saved to {path}: `b` is not finite"):
        write_checkpoint(path, "RCDT", {}, {"a": torch.ones(2), "b": torch.tensor([0.0, -np.inf])})
    assert path.read_text() == "precious"


def test_training_does_not_begin_with_spoiled_weights(drivers):
    agent = stopped_at(5, drivers)
    with torch.no_grad():
        next(agent.policy.critics.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="stopped at step 5: `policy/critics.layers.0.weight`"):
        agent.learn(drivers, 40)


@pytest.mark.slow
def test_a_run_folder_keeps_a_good_checkpoint(tmp_path):
    folder = tmp_path / "run"
    result = rcdt(
        "train", "SpeedLimit", "--preset", "tiny", "--total-steps", "60", "--batch-size", "16",
        "--variant", "rcdt", "--embedding-size", "16", "--critic-learning-rate", "1e25",
        "--output", str(folder), "--no-evaluate",
    )  # fmt: skip
    assert result.returncode == 2
    assert "not finite: " in result.stderr and "put back to step 0" in result.stderr
    agent = RCDT.load(folder / "last.zip")
    assert agent.num_timesteps == 0
    assert not (folder / "agent.zip").exists()
