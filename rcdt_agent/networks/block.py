"""A transformer block as one differentiable function, its backward pass written by hand.

Automatic differentiation of the same block makes many more passes over memory and, on CPUs, runs
attention with dropout on its slowest path. `tests/test_networks.py` holds the plain block that
this one must equal in value and in every gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rcdt_agent import kernels as compiled
from rcdt_agent.networks.dropout import Masks, as_drop, kept_scale
from rcdt_agent.networks.scripting import script


class Block(nn.Module):
    """Pre-norm attention and MLP; can answer at chosen positions only."""

    def __init__(self, width: int, n_heads: int, dropout: float, attention_dropout: float) -> None:
        """Standard sizes: the MLP is four times as wide."""
        super().__init__()
        if width % n_heads:
            raise ValueError(f"width {width} is not a multiple of {n_heads} heads")
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
        weights = self.weights()
        if compiled.usable(x, weights[2]):
            return self._compiled(x, weights, first, every, masks)
        kept, scales = self._kept(x, first, every, masks)
        settings = (self.n_heads, first, every, *scales)
        if not torch.is_grad_enabled():
            return _forward(x, weights, kept, False, *settings)[0]
        y: Tensor = _Block.apply(settings, kept, x, *weights)  # type: ignore[no-untyped-call]
        return y

    def weights(self) -> list[Tensor]:
        """Weight and bias of each layer, in the order in which an input meets them."""
        parts = (
            self.norm_attention, self.query, self.key_value, self.out, self.norm_mlp, self.widen,
            self.narrow,
        )  # fmt: skip
        return [tensor for part in parts for tensor in (part.weight, part.bias)]

    def _compiled(
        self, x: Tensor, weights: list[Tensor], first: int, every: int, masks: Masks | None
    ) -> Tensor:
        """The same by the compiled program."""
        size_b, length, width = x.shape
        rates = (self.attention_dropout, self.dropout) if masks else (0.0, 0.0)
        drops = as_drop(rates[0]), as_drop(rates[1])
        plan = compiled.Plan(size_b, length, width, self.n_heads, first, every, *drops)
        return compiled.block(plan, x, weights, masks.words(plan.words) if masks else None)

    def _kept(
        self, x: Tensor, first: int, every: int, masks: Masks | None
    ) -> tuple[list[Tensor], tuple[float, float]]:
        """Dropout masks of attention and of both branches, empty without; their scales."""
        size_b, length, width = x.shape
        n_asked = len(range(first, length, every))
        scales, kept = [1.0, 1.0], [x.new_empty(0)] * 3
        if masks and self.attention_dropout:
            pairs = (size_b * self.n_heads, n_asked, length)
            kept[0] = masks.draw(pairs, self.attention_dropout, x.dtype)
            scales[0] = kept_scale(self.attention_dropout)
        if masks and self.dropout:
            rows = (size_b * n_asked, width)
            kept[1:] = [masks.draw(rows, self.dropout, x.dtype) for _ in range(2)]
            scales[1] = kept_scale(self.dropout)
        return kept, (scales[0], scales[1])


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Any, kept: list[Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        y, *saved = _forward(x, list(weights), kept, True, *settings)
        ctx.settings = settings
        ctx.save_for_backward(x, *saved, *weights)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None, *_backward(grad, list(ctx.saved_tensors), *ctx.settings)


@script
def _forward(
    x: Tensor,
    weights: list[Tensor],
    kept: list[Tensor],
    save: bool,
    n_heads: int,
    first: int,
    every: int,
    attention_scale: float,
    branch_scale: float,
) -> list[Tensor]:
    """The block's answer, then what the backward pass needs (if `save`)."""
    w_norm1, b_norm1, w_q, b_q, w_kv, b_kv, w_out, b_out = weights[:8]
    w_norm2, b_norm2, w_wide, b_wide, w_narrow, b_narrow = weights[8:]
    size_b, length, width = x.shape
    head = width // n_heads
    normed, mean1, rstd1 = torch.native_layer_norm(x, [width], w_norm1, b_norm1, 1e-5)
    asked = normed[:, first::every]
    n_asked = asked.shape[1]
    rows = size_b * n_asked
    q = F.linear(asked.reshape(rows, width), w_q, b_q)
    # (B, L, D) -> (B h, L, d)
    q = q.view(size_b, n_asked, n_heads, head).transpose(1, 2).reshape(-1, n_asked, head)
    kv = F.linear(normed.view(-1, width), w_kv, b_kv)
    kv = kv.view(size_b, length, 2, n_heads, head).permute(2, 0, 3, 1, 4).contiguous()
    kv = kv.view(2, -1, length, head)
    k, v = kv[0], kv[1]
    # (1, asked, L): minus infinity where a position may not look, else 0.
    unseen = torch.full([length, length], -math.inf, dtype=x.dtype, device=x.device).triu_(1)
    p = torch.baddbmm(unseen[first::every].unsqueeze(0), q, k.transpose(1, 2), alpha=head**-0.5)
    p = torch.softmax(p, -1)
    seen = p
    if kept[0].numel() > 0:
        seen = kept[0].mul_(p)
    mixed = torch.baddbmm(q, seen, v, beta=0, alpha=attention_scale)
    # (B h, L, d) -> (B L, D)
    mixed = mixed.view(size_b, n_heads, n_asked, head).transpose(1, 2).reshape(rows, width)
    x2 = F.linear(mixed, w_out, b_out)
    residual = x[:, first::every].reshape(rows, width)
    if kept[1].numel() > 0:
        x2 = torch.addcmul(residual, x2, kept[1], value=branch_scale)
    else:
        x2.add_(residual)
    normed2, mean2, rstd2 = torch.native_layer_norm(x2, [width], w_norm2, b_norm2, 1e-5)
    wide = F.linear(normed2, w_wide, b_wide)
    active = F.gelu(wide)
    y = F.linear(active, w_narrow, b_narrow)
    if kept[2].numel() > 0:
        y = torch.addcmul(x2, y, kept[2], value=branch_scale)
    else:
        y.add_(x2)
    y = y.view(size_b, n_asked, width)
    if not save:
        return [y]
    return [
        y, normed, mean1, rstd1, q, kv, p, seen, mixed, kept[1], x2, normed2, mean2, rstd2, wide,
        active, kept[2],
    ]  # fmt: skip


@script
def _backward(
    grad: Tensor,
    saved: list[Tensor],
    n_heads: int,
    first: int,
    every: int,
    attention_scale: float,
    branch_scale: float,
) -> list[Tensor]:
    """Gradients of the input and of the weights, in their order."""
    x, normed, mean1, rstd1, q, kv, p, seen, mixed = saved[:9]
    kept1, x2, normed2, mean2, rstd2, wide, active, kept2 = saved[9:17]
    w_norm1, b_norm1, w_q, _, w_kv, _, w_out, _ = saved[17:25]
    w_norm2, b_norm2, w_wide, _, w_narrow, _ = saved[25:]
    size_b, length, width = x.shape
    head = width // n_heads
    n_asked = q.shape[1]
    k, v = kv[0], kv[1]
    grad = grad.reshape(-1, width)
    # MLP.
    branch = grad
    if kept2.numel() > 0:
        branch = (grad * kept2).mul_(branch_scale)
    g_w_narrow, g_b_narrow = branch.t() @ active, branch.sum(0)
    g_wide = torch.ops.aten.gelu_backward(branch @ w_narrow, wide)
    g_w_wide, g_b_wide = g_wide.t() @ normed2, g_wide.sum(0)
    g_x2, g_w_norm2, g_b_norm2 = torch.ops.aten.native_layer_norm_backward(
        g_wide @ w_wide, x2, [width], mean2, rstd2, w_norm2, b_norm2, [True, True, True]
    )
    g_x2.add_(grad)
    # Attention.
    branch = g_x2
    if kept1.numel() > 0:
        branch = (g_x2 * kept1).mul_(branch_scale)
    g_w_out, g_b_out = branch.t() @ mixed, branch.sum(0)
    g_mixed = (branch @ w_out).view(size_b, n_asked, n_heads, head).transpose(1, 2)
    g_mixed = g_mixed.reshape(-1, n_asked, head)
    g_v = torch.baddbmm(k, seen.transpose(1, 2), g_mixed, beta=0, alpha=attention_scale)
    # Softmax and its dropout at once: seen = mask p, so the mask never has to be stored.
    g_p = torch.bmm(g_mixed, v.transpose(1, 2))
    g_p.mul_(seen)
    g_p.addcmul_(p, g_p.sum(-1, keepdim=True), value=-1)
    scale = attention_scale * head**-0.5
    g_q = torch.baddbmm(q, g_p, k, beta=0, alpha=scale)
    g_k = torch.baddbmm(k, g_p.transpose(1, 2), q, beta=0, alpha=scale)
    # (B h, L, d) -> (B L, D)
    g_q = g_q.view(size_b, n_heads, n_asked, head).transpose(1, 2).reshape(-1, width)
    g_kv = torch.stack([g_k, g_v]).view(2, size_b, n_heads, length, head)
    g_kv = g_kv.permute(1, 3, 0, 2, 4).reshape(-1, 2 * width)
    asked = normed[:, first::every].reshape(-1, width)
    g_w_q, g_b_q = g_q.t() @ asked, g_q.sum(0)
    g_w_kv, g_b_kv = g_kv.t() @ normed.view(-1, width), g_kv.sum(0)
    g_normed = (g_kv @ w_kv).view(size_b, length, width)
    if n_asked == length:
        g_normed.view(-1, width).addmm_(g_q, w_q)
    else:
        g_normed[:, first::every].add_((g_q @ w_q).view(size_b, n_asked, width))
    g_x, g_w_norm1, g_b_norm1 = torch.ops.aten.native_layer_norm_backward(
        g_normed, x, [width], mean1, rstd1, w_norm1, b_norm1, [True, True, True]
    )
    g_x[:, first::every].add_(g_x2.view(size_b, n_asked, width))
    return [
        g_x, g_w_norm1, g_b_norm1, g_w_q, g_b_q, g_w_kv, g_b_kv, g_w_out, g_b_out, g_w_norm2,
        g_b_norm2, g_w_wide, g_b_wide, g_w_narrow, g_b_narrow,
    ]  # fmt: skip
