"""The training loop: stable-baselines3's callbacks and logger around the learner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback

from rcdt_agent.learner import Learner
from rcdt_agent.progress import progress

if TYPE_CHECKING:
    from rcdt_agent.agent import RCDT


def train(
    agent: RCDT,
    learner: Learner,
    goal: int,
    *,
    callback: Any,
    log_interval: int,
    tb_log_name: str,
    progress_bar: bool,
    new_log: bool,
) -> RCDT:
    """Step the learner until `goal` steps were made in all, or a callback says stop.

    Dropout draws from torch's global state: the agent's own is put in place for the loop and the
    caller's back afterwards, so that a run can be continued bit for bit and disturbs nobody.
    """
    if agent._logger is None:
        agent._make_logger(tb_log_name, new=new_log)
    hooks = as_callback(callback)
    hooks.init_callback(agent)  # type: ignore[arg-type]
    total_timesteps = goal
    started, first = time.time(), learner.step_count
    with (
        agent_randomness(agent),
        progress(progress_bar, total=goal, initial=first, unit="step") as bar,
    ):
        hooks.on_training_start(locals(), globals())
        while learner.step_count < goal:
            learner.step()
            agent.num_timesteps = learner.step_count
            bar.update()
            finished = learner.step_count == goal
            if learner.step_count % log_interval == 0 or finished:
                _log(agent, learner, bar, started, first)
            agent._rng = torch.get_rng_state()
            hooks.update_locals(locals())
            if not hooks.on_step():
                break
        hooks.on_training_end()
    return agent


def as_callback(callback: Any) -> BaseCallback:
    """One callback from None, a callback, a list of them, or a function of (locals, globals)."""
    if callback is None:
        return CallbackList([])
    if isinstance(callback, list):
        return CallbackList(callback)
    if isinstance(callback, BaseCallback):
        return callback
    return ConvertCallback(callback)


@contextmanager
def agent_randomness(agent: RCDT) -> Iterator[None]:
    """Put the agent's state of torch's global generator in place, and the caller's back."""
    theirs = torch.get_rng_state()
    if agent._rng is not None:
        torch.set_rng_state(agent._rng)
    try:
        yield
    finally:
        torch.set_rng_state(theirs)


def _log(agent: RCDT, learner: Learner, bar: Any, started: float, first: int) -> None:
    metrics = learner.metrics()
    speed = (learner.step_count - first) / max(time.time() - started, 1e-9)
    for name, value in metrics.items():
        agent.logger.record(f"train/{name}", value)
    agent.logger.record("time/steps_per_second", speed)
    agent.logger.record("time/total_timesteps", learner.step_count, exclude="tensorboard")
    agent.logger.dump(learner.step_count)
    figures = {"loss": f"{metrics['loss']:.3f}", "lambda": f"{metrics['lambda']:.3f}"}
    bar.set_postfix(figures, refresh=learner.step_count == bar.total)
