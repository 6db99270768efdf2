"""The training loop that all algorithms share: callbacks, logger, progress, divergence guard."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from torch import Tensor

from rcdt_agent import distributed
from rcdt_agent.checkpoint import first_not_finite, flatten_state
from rcdt_agent.errors import TrainingError
from rcdt_agent.progress import DAY, Stopwatch, in_words, progress

if TYPE_CHECKING:
    from rcdt_agent.algorithms.base import OfflineAlgorithm

Metrics = dict[str, Tensor]
"""Detached numbers of one step by name, still on their device."""

_SUMS = ("loss", "grad_norm")  # not finite whenever one of their terms is not


def train(
    agent: OfflineAlgorithm[Any, Any],
    goal: int,
    *,
    callback: Any,
    log_interval: int,
    progress_bar: bool,
) -> None:
    """Step the algorithm until `goal` steps were made in all, or a callback says stop.

    Dropout draws from torch's global generator: the agent's own state of it is put in place for
    the loop and the caller's back afterwards, so that a run can be continued bit for bit and
    disturbs nobody.

    Raises:
        TrainingError: A term or a weight is no longer finite; the message names it, and the agent
            is what it was at the last log entry at which all was well.
        LostProcessError: Another process of the training is gone.
    """
    callbacks = as_callback(callback)
    if not distributed.is_main():
        callbacks, progress_bar = on_every_rank(callbacks), False
    with warnings.catch_warnings():
        # Meaningless here: no environment takes part in training.
        warnings.filterwarnings("ignore", "Training and eval env are not of the same type")
        callbacks.init_callback(agent)  # type: ignore[arg-type]
    total_timesteps = goal  # callbacks read it from the locals
    means = MetricMeans()
    first = agent.num_timesteps
    watch = Stopwatch(goal - first)
    with (
        distributed.lost_process_named(lambda: f"at step {agent.num_timesteps}"),
        global_rng_of(agent),
        DivergenceGuard(agent) as guard,
        progress(
            progress_bar, desc=agent.description, total=goal, initial=first, unit="step"
        ) as bar,
    ):
        callbacks.on_training_start(locals(), globals())
        while agent.num_timesteps < goal:
            means.add(make_step(agent))
            agent.training.torch_rng = torch.get_rng_state()
            bar.update()
            if agent.num_timesteps % log_interval == 0 or agent.num_timesteps == goal:
                metrics = means.fetch(agent.num_timesteps)
                _log(agent, metrics, watch, agent.num_timesteps - first)
                shown = {
                    name: f"{metrics[name]:.3f}" for name in ("loss", "lambda") & metrics.keys()
                }
                bar.set_postfix(shown, refresh=agent.num_timesteps == goal)
                guard.keep()
            remaining = watch.first_estimate(agent.num_timesteps - first)
            if remaining is not None:
                _tell_remaining(agent, remaining)
            callbacks.update_locals(locals())
            if distributed.any_rank(not callbacks.on_step()):
                break
        callbacks.on_training_end()


def make_step(agent: OfflineAlgorithm[Any, Any]) -> Metrics:
    """One gradient step, counted."""
    training = agent.training
    distributed.seed_step(agent.seed, agent.num_timesteps, training.generators.values())
    metrics = agent.step()
    agent.num_timesteps += 1
    return metrics


class MetricMeans:
    """Means of metrics, summed on their device; nothing is fetched until `fetch`."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._sums: Metrics = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one step."""
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def fetch(self, step: int) -> dict[str, float]:
        """The means since the last call, over all ranks, in one transfer from the device.

        Raises:
            TrainingError: One of them is not finite; the message names the first.
        """
        names = list(self._sums)
        values = torch.stack([self._sums[name] / self._counts[name] for name in names])
        means = dict(zip(names, distributed.mean(values).tolist(), strict=True))
        self._sums, self._counts = {}, {}
        bad = [name for name, value in means.items() if not math.isfinite(value)]
        bad.sort(key=lambda name: name in _SUMS)
        if bad:
            raise TrainingError(
                f"Training stopped at step {step}: `{bad[0]}` is {means[bad[0]]} "
                f"(not finite: {', '.join(bad)}). A smaller learning rate may help."
            )
        return means


class DivergenceGuard:
    """A copy in memory of the last training state at which everything was finite.

    As a context it puts the agent back to that state when a `TrainingError` ends the training, so
    that neither the agent nor a file saved from it holds spoiled weights.
    """

    def __init__(self, agent: OfflineAlgorithm[Any, Any]) -> None:
        """Keep the state at the beginning.

        Raises:
            TrainingError: It is not finite already.
        """
        self.agent = agent
        self.keep()

    def __enter__(self) -> DivergenceGuard:
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, TrainingError):
            cause = self._replay(error)
            self._roll_back()
            raise TrainingError(
                f"{cause} The agent was put back to step {self.agent.num_timesteps}, where every "
                f"term was finite: it can be saved and used as it was then."
            ) from error

    def keep(self) -> None:
        """Copy the present state.

        Raises:
            TrainingError: A weight is not finite, although the terms were.
        """
        snapshot = self.agent.snapshot()
        bad = first_not_finite(flatten_state(snapshot)[0])
        if bad is not None:
            raise TrainingError(
                f"Training stopped at step {self.agent.num_timesteps}: `{bad}` is not finite."
            )
        self._snapshot = deepcopy(snapshot)

    def _replay(self, error: TrainingError) -> TrainingError:
        """Make the same steps again, checked one by one: the first bad one names the term.

        Metrics are fetched at log entries only; by then one bad term has spoiled all the others.
        """
        failed_at = self.agent.num_timesteps
        self._roll_back()
        torch.set_rng_state(self.agent.training.torch_rng)
        means = MetricMeans()
        while self.agent.num_timesteps < failed_at:
            means.add(make_step(self.agent))
            try:
                means.fetch(self.agent.num_timesteps)
            except TrainingError as first:
                return first
        return error  # not the steps: something else changed the weights

    def _roll_back(self) -> None:
        self.agent.restore(deepcopy(self._snapshot))


def as_callback(callback: Any) -> BaseCallback:
    """One callback from None, a callback, a list of them, or a function of (locals, globals)."""
    if callback is None:
        return CallbackList([])
    if isinstance(callback, list):
        return CallbackList(callback)
    if isinstance(callback, BaseCallback):
        return callback
    return ConvertCallback(callback)


def on_every_rank(callback: BaseCallback) -> BaseCallback:
    """What other ranks than 0 call: the callbacks that say so by `every_rank = True`."""
    each = callback.callbacks if isinstance(callback, CallbackList) else [callback]
    return CallbackList([one for one in each if getattr(one, "every_rank", False)])


@contextmanager
def global_rng_of(agent: OfflineAlgorithm[Any, Any]) -> Iterator[None]:
    """Put the agent's state of torch's global generator in place, and the caller's back."""
    theirs = torch.get_rng_state()
    torch.set_rng_state(agent.training.torch_rng)
    try:
        yield
    finally:
        torch.set_rng_state(theirs)


def say(agent: OfflineAlgorithm[Any, Any], text: str) -> None:
    """To the agent's logger, which prints it if `verbose`, and to Python's."""
    agent.logger.info(text)
    logging.getLogger("rcdt_agent").info(text)


def _tell_remaining(agent: OfflineAlgorithm[Any, Any], seconds: float) -> None:
    """What a user wants to know before going away; a warning above a day.

    Critics that begin later make later steps slower: it is the least that remains.
    """
    say(agent, f"At this speed training takes {in_words(seconds)} more.")
    if seconds > DAY:
        warnings.warn(
            f"At this speed training takes {seconds / 3600:.0f} more hours. `preset='cpu'` is made "
            f"for machines without a GPU; a smaller `total_steps` or a GPU (`device='cuda'`) helps "
            f"too.",
            stacklevel=4,
        )


def _log(
    agent: OfflineAlgorithm[Any, Any], metrics: dict[str, float], watch: Stopwatch, done: int
) -> None:
    for name, value in metrics.items():
        agent.logger.record(f"train/{name}", value)
    agent.logger.record("time/steps_per_second", watch.speed(done))
    agent.logger.record("time/remaining_seconds", watch.remaining(done))
    agent.logger.record("time/total_timesteps", agent.num_timesteps, exclude="tensorboard")
    agent.logger.dump(agent.num_timesteps)
