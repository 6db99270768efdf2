"""Train once, then ask for three different cost budgets."""

import gymnasium as gym

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import record_drivers

# A log of trajectories with rewards and costs: here, 1000 drivers from timid to reckless.
data = TrajectoryDataset.from_arrays(**record_drivers(1000))

agent = RCDT(preset="tiny", seed=0)
agent.learn(data, total_steps=1_000, progress_bar=True)
agent.save("build/driver.zip")
agent = RCDT.load("build/driver.zip")

for budget in (5, 10, 20):
    agent.set_cost_budget(budget)  # any time, no retraining
    env = agent.wrap(gym.make("rcdt_agent/SpeedLimit-v0"))  # counts what is spent
    obs, _ = env.reset(seed=0)
    state, done = None, False
    while not done:
        action, state = agent.predict(obs, state)
        obs, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    print(f"budget {budget}: return {info['episode_return']:.1f}, cost {info['episode_cost']:.1f}")
