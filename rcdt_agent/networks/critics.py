"""Twin action-value critics, both twins in one batched product."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

TWINS = 2


class TwinLinear(nn.Module):
    """Two linear layers side by side: (2, B, I) -> (2, B, J)."""

    def __init__(self, size_in: int, size_out: int) -> None:
        """Draw each twin as `nn.Linear` would."""
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(TWINS, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(TWINS, 1, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each twin to its own input."""
        return torch.baddbmm(self.bias, x, self.weight)


class _Mish(torch.autograd.Function):
    """Mish through one exponential, with its derivative kept: several times faster on CPUs.

    With e = exp(x) and n = e (e + 2): mish(x) = x n / (n + 2), and its derivative is
    n / (n + 2) + 4 x e (e + 1) / (n + 2)^2.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.clamp(max=20.0).exp_()  # beyond, mish(x) = x to float32's precision
        n = e * (e + 2)
        gate = n / (n + 2)
        if ctx.needs_input_grad[0]:
            slope = (e * (e + 1)).mul_(x).mul_(4).div_((n + 2).square_())
            ctx.save_for_backward(slope.add_(gate))
        return x * gate

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope


def mish(x: Tensor) -> Tensor:
    """`torch.nn.functional.mish`, faster."""
    y: Tensor = _Mish.apply(x)  # type: ignore[no-untyped-call]
    return y


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
        x = torch.cat((obs, actions), dim=-1)
        leading = x.shape[:-1]
        x = x.reshape(1, -1, x.shape[-1]).expand(TWINS, -1, -1)
        for layer in self.layers[:-1]:
            x = mish(layer(x))
        x = self.layers[-1](x)  # (2, B, 1)
        values: Tensor = self.scale * x.view(TWINS, *leading)
        return values


@torch.no_grad()
def soft_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the target's parameters by `rate` towards the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)
