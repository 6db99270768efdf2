"""Arguments that users get wrong: taken in every form that is clear, refused in words otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from rcdt_agent import distributed
from rcdt_agent.base_config import is_number, is_whole
from rcdt_agent.errors import InvalidArgumentError

LearningRate = Callable[[float], float]
"""A learning rate as a function of the progress that remains, from 1 to 0."""


def check_seed(seed: Any) -> int:
    """The seed as a plain number; None draws one."""
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if not is_whole(seed) or seed < 0:
        raise InvalidArgumentError(f"`seed` must be a whole number >= 0 or None, got {seed!r}.")
    return int(seed)


def check_device(name: Any) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one.

    Under `torchrun`, `cuda` is the GPU of this process.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(distributed.local_device(name))
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(
            f"`device` must be 'auto', 'cpu' or 'cuda' (or 'cuda:1', ...), got {name!r}."
        ) from error
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= n_devices:
        raise InvalidArgumentError(
            f"`device` is {name!r}, but torch finds {n_devices} CUDA devices here: use 'cpu', or "
            f"'auto' for what there is."
        )
    return device


def check_log_interval(log_interval: Any) -> int:
    """Steps between log entries."""
    if not is_whole(log_interval) or log_interval < 1:
        raise InvalidArgumentError(
            f"`log_interval` must be a whole number >= 1, got {log_interval!r}."
        )
    return int(log_interval)


def check_callback(callback: Any) -> None:
    """Refuse what is no callback of stable-baselines3, function, or list of callbacks."""
    if isinstance(callback, list | tuple):
        for each in callback:
            check_callback(each)
    elif not (callback is None or isinstance(callback, BaseCallback) or callable(callback)):
        raise InvalidArgumentError(
            f"`callback` must be a stable-baselines3 callback, a list of them, a function or "
            f"None, got {callback!r}."
        )


def split_learn_arguments(
    dataset: Any, total_steps: Any, total_timesteps: Any
) -> tuple[Any, int | None]:
    """Data and number of steps of `learn`, in either order and under either name.

    Raises:
        InvalidArgumentError: Steps are given twice, or are not a whole number >= 0.
    """
    if is_number(dataset):
        if is_number(total_steps):
            raise InvalidArgumentError(
                f"`dataset` must be data where the number of steps is given as well: `learn` "
                f"takes data and one number of steps, got {dataset!r} and {total_steps!r}."
            )
        dataset, total_steps = total_steps, dataset
    if total_steps is not None and total_timesteps is not None:
        raise InvalidArgumentError(
            "Give either `total_steps` or `total_timesteps`: they are two names of one thing."
        )
    steps = total_timesteps if total_steps is None else total_steps
    if steps is not None and (not is_whole(steps) or steps < 0):
        name = "total_timesteps" if total_steps is None else "total_steps"
        raise InvalidArgumentError(f"`{name}` must be a whole number >= 0, got {steps!r}.")
    return dataset, None if steps is None else int(steps)


def missing_schedule(_progress_remaining: float) -> float:
    """Stands for the schedule of a loaded agent until it is given again.

    Raises:
        InvalidArgumentError: Always.
    """
    raise InvalidArgumentError(
        "This agent was trained with a learning-rate schedule, and a file holds no functions: to "
        "train on, load it with `learning_rate=` the same function, another one, or a number."
    )


def scheduled_rate(schedule: LearningRate, progress_remaining: float) -> float:
    """The schedule's learning rate, if it is one."""
    rate = schedule(progress_remaining)
    if not is_number(rate) or not 0 <= rate < float("inf"):
        raise InvalidArgumentError(
            f"`learning_rate({progress_remaining:g})` must be a number >= 0, got {rate!r}."
        )
    return float(rate)


def check_training_budget(name: str, budgets: str, config: Any) -> None:
    """Refuse to train an algorithm of one cost budget without it.

    Args:
        name: Of the algorithm.
        budgets: Which it serves.
        config: Its settings.
    """
    if budgets == "one" and getattr(config, "cost_budget", None) is None:
        raise InvalidArgumentError(
            f"`cost_budget` must be given: {name} learns a policy for one cost budget, as in "
            f"{name}(cost_budget=20)."
        )
