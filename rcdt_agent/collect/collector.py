"""`collect_dataset`: trajectories that span the return-cost plane, from a mix of behaviours."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rcdt_agent.collect.balance import balanced_rows
from rcdt_agent.collect.behaviours import (
    BehaviourName,
    Controller,
    default_behaviour,
    make_controller,
)
from rcdt_agent.collect.episodes import Driver, EnvMaker, discard, drive_in_processes
from rcdt_agent.collect.recorder import Trajectory, TrajectoryRecorder
from rcdt_agent.collect.rounding import MANTISSA_BITS, round_mantissa
from rcdt_agent.collect.store import TrajectoryStore
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.progress import progress
from rcdt_agent.tasks.registry import Task, get_task

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
    round_observations: int | None = None,
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
        round_observations: Bits of the mantissa that observations keep, 1 .. 23, for a file that
            compresses well; None keeps them as they are. Actions, rewards and costs are exact.
        resume: Continue an interrupted collection of the same arguments.
        progress_bar: Show steps, trajectories, and their ranges of return and cost.

    Returns:
        What `output` holds.

    Raises:
        InvalidArgumentError: An argument is outside its rule, or `output` exists.
        DatasetError: No episode ran to its end.
        KeyboardInterrupt: Interrupted; what was recorded is in `output`, and `resume` continues.
    """
    _check(steps, penalties, n_envs, seed, per_cell, max_trajectories, round_observations)
    plan = _make_plan(env_or_task, behaviour, steps, penalties, seed, n_envs, subprocesses)
    select = partial(
        _select,
        per_cell=per_cell,
        max_trajectories=max_trajectories,
        round_observations=round_observations,
        seed=seed,
        name=str(output),
    )
    store = TrajectoryStore(output, options=plan.options, resume=resume, select=select)
    with progress(progress_bar, total=steps, unit="step", desc="collect") as bar:
        _run(plan, store, _Tally(store, bar))
    return store.finish()


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How to collect: arguments of `collect_dataset` with their defaults filled in."""

    options: dict[str, Any]
    """What a resumed collection must have in common with the interrupted one."""
    make_env: EnvMaker
    controller: Controller | None
    """None: PPO."""
    steps: int
    penalties: tuple[float, ...]
    seed: int
    n_envs: int
    subprocesses: bool


def _make_plan(
    env_or_task: EnvSource,
    behaviour: BehaviourName | Controller | None,
    steps: int,
    penalties: Sequence[float],
    seed: int,
    n_envs: int,
    subprocesses: bool | None,
) -> _Plan:
    task = get_task(env_or_task) if isinstance(env_or_task, str | Task) else None
    chosen = behaviour or default_behaviour(task)
    controller = None
    if chosen != "ppo":
        controller = make_controller(chosen, task) if isinstance(chosen, str) else chosen
    make_env = partial(_make_task, task.id) if task else env_or_task
    if not callable(make_env):
        raise InvalidArgumentError(
            f"`env_or_task` must be a task or a function that makes an environment, got "
            f"{env_or_task!r}."
        )
    if subprocesses is None:
        subprocesses = controller is not None and n_envs > 1
    return _Plan(
        options={
            "task": task.id if task else None,
            "behaviour": chosen if isinstance(chosen, str) else type(chosen).__name__,
            "penalties": list(penalties) if chosen == "ppo" else None,
            "seed": seed,
        },
        make_env=make_env,
        controller=controller,
        steps=steps,
        penalties=tuple(penalties),
        seed=seed,
        n_envs=n_envs,
        subprocesses=subprocesses or (task is not None and task.suite == "metadrive"),
    )


def _run(plan: _Plan, store: TrajectoryStore, tally: _Tally) -> None:
    """Collect until `plan.steps`; whatever ends it early, finished trajectories are kept."""
    try:
        if plan.controller is None:
            _collect_ppo(plan, store, tally)
        else:
            _collect_driven(plan, plan.controller, store.count(0), tally)
    except KeyboardInterrupt:
        store.flush()
        store.merge()
        raise KeyboardInterrupt(
            f"Interrupted: {len(store)} complete trajectories are kept for {store.output}; "
            f"`resume` continues."
        ) from None
    except BaseException:
        store.flush()
        raise


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


def _collect_ppo(plan: _Plan, store: TrajectoryStore, tally: _Tally) -> None:
    """One training run for each penalty; runs before the last one on disk are complete."""
    from rcdt_agent.collect.ppo import train_ppo

    n_runs = len(plan.penalties)
    for run in range(store.last_run, n_runs):
        share = plan.steps * (run + 1) // n_runs - plan.steps * run // n_runs
        left = share - tally.steps_of_run.get(run, 0)
        if left > 0:
            store.begin_run(run)
            train_ppo(
                plan.make_env,
                store,
                penalty=plan.penalties[run],
                steps=left,
                seed=plan.seed,
                n_envs=plan.n_envs,
                subprocesses=plan.subprocesses,
                record=tally.record,
            )


def _collect_driven(plan: _Plan, controller: Controller, first: int, tally: _Tally) -> None:
    """Episodes of a controller, from number `first` on."""
    driver = partial(_make_driver, plan.make_env, controller, plan.seed, plan.steps)
    with closing(_episodes(driver, first, plan.n_envs, plan.subprocesses)) as episodes:
        while tally.steps < plan.steps:
            tally.record(next(episodes))


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


def _make_driver(make_env: EnvMaker, controller: Controller, seed: int, steps: int) -> Driver:
    return Driver(TrajectoryRecorder(make_env(), discard), controller, seed, max_steps=steps)


def _select(
    dataset: TrajectoryDataset,
    *,
    per_cell: int | None,
    max_trajectories: int | None,
    round_observations: int | None,
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
    chosen = replace(dataset.select(rows), name=name)
    if round_observations is None:
        return chosen
    return replace(
        chosen,
        observations=round_mantissa(chosen.observations, round_observations),
        final_observations=round_mantissa(chosen.final_observations, round_observations),
    )


def _check(
    steps: int,
    penalties: Sequence[float],
    n_envs: int,
    seed: int,
    per_cell: int | None,
    max_trajectories: int | None,
    round_observations: int | None,
) -> None:
    counts = {"steps": steps, "n_envs": n_envs, "per_cell": per_cell}
    for name, value in (counts | {"max_trajectories": max_trajectories}).items():
        if value is not None and value < 1:
            raise InvalidArgumentError(f"`{name}` must be >= 1, got {value}.")
    if round_observations is not None and not 1 <= round_observations <= MANTISSA_BITS:
        raise InvalidArgumentError(
            f"`round_observations` must be 1 .. {MANTISSA_BITS}, got {round_observations}."
        )
    if seed < 0:
        raise InvalidArgumentError(f"`seed` must be >= 0, got {seed}.")
    if not penalties or not all(np.isfinite(p) and p >= 0 for p in penalties):
        raise InvalidArgumentError(
            f"`penalties` must be one or more finite numbers >= 0, got {tuple(penalties)}."
        )
