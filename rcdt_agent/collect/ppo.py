"""PPO with a sweep of cost penalties; every episode of its training is recorded."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from rcdt_agent.checkpoint import (
    flatten_state,
    read_checkpoint,
    unflatten_state,
    write_checkpoint,
)
from rcdt_agent.collect.episodes import EnvMaker, discard
from rcdt_agent.collect.recorder import Trajectory, TrajectoryRecorder
from rcdt_agent.collect.store import TrajectoryStore

ROLLOUT = 2048  # steps between updates, over all environments


class CostPenalty(gym.Wrapper[Any, Any, Any, Any]):
    """Pays reward - penalty * cost. Outside the recorder, which thus keeps the real reward."""

    def __init__(self, env: gym.Env[Any, Any], penalty: float) -> None:
        """Wrap an environment with `info["cost"]`; `penalty` is in reward per unit of cost."""
        super().__init__(env)
        self.penalty = penalty

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and take the penalty off the reward."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) - self.penalty * info["cost"], terminated, truncated, info


class EpisodeSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds each episode by its number, so that a resumed run does not see the same ones again."""

    def __init__(self, env: gym.Env[Any, Any], key: tuple[int, ...], first: int) -> None:
        """Episode n, from `first` on, gets a seed made of `key` and n."""
        super().__init__(env)
        self._key, self._episode = key, first

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset with the episode's own seed, whatever `seed` says."""
        state = np.random.SeedSequence((*self._key, self._episode)).generate_state(1)
        self._episode += 1
        return self.env.reset(seed=int(state[0] >> 1), options=options)


def train_ppo(
    make_env: EnvMaker,
    store: TrajectoryStore,
    *,
    penalty: float,
    steps: int,
    seed: int,
    n_envs: int,
    subprocesses: bool,
    record: Callable[[Trajectory], None],
) -> None:
    """Train with one penalty and record every finished episode.

    A run that was interrupted continues from its last saved policy and with new episodes.

    Args:
        make_env: Makes the environment; its cost is in `info["cost"]` or the sixth value.
        store: Where the run's trajectories and its policy are kept; `store.run` is the run.
        penalty: Reward taken off for each unit of cost, >= 0.
        steps: Environment steps to go.
        seed: Of policy and episodes.
        n_envs: Environments in parallel.
        subprocesses: Each in a process of its own.
        record: Receives each trajectory.
    """
    first = store.count(store.run)
    makers = [
        partial(
            _make_env, make_env, penalty, (seed, store.run, i), first, ignore_interrupt=subprocesses
        )
        for i in range(n_envs)
    ]
    venv: VecEnv = SubprocVecEnv(makers) if subprocesses else DummyVecEnv(makers)  # type: ignore[arg-type]
    saved = store.folder / f"policy-{store.run:03d}.zip"
    try:
        n_steps = max(2, min(ROLLOUT, steps) // n_envs)
        whole = n_steps * n_envs  # minibatches divide it, or PPO warns
        batch = next(size for size in (64, 50, 40, 32, 20, 10, whole) if whole % size == 0)
        number = int(np.random.SeedSequence((seed, store.run)).generate_state(1)[0] >> 1)
        model = PPO("MlpPolicy", venv, n_steps=n_steps, batch_size=batch, seed=number, device="cpu")
        if saved.is_file():
            meta, tensors = read_checkpoint(saved, "PPO")
            state = unflatten_state(tensors, meta["structure"])
            model.policy.load_state_dict(state["policy"])
            model.policy.optimizer.load_state_dict(state["optimizer"])
        model.learn(steps, callback=_Record(record, steps, saved))
    finally:
        venv.close()


class _Record(BaseCallback):
    """Takes trajectories out of the infos, saves the policy now and then, ends on time."""

    def __init__(self, record: Callable[[Trajectory], None], steps: int, saved: Path) -> None:
        super().__init__()
        self._record, self._steps, self._saved = record, steps, saved

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "trajectory" in info:
                self._record(info["trajectory"])
        return self.num_timesteps < self._steps

    def _on_rollout_end(self) -> None:
        # Our own format: stable-baselines3's is unpickled, and nothing we load may run.
        policy: Any = self.model.policy
        tensors, plain = flatten_state(
            {"policy": policy.state_dict(), "optimizer": policy.optimizer.state_dict()}
        )
        write_checkpoint(self._saved, "PPO", {"structure": plain}, tensors)


def _make_env(
    make_env: EnvMaker,
    penalty: float,
    key: tuple[int, ...],
    first: int,
    *,
    ignore_interrupt: bool,
) -> gym.Env[Any, Any]:
    if ignore_interrupt:  # in a process of its own: the main process decides when to end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return CostPenalty(TrajectoryRecorder(EpisodeSeeds(make_env(), key, first), discard), penalty)
