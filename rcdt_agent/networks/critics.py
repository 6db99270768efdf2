"""Twin action-value critics; any number of them is computed in one batched product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

TWINS = 2


class TwinLinear(nn.Module):
    """Weights of two linear layers side by side: (2, B, I) -> (2, B, J)."""

    def __init__(self, size_in: int, size_out: int) -> None:
        """Draw each twin as `nn.Linear` would."""
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(TWINS, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(TWINS, 1, size_out).uniform_(-bound, bound))


class TwinCritic(nn.Module):
    """(s, a) -> two estimates of a discounted sum; `n_layers` linear layers with Mish between.

    The networks work in units of `scale`: one learning rate suits returns of 15 and of 3400.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        width: int = 128,
        n_layers: int = 4,
        scale: float = 1.0,
    ) -> None:
        """Make `n_layers` layers, the last with one output."""
        super().__init__()
        sizes = [observation_size + action_size, *[width] * (n_layers - 1), 1]
        self.layers = nn.ModuleList(
            TwinLinear(size_in, size_out) for size_in, size_out in pairwise(sizes)
        )
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Estimates (2, ...) for observations (..., O) and actions (..., A), in units of reward."""
        return critic_values([self], obs, actions)[0]


def critic_values(
    critics: Sequence[TwinCritic], obs: Tensor, actions: Tensor, *, frozen: bool = False
) -> list[Tensor]:
    """Each critic's estimates (2, ...), all networks at once; arguments as `TwinCritic`.

    Args:
        critics: Of equal sizes.
        obs: (..., O).
        actions: (..., A).
        frozen: The gradient reaches observations and actions, but not the critics.
    """
    x = torch.cat((obs, actions), dim=-1)
    weights = []
    for layers in zip(*(critic.layers for critic in critics), strict=True):
        for tensors in ([y.weight for y in layers], [y.bias for y in layers]):
            joined = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
            weights.append(joined.detach() if frozen else joined)
    rows = x.flatten(0, -2)
    if torch.is_grad_enabled():
        values = _Networks.apply(rows, *weights)  # type: ignore[no-untyped-call]
    else:
        values = _through(rows, weights, None)
    values = values.view(len(critics), TWINS, *x.shape[:-1])
    return [critic.scale * value for critic, value in zip(critics, values, strict=True)]


def _through(x: Tensor, weights: Sequence[Tensor], ctx: Any) -> Tensor:
    """N networks side by side, (B, I) -> (N, B): weights (N, I, J), biases (N, 1, J) by turns.

    `ctx` takes what the backward pass needs.
    """
    x = x.expand(weights[0].shape[0], *x.shape)
    inputs, slopes = [x], []
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x, slope = mish(torch.baddbmm(bias, x, weight), ctx is not None)
        inputs.append(x)
        slopes.append(slope)
    if ctx is not None:
        ctx.save_for_backward(*inputs, *slopes, *weights[::2])
        ctx.n_layers = len(weights) // 2
    return torch.baddbmm(weights[-1], x, weights[-2])[..., 0]


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        return _through(x, weights, ctx)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        n = ctx.n_layers
        inputs, slopes = ctx.saved_tensors[:n], ctx.saved_tensors[n : 2 * n - 1]
        weights = ctx.saved_tensors[2 * n - 1 :]
        grad = grad[..., None]
        grads: list[Tensor | None] = [None] * (2 * n)
        for i in reversed(range(n)):
            if ctx.needs_input_grad[1 + 2 * i]:
                grads[2 * i] = torch.bmm(inputs[i].transpose(1, 2), grad)
                grads[2 * i + 1] = grad.sum(1, keepdim=True)
            if i > 0:
                grad = torch.bmm(grad, weights[i].transpose(1, 2)).mul_(slopes[i - 1])
        g_x = None
        if ctx.needs_input_grad[0]:
            g_x = torch.bmm(grad, weights[0].transpose(1, 2)).sum(0)
        return g_x, *grads


def mish(x: Tensor, with_slope: bool) -> tuple[Tensor, Tensor | None]:
    """Mish and its derivative through one exponential, several times faster than torch's on CPUs.

    With e = exp(x) and n = e (e + 2): mish(x) = x n / (n + 2), and its derivative is
    n / (n + 2) + 4 x e (e + 1) / (n + 2)^2. `x` is overwritten.
    """
    e = x.clamp(max=20.0).exp_()  # beyond, mish(x) = x to float32's precision
    n = (e + 2).mul_(e)
    inverse = (n + 2).reciprocal_()
    gate = n.mul_(inverse)
    if not with_slope:
        return x.mul_(gate), None
    slope = (e + 1).mul_(e).mul_(inverse).mul_(inverse).mul_(x)
    return x.mul_(gate), torch.add(gate, slope, alpha=4, out=slope)


@torch.no_grad()
def soft_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the target's parameters by `rate` towards the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)
