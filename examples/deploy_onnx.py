"""Deployment without torch: numpy and onnxruntime alone.

rcdt export agent.zip policy.onnx
python deploy_onnx.py policy.onnx
"""

import sys

import numpy as np

from rcdt_agent.onnx_agent import OnnxAgent


class Robot:
    """Stands for yours: a step gives an observation, a reward and a cost."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        self.observation = np.zeros(observation_shape, dtype=np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, float]:
        return self.observation, 1.0, 0.5


def main(path: str, n_steps: int = 4) -> None:
    agent = OnnxAgent(path)
    robot = Robot(agent.observation_shape)
    agent.reset(cost_budget=10.0)  # a new episode
    action = agent.act(robot.observation)
    for _ in range(n_steps - 1):
        observation, reward, cost = robot.step(action)
        action = agent.act(observation, reward, cost)  # what the last action earned and cost
        print(f"left to spend {agent.episode.cost_to_go[0]:.1f}: action {action}")


if __name__ == "__main__":
    main(sys.argv[1])
    assert "torch" not in sys.modules
