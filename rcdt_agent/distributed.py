"""Training in several processes: `torchrun` starts them, DistributedDataParallel joins them.

With one process everything here does nothing. With several, each rank holds all networks and draws
its share of the global batch. A loss goes through the forward of a wrapped module (`Replicas`), so
that gradients are averaged over ranks; sums and means over the batch that are no plain mean of a
loss (lambda's cost estimate, a quantile, a softmax) are reduced by the functions below.

Convention of `total` and `gather_rows`: their values are those of the global batch, and gradients
of this rank's part are multiplied by the world size, because DistributedDataParallel averages.
"""

from __future__ import annotations

import atexit
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from rcdt_agent.errors import InvalidArgumentError, LostProcessError, RCDTError, TrainingError

TIMEOUT = timedelta(hours=1)
"""How long ranks wait for each other: rank 0 may evaluate meanwhile."""

_LOST = ("gloo", "nccl", "connection", "peer", "broken pipe", "socket")  # in messages of a backend


def start() -> None:
    """Join the process group that `torchrun` describes in the environment, if it does.

    Tensors on GPUs go through NCCL, those on the CPU through Gloo.
    """
    if dist.is_available() and not dist.is_initialized() and requested():
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(local_device("cuda"))
        # After a restart torchrun's store still holds the addresses of the processes before it.
        store, number, size = next(rendezvous("env://", timeout=TIMEOUT))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=PrefixStore(f"rcdt_agent/{attempt}", store),
            rank=number,
            world_size=size,
            timeout=TIMEOUT,
        )
        atexit.register(stop)


def stop() -> None:
    """Leave the process group."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def requested() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarted() -> bool:
    """Whether `torchrun --max-restarts` started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launcher() -> str:
    """What starts a command like this one: `rcdt`, or `torchrun` with as many processes."""
    if not requested():
        return "rcdt"
    nodes, local = (os.environ.get(f"{name}_WORLD_SIZE", "1") for name in ("GROUP", "LOCAL"))
    several = f" --nnodes {nodes}" if nodes != "1" else ""
    return f"torchrun{several} --nproc-per-node {local} -m rcdt_agent"


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this process logs, evaluates and saves: rank 0."""
    return rank() == 0


def local_device(name: str) -> str:
    """`cuda` as the GPU of this process, one each; other names as they are."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" and requested() else name


def local_size(size: int, name: str = "batch_size") -> int:
    """This rank's share of a global batch.

    Raises:
        InvalidArgumentError: It cannot be divided evenly.
    """
    if size % world_size():
        raise InvalidArgumentError(
            f"`{name}` is global: it must be a multiple of the {world_size()} processes, got "
            f"{size}."
        )
    return size // world_size()


# ------------------------------------------------------------ reductions


def total(values: Tensor) -> Tensor:
    """The sum over ranks; see the module's docstring for its gradient."""
    if world_size() == 1:
        return values
    reduced = values.detach().clone()
    dist.all_reduce(reduced)
    return reduced + world_size() * (values - values.detach()) if values.requires_grad else reduced


def mean(values: Tensor) -> Tensor:
    """The mean over ranks, without gradient."""
    return values.detach() if world_size() == 1 else total(values.detach()) / world_size()


def gather_rows(values: Tensor) -> Tensor:
    """(B, ...) of every rank as (world size * B, ...); see the module's docstring."""
    if world_size() == 1:
        return values
    parts = [torch.empty_like(values) for _ in range(world_size())]
    dist.all_gather(parts, values.detach().contiguous())
    if values.requires_grad:
        parts[rank()] = values.detach() + world_size() * (values - values.detach())
    return torch.cat(parts)


def own_rows(values: Tensor) -> Tensor:
    """This rank's part of what `gather_rows` gave."""
    return values.chunk(world_size())[rank()]


def step_share(mask: Tensor) -> Tensor | float:
    """What to multiply a mean over `mask` by, so that the mean over ranks is the global one."""
    if world_size() == 1:
        return 1.0
    n_steps = mask.sum()
    return n_steps * world_size() / total(n_steps).clamp(min=1)


def any_rank(flag: bool) -> bool:
    """Whether it holds on any rank."""
    if world_size() == 1:
        return flag
    found = torch.tensor(int(flag))  # on the CPU, through Gloo: no GPU waits for it
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def from_main(values: Tensor) -> Tensor:
    """Rank 0's values on every rank, in place."""
    if world_size() > 1:
        dist.broadcast(values, 0)
    return values


def barrier() -> None:
    """Wait for all ranks.

    Raises:
        LostProcessError: One of them is gone.
    """
    with lost_process_named("while waiting for the others"):
        any_rank(False)


# ------------------------------------------------------------ replicas


class _Loss(nn.Module):
    """Holds the parameters of an optimiser; a loss of theirs passes through its forward."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self, loss: Tensor) -> Tensor:
        return loss.clone()


class Replicas:
    """The wrapped modules of an agent, one for each optimiser; made when first needed.

    The forward of DistributedDataParallel arms the hooks that average gradients in the backward
    pass. A loss that goes around it, as one computed through `.module` does, trains each replica
    on its own share of the data, and nothing says so.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._wrapped: dict[str, DistributedDataParallel] = {}

    def through(self, name: str, optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
        """The loss, whose backward pass averages the optimiser's gradients over ranks."""
        if world_size() == 1:
            return loss
        if name not in self._wrapped:
            held = _Loss(p for group in optimizer.param_groups for p in group["params"])
            self._wrapped[name] = DistributedDataParallel(
                held,
                find_unused_parameters=not set(held.parameters()) <= _leaves(loss),
                init_sync=False,  # `share_state` did it, before this graph was built
            )
        wrapped: Tensor = self._wrapped[name](loss)
        return wrapped


def _leaves(loss: Tensor) -> set[Tensor]:
    """The leaves of a loss's autograd graph."""
    nodes, seen, leaves = [loss.grad_fn], set(), set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        nodes += [following for following, _ in node.next_functions]
    return leaves


def share_state(modules: Mapping[str, nn.Module]) -> None:
    """Give every rank rank 0's weights and buffers."""
    for module in modules.values():
        for values in module.state_dict().values():
            from_main(values)


def check_agreement(**numbers: int) -> None:
    """Refuse ranks that do not train the same thing.

    Raises:
        TrainingError: Names what differs.
    """
    for name, number in numbers.items():
        theirs = int(from_main(torch.tensor(number)))
        if any_rank(theirs != number):
            raise TrainingError(
                f"Rank {rank()} has {name}={number}, rank 0 has {theirs}: start all processes with "
                f"the same command."
            )


def seed_step(seed: int, step: int, generators: Iterable[torch.Generator]) -> None:
    """With several ranks: seed a step's random numbers by seed, rank and step.

    A checkpoint of rank 0 then tells what every rank draws next. Torch's global generator, which
    dropout draws from, is seeded as well.
    """
    if world_size() == 1:
        return
    drawing = list(generators)
    seeds = np.random.SeedSequence([seed, rank(), step]).generate_state(len(drawing) + 1).tolist()
    torch.manual_seed(seeds[-1])
    for generator, number in zip(drawing, seeds[:-1], strict=True):
        generator.manual_seed(number)


@contextmanager
def lost_process_named(where: str | Callable[[], str]) -> Iterator[None]:
    """Turn the error of a collective operation into words: another rank is gone.

    Args:
        where: What this rank was doing.

    Raises:
        LostProcessError: Instead of the backend's error; others pass.
    """
    try:
        yield
    except RuntimeError as error:
        is_lost = isinstance(error, dist.DistError) or any(w in str(error).lower() for w in _LOST)
        if world_size() == 1 or isinstance(error, RCDTError) or not is_lost:
            raise
        doing = where if isinstance(where, str) else where()
        raise LostProcessError(
            f"Rank {rank()} of {world_size()} stopped {doing}: another process of this training "
            f"has ended or cannot be reached ({textwrap.shorten(str(error), 120)})."
        ) from error
