"""`tensorboard_log=` writes event files with the logger's values, read back by tensorboard."""

from __future__ import annotations

import pytest
from conftest import QUICK
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.logger import KVWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rcdt_agent import RCDT
from rcdt_agent.callbacks import BudgetEvalCallback
from rcdt_agent.tasks.speed_limit import ENV_ID


class Remember(KVWriter):
    """A second output of the same logger: what it was told."""

    def __init__(self):
        self.rows = {}

    def write(self, key_values, key_excluded, step=0):
        self.rows.setdefault(step, {}).update(
            {k: v for k, v in key_values.items() if "tensorboard" not in (key_excluded[k] or ())}
        )

    def close(self):
        pass


def test_scalars_are_the_loggers(drivers, tmp_path):
    agent = RCDT(**{**QUICK, "critic_start": 0.1}, tensorboard_log=str(tmp_path))
    memory = Remember()

    def listen(_locals, _globals):
        if memory not in agent.logger.output_formats:
            agent.logger.output_formats.append(memory)
        return True

    evaluation = BudgetEvalCallback(ENV_ID, [5.0], eval_freq=20, n_episodes=1)
    agent.learn(drivers, 40, callback=[ConvertCallback(listen), evaluation], log_interval=10,
                tb_log_name="drive")  # fmt: skip
    agent.logger.close()
    (run,) = tmp_path.iterdir()
    assert run.name == "drive_1"
    events = EventAccumulator(str(run))
    events.Reload()
    assert sorted(memory.rows) == [10, 20, 30, 40]
    for name in (
        "train/loss",
        "train/nll",
        "train/q_loss",
        "train/lambda",
        "time/steps_per_second",
    ):
        read = {event.step: event.value for event in events.Scalars(name)}
        told = {step: row[name] for step, row in memory.rows.items() if name in row}
        assert sorted(read) == [10, 20, 30, 40]
        assert read == pytest.approx(told, rel=1e-6)  # event files hold float32
    for name in ("eval/return_5", "eval/cost_5"):
        read = {event.step: event.value for event in events.Scalars(name)}
        assert read == pytest.approx({s: r[name] for s, r in memory.rows.items() if name in r})
        assert sorted(read) == [20, 40]
    result = evaluation.reports[40].results[0]
    assert read[40] == pytest.approx(result.mean_cost)
    assert set(events.Tags()["scalars"]) == set().union(*memory.rows.values())
    assert len({event.value for event in events.Scalars("train/loss")}) == 4
