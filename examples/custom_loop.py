"""A loop of your own, as on a robot: tell `act` what the last action earned and cost."""

import gymnasium as gym

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers


def main(total_steps: int = 600) -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(500))
    agent = RCDT(preset="tiny", seed=0).learn(data, total_steps=total_steps)

    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=0)
    agent.reset(cost_budget=20)  # a new episode
    action = agent.act(obs)
    for t in range(60):
        if t == 30:
            agent.set_cost_budget(8)  # the rules change half-way: what was spent still counts
        obs, reward, terminated, truncated, info = env.step(action)
        action = agent.act(obs, reward, info["cost"])  # forget one of them, and it raises
        if t % 10 == 9:
            episode = agent.episode
            print(
                f"step {t + 1}: spent {episode.total_cost[0]:.1f}, left to spend "
                f"{episode.cost_to_go[0]:.1f}, left to earn {episode.return_to_go[0]:.1f}"
            )
        if terminated or truncated:
            break


if __name__ == "__main__":
    main()
