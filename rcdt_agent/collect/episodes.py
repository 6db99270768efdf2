"""Driving episodes: each is determined by the seed and its number, so they can run anywhere."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from rcdt_agent._io import die_with_parent
from rcdt_agent.collect.behaviours import Controller
from rcdt_agent.collect.recorder import Trajectory, TrajectoryRecorder
from rcdt_agent.errors import InvalidArgumentError, SimulatorError

ATTEMPTS = 10
EnvMaker = Callable[[], gym.Env[Any, Any]]


class Driver:
    """Runs episode after episode in one environment."""

    def __init__(
        self, recorder: TrajectoryRecorder, controller: Controller, seed: int, max_steps: int
    ) -> None:
        """Drive `recorder` with `controller`; an episode beyond `max_steps` is an error."""
        self.recorder, self.controller = recorder, controller
        self.seed, self.max_steps = seed, max_steps

    def __call__(self, episode: int) -> Trajectory:
        """The trajectory of this number.

        Raises:
            InvalidArgumentError: The episode does not end.
            SimulatorError: The simulator produces NaN or infinity, time and again.
        """
        for attempt in range(ATTEMPTS):
            rng = np.random.default_rng([self.seed, episode, attempt])
            trajectory = self._run(rng)
            if trajectory is not None:
                return trajectory
        raise SimulatorError(f"Episode {episode} is not finite in {ATTEMPTS} attempts.")

    def _run(self, rng: np.random.Generator) -> Trajectory | None:
        obs, _ = self.recorder.reset(seed=int(rng.integers(2**31)))
        self.controller.begin(self.recorder, rng)
        for _ in range(self.max_steps):
            obs, _, terminated, truncated, info = self.recorder.step(self.controller.act(obs))
            if terminated or truncated:
                trajectory: Trajectory | None = info.get("trajectory")
                return trajectory
        raise InvalidArgumentError(
            f"`env` must end its episodes, but one has run for {self.max_steps} steps (`steps`): "
            f"wrap it in gymnasium's TimeLimit, or collect more steps."
        )


def discard(trajectory: Trajectory) -> None:
    """A sink for recorders whose trajectories are taken from `info["trajectory"]`."""


def drive_in_processes(
    make_driver: Callable[[], Driver], first: int, n_processes: int
) -> Generator[Trajectory, None, None]:
    """Endless trajectories from `first` on, in order; an environment in each of the processes."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    executor = ProcessPoolExecutor(
        n_processes,
        mp_context=multiprocessing.get_context(method),
        initializer=_start_worker,
        initargs=(CloudpickleWrapper(make_driver),),
    )
    try:
        numbers = count(first)
        pending: deque[Future[Trajectory]] = deque()
        while True:
            while len(pending) < 2 * n_processes:
                pending.append(executor.submit(_drive, next(numbers)))
            yield pending.popleft().result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


_driver: Driver | None = None


def _start_worker(make_driver: CloudpickleWrapper) -> None:
    global _driver
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to end
    die_with_parent()
    _driver = make_driver.var()


def _drive(episode: int) -> Trajectory:
    assert _driver is not None
    return _driver(episode)
