"""A transformer block: forward and backward pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcdt_agent.kernels.library import (
    LANES,
    NOTHING,
    Drop,
    Words,
    loaded,
    pointers,
    scratch,
    zeros_like,
)

TILE_ROWS = 160
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


def _padded(n: int) -> int:
    return -(-n // LANES) * LANES


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
    most: int = TILE_ROWS

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

    @property
    def attention(self) -> int:
        """Floats of one head's attention."""
        head, room = _padded(self.width // self.n_heads), _padded(self.length)
        return (self.asked + LANES + 3 * room) * head + LANES * room

    def scratch_forward(self) -> int:
        """Floats that `forward` needs: the matrices transposed, and a tile's."""
        return 12 * self.width**2 + self.scratch()

    def scratch_backward(self) -> int:
        """Floats that `backward` needs."""
        some, every = self._some, self._every
        return 2 * some + every + max(8 * some, 2 * every + max(some, self._attention_backward))

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
    def _attention_backward(self) -> int:
        """Floats of one head's attention and its gradient."""
        head, room = _padded(self.width // self.n_heads), _padded(self.length)
        asked = _padded(self.asked)
        return (2 * asked + 4 * room) * head + 3 * asked * room + LANES * (room + head)

    def shape(self, *, keep: bool) -> _Shape:
        """As the compiled functions read it."""
        head = self.width // self.n_heads
        drops = [drop or NOTHING for drop in (self.attention_drop, self.branch_drop)]
        return _Shape(
            self.windows, self.length, self.width, self.n_heads, head, self.first,
            self.every, self.asked, self.tile, self.saved_per_window, keep,
            *(drop.least_word for drop in drops), *(drop.scale for drop in drops), head**-0.5,
        )  # fmt: skip


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
    if x.shape != (plan.windows, plan.length, weights[2].shape[1]):
        raise ValueError(f"expected {weights[2].shape[1]} values a token, got {tuple(x.shape)}")
    weights = [weight.contiguous() for weight in weights]
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
    compiled = loaded()
    windows = plan.windows if keep else plan.tile
    saved = x.new_empty(windows * plan.saved_per_window)
    room = scratch(plan.scratch_forward())
    y = x.new_empty(plan.windows, plan.asked, plan.width)
    compiled.functions.rcdt_forward(
        ctypes.c_int(compiled.level),
        ctypes.byref(plan.shape(keep=keep)),
        pointers(weights),
        ctypes.c_void_p(x.data_ptr()),
        _word_pointers(words),
        ctypes.c_void_p(saved.data_ptr()),
        ctypes.c_void_p(room.data_ptr()),
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
    compiled = loaded()
    room = scratch(plan.scratch_backward())
    g_x = torch.empty_like(x)
    sums = zeros_like(weights)
    compiled.functions.rcdt_backward(
        ctypes.c_int(compiled.level),
        ctypes.byref(plan.shape(keep=True)),
        pointers(weights),
        ctypes.c_void_p(x.data_ptr()),
        _word_pointers(words),
        ctypes.c_void_p(saved.data_ptr()),
        ctypes.c_void_p(grad.data_ptr()),
        ctypes.c_void_p(room.data_ptr()),
        ctypes.c_void_p(g_x.data_ptr()),
        pointers(sums),
    )
    return [g_x, *sums]
