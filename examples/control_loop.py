"""A control loop at a fixed rate, on a plant that never resets: at most 10 cost in any 120 steps.

Two things a loop on a robot must answer: what if an action comes too late, and what if the budget
is gone. Here both end in a fallback action, braking.
"""

import time

import gymnasium as gym
import numpy as np

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers

PERIOD = 0.02  # seconds: 50 Hz
WINDOW, BUDGET = 120, 10.0
BRAKE = np.array([-1.0], dtype=np.float32)


def main(total_steps: int = 600, seconds: float = 8.0) -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(500))
    agent = RCDT(preset="tiny", seed=0).learn(data, total_steps=total_steps)
    agent.set_cost_budget(BUDGET, per=WINDOW)

    env = gym.make(ENV_ID).unwrapped
    obs, _ = env.reset(seed=0)
    agent.predict(obs, agent.begin())  # the first call is the slowest: before the clock starts
    state, costs, late, spent_out = agent.begin(), [], 0, 0
    tick = time.perf_counter()
    for _ in range(int(seconds / PERIOD)):
        action, state = agent.predict(obs, state)
        if time.perf_counter() - tick > PERIOD:  # too late for this tick
            action, late = BRAKE, late + 1
        elif state.cost_to_go[0] <= 0:  # what the last steps cost fills the window
            action, spent_out = BRAKE, spent_out + 1
        obs, reward, _, truncated, info = env.step(action)
        state = state.observe(reward, info["cost"], action=action)  # what was really done
        costs.append(info["cost"])
        if truncated:  # the road goes on; for the agent, nothing ends
            obs, _ = env.reset()
        tick += PERIOD
        time.sleep(max(tick - time.perf_counter(), 0.0))
        tick = max(tick, time.perf_counter() - PERIOD)  # a long pause is not caught up with
    sums = np.convolve(costs, np.ones(WINDOW), "valid")
    print(
        f"{len(costs)} steps at {1 / PERIOD:.0f} Hz: {sums.max():.1f} at most in {WINDOW} steps "
        f"(budget {BUDGET:g}), {late} late, {spent_out} with the budget gone"
    )


if __name__ == "__main__":
    main()
