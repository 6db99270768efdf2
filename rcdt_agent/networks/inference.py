"""The policy laid out for acting: the last state's answer with few, large operations.

One small window is mostly overhead: of Python, of modules and of kernels. Here all layers are one
program: a compiled one on processors (`kernels`), else one of torch's operations on weights that
are joined once (all token embeddings into one matrix, queries, keys and values into another).
`tests/test_networks.py` and `tests/test_kernels.py` hold them to the policy's own features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rcdt_agent import kernels as compiled
from rcdt_agent.networks.block import Block
from rcdt_agent.networks.scripting import script

if TYPE_CHECKING:
    from rcdt_agent.networks.transformer import PolicyTransformer

_TOGETHER = 8
"""Windows that go through the layers at a time on a processor, so that its cache holds them."""

Answer = Callable[[list[Tensor], Tensor], Tensor]
"""From the inputs of each kind of token, (B, T, size), and rows of times, (B, T), to (B, D)."""


class LastState:
    """A copy of a policy's weights, for one answer a window."""

    def __init__(self, policy: PolicyTransformer) -> None:
        """Join the weights; a policy that changes later needs a new one."""
        self._cost_token = policy.cost_token
        # Where each module keeps its parameters: those of the moment are found there.
        self._owners = [m._parameters for m in policy.modules() if m._parameters]
        self._versions = self._read_versions()
        self._rows_of_times = policy.rows_of_times
        table = policy.embed_time.weight
        with torch.inference_mode(False), torch.no_grad():
            self._answer = _compiled(policy) if compiled.usable(table, table) else _joined(policy)

    def is_current(self) -> bool:
        """Whether the policy's weights are still those that were joined."""
        return self._versions == self._read_versions()

    def _read_versions(self) -> list[Any]:
        # Changed in place, it has another version; moved or replaced, it is somewhere else.
        found: list[Any] = list(chain.from_iterable(map(dict.values, self._owners)))
        return [*map(Tensor.data_ptr, found), *[p._version for p in found]]

    def __call__(
        self, obs: Tensor, actions: Tensor, rtg: Tensor, ctg: Tensor, timesteps: Tensor
    ) -> Tensor:
        """(B, D) what the last state token knows; arguments as the policy's `forward`."""
        inputs = [rtg[..., None], ctg[..., None], obs, actions]
        if not self._cost_token:
            del inputs[1]
        return self._answer(inputs, self._rows_of_times(timesteps))


def _compiled(policy: PolicyTransformer) -> Answer:
    """By the compiled program."""
    layers, blocks = policy.token_layers(), policy.full_blocks()
    first = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    first += [policy.norm_in.weight, policy.norm_in.bias]
    body = [tensor for block in blocks for tensor in block.weights()]
    return compiled.LastStates(
        policy.embed_time.weight,
        [*first, *body, policy.norm_out.weight, policy.norm_out.bias],
        n_kinds=len(layers),
        n_layers=len(blocks),
        n_heads=blocks[0].n_heads,
    )


def _joined(policy: PolicyTransformer) -> Answer:
    """By torch's operations on joined weights."""
    layers, blocks = policy.token_layers(), policy.full_blocks()
    ends = [
        torch.block_diag(*(layer.weight for layer in layers)).contiguous(),  # type: ignore[no-untyped-call]
        torch.cat([layer.bias for layer in layers]),
        policy.embed_time.weight, policy.norm_in.weight, policy.norm_in.bias,
        policy.norm_out.weight, policy.norm_out.bias,
    ]  # fmt: skip
    body = [tensor for block in blocks[:-1] for tensor in _full(block)]
    final, n_heads = _final(blocks[-1]), blocks[0].n_heads

    def answer(inputs: list[Tensor], times: Tensor) -> Tensor:
        joined = torch.cat(inputs, dim=-1)
        size = _TOGETHER if joined.device.type == "cpu" and len(times) >= 2 * _TOGETHER else None
        parts = (torch.split(values, size or len(values)) for values in (joined, times))
        found = [_last_state(x, t, ends, body, final, n_heads) for x, t in zip(*parts, strict=True)]
        return found[0] if size is None else torch.cat(found)

    return answer


def _shared(block: Block) -> list[Tensor]:
    """What both kinds of block end with: the output of attention and the MLP."""
    parts = (block.norm_attention, block.out, block.norm_mlp, block.widen, block.narrow)
    return [tensor for part in parts for tensor in (part.weight, part.bias)]


def _full(block: Block) -> list[Tensor]:
    """The twelve tensors of a block that answers everywhere."""
    qkv = torch.cat((block.query.weight, block.key_value.weight))
    return [*_shared(block), qkv, torch.cat((block.query.bias, block.key_value.bias))]


def _final(block: Block) -> list[Tensor]:
    """The tensors of a block that answers at the last position alone.

    One query needs no keys and values of its own: q . (W n) = (W^T q) . n, and a mean of W n is W
    of the mean. A bias of the keys shifts all scores alike, so it drops out.
    """
    width = block.query.in_features
    head = width // block.n_heads
    keys, values = block.key_value.weight.view(2, block.n_heads, head, width)
    return [
        *_shared(block), block.query.weight * head**-0.5, block.query.bias * head**-0.5,
        keys.contiguous(), values.transpose(1, 2).contiguous(),
        block.key_value.bias[width:].clone(),
    ]  # fmt: skip


@script
def _finish(x: Tensor, mixed: Tensor, w: list[Tensor]) -> Tensor:
    """Residual, then the MLP; both (rows, D)."""
    x = F.linear(mixed, w[2], w[3]).add_(x)
    wide = F.linear(torch.layer_norm(x, [x.shape[1]], w[4], w[5]), w[6], w[7])
    return F.linear(F.gelu(wide), w[8], w[9]).add_(x)


@script
def _last_state(
    inputs: Tensor,
    times: Tensor,
    ends: list[Tensor],
    body: list[Tensor],
    final: list[Tensor],
    n_heads: int,
) -> Tensor:
    """(B, T, I) and (B, T) -> (B, D); the weights as `LastState` joins them."""
    embed, embed_bias, table, w_in, b_in, w_out, b_out = ends
    size_b, size_t = times.shape
    width = table.shape[1]
    x = F.linear(inputs, embed, embed_bias).view(size_b, size_t, -1, width)
    x = x + F.embedding(times, table).unsqueeze(2)
    # The last action token comes after the last state and cannot matter.
    x = torch.layer_norm(x.view(size_b, -1, width)[:, :-1], [width], w_in, b_in)
    length = x.shape[1]
    rows = x.reshape(-1, width)
    head = width // n_heads
    unseen = torch.full([1, length, length], -math.inf, dtype=x.dtype, device=x.device).triu_(1)
    for i in range(len(body) // 12):
        w = body[12 * i : 12 * i + 12]
        qkv = F.linear(torch.layer_norm(rows, [width], w[0], w[1]), w[10], w[11])
        # (B, L, 3, h, d) -> three of (B h, L, d)
        qkv = qkv.view(size_b, length, 3, n_heads, head).permute(2, 0, 3, 1, 4).contiguous()
        q, k, v = qkv.view(3, -1, length, head).unbind(0)
        p = torch.softmax(torch.baddbmm(unseen, q, k.transpose(1, 2), alpha=head**-0.5), -1)
        mixed = torch.bmm(p, v).view(size_b, n_heads, length, head).transpose(1, 2)
        rows = _finish(rows, mixed.reshape(-1, width), w)
    normed = torch.layer_norm(rows, [width], final[0], final[1]).view(size_b, length, width)
    last = F.linear(normed[:, -1], final[10], final[11])
    asked = torch.bmm(last.view(size_b, n_heads, -1).transpose(0, 1), final[12])
    p = torch.softmax(torch.bmm(asked.transpose(0, 1), normed.transpose(1, 2)), -1)
    seen = torch.bmm(p, normed).transpose(0, 1)  # (h, B, D)
    mixed = torch.bmm(seen, final[13]).transpose(0, 1).reshape(size_b, width).add_(final[14])
    last = _finish(rows.view(size_b, length, width)[:, -1], mixed, final)
    return torch.layer_norm(last, [width], w_out, b_out)
