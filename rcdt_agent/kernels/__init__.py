"""Transformer blocks as compiled programs for processors: `kernels.c`, built when installing.

Optional: without a C compiler at installation, without a BLAS in torch's library that others may
call, on other devices and for other number formats, `rcdt_agent.networks.block` does the same with
torch's operations. `RCDT_KERNELS=0` in the environment leaves them out.
"""

from __future__ import annotations

import ctypes
import math
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
from torch.autograd.function import once_differentiable

VARIABLE = "RCDT_KERNELS"
LEVELS = ("any processor", "AVX2", "AVX-512")

Words = npt.NDArray[np.int16]

_PLAIN = (Tensor, nn.Parameter)
_LANES = 16
_TILE_ROWS = 320
"""Tokens that go through a block at a time: what one layer reads and writes stays in the cache."""


class _Shape(ctypes.Structure):
    """`shape_t` of kernels.c."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in (
                "windows", "length", "width", "heads", "head", "first", "every", "asked", "tile",
                "saved_per_window", "keep", "attention_threshold", "branch_threshold",
            )
        ),
        *((name, ctypes.c_float) for name in ("attention_scale", "branch_scale", "score_scale")),
    )  # fmt: skip


class _Steps(ctypes.Structure):
    """`steps_t` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("windows", "steps", "width", "kinds")),
        ("sizes", ctypes.c_int * 4),
        ("threshold", ctypes.c_int),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True)
class _Library:
    functions: Any
    level: int
    team: tuple[Any, Any]


@lru_cache(maxsize=1)
def _library() -> _Library | None:
    """The compiled functions and torch's matrix product, if both are there."""
    spec = find_spec("rcdt_agent.kernels._compiled")
    if spec is None or spec.origin is None:
        return None
    try:
        functions = ctypes.CDLL(spec.origin)
    except OSError:
        return None
    return _Library(functions, functions.rcdt_level(), _team())


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
    library = _library() if os.environ.get(VARIABLE) != "0" else None
    return None if library is None else LEVELS[library.level]


def usable(values: Tensor, weight: Tensor) -> bool:
    """Whether the compiled programs can take these values and a weight of so many columns."""
    return (
        values.device.type == "cpu"
        and type(values) in _PLAIN  # not one that stands for values while exporting
        and values.dtype == weight.dtype == torch.float32
        and weight.shape[-1] % _LANES == 0
        and os.environ.get(VARIABLE) != "0"
        and _library() is not None
    )


class Drop(NamedTuple):
    """What dropout does: a value passes if its random word is at least so large."""

    least_word: int
    scale: float
    """What passes is multiplied by."""


_NOTHING = Drop(0, 1.0)


def _padded(n: int) -> int:
    return -(-n // _LANES) * _LANES


@dataclass(frozen=True)
class Plan:
    """One block's call: its sizes and what dropout takes.

    Attributes:
        windows: B.
        length: L, tokens of a window.
        width: D.
        n_heads: Heads.
        first: First position that is answered.
        every: Distance of the answered positions.
        attention_drop: What dropout does to weights of attention; None: nothing.
        branch_drop: What it does to values of the branches.
        most: Tokens that may go through the block at a time.
    """

    windows: int
    length: int
    width: int
    n_heads: int
    first: int
    every: int
    attention_drop: Drop | None = None
    branch_drop: Drop | None = None
    most: int = _TILE_ROWS

    @property
    def asked(self) -> int:
        """Positions of a window that are answered."""
        return len(range(self.first, self.length, self.every))

    @property
    def words(self) -> list[int]:
        """How many random words dropout needs: for attention, and for either branch."""
        branch = self.windows * self.asked * self.width
        pairs = self.windows * self.n_heads * self.asked * self.length
        return [pairs if self.attention_drop else 0, *[branch if self.branch_drop else 0] * 2]

    @property
    def tile(self) -> int:
        """Windows that go through the block at a time."""
        return min(self.windows, max(1, self.most // self.length))

    @property
    def saved_per_window(self) -> int:
        """Floats: q, mixed, x2 and the wide layer where asked; keys and values everywhere."""
        return self.width * (7 * self.asked + 2 * self.length)

    def scratch(self, workers: int = 1) -> int:
        """Floats that a tile needs beside what is saved."""
        return self._every + self._some + max(4 * self._some, workers * self.attention)

    def scratch_forward(self) -> int:
        """Floats that `forward` needs: the matrices transposed, and a tile's."""
        return 12 * self.width**2 + self.scratch()

    def scratch_backward(self) -> int:
        """Floats that `backward` needs."""
        some, every = self._some, self._every
        return 2 * some + every + max(8 * some, 2 * every + max(some, self.attention))

    def scratch_acting(self, workers: int) -> int:
        """Floats that each tile needs for `LastStates`: tokens, two activations, a block."""
        last = self.tile * self.width * (self.length + 2 * self.n_heads + 11)
        last += self.n_heads * _padded(self.length)
        block = self.tile * self.saved_per_window + self.scratch(workers)
        return 3 * self._every + self.tile * self.width + max(block, last)

    @property
    def _every(self) -> int:
        return self.tile * self.length * self.width

    @property
    def _some(self) -> int:
        return self.tile * self.asked * self.width

    @property
    def attention(self) -> int:
        """Floats of one head's attention and its gradient."""
        head, room = _padded(self.width // self.n_heads), _padded(self.length)
        asked = _padded(self.asked)
        return (2 * asked + 4 * room) * head + 3 * asked * room + _LANES * (room + head)

    def shape(self, *, keep: bool) -> _Shape:
        """As the compiled functions read it."""
        head = self.width // self.n_heads
        drops = [drop or _NOTHING for drop in (self.attention_drop, self.branch_drop)]
        return _Shape(
            self.windows, self.length, self.width, self.n_heads, head, self.first,
            self.every, self.asked, self.tile, self.saved_per_window, keep,
            *(drop.least_word for drop in drops), *(drop.scale for drop in drops), head**-0.5,
        )  # fmt: skip


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class _Scratch(threading.local):
    """Memory that a thread's calls use one after the other."""

    floats = torch.empty(0)


_own = _Scratch()


def _scratch(n: int) -> Tensor:
    """At least n floats that are this thread's until its next call."""
    if len(_own.floats) < n:
        _own.floats = torch.empty(n)
    return _own.floats


def _ready(values: Sequence[Tensor]) -> list[Tensor]:
    """As the compiled programs read them."""
    return [tensor.float().contiguous() for tensor in values]


def _turned(weights: Sequence[Tensor]) -> list[Tensor]:
    """Matrices transposed, vectors as they are."""
    return [w.t().contiguous() if w.dim() == 2 else w for w in weights]


def _zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Zeros of the same shapes, in one piece of memory."""
    sizes = [tensor.numel() for tensor in tensors]
    pieces = torch.split(tensors[0].new_zeros(sum(sizes)), sizes)
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]


def _word_pointers(words: list[Words] | None) -> Any:
    found = [part.ctypes.data if len(part) else None for part in words or []]
    return (ctypes.c_void_p * 3)(*found)


def block(plan: Plan, x: Tensor, weights: list[Tensor], words: list[Words] | None) -> Tensor:
    """The block's answer (B, asked, D), differentiable.

    Args:
        plan: Sizes.
        x: (B, L, D).
        weights: As `Block.weights`.
        words: Random words of the dropout masks, as many as the plan says; None: no dropout.
    """
    if not torch.is_grad_enabled():
        return forward(plan, x.contiguous(), weights, words, keep=False)[0]
    y: Tensor = _Compiled.apply(plan, words, x.contiguous(), *weights)  # type: ignore[no-untyped-call]
    return y


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, words: Any, x: Tensor, *weights: Tensor) -> Tensor:
        y, saved = forward(plan, x, weights, words, keep=True)
        ctx.plan, ctx.words = plan, words
        ctx.save_for_backward(x, saved, *weights)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, saved, *weights = ctx.saved_tensors
        return None, None, *backward(ctx.plan, x, weights, ctx.words, saved, grad.contiguous())


def forward(
    plan: Plan, x: Tensor, weights: Sequence[Tensor], words: list[Words] | None, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """The block's answer (B, asked, D), and what `backward` needs if `keep`."""
    library = _library()
    assert library is not None
    windows = plan.windows if keep else plan.tile
    saved = x.new_empty(windows * plan.saved_per_window)
    scratch = _scratch(plan.scratch_forward())
    y = x.new_empty(plan.windows, plan.asked, plan.width)
    library.functions.rcdt_forward(
        ctypes.c_int(library.level),
        ctypes.byref(plan.shape(keep=keep)),
        _pointers(weights),
        ctypes.c_void_p(x.data_ptr()),
        _word_pointers(words),
        ctypes.c_void_p(saved.data_ptr()),
        ctypes.c_void_p(scratch.data_ptr()),
        ctypes.c_void_p(y.data_ptr()),
    )
    return y, saved


def backward(
    plan: Plan,
    x: Tensor,
    weights: Sequence[Tensor],
    words: list[Words] | None,
    saved: Tensor,
    grad: Tensor,
) -> list[Tensor]:
    """Gradients of x and of the weights, in their order."""
    library = _library()
    assert library is not None
    scratch = _scratch(plan.scratch_backward())
    g_x = torch.empty_like(x)
    sums = _zeros_like(weights)
    library.functions.rcdt_backward(
        ctypes.c_int(library.level),
        ctypes.byref(plan.shape(keep=True)),
        _pointers(weights),
        ctypes.c_void_p(x.data_ptr()),
        _word_pointers(words),
        ctypes.c_void_p(saved.data_ptr()),
        ctypes.c_void_p(grad.data_ptr()),
        ctypes.c_void_p(scratch.data_ptr()),
        ctypes.c_void_p(g_x.data_ptr()),
        _pointers(sums),
    )
    return [g_x, *sums]


def tokens(
    inputs: list[Tensor],
    times: Tensor,
    table: Tensor,
    weights: list[Tensor],
    drop: Drop | None,
    words: list[Words] | None,
) -> Tensor:
    """(B, S T - 1, D) normalised tokens of the steps without the last, differentiable.

    Args:
        inputs: For each kind of token what it is made from, (B, T, size), S of them.
        times: (B, T) rows of the table.
        table: Embedding of times.
        weights: Weight and bias of each kind's linear layer, then of the layer norm.
        drop: What dropout does to them.
        words: Random words of its mask; None: no dropout.
    """
    times = times.long().contiguous()
    x: Tensor = _Tokens.apply(_ready(inputs), times, words, drop, table, *weights)  # type: ignore[no-untyped-call]
    return x


class _Tokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: list[Tensor],
        times: Tensor,
        words: list[Words] | None,
        drop: Drop | None,
        table: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        library = _library()
        assert library is not None
        (size_b, size_t), width, kinds = times.shape, table.shape[1], len(inputs)
        sizes = [values.shape[-1] for values in inputs]
        ctx.steps = _Steps(
            size_b, size_t, width, kinds, (ctypes.c_int * 4)(*sizes),
            *(drop or _NOTHING),
        )  # fmt: skip
        turned = _turned(weights)
        tokens = table.new_empty(size_b * size_t, kinds, width)
        x = table.new_empty(size_b, size_t * kinds - 1, width)
        library.functions.rcdt_embed(
            ctypes.c_int(library.level),
            ctypes.byref(ctx.steps),
            _pointers(inputs),
            ctypes.c_void_p(times.data_ptr()),
            _pointers(turned),
            ctypes.c_void_p(table.data_ptr()),
            ctypes.c_void_p(words[0].ctypes.data if words else None),
            ctypes.c_void_p(tokens.data_ptr()),
            ctypes.c_void_p(x.data_ptr()),
        )
        ctx.words = words
        ctx.save_for_backward(tokens, table, times, *inputs, *turned)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        library = _library()
        assert library is not None
        tokens, table, times, *rest = ctx.saved_tensors
        inputs, turned = rest[: ctx.steps.kinds], rest[ctx.steps.kinds :]
        grad = grad.contiguous()
        g_table = torch.zeros_like(table)
        sums, scratch = _zeros_like(turned), _scratch(tokens.numel())
        library.functions.rcdt_embed_backward(
            ctypes.c_int(library.level),
            ctypes.byref(ctx.steps),
            _pointers(inputs),
            ctypes.c_void_p(times.data_ptr()),
            _pointers(turned),
            ctypes.c_void_p(ctx.words[0].ctypes.data if ctx.words else None),
            ctypes.c_void_p(tokens.data_ptr()),
            ctypes.c_void_p(grad.data_ptr()),
            ctypes.c_void_p(scratch.data_ptr()),
            _pointers(sums),
            ctypes.c_void_p(g_table.data_ptr()),
        )
        return None, None, None, None, g_table, *_turned(sums)


class LastStates:
    """A policy's answer at the last state of each window, without gradient, on all cores."""

    def __init__(
        self, table: Tensor, weights: list[Tensor], *, n_kinds: int, n_layers: int, n_heads: int
    ) -> None:
        """Copy the weights in the form that is quick to read.

        Args:
            table: Embedding of times.
            weights: Of the kinds of tokens and the norm behind them as `tokens` takes them, of
                the blocks, of the last norm.
            n_kinds: Kinds of tokens, S.
            n_layers: Blocks.
            n_heads: Heads.
        """
        self._table = table
        last_key_value = weights[2 * n_kinds + 2 + 14 * (n_layers - 1) + 4]
        self._weights = [*_turned(weights), last_key_value]
        self._sizes = [weight.shape[1] for weight in weights[: 2 * n_kinds : 2]]
        self._n_layers, self._n_heads = n_layers, n_heads
        self._pointers = _pointers(self._weights)

    def __call__(self, inputs: list[Tensor], times: Tensor) -> Tensor:
        """(B, D); arguments as those of `tokens`."""
        library = _library()
        assert library is not None
        inputs, times = _ready(inputs), times.long().contiguous()
        table, threads = self._table, torch.get_num_threads()
        (size_b, size_t), width, kinds = times.shape, table.shape[1], len(inputs)
        length = size_t * kinds - 1
        most = min(_TILE_ROWS, -(-size_b // threads) * length)
        plan = Plan(size_b, length, width, self._n_heads, 0, 1, most=most)
        n_tiles = -(-size_b // plan.tile)
        if n_tiles > 1:
            threads = min(threads, n_tiles)
        steps = _Steps(size_b, size_t, width, kinds, (ctypes.c_int * 4)(*self._sizes), 0, 1.0)
        each = plan.scratch_acting(1 if n_tiles > 1 else threads)
        scratch = _scratch(min(n_tiles, threads) * each)
        out = table.new_empty(size_b, width)
        library.functions.rcdt_last_states(
            ctypes.c_int(library.level),
            ctypes.byref(steps),
            ctypes.byref(plan.shape(keep=False)),
            ctypes.c_int(self._n_layers),
            _pointers(inputs),
            ctypes.c_void_p(times.data_ptr()),
            self._pointers,
            ctypes.c_void_p(table.data_ptr()),
            ctypes.c_void_p(scratch.data_ptr()),
            ctypes.c_size_t(each),
            ctypes.c_int(plan.attention),
            *library.team,
            ctypes.c_int(threads),
            ctypes.c_void_p(out.data_ptr()),
        )
        return out


def runs(
    arrays: Sequence[npt.NDArray[Any]],
    rows: Sequence[int],
    first: npt.NDArray[np.int64],
    there: npt.NDArray[np.int64],
) -> list[npt.NDArray[Any]] | None:
    """Runs of consecutive rows of several arrays; None without the compiled part.

    Args:
        arrays: (N, ...) each, contiguous.
        rows: Length of a run in each of them.
        first: (B,) where the runs begin.
        there: (B,) how many rows of a run exist; the rest is zero.

    Returns:
        (B, rows, ...) of each.
    """
    if instruction_set() is None:
        return None
    library = _library()
    assert library is not None
    found = [
        np.empty((len(first), n, *array.shape[1:]), dtype=array.dtype)
        for array, n in zip(arrays, rows, strict=True)
    ]
    row_bytes = [array.itemsize * math.prod(array.shape[1:]) for array in arrays]
    count = len(arrays)
    library.functions.rcdt_runs(
        ctypes.c_int(count),
        (ctypes.c_void_p * count)(*[array.ctypes.data for array in arrays]),
        (ctypes.c_int64 * count)(*row_bytes),
        (ctypes.c_int64 * count)(*rows),
        ctypes.c_int64(len(first)),
        ctypes.c_void_p(first.ctypes.data),
        ctypes.c_void_p(there.ctypes.data),
        (ctypes.c_void_p * count)(*[array.ctypes.data for array in found]),
    )
    return found
