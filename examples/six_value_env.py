"""An environment whose `step` returns the cost as a sixth value, as Safety-Gymnasium's does."""

import gymnasium as gym
import numpy as np

from rcdt_agent import RCDT
from rcdt_agent.collect import TrajectoryRecorder


class Crossing(gym.Env):
    """Walk as far as you can; every step taken while a car is near costs 1."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
    action_space = gym.spaces.Box(0.0, 1.0, (1,), dtype=np.float32)  # how far to step

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.phase = 0, float(self.np_random.uniform(0, 6.28))
        return self._observe(), {}

    def step(self, action):
        pace = float(np.clip(action[0], 0, 1))
        cost = pace if self._car() > 0.3 else 0.0
        self.t += 1
        return self._observe(), pace, cost, False, self.t == 30, {}  # six values

    def _car(self):
        return float(np.sin(0.5 * self.t + self.phase))

    def _observe(self):
        return np.array([self._car(), self.t / 30], dtype=np.float32)


def main(total_steps: int = 600) -> None:
    rng = np.random.default_rng(0)
    recorder = TrajectoryRecorder(Crossing())  # five values from here on, with info["cost"]
    for episode in range(150):
        care = rng.uniform(0, 1)
        obs, _ = recorder.reset(seed=episode)
        done = False
        while not done:
            pace = 1.0 - care * (obs[0] > 0.3) + 0.1 * rng.normal()
            obs, _, terminated, truncated, _ = recorder.step(np.array([np.clip(pace, 0, 1)]))
            done = terminated or truncated
    data = recorder.dataset()
    print(data.summary())

    agent = RCDT(Crossing(), preset="tiny", seed=0).learn(data, total_steps=total_steps)
    for budget in (1.0, 4.0, 8.0):
        agent.set_cost_budget(budget)
        env = agent.wrap(Crossing())  # the sixth value is found without being told
        obs, _ = env.reset(seed=1)
        state, done = None, False
        while not done:
            action, state = agent.predict(obs, state)
            obs, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        walked, near = info["episode_return"], info["episode_cost"]
        print(f"budget {budget:g}: walked {walked:.1f}, of it {near:.1f} near a car")


if __name__ == "__main__":
    main()
