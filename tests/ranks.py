"""Run by `torchrun` in `test_distributed.py`: trains on every rank and writes what came out.

torchrun --nproc-per-node 2 tests/ranks.py FOLDER CASE ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from conftest import small_settings
from safetensors.torch import save_file

from rcdt_agent import BC, RCDT, TrajectoryDataset, distributed
from rcdt_agent.actions import ActionDistribution
from rcdt_agent.algorithms import get_algorithm
from rcdt_agent.data.transitions import TransitionSampler
from rcdt_agent.errors import InvalidArgumentError, TrainingError
from rcdt_agent.tasks.speed_limit import record_drivers

STEPS = {"natural": 50, "around": 50, "shared": 20}
"""By mode: each rank draws for itself; losses go around the wrapped module; one process's draws."""
GLOBAL_BATCH = 26
"""No other axis has this size, nor half of it: draws of it are recognised as a batch's."""
WITH_DROPOUT = {**small_settings("rcdt"), "total_steps": 20}


def settings_of(case: str) -> dict[str, Any]:
    """Everything that acts, but dropout: ranks draw it apart."""
    name, *micro_batches = case.split("+")
    settings = small_settings(name) | {"batch_size": GLOBAL_BATCH}
    more: dict[str, dict[str, Any]] = {
        "rcdt": {
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "variant": "rcdt",
            "weighting": "return_cost",  # the frontier's draws depend on who draws
            "critic_start": 0.2,
            "held_out_fraction": 0.0,
            "kappa_mode": "critic",
            "kappa": 0.0,
            "lambda_step": 0.01,
            "warmup_steps": 0,
            "eta": 1.0,
        },
        "trac": {"dropout": 0.0},
        "fisor": {"dropout": 0.0, "actor_updates": 1, "critic_batch_size": 14},
        "cpq": {"imitation_steps": 10},
    }
    return settings | more.get(name, {}) | ({"micro_batch_size": 5} if micro_batches else {})


def data() -> TrajectoryDataset:
    return TrajectoryDataset.from_arrays(**record_drivers(50, seed=1), name="drivers")


def train(case: str, steps: int) -> Any:
    agent = get_algorithm(case.split("+")[0])(**settings_of(case))
    # Noise of micro-batches is drawn by their sizes, which are not those of one process.
    noise = {"side_effect": (lambda actions, _: torch.zeros_like(actions))} if "+" in case else {}
    with mock.patch.object(
        ActionDistribution, "draw_noise", wraps=ActionDistribution.draw_noise, **noise
    ):
        return agent.learn(data(), steps, log_interval=steps)


def weights(agent: Any) -> dict[str, torch.Tensor]:
    """Weights and buffers of all networks."""
    return {
        f"{name}.{key}": value.clone().contiguous()
        for name, module in agent.named_modules().items()
        for key, value in module.state_dict().items()
    }


def shared(draw: Any, size_at: int) -> Any:
    """Draw the global batch's numbers on every rank and keep each second: as one process draws."""
    n, local = distributed.world_size(), GLOBAL_BATCH // distributed.world_size()

    def drawn(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("generator") is None or local not in args[size_at]:
            return draw(*args, **kwargs)
        size = list(args[size_at])
        axis = size.index(local)
        size[axis] *= n
        values = draw(*args[:size_at], tuple(size), *args[size_at + 1 :], **kwargs)
        return values.index_select(axis, torch.arange(distributed.rank(), size[axis], n))

    return mock.patch.object(torch, draw.__name__, drawn)


def compare_weights(folder: Path, cases: list[str]) -> None:
    def write(mode: str, case: str) -> None:
        agent = train(case, STEPS[mode])
        save_file(weights(agent), folder / f"{mode}-{case}-{distributed.rank()}.safetensors")

    for case in cases:
        write("natural", case)
    with mock.patch.object(distributed.Replicas, "through", lambda _self, _n, _o, loss: loss):
        for case in ("rcdt", "bc"):  # as through `.module`
            write("around", case)
    with (
        shared(torch.rand, 0),
        shared(torch.randn, 0),
        shared(torch.randint, 1),
        mock.patch.object(distributed, "seed_step", return_value=None),  # generators go on
    ):
        for case in cases:
            write("shared", case)


def resumed(folder: Path) -> dict[str, Any]:
    """A run with dropout and critics that is interrupted, and one that is not."""
    whole = RCDT(**WITH_DROPOUT).learn(data(), log_interval=7)
    stop = lambda _locals, _globals: _locals["agent"].num_timesteps < 12  # noqa: E731
    RCDT(**WITH_DROPOUT).learn(data(), log_interval=7, callback=stop).save(folder / "half.zip")
    distributed.barrier()
    half = RCDT.load(folder / "half.zip")
    at = half.num_timesteps
    half.learn(data(), resume=True, log_interval=7)
    ours, expected = weights(half), weights(whole)
    return {"stopped_at": at, "exact": all(torch.equal(ours[k], expected[k]) for k in expected)}


def diverged() -> dict[str, Any]:
    """Rank 1 alone reads a batch that is not finite, at step 8 and after."""
    read, calls = TransitionSampler.sample, []

    def sample(self: TransitionSampler) -> tuple[torch.Tensor, torch.Tensor]:
        obs, actions = read(self)
        calls.append(1)
        spoiled = distributed.rank() == 1 and len(calls) >= 8
        return obs, actions * (torch.nan if spoiled else 1)

    agent = BC(preset="tiny", batch_size=16, seed=0)
    with mock.patch.object(TransitionSampler, "sample", sample):
        try:
            agent.learn(data(), 40, log_interval=5)
        except TrainingError as error:
            return {"message": str(error), "steps": agent.num_timesteps}
    return {}


def odd_batch() -> str:
    try:
        BC(preset="tiny", batch_size=15, seed=0).learn(data(), 1)
    except InvalidArgumentError as error:
        return str(error)
    return ""


def own_seeds() -> float:
    """Agents that draw their own seeds: how far apart the ranks' weights are."""
    agent = BC(preset="tiny", batch_size=16, seed=None).learn(data(), 3)
    first = agent.policy.network[0].weight.detach()
    return float((distributed.mean(first) - first).abs().max())


def main() -> None:
    folder, cases = Path(sys.argv[1]), sys.argv[2:]
    distributed.start()
    compare_weights(folder, cases)
    found = {
        "resumed": resumed(folder),
        "diverged": diverged(),
        "odd_batch": odd_batch(),
        "own_seeds": own_seeds(),
        "main": distributed.is_main(),
    }
    (folder / f"found-{distributed.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
