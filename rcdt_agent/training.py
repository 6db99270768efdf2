"""The training loop: stable-baselines3's callbacks and logger around the learner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback

from rcdt_agent.checkpoint import first_not_finite, flatten_state
from rcdt_agent.errors import TrainingError
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

    Raises:
        TrainingError: A term or a weight is no longer finite; the message names it, and the agent
            is what it was at the last log entry at which all was well.
    """
    if agent._logger is None:
        agent._make_logger(tb_log_name, new=new_log)
    hooks = as_callback(callback)
    hooks.init_callback(agent)  # type: ignore[arg-type]
    total_timesteps = goal
    started, first = time.time(), learner.step_count
    with (
        agent_randomness(agent),
        LastGood(agent, learner) as good,
        progress(progress_bar, total=goal, initial=first, unit="step") as bar,
    ):
        hooks.on_training_start(locals(), globals())
        while learner.step_count < goal:
            learner.step()
            agent.num_timesteps = learner.step_count
            bar.update()
            agent._rng = torch.get_rng_state()
            finished = learner.step_count == goal
            if learner.step_count % log_interval == 0 or finished:
                _log(agent, learner, bar, started, first)
                good.keep()
            hooks.update_locals(locals())
            if not hooks.on_step():
                break
        hooks.on_training_end()
    return agent


class LastGood:
    """A copy in memory of the training state at which everything was finite.

    As a context it puts the agent back to that state when a `TrainingError` ends the training, so
    that neither the agent nor a file saved from it holds spoiled weights.
    """

    def __init__(self, agent: RCDT, learner: Learner) -> None:
        """Keep the state at the beginning.

        Raises:
            TrainingError: It is not finite already.
        """
        self.agent = agent
        self.learner = learner
        self.keep()

    def __enter__(self) -> LastGood:
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, TrainingError):
            cause = self._replayed(error)
            self._put_back()
            raise TrainingError(
                f"{cause} The agent was put back to step {self.learner.step_count}, where every "
                f"term was finite: it can be saved and used as it was then."
            ) from error

    def keep(self) -> None:
        """Copy the present state.

        Raises:
            TrainingError: A weight is not finite, although the terms were.
        """
        state = self.learner.state()
        bad = first_not_finite(flatten_state(state)[0])
        if bad is not None:
            raise TrainingError(
                f"Training stopped at step {self.learner.step_count}: `{bad}` is not finite."
            )
        self.state = deepcopy(state)
        self.rng = self.agent._rng

    def _replayed(self, error: TrainingError) -> TrainingError:
        """The same steps again, looked at one by one: the first bad one names the term.

        Figures are fetched at log entries only; by then one bad term has spoiled all the others.
        """
        failed_at = self.learner.step_count
        self._put_back()
        if self.rng is not None:
            torch.set_rng_state(self.rng)
        while self.learner.step_count < failed_at:
            self.learner.step()
            try:
                self.learner.metrics()
            except TrainingError as first:
                return first
        return error  # not the steps: something else changed the weights

    def _put_back(self) -> None:
        self.learner.load_state(deepcopy(self.state))
        with suppress(TrainingError):
            self.learner.metrics()  # fetching empties the sums of what was undone
        self.agent.num_timesteps = self.learner.step_count
        self.agent._rng = self.rng


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
