"""The tokens of a window: embeddings, norm and dropout."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcdt_agent.kernels.library import (
    NOTHING,
    Drop,
    Words,
    loaded,
    pointers,
    ready,
    scratch,
    turned,
    zeros_like,
)


class Steps(ctypes.Structure):
    """`steps_t` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("windows", "steps", "width", "kinds")),
        ("sizes", ctypes.c_int * 4),
        ("threshold", ctypes.c_int),
        ("scale", ctypes.c_float),
    )


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
    sizes = [weight.shape[1] for weight in weights[: 2 * len(inputs) : 2]]
    inputs, times = ready(inputs, sizes, times, len(table))
    table = table.contiguous()
    x: Tensor = _Tokens.apply(inputs, times, words, drop, table, *weights)  # type: ignore[no-untyped-call]
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
        compiled = loaded()
        (size_b, size_t), width, kinds = times.shape, table.shape[1], len(inputs)
        sizes = [values.shape[-1] for values in inputs]
        ctx.steps = Steps(
            size_b, size_t, width, kinds, (ctypes.c_int * 4)(*sizes),
            *(drop or NOTHING),
        )  # fmt: skip
        matrices = turned(weights)
        tokens = table.new_empty(size_b * size_t, kinds, width)
        x = table.new_empty(size_b, size_t * kinds - 1, width)
        compiled.functions.rcdt_embed(
            ctypes.c_int(compiled.level),
            ctypes.byref(ctx.steps),
            pointers(inputs),
            ctypes.c_void_p(times.data_ptr()),
            pointers(matrices),
            ctypes.c_void_p(table.data_ptr()),
            ctypes.c_void_p(words[0].ctypes.data if words else None),
            ctypes.c_void_p(tokens.data_ptr()),
            ctypes.c_void_p(x.data_ptr()),
        )
        ctx.words = words
        ctx.save_for_backward(tokens, table, times, *inputs, *matrices)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        compiled = loaded()
        tokens, table, times, *rest = ctx.saved_tensors
        inputs, matrices = rest[: ctx.steps.kinds], rest[ctx.steps.kinds :]
        grad = grad.contiguous()
        g_table = torch.zeros_like(table)
        sums, room = zeros_like(matrices), scratch(tokens.numel())
        compiled.functions.rcdt_embed_backward(
            ctypes.c_int(compiled.level),
            ctypes.byref(ctx.steps),
            pointers(inputs),
            ctypes.c_void_p(times.data_ptr()),
            pointers(matrices),
            ctypes.c_void_p(ctx.words[0].ctypes.data if ctx.words else None),
            ctypes.c_void_p(tokens.data_ptr()),
            ctypes.c_void_p(grad.data_ptr()),
            ctypes.c_void_p(room.data_ptr()),
            pointers(sums),
            ctypes.c_void_p(g_table.data_ptr()),
        )
        return None, None, None, None, g_table, *turned(sums)
