"""Deployment without torch: numpy and onnxruntime alone.

rcdt export agent.zip --output policy.onnx
python deploy_onnx.py policy.onnx
"""

import json
import sys

import numpy as np
import onnxruntime


class OnnxAgent:
    """The policy of one episode: keeps the window, and what is left to earn and to spend."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map["rcdt_agent"]
        self.facts = json.loads(metadata)
        self.begin(self.facts["cost_budget"], self.facts["target_return"])

    def begin(self, cost_budget: float, target_return: float | None = None) -> None:
        """A new episode that may cost `cost_budget`."""
        if target_return is None:
            table = self.facts["target_returns"]
            target_return = np.interp(cost_budget, table["cost_budgets"], table["target_returns"])
        self.cost_budget = self.cost_to_go = cost_budget
        self.return_to_go = target_return
        self.window: list[list] = []  # observation, action, return to go, cost to go, time step
        self.t = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        size, length = len(self.facts["action_low"]), self.facts["context_length"]
        step = [np.ravel(observation), np.zeros(size), self.return_to_go, self.cost_to_go, self.t]
        self.window = [*self.window, step][-length:]
        last = len(self.window) - 1
        padded = self.window + [[np.zeros_like(step[0]), np.zeros(size), 0, 0, 0]] * (
            length - last - 1
        )
        names = ["observations", "actions", "returns_to_go", "costs_to_go", "timesteps"]
        columns = [np.array(column, np.float32)[None] for column in zip(*padded, strict=True)]
        columns[-1] = columns[-1].astype(np.int64)
        return_to_go, cost_to_go = self.aim()
        columns[2] += return_to_go - self.return_to_go  # the whole window follows
        columns[3] += cost_to_go - self.cost_to_go
        (actions,) = self.session.run(["action"], dict(zip(names, columns, strict=True)))
        step[1] = actions[0, last]
        return step[1].reshape(self.facts["action_shape"])

    def aim(self) -> tuple[float, float]:
        """What to ask for now: no less cost than the floor, no more return than the data show."""
        rules = self.facts["conditioning"]
        left = self.cost_to_go - rules["margin"] * self.cost_budget
        exhausted = left <= 0
        if rules["exhausted_mode"]:
            left = max(left, rules["ctg_floor"] or 0.0, 0.0)
        elif rules["ctg_floor"] is not None:
            left = max(left, rules["ctg_floor"])
        if not (rules["replan"] or (rules["exhausted_mode"] and exhausted)):
            return self.return_to_go, left
        table = rules["return_to_go"]
        by_step = [np.interp(left, table["costs"], row) for row in table["returns"]]
        return min(self.return_to_go, np.interp(self.t, table["steps"], by_step)), left

    def observe(self, reward: float, cost: float) -> None:
        """Tell it what the action earned and cost; forget it, and the tokens stand still."""
        self.return_to_go -= reward
        self.cost_to_go -= cost
        self.t += 1


def main(path: str) -> None:
    agent = OnnxAgent(path)
    observation = np.zeros(agent.facts["observation_shape"])
    agent.begin(cost_budget=10.0)
    for _ in range(3):
        action = agent.act(observation)
        print(f"left to spend {agent.cost_to_go:.1f}: action {action}")
        agent.observe(reward=1.0, cost=0.5)  # from your robot


if __name__ == "__main__":
    main(sys.argv[1])
    assert "torch" not in sys.modules
