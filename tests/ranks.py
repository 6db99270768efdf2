"""Run by `torchrun` in `test_distributed.py`: trains on every rank and writes what came out.

torchrun --nproc-per-node 2 tests/ranks.py FOLDER MODE CASE ...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from conftest import small_settings
from safetensors.torch import save_file

from rcdt_agent import TrajectoryDataset, distributed
from rcdt_agent.algorithms import get_algorithm
from rcdt_agent.model import Gaussian
from rcdt_agent.tasks.speed_limit import record_drivers

STEPS = {"natural": 50, "around": 50, "shared": 20}
"""By mode: each rank draws for itself; losses go around the wrapped module; one process's draws."""
GLOBAL_BATCH = 26
"""No other axis has this size, nor half of it: draws of it are recognised as a batch's."""


def settings_of(case: str) -> dict[str, Any]:
    """Everything that acts, but dropout: ranks draw it apart."""
    name, *micro_batches = case.split("+")
    settings = small_settings(name) | {"batch_size": GLOBAL_BATCH}
    more: dict[str, dict[str, Any]] = {
        "rcdt": {"dropout": 0.0, "attention_dropout": 0.0, "variant": "rcdt", "critic_start": 0.2},
        "trac": {"dropout": 0.0},
        "fisor": {"dropout": 0.0, "actor_updates": 1, "critic_batch_size": 14},
        "cpq": {"imitation_steps": 10},
    }
    return settings | more.get(name, {}) | ({"micro_batch_size": 5} if micro_batches else {})


def share_draws() -> None:
    """Draw the global batch's numbers on every rank and keep each second: as one process draws."""
    n, local = distributed.world_size(), GLOBAL_BATCH // distributed.world_size()

    def shared(draw: Any, size_at: int) -> Any:
        def drawn(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("generator") is None or local not in args[size_at]:
                return draw(*args, **kwargs)
            size = list(args[size_at])
            axis = size.index(local)
            size[axis] *= n
            values = draw(*args[:size_at], tuple(size), *args[size_at + 1 :], **kwargs)
            return values.index_select(axis, torch.arange(distributed.rank(), size[axis], n))

        return drawn

    torch.rand, torch.randn = shared(torch.rand, 0), shared(torch.randn, 0)
    torch.randint = shared(torch.randint, 1)
    distributed.seed_step = lambda *_: None  # the generators go on, as in one process


def weights(agent: Any) -> dict[str, torch.Tensor]:
    """Weights and buffers of all networks."""
    return {
        f"{name}.{key}": value.clone().contiguous()
        for name, module in agent.named_modules().items()
        for key, value in module.state_dict().items()
    }


def train(case: str, steps: int) -> Any:
    data = TrajectoryDataset.from_arrays(**record_drivers(50, seed=1), name="drivers")
    agent = get_algorithm(case.split("+")[0])(**settings_of(case))
    # Noise of micro-batches is drawn by their sizes, which are not those of one process.
    noise = {"side_effect": (lambda actions, _: torch.zeros_like(actions))} if "+" in case else {}
    with mock.patch.object(Gaussian, "draw_noise", wraps=Gaussian.draw_noise, **noise):
        return agent.learn(data, steps, log_interval=steps)


def main() -> None:
    folder, mode, cases = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    distributed.start()
    if mode == "shared":
        share_draws()
    if mode == "around":  # as through `.module`
        distributed.Replicas.through = lambda _self, _name, _optimizer, loss: loss  # type: ignore
    for case in cases:
        agent = train(case, STEPS[mode])
        save_file(weights(agent), folder / f"{mode}-{case}-{distributed.rank()}.safetensors")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
