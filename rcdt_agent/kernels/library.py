"""The library that was compiled at installation, and memory as it wants it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

VARIABLE = "RCDT_KERNELS"
LEVELS = ("any processor", "AVX2", "AVX-512")
LANES = 16

Words = npt.NDArray[np.int16]

_PLAIN = (Tensor, nn.Parameter)


@dataclass(frozen=True)
class Library:
    """The compiled functions, the best instruction set here, and OpenMP's entries."""

    functions: Any
    level: int
    team: tuple[Any, Any]


@lru_cache(maxsize=1)
def library() -> Library | None:
    """The compiled functions, if they were built."""
    spec = find_spec("rcdt_agent.kernels._compiled")
    if spec is None or spec.origin is None:
        return None
    try:
        functions = ctypes.CDLL(spec.origin)
    except OSError:
        return None
    return Library(functions, functions.rcdt_level(), _team())


def _team() -> tuple[Any, Any]:
    """OpenMP's entries in the library that torch uses: to call a team, and its size; or Nones."""
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        entries = (found.GOMP_parallel, found.omp_get_num_threads)
        return tuple(ctypes.cast(entry, ctypes.c_void_p) for entry in entries)  # type: ignore[return-value]
    except (OSError, AttributeError):
        return None, None


def instruction_set() -> str | None:
    """What the compiled blocks use here; None if there are none."""
    found = library() if os.environ.get(VARIABLE) != "0" else None
    return None if found is None else LEVELS[found.level]


def usable(values: Tensor, weight: Tensor) -> bool:
    """Whether the compiled programs can take these values and a weight of so many columns."""
    return (
        values.device.type == weight.device.type == "cpu"
        and type(values) in _PLAIN  # not one that stands for values while exporting
        and values.dtype == weight.dtype == torch.float32
        and weight.shape[-1] % LANES == 0
        and os.environ.get(VARIABLE) != "0"
        and library() is not None
    )


def loaded() -> Library:
    """The library where `usable` said that there is one."""
    found = library()
    assert found is not None
    return found


class Drop(NamedTuple):
    """What dropout does: a value passes if its random word is at least so large."""

    least_word: int
    scale: float
    """What passes is multiplied by."""


NOTHING = Drop(0, 1.0)


def pointers(tensors: Sequence[Tensor]) -> Any:
    """Where the tensors are, which must be contiguous and outlive the call."""
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class _Scratch(threading.local):
    """Memory that a thread's calls use one after the other."""

    floats = torch.empty(0, dtype=torch.float32, device="cpu")


_own = _Scratch()


def scratch(n: int) -> Tensor:
    """At least n floats that are this thread's until its next call."""
    if len(_own.floats) < n:
        _own.floats = torch.empty(n, dtype=torch.float32, device="cpu")
    return _own.floats


def ready(
    inputs: Sequence[Tensor], sizes: Sequence[int], times: Tensor, n_times: int
) -> tuple[list[Tensor], Tensor]:
    """Inputs (B, T, size) and rows of times (B, T) as the compiled programs read them.

    Raises:
        ValueError: Sizes differ, or a row is not in the table: it would be read all the same.
    """
    for values, size in zip(inputs, sizes, strict=True):
        if values.shape != (*times.shape, size):
            raise ValueError(f"expected {(*times.shape, size)}, got {tuple(values.shape)}")
    times = times.long().contiguous()
    place, count = ctypes.c_void_p(times.data_ptr()), ctypes.c_int64(times.numel())
    if not loaded().functions.rcdt_within(place, count, ctypes.c_int64(n_times)):
        raise ValueError(f"timesteps must be from 0 to {n_times - 1}")
    return [values.float().contiguous() for values in inputs], times


def turned(weights: Sequence[Tensor]) -> list[Tensor]:
    """Copies: matrices transposed, vectors as they are."""
    return [w.t().clone(memory_format=torch.contiguous_format) for w in weights]


def zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Zeros of the same shapes, in one piece of memory."""
    sizes = [tensor.numel() for tensor in tensors]
    pieces = torch.split(tensors[0].new_zeros(sum(sizes)), sizes)
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]
