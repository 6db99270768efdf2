"""A transformer block as one differentiable function, its backward pass written by hand.

Automatic differentiation of the same block makes many more passes over memory and, on CPUs, runs
attention with dropout on its slowest path. `tests/test_networks.py` holds the plain block that
this one must equal in value and in every gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rcdt_agent.networks.dropout import Masks, kept_scale

EPSILON = 1e-5  # of the layer norms


@dataclass(frozen=True)
class Shape:
    """What a block computes besides its weights.

    Attributes:
        n_heads: Attention heads.
        first: First position that is needed.
        every: Distance of the needed positions.
        dropout: On residual branches; 0 outside training.
        attention_dropout: On attention weights; 0 outside training.
    """

    n_heads: int
    first: int = 0
    every: int = 1
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @property
    def everywhere(self) -> bool:
        """Whether all positions are needed."""
        return self.first == 0 and self.every == 1


class Block(nn.Module):
    """Pre-norm attention and MLP; can answer at chosen positions only."""

    def __init__(self, width: int, n_heads: int, dropout: float, attention_dropout: float) -> None:
        """Standard sizes: the MLP is four times as wide."""
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(
        self, x: Tensor, *, first: int = 0, every: int = 1, masks: Masks | None = None
    ) -> Tensor:
        """Causal attention; answers at positions `first`, `first + every`, ... (default: all).

        Args:
            x: (B, L, D).
            first: First position that is needed.
            every: Distance of the needed positions.
            masks: Where dropout masks are from; without, nothing is dropped.
        """
        shape = Shape(
            n_heads=self.n_heads,
            first=first,
            every=every,
            dropout=self.dropout if masks else 0.0,
            attention_dropout=self.attention_dropout if masks else 0.0,
        )
        parts = (
            self.norm_attention, self.query, self.key_value, self.out, self.norm_mlp, self.widen,
            self.narrow,
        )  # fmt: skip
        weights = [tensor for part in parts for tensor in (part.weight, part.bias)]
        if not torch.is_grad_enabled():
            return _forward(shape, masks, x, weights, None)
        y: Tensor = _Block.apply(shape, masks, x, *weights)  # type: ignore[no-untyped-call]
        return y

    def last(self, x: Tensor) -> Tensor:
        """The block's answer at the last position alone, without gradient: (B, L, D) -> (B, D).

        One query needs no keys and values of its own: q . (W n) = (W^T q) . n, and a mean of
        W n is W of the mean. A bias of the keys shifts all scores alike, so it drops out.
        """
        size_b, _, width = x.shape
        n_heads, head = self.n_heads, width // self.n_heads
        normed = self.norm_attention(x)
        keys, values = self.key_value.weight.view(2, n_heads, head, width)
        q = self.query(normed[:, -1]).view(size_b, n_heads, head).transpose(0, 1)
        asked = torch.bmm(q, keys).transpose(0, 1)  # (B, h, D)
        p = torch.softmax(torch.bmm(asked, normed.transpose(1, 2)).mul_(head**-0.5), -1)
        seen = torch.bmm(p, normed).transpose(0, 1)  # (h, B, D)
        mixed = torch.bmm(seen, values.transpose(1, 2)).transpose(0, 1).reshape(size_b, width)
        mixed += self.key_value.bias[width:]
        x = x[:, -1] + self.out(mixed)
        y: Tensor = x + self.narrow(torch.ops.aten.gelu_(self.widen(self.norm_mlp(x))))
        return y


def _forward(
    shape: Shape, masks: Masks | None, x: Tensor, weights: Sequence[Tensor], ctx: Any
) -> Tensor:
    """The block; `ctx` takes what the backward pass needs."""
    w_norm1, b_norm1, w_q, b_q, w_kv, b_kv, w_out, b_out = weights[:8]
    w_norm2, b_norm2, w_wide, b_wide, w_narrow, b_narrow = weights[8:]
    size_b, length, width = x.shape
    n_heads, head = shape.n_heads, width // shape.n_heads
    normed, mean1, rstd1 = torch.native_layer_norm(x, (width,), w_norm1, b_norm1, EPSILON)
    asked = _asked(normed, shape)
    n_asked = asked.shape[1]
    rows = size_b * n_asked
    q = torch.addmm(b_q, asked.reshape(rows, width), w_q.t())
    # (B, L, D) -> (B h, L, d)
    q = _split(q.view(size_b, n_asked, n_heads, head))
    kv = torch.addmm(b_kv, normed.view(-1, width), w_kv.t())
    k, v = kv.view(size_b, length, 2, n_heads, head).permute(2, 0, 3, 1, 4).contiguous()
    k, v = k.view(-1, length, head), v.view(-1, length, head)
    unseen = _unseen(length, shape, x)
    p = torch.baddbmm(unseen, q, k.transpose(1, 2), alpha=1 / math.sqrt(head))
    p = torch.softmax(p, -1, out=p)
    kept, scale = p, 1.0
    if masks and shape.attention_dropout:
        kept = masks.draw(p, shape.attention_dropout).mul_(p)
        scale = kept_scale(shape.attention_dropout)
    mixed = q.new_empty(q.shape)
    torch.baddbmm(mixed, kept, v, beta=0, alpha=scale, out=mixed)
    mixed = _join(mixed, size_b).view(rows, width)
    residual = _asked(x, shape).reshape(rows, width)
    branch = torch.addmm(b_out, mixed, w_out.t())
    x2, mask1 = _add(residual, branch, shape, masks)
    normed2, mean2, rstd2 = torch.native_layer_norm(x2, (width,), w_norm2, b_norm2, EPSILON)
    wide = torch.addmm(b_wide, normed2, w_wide.t())
    active = torch.ops.aten.gelu_(wide) if ctx is None else torch.ops.aten.gelu(wide)
    branch = torch.addmm(b_narrow, active, w_narrow.t())
    y, mask2 = _add(x2, branch, shape, masks)
    if ctx is not None:
        ctx.shape = shape
        ctx.save_for_backward(
            x, normed, mean1, rstd1, q, k, v, p, kept, mixed, mask1, x2, normed2, mean2, rstd2,
            wide, active, mask2, w_norm1, b_norm1, w_q, w_kv, w_out, w_norm2, b_norm2, w_wide,
            w_narrow,
        )  # fmt: skip
    return y.view(size_b, n_asked, width)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Shape, masks: Masks | None, x: Tensor, *weights: Tensor) -> Tensor:
        return _forward(shape, masks, x, weights, ctx)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        shape: Shape = ctx.shape
        (
            x, normed, mean1, rstd1, q, k, v, p, kept, mixed, mask1, x2, normed2, mean2, rstd2,
            wide, active, mask2, w_norm1, b_norm1, w_q, w_kv, w_out, w_norm2, b_norm2, w_wide,
            w_narrow,
        ) = ctx.saved_tensors  # fmt: skip
        size_b, length, width = x.shape
        n_heads, head = shape.n_heads, width // shape.n_heads
        n_asked = q.shape[1]
        layer_norm_backward = torch.ops.aten.native_layer_norm_backward
        grad = grad.reshape(-1, width)
        # MLP.
        branch = _dropped(grad, mask2, shape)
        g_narrow = branch.t() @ active, branch.sum(0)
        g_wide = branch @ w_narrow
        torch.ops.aten.gelu_backward.grad_input(g_wide, wide, grad_input=g_wide)
        g_widen = g_wide.t() @ normed2, g_wide.sum(0)
        g_x2, *g_norm2 = layer_norm_backward(
            g_wide @ w_wide, x2, (width,), mean2, rstd2, w_norm2, b_norm2, (True, True, True)
        )
        g_x2 += grad
        # Attention.
        branch = _dropped(g_x2, mask1, shape)
        g_out = branch.t() @ mixed, branch.sum(0)
        g_mixed = _split((branch @ w_out).view(size_b, n_asked, n_heads, head))
        scale = kept_scale(shape.attention_dropout)
        g_kv = q.new_empty(2, *k.shape)
        torch.baddbmm(g_kv[1], kept.transpose(1, 2), g_mixed, beta=0, alpha=scale, out=g_kv[1])
        # Softmax and its dropout at once: kept = mask p, so mask never has to be stored.
        g_p = torch.bmm(g_mixed, v.transpose(1, 2))
        if shape.attention_dropout:
            g_p.mul_(kept).addcmul_(p, g_p.sum(-1, keepdim=True), value=-1)
        else:
            g_p = torch._softmax_backward_data(g_p, p, -1, p.dtype)
        scale /= math.sqrt(head)
        g_q = torch.empty_like(q)
        torch.baddbmm(g_q, g_p, k, beta=0, alpha=scale, out=g_q)
        torch.baddbmm(g_kv[0], g_p.transpose(1, 2), q, beta=0, alpha=scale, out=g_kv[0])
        # (2, B h, L, d) -> (M, 2 D)
        g_kv = g_kv.view(2, size_b, n_heads, length, head).permute(1, 3, 0, 2, 4)
        g_kv = g_kv.reshape(-1, 2 * width)
        g_q = _join(g_q, size_b).view(-1, width)
        asked = _asked(normed, shape).reshape(-1, width)
        g_query = g_q.t() @ asked, g_q.sum(0)
        g_key_value = g_kv.t() @ normed.view(-1, width), g_kv.sum(0)
        g_normed = g_kv @ w_kv
        if shape.everywhere:
            g_normed.addmm_(g_q, w_q)
        else:
            _asked(g_normed.view(x.shape), shape).add_((g_q @ w_q).view(size_b, n_asked, width))
        g_x, *g_norm1 = layer_norm_backward(
            g_normed.view(x.shape), x, (width,), mean1, rstd1, w_norm1, b_norm1, (True, True, True)
        )
        _asked(g_x, shape).add_(g_x2.view(size_b, n_asked, width))
        return (
            None, None, g_x, *g_norm1, *g_query, *g_key_value, *g_out, *g_norm2, *g_widen,
            *g_narrow,
        )  # fmt: skip


def _asked(x: Tensor, shape: Shape) -> Tensor:
    """The positions that are needed, a view."""
    return x if shape.everywhere else x[:, shape.first :: shape.every]


def _split(x: Tensor) -> Tensor:
    """(B, L, h, d) -> (B h, L, d)."""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _join(x: Tensor, size_b: int) -> Tensor:
    """(B h, L, d) -> (B, L, h, d), contiguous."""
    return x.view(size_b, -1, *x.shape[1:]).transpose(1, 2).contiguous()


def _add(x: Tensor, branch: Tensor, shape: Shape, masks: Masks | None) -> tuple[Tensor, Any]:
    """Add a branch with dropout, and its mask; `branch` is overwritten."""
    if not (masks and shape.dropout):
        return branch.add_(x), None
    mask = masks.draw(branch, shape.dropout)
    scale = kept_scale(shape.dropout)
    return torch.addcmul(x, branch, mask, value=scale, out=branch), mask


def _dropped(grad: Tensor, mask: Tensor | None, shape: Shape) -> Tensor:
    """Gradient of a branch from that of its sum."""
    return grad if mask is None else (grad * mask).mul_(kept_scale(shape.dropout))


def _unseen(length: int, shape: Shape, like: Tensor) -> Tensor:
    """(1, asked, L): minus infinity where a position may not look, else 0."""
    hidden = like.new_full((length, length), -math.inf).triu_(1)
    return hidden[None, shape.first :: shape.every]
