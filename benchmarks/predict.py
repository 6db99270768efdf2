"""Prediction: our `predict` and `observe` against the peer's step of its rollout.

    python benchmarks/predict.py [--json FILE]

The paper's model with a full window. The peer knows one environment at a time, so 64 of them cost
it 64 times one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peer
import timing
import torch
from data import make_arrays

from rcdt_agent import RCDT
from rcdt_agent.data import TrajectoryDataset

EPISODE, OBSERVATION, ACTION, CONTEXT = 300, 7, 2, 10


def our_step(agent: RCDT, n_envs: int) -> Callable[[], Any]:
    """One step of n environments in mid-episode."""
    rng = np.random.default_rng(0)
    shape = (OBSERVATION,) if n_envs == 1 else (n_envs, OBSERVATION)
    obs = rng.normal(size=shape).astype(np.float32)
    rewards, costs = np.ones(n_envs), np.zeros(n_envs)
    memory: dict[str, Any] = {"state": None}

    def step() -> None:
        _, state = agent.predict(obs, memory["state"])
        memory["state"] = state.observe(rewards, costs)

    for _ in range(CONTEXT):
        step()
    return step


def peer_step() -> Callable[[], Any]:
    """What the peer's rollout does at each step, the environment left out."""
    trainer = peer.make_cdt(OBSERVATION, ACTION, episode_length=EPISODE)
    model = trainer.model.eval()
    states = torch.randn(1, EPISODE + 1, OBSERVATION)
    actions = torch.zeros(1, EPISODE, ACTION)
    returns, costs = torch.ones(1, EPISODE + 1), torch.ones(1, EPISODE + 1)
    times = torch.arange(EPISODE).view(1, -1)
    episode_cost = torch.ones(1)
    at = 50
    obs = np.zeros(OBSERVATION)

    @torch.no_grad()
    def step() -> None:
        window = [
            values[:, : at + 1][:, -CONTEXT:] for values in (states, actions, returns, costs, times)
        ]
        acts, _, _ = model(*window, None, episode_cost)
        action = acts.mean.clamp(-1.0, 1.0)[0, -1].numpy()
        actions[:, at] = torch.as_tensor(action)
        states[:, at + 1] = torch.as_tensor(obs)
        returns[:, at + 1] = torch.as_tensor(returns[:, at] - 1.0)
        costs[:, at + 1] = torch.as_tensor(costs[:, at] - 0.0)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = TrajectoryDataset.from_arrays(**make_arrays(3_000, EPISODE, OBSERVATION, ACTION))
    agent = RCDT(preset="paper", variant="cdt", batch_size=2, seed=0).learn(data, 1)
    theirs = peer_step()
    timing.heading("Prediction, the paper's model")
    rows = []
    for n_envs, wanted in ((1, 1.4), (8, None), (64, 6.0)):
        entry = timing.compare(
            f"actions of {n_envs} environment{'s' if n_envs > 1 else ''}",
            our_step(agent, n_envs),
            theirs if n_envs == 1 else (lambda n=n_envs: [theirs() for _ in range(n)]),
            rounds=options.rounds,
            inner=max(6, 50 // n_envs),
            inner_theirs=50 if n_envs == 1 else 1,
            wanted=wanted,
        )
        entry["actions_per_second"] = 1e3 * n_envs / entry["ours_ms"]
        rows.append(entry)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
