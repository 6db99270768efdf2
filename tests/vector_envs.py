"""Environments whose true costs are known, and a vector environment in each reset mode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np


class Toll(gym.Env):
    """Shaped like SpeedLimit; costs, rewards and lengths are random and kept in plain sight."""

    observation_space = gym.spaces.Box(-10, 10, (4,), dtype=np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), dtype=np.float32)

    def __init__(self, seed=0, longest=6, key="cost"):
        self.rng, self.longest, self.key = np.random.default_rng(seed), longest, key
        self.earned = self.spent = self.t = self.length = 0

    def _observe(self):
        return self.rng.uniform(-1, 1, 4).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.earned = self.spent = self.t = 0
        self.length = int(self.rng.integers(1, self.longest + 1))
        return self._observe(), {}

    def step(self, action):
        assert self.t < self.length, "stepped after its end"
        reward, cost = float(self.rng.normal()), float(self.rng.choice([0.0, 0.25, 1.0, 7.5]))
        self.t += 1
        self.earned, self.spent = self.earned + reward, self.spent + cost
        return self._observe(), reward, False, self.t >= self.length, {self.key: cost}


class MinimalVector(gym.vector.VectorEnv):
    """The three reset modes in a few lines, by Gymnasium's rules, whatever version is installed.

    It writes into the array of observations that it returned, as environments may.
    `same` and `same-dict` differ in how the last info is handed over (before and since 1.0).
    """

    def __init__(self, makers, mode):
        self.envs = [make() for make in makers]
        spaces = self.envs[0].observation_space, self.envs[0].action_space
        if hasattr(gym.vector, "VectorEnvWrapper"):  # gymnasium < 1.0
            super().__init__(len(makers), *spaces)
        else:
            self.num_envs = len(makers)
            self.single_observation_space, self.single_action_space = spaces
            self.observation_space, self.action_space = (
                gym.vector.utils.batch_space(space, len(makers)) for space in spaces
            )
        names = {"next": "NextStep", "disabled": "Disabled"}
        self.metadata = {"autoreset_mode": names.get(mode, "SameStep")}
        self.mode = mode
        self.obs = np.zeros((len(makers), *spaces[0].shape), np.float32)
        self.ended = np.zeros(len(makers), dtype=bool)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        for i in np.flatnonzero(mask):
            self.obs[i], _ = self.envs[i].reset(seed=None if seed is None else seed + int(i))
        self.ended &= ~mask
        return self.obs, {}

    def step(self, actions):
        n = self.num_envs
        rewards, ends, infos = np.zeros(n), np.zeros(n, dtype=bool), [{} for _ in range(n)]
        final_obs, final_infos = np.full((2, n), None, dtype=object)
        for i, env in enumerate(self.envs):
            if self.mode == "next" and self.ended[i]:
                self.obs[i], infos[i] = env.reset()
                continue
            self.obs[i], rewards[i], _, ends[i], infos[i] = env.step(actions[i])
            if ends[i] and self.mode.startswith("same"):
                final_obs[i], final_infos[i] = self.obs[i].copy(), infos[i]
                self.obs[i], infos[i] = env.reset()
        self.ended = ends
        together = stacked(infos)
        if ends.any() and self.mode == "same":
            together |= {"final_observation": final_obs, "final_info": final_infos}
        elif ends.any() and self.mode == "same-dict":
            last = [info or {} for info in final_infos]
            together |= {"final_obs": final_obs, "final_info": stacked(last)}
        return self.obs, rewards, np.zeros(n, dtype=bool), ends, together

    def close_extras(self, **kwargs):
        pass


def stacked(infos):
    """Gymnasium's way: an array for each key, and a mask of whose it is."""
    keys = {key for info in infos for key in info}
    out = {key: np.array([info.get(key, 0.0) for info in infos]) for key in keys}
    return out | {f"_{key}": np.array([key in info for info in infos]) for key in keys}
