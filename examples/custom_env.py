"""Your own arrays and your own environment, without DSRL: a tank that must not overheat."""

import gymnasium as gym
import numpy as np

from rcdt_agent import RCDT, TrajectoryDataset


class Tank(gym.Env):
    """Heating earns, heat above 1 does damage; the cost has a key of its own in `info`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)
    action_space = gym.spaces.Box(0.0, 5.0, (1,), dtype=np.float32)  # not [-1, 1]: it is scaled

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.heat, self.t = float(self.np_random.uniform(0, 0.5)), 0
        return self._observe(), {}

    def step(self, action):
        self.heat = 0.8 * self.heat + 0.1 * float(action[0])
        self.t += 1
        damage = max(0.0, self.heat - 1.0)
        return self._observe(), self.heat, False, self.t == 40, {"damage": damage}

    def _observe(self):
        return np.array([self.heat, self.t / 40], dtype=np.float32)


def record_log(episodes: int) -> TrajectoryDataset:
    """What a plant's log would hold: operators with different habits, as flat arrays."""
    rng = np.random.default_rng(0)
    env = Tank()
    rows = {key: [] for key in ("observations", "actions", "rewards", "costs", "timeouts")}
    for episode in range(episodes):
        wish = rng.uniform(0.2, 2.2)
        obs, _ = env.reset(seed=episode)
        done = False
        while not done:
            action = np.clip([10 * (wish - 0.8 * obs[0]) + rng.normal()], 0, 5).astype(np.float32)
            following, reward, _, done, info = env.step(action)
            for key, value in zip(rows, (obs, action, reward, info["damage"], done), strict=True):
                rows[key].append(value)
            obs = following
    terminals = np.zeros(len(rows["timeouts"]))
    return TrajectoryDataset.from_arrays(**rows, terminals=terminals, name="tank log")


def main(total_steps: int = 600) -> None:
    data = record_log(300)
    print(data.summary())
    agent = RCDT(Tank(), preset="tiny", seed=0)
    agent.learn(data, total_steps=total_steps)
    for budget in (1.0, 5.0, 15.0):
        agent.set_cost_budget(budget)
        env = agent.wrap(Tank(), cost_key="damage")
        obs, _ = env.reset(seed=1)
        state, done = None, False
        while not done:
            action, state = agent.predict(obs, state)
            obs, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        print(
            f"budget {budget:>4}: heat delivered {info['episode_return']:.1f}, "
            f"damage {info['episode_cost']:.2f}"
        )


if __name__ == "__main__":
    main()
