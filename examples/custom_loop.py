"""A loop of your own: tell the state what each step earned and cost."""

import gymnasium as gym

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers


def main(total_steps: int = 600) -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(500))
    agent = RCDT(preset="tiny", seed=0).learn(data, total_steps=total_steps)
    agent.set_cost_budget(20)

    env = gym.make(ENV_ID)
    obs, _ = env.reset(seed=0)
    state = None
    for t in range(60):
        if t == 30:
            agent.set_cost_budget(8)  # the rules change half-way: what was spent still counts
        action, state = agent.predict(obs, state)
        obs, reward, terminated, truncated, info = env.step(action)
        state = state.observe(reward, info["cost"])  # forget it, and the next `predict` raises
        if t % 10 == 9:
            print(
                f"step {t + 1}: spent {state.total_cost[0]:.1f}, left to spend "
                f"{state.cost_to_go[0]:.1f}, left to earn {state.return_to_go[0]:.1f}"
            )
        if terminated or truncated:
            break


if __name__ == "__main__":
    main()
