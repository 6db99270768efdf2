"""The algorithms, each one file on `OfflineAlgorithm`, and their registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rcdt_agent.algorithms.base import OfflineAlgorithm
from rcdt_agent.algorithms.bc import BC, BCSafe
from rcdt_agent.algorithms.bcq_lag import BCQLag
from rcdt_agent.algorithms.bear_lag import BEARLag
from rcdt_agent.algorithms.caps import CAPS
from rcdt_agent.algorithms.coptidice import COptiDICE
from rcdt_agent.algorithms.cpq import CPQ
from rcdt_agent.algorithms.files import checkpoint_path
from rcdt_agent.algorithms.fisor import FISOR
from rcdt_agent.algorithms.rcdt import RCDT
from rcdt_agent.algorithms.trac import TraC
from rcdt_agent.checkpoint import check_source, checkpoint_kind
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.hub import FILENAME, download_agent

__all__ = [
    "ALGORITHMS",
    "BC",
    "CPQ",
    "RCDT",
    "BCQLag",
    "BCSafe",
    "BEARLag",
    "COptiDICE",
    "OfflineAlgorithm",
    "CAPS",
    "FISOR",
    "TraC",
    "get_algorithm",
    "load_agent",
    "load_agent_from_hub",
]

ALGORITHMS: dict[str, type[OfflineAlgorithm[Any, Any]]] = {
    "rcdt": RCDT,
    "bc": BC,
    "bc-safe": BCSafe,
    "bcq-lag": BCQLag,
    "bear-lag": BEARLag,
    "cpq": CPQ,
    "coptidice": COptiDICE,
    "trac": TraC,
    "fisor": FISOR,
    "caps": CAPS,
}
"""Every algorithm by its name on the command line."""


def get_algorithm(name: str) -> type[OfflineAlgorithm[Any, Any]]:
    """The class of an algorithm.

    Raises:
        InvalidArgumentError: There is none of that name.
    """
    if name not in ALGORITHMS:
        raise InvalidArgumentError(f"`algorithm` must be one of {tuple(ALGORITHMS)}, got {name!r}.")
    return ALGORITHMS[name]


def load_agent(path: Any, **kwargs: Any) -> OfflineAlgorithm[Any, Any]:
    """Read an agent of whatever algorithm the file holds; arguments as `OfflineAlgorithm.load`.

    Raises:
        CheckpointError: Not a checkpoint, or of an algorithm that this version does not have.
    """
    check_source("path", path)
    kind = checkpoint_kind(checkpoint_path(path))
    for algorithm in ALGORITHMS.values():
        if algorithm.__name__ == kind:
            return algorithm.load(path, **kwargs)
    raise CheckpointError(f"{path}: holds a {kind}, which this version does not know.")


def load_agent_from_hub(
    repo_id: str,
    *,
    filename: str = FILENAME,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    **kwargs: Any,
) -> OfflineAlgorithm[Any, Any]:
    """Download an agent of whatever algorithm; arguments as `OfflineAlgorithm.from_hub`.

    Raises:
        HubError: It is not there, must not be read, or the hub cannot be reached.
        CheckpointError: Not a checkpoint, or of an algorithm that this version does not have.
    """
    path = download_agent(
        repo_id,
        filename=filename,
        revision=revision,
        token=token,
        endpoint=endpoint,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    return load_agent(path, **kwargs)
