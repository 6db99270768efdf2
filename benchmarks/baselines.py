"""BCQ-Lag, BEAR-Lag, CPQ and COptiDICE, ours `as_published` against the peer's.

    python benchmarks/baselines.py FILE [--steps 100000] [--seeds 0 1 2] [--budget 20]
        [--width 256] [--batch-size 512] [--json FILE]

The same file, seeds, steps, sizes and settings. Both are trained on batches of our sampler and
rolled out on the same reset seeds: means over seeds, and their standard deviation. Steps alternate
for the time, with the peer's batches from our sampler (the networks alone) and from its own loader
(a step as its users run it).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peer
import timing
import torch

from rcdt_agent import TrajectoryDataset, get_task, make_env
from rcdt_agent.algorithms import get_algorithm
from rcdt_agent.data.transitions import Transitions, TransitionSampler
from rcdt_agent.tasks.registry import guess_task

PEER = {"bcq-lag": "bcql", "bear-lag": "bearl", "cpq": "cpq", "coptidice": "coptidice"}
CLASS = {"bcql": "BCQL", "bearl": "BEARL", "cpq": "CPQ", "coptidice": "COptiDICE"}


def sizes(name: str, options: argparse.Namespace) -> dict[str, int]:
    """Sizes of ours, from which the peer's follow."""
    vae = {} if name == "coptidice" else {"vae_width": round(options.width * 400 / 256)}
    return {"width": options.width, "batch_size": options.batch_size, **vae}


def make_ours(name: str, data: TrajectoryDataset, options: argparse.Namespace, seed: int) -> Any:
    agent = get_algorithm(name)(
        preset="paper", as_published=True, cost_budget=options.budget, seed=seed,
        total_steps=options.steps, device="cpu", **sizes(name, options),
    )  # fmt: skip
    agent.task = get_task(options.task)
    agent.set_dataset(data)
    return agent


def make_peer(name: str, data: TrajectoryDataset, config: Any, length: int) -> Any:
    """The peer's trainer with our settings in its words."""
    key = PEER[name]
    module = peer.load_algorithm(key)
    hidden = [config.width] * (config.n_layers - 1)
    settings: dict[str, Any] = {
        "a_hidden_sizes": hidden, "c_hidden_sizes": hidden, "gamma": config.discount,
        "cost_limit": config.cost_budget, "episode_len": length,
    }  # fmt: skip
    rates = {"actor_lr": config.learning_rate, "critic_lr": config.critic_learning_rate}
    if name == "coptidice":
        settings |= {
            "f_type": "softchi", "init_state_propotion": len(data) / data.n_transitions,
            "observations_std": data.observations.std(0, keepdims=True),
            "actions_std": data.actions.std(0, keepdims=True), "alpha": config.alpha,
            "cost_ub_epsilon": config.cost_bound, "num_nu": config.n_critics,
            "num_chi": config.n_critics,
        }  # fmt: skip
        rates["scalar_lr"] = config.multiplier_learning_rate
    else:
        settings |= {
            "vae_hidden_sizes": config.vae_width, "tau": config.target_rate,
            "beta": config.vae_beta, "num_q": config.n_critics, "num_qc": config.n_critics,
        }  # fmt: skip
        rates["vae_lr"] = config.vae_learning_rate
    if name == "bear-lag":
        settings["start_update_policy_step"] = config.imitation_steps
    if name in ("bear-lag", "cpq"):
        rates["alpha_lr"] = config.alpha_step
    model = getattr(module, CLASS[key])(
        state_dim=data.observation_size, action_dim=data.action_size, max_action=1.0, **settings
    )
    trainer = getattr(module, f"{CLASS[key]}Trainer")
    return trainer(model, None, logger=peer.SilentLogger(), **rates)


def peer_step(name: str, trainer: Any, config: Any, draw: Callable[[], Transitions]) -> Any:
    """A function that draws a batch and makes one step of the peer's."""

    def step() -> None:
        batch = draw()
        parts = [
            batch.obs, batch.next_obs, batch.actions, batch.rewards * config.reward_scale,
            batch.costs * config.cost_scale, batch.ends.float(),
        ]  # fmt: skip
        if name == "coptidice":
            trainer.train_one_step([*parts, batch.is_first.float()])
        else:
            trainer.train_one_step(*parts)

    return step


def own_loader(data: TrajectoryDataset, config: Any) -> Callable[[], Any]:
    """A function that draws a batch with the peer's own data set and torch's loader."""
    done = np.zeros(data.n_transitions, dtype=np.float32)
    done[data.offsets[1:] - 1] = 1.0
    arrays = {
        "observations": data.observations, "next_observations": data.observations,
        "actions": data.actions, "rewards": data.rewards, "costs": data.costs,
        "terminals": np.zeros_like(done), "timeouts": done,
    }  # fmt: skip  # next observations are not right, but as many: only their time counts
    transitions = peer.load("common/dataset.py").TransitionDataset(arrays)
    loader = iter(torch.utils.data.DataLoader(transitions, batch_size=config.batch_size))
    return lambda: next(loader)


def roll_out(act: Callable[[Any], Any], env: Any, seeds: range) -> tuple[float, float]:
    """Mean return and cost of one episode a seed."""
    sums = []
    for seed in seeds:
        torch.manual_seed(seed)  # the peer draws from the global generator when it acts
        obs, _ = env.reset(seed=seed)
        total, done = np.zeros(2), False
        while not done:
            obs, reward, terminated, truncated, info = env.step(act(obs))
            total += reward, info["cost"]
            done = terminated or truncated
        sums.append(total)
    episode_return, cost = np.mean(sums, axis=0)
    return float(episode_return), float(cost)


def compare_seed(
    name: str, data: TrajectoryDataset, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Train both with a seed: the time of their steps by turns, return and cost of each."""
    agent = make_ours(name, data, options, seed)
    torch.manual_seed(seed)
    trainer = make_peer(name, data, agent.config, agent.policy.episode_length)
    sampler = TransitionSampler(
        data, batch_size=agent.config.batch_size, generator=torch.Generator().manual_seed(seed)
    )
    theirs = peer_step(name, trainer, agent.config, sampler.sample_transitions)
    timed = make_ours(name, data, options, seed)
    timed.setup(data)
    rounds = min(options.rounds, options.steps)
    state = torch.get_rng_state()
    row = timing.compare(f"{name}, seed {seed}", timed.step, theirs, rounds=rounds, wanted=2.0)
    load = own_loader(data, agent.config)
    users = timing.compare(
        f"{name}, seed {seed}, own loader", timed.step, lambda: (load(), theirs()), rounds=rounds
    )
    torch.set_rng_state(state)
    agent.learn(total_steps=options.steps)
    for _ in range(max(options.steps - 2 * (rounds + 1), 0)):  # what the timing has left
        theirs()
    env, seeds = make_env(options.task), range(1000 * seed, 1000 * seed + options.episodes)
    trainer.model.eval()
    found = {
        "ours": roll_out(lambda obs: agent.predict(obs)[0], env, seeds),
        "peer": roll_out(lambda obs: trainer.model.act(obs, True, True)[0], env, seeds),
    }
    env.close()
    return {"name": name, "seed": seed, "time": row, "own_loader": users, **found}


def summary(runs: list[dict[str, Any]], who: str) -> str:
    def spread(values: list[float]) -> str:
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.mean(values):.1f} +- {deviation:.1f}"

    returns, costs = zip(*(run[who] for run in runs), strict=True)
    return f"{spread(list(returns))} | {spread(list(costs))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="HDF5 file named after its task")
    parser.add_argument("--methods", nargs="+", choices=PEER, default=list(PEER))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20, help="alternating steps that are timed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    task = guess_task(options.file.name)
    if task is None:
        parser.error(f"{options.file} is not named after a task")
    options.task = task.id
    data = TrajectoryDataset.from_hdf5(options.file)
    timing.heading(
        f"{task.name}, budget {options.budget:g}, {options.steps} steps, "
        f"width {options.width}, batch {options.batch_size}"
    )
    lines, found = [], []
    for name in options.methods:
        runs = [compare_seed(name, data, options, seed) for seed in options.seeds]
        found += runs
        faster = [
            f"{statistics.median(run[key]['times_faster'] for run in runs):.1f}"
            for key in ("time", "own_loader")
        ]
        cells = [name, summary(runs, "ours"), summary(runs, "peer"), *faster]
        lines.append(f"| {' | '.join(cells)} |")
    titles = ["return, ours", "cost, ours", "return, peer", "cost, peer"]
    titles = ["method", *titles, "times faster", "with its loader"]
    print(f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
