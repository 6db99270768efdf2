"""Datasets of one's own: record any safe environment, or collect with varied behaviours."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rcdt_agent.collect.balance import balanced_rows
from rcdt_agent.collect.behaviours import (
    BEHAVIOURS,
    BehaviourName,
    Controller,
    default_behaviour,
    make_controller,
)
from rcdt_agent.collect.episodes import Driver, discard, drive_in_processes
from rcdt_agent.collect.recorder import Trajectory, TrajectoryRecorder, join_trajectories
from rcdt_agent.collect.store import TrajectoryStore, read_parts
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.progress import progress
from rcdt_agent.tasks.registry import Task, get_task

__all__ = [
    "BEHAVIOURS",
    "PENALTIES",
    "Controller",
    "Trajectory",
    "TrajectoryRecorder",
    "TrajectoryStore",
    "balanced_rows",
    "collect_dataset",
    "default_behaviour",
    "join_trajectories",
    "make_controller",
    "read_parts",
]

PENALTIES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Reward taken off for each unit of cost, one PPO run each: from reckless to careful."""

EnvSource = str | Task | Callable[[], gym.Env[Any, Any]]


def collect_dataset(
    env_or_task: EnvSource,
    output: str | Path,
    *,
    steps: int = 100_000,
    behaviour: BehaviourName | Controller | None = None,
    penalties: Sequence[float] = PENALTIES,
    n_envs: int = 1,
    subprocesses: bool | None = None,
    seed: int = 0,
    per_cell: int | None = 6,
    max_trajectories: int | None = None,
    resume: bool = False,
    progress_bar: bool = False,
) -> TrajectoryDataset:
    """Collect trajectories that span the return-cost plane, and write them in DSRL's layout.

    Scripted, IDM and random episodes are determined by `seed` and their number: neither
    `n_envs` nor an interruption changes the dataset. PPO's also depend on `n_envs`, and a resumed
    run goes on from its last saved policy.

    Args:
        env_or_task: A DSRL task, or a function that makes an environment with `info["cost"]`
            (wrap it in `TrajectoryRecorder` for another key or a cost function).
        output: HDF5 file to write; it can be read at any time during the collection.
        steps: Environment steps to record, over all PPO penalties together.
        behaviour: scripted, idm, ppo, random or a `Controller`; by default what suits the task.
        penalties: PPO: one run for each, >= 0.
        n_envs: Environments in parallel.
        subprocesses: Each environment in a process of its own. By default for MetaDrive (which
            needs it) and where several environments are driven by anything but PPO.
        seed: Of episodes, behaviours and the choice among trajectories; >= 0.
        per_cell: Most trajectories in a cell of a 40 x 50 return-cost grid; None keeps all.
        max_trajectories: Most trajectories in the file, drawn at random after balancing.
        resume: Continue an interrupted collection of the same arguments.
        progress_bar: Show steps, trajectories, and their ranges of return and cost.

    Returns:
        What `output` holds.

    Raises:
        InvalidArgumentError: An argument is outside its rule, or `output` exists.
        DatasetError: No episode ran to its end.
        KeyboardInterrupt: Interrupted; what was recorded is in `output`, and `resume` continues.
    """
    _check(steps, penalties, n_envs, seed, per_cell, max_trajectories)
    task = get_task(env_or_task) if isinstance(env_or_task, str | Task) else None
    chosen = behaviour or default_behaviour(task)
    controller = None
    if chosen != "ppo":
        controller = make_controller(chosen, task) if isinstance(chosen, str) else chosen
    if subprocesses is None:
        subprocesses = controller is not None and n_envs > 1
    subprocesses = subprocesses or (task is not None and task.suite == "metadrive")
    make_env = partial(_make_task, task.id) if task else env_or_task
    assert callable(make_env)
    options = {
        "task": task.id if task else None,
        "behaviour": chosen if isinstance(chosen, str) else type(chosen).__name__,
        "penalties": list(penalties) if chosen == "ppo" else None,
        "seed": seed,
    }
    select = partial(
        _select, per_cell=per_cell, max_trajectories=max_trajectories, seed=seed, name=str(output)
    )
    store = TrajectoryStore(output, options=options, resume=resume, select=select)
    with progress(progress_bar, total=steps, unit="step", desc="collect") as bar:
        tally = _Tally(store, bar)
        try:
            if controller is None:
                _collect_ppo(make_env, store, tally, steps, penalties, seed, n_envs, subprocesses)
            else:
                driver = partial(_make_driver, make_env, controller, seed, steps)
                first = store.count(0)
                with closing(_episodes(driver, first, n_envs, subprocesses)) as episodes:
                    while tally.steps < steps:
                        tally.record(next(episodes))
        except KeyboardInterrupt:
            store.flush()
            store.merge()
            raise KeyboardInterrupt(
                f"Interrupted: {len(store)} complete trajectories are kept for {output}; "
                f"`resume` continues."
            ) from None
        except BaseException:
            store.flush()
            raise
    return store.finish()


class _Tally:
    """Counts what is recorded, for the stopping rule and the progress bar."""

    def __init__(self, store: TrajectoryStore, bar: Any) -> None:
        self._store, self._bar = store, bar
        self.steps, self.steps_of_run = 0, dict[int, int]()
        self._returns, self._costs = [np.inf, -np.inf], [np.inf, -np.inf]
        for run, part in store.runs():
            self._count(run, part.n_transitions, part.episode_returns, part.episode_costs)

    def record(self, trajectory: Trajectory) -> None:
        """Store a trajectory."""
        self._store.append(trajectory)
        returns, costs = [trajectory.episode_return], [trajectory.episode_cost]
        self._count(self._store.run, len(trajectory), returns, costs)

    def _count(self, run: int, steps: int, returns: Any, costs: Any) -> None:
        self.steps += steps
        self.steps_of_run[run] = self.steps_of_run.get(run, 0) + steps
        for bounds, values in ((self._returns, returns), (self._costs, costs)):
            bounds[0], bounds[1] = min(bounds[0], *values), max(bounds[1], *values)
        self._bar.set_postfix_str(
            f"{len(self._store)} trajectories, return {self._returns[0]:.4g} .. "
            f"{self._returns[1]:.4g}, cost {self._costs[0]:.4g} .. {self._costs[1]:.4g}",
            refresh=False,
        )
        self._bar.update(steps)


def _collect_ppo(
    make_env: Callable[[], gym.Env[Any, Any]],
    store: TrajectoryStore,
    tally: _Tally,
    steps: int,
    penalties: Sequence[float],
    seed: int,
    n_envs: int,
    subprocesses: bool,
) -> None:
    """One training run for each penalty; runs before the last one on disk are complete."""
    from rcdt_agent.collect.ppo import train_ppo

    for run in range(store.last_run, len(penalties)):
        share = steps * (run + 1) // len(penalties) - steps * run // len(penalties)
        left = share - tally.steps_of_run.get(run, 0)
        if left > 0:
            store.begin_run(run)
            train_ppo(
                make_env,
                store,
                penalty=penalties[run],
                steps=left,
                seed=seed,
                n_envs=n_envs,
                subprocesses=subprocesses,
                record=tally.record,
            )


def _episodes(
    make_driver: Callable[[], Driver], first: int, n_envs: int, subprocesses: bool
) -> Generator[Trajectory, None, None]:
    if subprocesses:
        yield from drive_in_processes(make_driver, first, n_envs)
        return
    driver = make_driver()
    with closing(driver.recorder):
        yield from map(driver, count(first))


def _make_task(task_id: str) -> gym.Env[Any, Any]:
    from rcdt_agent.tasks.simulators import make_env

    return make_env(task_id)


def _make_driver(
    make_env: Callable[[], gym.Env[Any, Any]], controller: Controller, seed: int, steps: int
) -> Driver:
    return Driver(TrajectoryRecorder(make_env(), discard), controller, seed, max_steps=steps)


def _select(
    dataset: TrajectoryDataset,
    *,
    per_cell: int | None,
    max_trajectories: int | None,
    seed: int,
    name: str,
) -> TrajectoryDataset:
    """Balance, then draw `max_trajectories` of what is left; in the order of collection."""
    rows = np.arange(len(dataset))
    if per_cell is not None:
        rows = balanced_rows(
            dataset.episode_returns, dataset.episode_costs, per_cell=per_cell, seed=seed
        )
    if max_trajectories is not None and len(rows) > max_trajectories:
        rng = np.random.default_rng([seed, 1])
        rows = np.sort(rng.choice(rows, max_trajectories, replace=False))
    return replace(dataset.select(rows), name=name)


def _check(
    steps: int,
    penalties: Sequence[float],
    n_envs: int,
    seed: int,
    per_cell: int | None,
    max_trajectories: int | None,
) -> None:
    counts = {"steps": steps, "n_envs": n_envs, "per_cell": per_cell}
    for name, value in (counts | {"max_trajectories": max_trajectories}).items():
        if value is not None and value < 1:
            raise InvalidArgumentError(f"`{name}` must be >= 1, got {value}.")
    if seed < 0:
        raise InvalidArgumentError(f"`seed` must be >= 0, got {seed}.")
    if not penalties or not all(np.isfinite(p) and p >= 0 for p in penalties):
        raise InvalidArgumentError(
            f"`penalties` must be one or more finite numbers >= 0, got {tuple(penalties)}."
        )
