"""Record your own environment while your own policy drives it, and get a dataset to train on."""

from pathlib import Path

import gymnasium as gym
import numpy as np

from rcdt_agent import TrajectoryDataset
from rcdt_agent.collect import TrajectoryRecorder


class Drone(gym.Env):
    """Fly forwards over a hill: speed earns, flying below 1 m above the ground is a danger."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), dtype=np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)  # climb, accelerate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.speed, self.t = float(self.np_random.uniform(1, 2)), 0.5, 0
        return self._observe(), {}

    def step(self, action):
        self.speed = float(np.clip(self.speed + 0.1 * action[1], 0.1, 2.0))
        self.height += 0.2 * float(action[0]) - 0.05 * self.speed  # fast flight sinks
        self.t += 1
        danger = float(max(0.0, 1.0 - self._above_ground()))
        crashed = self._above_ground() <= 0.0
        return self._observe(), self.speed, crashed, self.t == 50, {"danger": danger}

    def _above_ground(self):
        return self.height - np.exp(-((self.t / 10 - 2.5) ** 2))

    def _observe(self):
        return np.array([self._above_ground(), self.speed, self.t / 50], dtype=np.float32)


def pilot(obs, courage, rng):
    """Your policy, whatever it is: here one that flies the lower and faster the braver it is."""
    climb = 2.0 * (2.0 - 1.5 * courage - obs[0]) + 0.25 * obs[1]
    faster = 0.5 + 1.5 * courage - obs[1]
    return np.clip([climb, faster] + 0.2 * rng.normal(size=2), -1, 1).astype(np.float32)


def main(episodes: int = 200, output: str | Path = "build/drone.hdf5") -> None:
    rng = np.random.default_rng(0)
    env = TrajectoryRecorder(Drone(), cost_key="danger")
    for episode in range(episodes):
        courage = rng.uniform()  # vary it: only what the data show can be chosen later
        obs, _ = env.reset(seed=episode)
        done = False
        while not done:
            obs, _, terminated, truncated, _ = env.step(pilot(obs, courage, rng))
            done = terminated or truncated
    env.save(output)
    print(TrajectoryDataset.from_hdf5(output).summary())


if __name__ == "__main__":
    main()
