"""A random driver on SpeedLimit, held against the exact optimum at several cost budgets."""

import gymnasium as gym
import numpy as np

import rcdt_agent  # noqa: F401  (registers the environment)
from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return


def main() -> None:
    env = gym.make(ENV_ID)
    env.action_space.seed(0)
    returns, costs = [], []
    for episode in range(20):
        env.reset(seed=episode)
        done, total_return, total_cost = False, 0.0, 0.0
        while not done:
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            total_return += float(reward)
            total_cost += info["cost"]
            done = terminated or truncated
        returns.append(total_return)
        costs.append(total_cost)
    print(f"random driver: return {np.mean(returns):.1f}, cost {np.mean(costs):.1f}")
    print(f"{'budget':>8} {'kept':>6} {'over budget':>12} {'best possible return':>22}")
    for budget in (0, 5, 10, 20, 40):
        over = np.mean(np.array(costs) > budget)
        kept = "yes" if np.mean(costs) <= budget else "no"
        print(f"{budget:>8} {kept:>6} {over:>12.0%} {optimal_return(budget):>22.1f}")


if __name__ == "__main__":
    main()
