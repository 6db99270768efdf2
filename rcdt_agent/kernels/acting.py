"""A whole policy for acting."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from rcdt_agent.kernels.block import TILE_ROWS, Plan
from rcdt_agent.kernels.library import loaded, pointers, ready, scratch, turned
from rcdt_agent.kernels.tokens import Steps


@dataclass(frozen=True)
class _Call:
    """Sizes of one call; memory in floats."""

    steps: Steps
    shape: ctypes.Structure
    threads: int
    room: int
    room_each: int
    room_of_attention: int


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
        self._table = table.detach().clone(memory_format=torch.contiguous_format)
        last_key_value = weights[:-2][-14:][4]  # of the last block, before the last norm
        self._weights = [
            *turned(weights),
            last_key_value.clone(memory_format=torch.contiguous_format),
        ]
        self._sizes = [weight.shape[1] for weight in weights[: 2 * n_kinds : 2]]
        self._n_layers, self._n_heads = n_layers, n_heads
        self._pointers = pointers(self._weights)
        self._calls: dict[tuple[int, int, int], _Call] = {}

    def __call__(self, inputs: list[Tensor], times: Tensor) -> Tensor:
        """(B, D); arguments as those of `tokens`."""
        compiled = loaded()
        inputs, times = ready(inputs, self._sizes, times, len(self._table))
        table, threads = self._table, torch.get_num_threads()
        (size_b, size_t), width = times.shape, table.shape[1]
        if size_b == 0:
            return table.new_empty(0, width)
        call = self._call(size_b, size_t, threads)
        room = scratch(call.room)
        out = table.new_empty(size_b, width)
        compiled.functions.rcdt_last_states(
            ctypes.c_int(compiled.level),
            ctypes.byref(call.steps),
            ctypes.byref(call.shape),
            ctypes.c_int(self._n_layers),
            pointers(inputs),
            ctypes.c_void_p(times.data_ptr()),
            self._pointers,
            ctypes.c_void_p(table.data_ptr()),
            ctypes.c_void_p(room.data_ptr()),
            ctypes.c_size_t(call.room_each),
            ctypes.c_int(call.room_of_attention),
            *compiled.team,
            ctypes.c_int(call.threads),
            ctypes.c_void_p(out.data_ptr()),
        )
        return out

    def _call(self, size_b: int, size_t: int, threads: int) -> _Call:
        """How so many windows of so many steps are shared out; noted, since they come again."""
        key = (size_b, size_t, threads)
        if key not in self._calls:
            kinds, width = len(self._sizes), self._table.shape[1]
            length = size_t * kinds - 1
            most = min(TILE_ROWS, -(-size_b // threads) * length)
            plan = Plan(size_b, length, width, self._n_heads, 0, 1, most=most)
            n_tiles = -(-size_b // plan.tile)
            if n_tiles > 1:
                threads = min(threads, n_tiles)
            each = plan.scratch_acting(1 if n_tiles > 1 else threads)
            sizes = (ctypes.c_int * 4)(*self._sizes)
            self._calls[key] = _Call(
                Steps(size_b, size_t, width, kinds, sizes, 0, 1.0),
                plan.shape(keep=False),
                threads,
                min(n_tiles, threads) * each,
                each,
                plan.attention,
            )
        return self._calls[key]
