"""Many runs on a Ray cluster: one task a run, files as results, whatever dies is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rcdt_agent import distributed
from rcdt_agent.errors import InvalidArgumentError

RETRIES = 3
"""How often a task is started again after its worker or node was lost."""
OBJECT_STORE = 100 * 2**20
"""Bytes of a local cluster's object store, the least that Ray takes: results are files."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster, and what one run needs of it.

    Its machines share the folder of the results, by the same path.

    Attributes:
        address: As `ray.init` takes it: `local` starts a cluster on this machine, `auto` finds the
            one that `ray start` made, HOST:PORT names one.
        cpus: Cores of one run, which is also its number of threads.
        gpus: GPUs of one run; a fraction shares one.
    """

    address: str = "local"
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no run could be given."""
        for name in ("cpus", "gpus"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"`{name}` must be >= 0, got {getattr(self, name)}.")

    def run(
        self, function: Callable[..., Result], items: Sequence[Item], *arguments: Any
    ) -> Iterator[tuple[Item, Result | Exception]]:
        """Call `function(item, *arguments)` for each item somewhere in the cluster.

        Yields:
            Each item with what came out, in order of their ends: the result, or the error of Ray
            if the task could not be completed in `RETRIES` more attempts.

        Raises:
            InvalidArgumentError: Ray is not installed, or there is no such cluster.
        """
        ray = import_ray()
        self._connect(ray)
        try:
            task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)(function)
            pending = {task.remote(item, *arguments): item for item in items}
            while pending:
                (ready, *_), _ = ray.wait(list(pending), num_returns=1)
                item = pending.pop(ready)
                try:
                    yield item, ray.get(ready)
                except ray.exceptions.RayError as error:
                    yield item, error
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"address": self.address, "log_to_driver": False}
        if self.address == "local":
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"`ray` must be the address of a cluster that runs, got {self.address!r} "
                f"({str(error).strip().splitlines()[0]})."
            ) from error


def import_ray() -> Any:
    """Ray, if it is installed.

    Raises:
        InvalidArgumentError: The extra is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise InvalidArgumentError(
            "`ray` needs the extra: `pip install rcdt_agent[ray]`. Without it, `--workers` uses "
            "the cores of this machine."
        ) from error
    return ray


def use_threads(cpus: float) -> None:
    """As many threads as cores were asked for, at least one."""
    import torch

    torch.set_num_threads(max(1, int(cpus)))


def refuse_torchrun(what: str, instead: str) -> None:
    """Refuse to be started by `torchrun`, for what is many trainings.

    Raises:
        InvalidArgumentError: Names what to use `instead`.
    """
    if distributed.requested():
        raise InvalidArgumentError(
            f"{what} is many trainings, not one in several processes: start it without torchrun, "
            f"with {instead}."
        )
