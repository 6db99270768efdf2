"""Twin action-value critics, any number of them in one batched product, and target networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcdt_agent.encoders import ImageEncoder

TWINS = 2

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class EnsembleLinear(nn.Module):
    """N linear layers in one batched product: (N, B, I) -> (N, B, J)."""

    def __init__(self, n_members: int, size_in: int, size_out: int) -> None:
        """Initialise each member as `nn.Linear` does."""
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(
            torch.empty(n_members, size_in, size_out).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(n_members, 1, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each member to its own input."""
        return torch.baddbmm(self.bias, x, self.weight)


class TwinCritics(nn.Module):
    """(s, a) -> two estimates of a discounted sum, for each of some signals.

    With a context, such as the cost-to-go token and the time, (s, a, context).

    Images go through an encoder of the critics' own, which serves all signals: what an action costs
    may depend on what the policy can do without, and a target must not move with the policy.

    Every network has `n_layers` linear layers with Mish between. A signal's networks work in units
    of its `scale`: one learning rate suits returns of 15 and of 3400.

    Attributes:
        signals: What is estimated, such as `reward` and `cost`; may be empty.
        scale: (S,) unit of each signal.
    """

    scale: Tensor

    def __init__(
        self,
        scales: Mapping[str, float],
        observation_size: int,
        action_size: int,
        *,
        context_size: int = 0,
        width: int = 128,
        n_layers: int = 4,
        encoder: ImageEncoder | None = None,
    ) -> None:
        """Make the networks.

        Args:
            scales: Unit of each signal, by name.
            observation_size: O.
            action_size: A.
            context_size: X, numbers that the critics see besides.
            width: Hidden units.
            n_layers: Linear layers, the last with one output.
            encoder: Of images.
        """
        super().__init__()
        observation_size = encoder.n_features if encoder else observation_size
        self.encoder = encoder
        self.signals = tuple(scales)
        sizes = [observation_size + action_size + context_size, *[width] * (n_layers - 1), 1]
        members = TWINS * len(self.signals)
        self.layers = nn.ModuleList(EnsembleLinear(members, i, j) for i, j in pairwise(sizes))
        self.register_buffer("scale", torch.tensor([float(unit) for unit in scales.values()]))

    def forward(
        self, obs: Tensor, actions: Tensor, context: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Both estimates (2, ...) of each signal, in its own unit.

        Args:
            obs: (..., O) normalised.
            actions: (..., A) in [-1, 1].
            context: (..., X), if the critics have one.
        """
        if self.encoder is not None:
            obs = self.encoder(obs)
        parts = (obs, actions) if context is None else (obs, actions, context)
        inputs = torch.cat(parts, dim=-1)
        x = inputs.flatten(0, -2).expand(TWINS * len(self.signals), -1, -1)
        for layer in self.layers[:-1]:
            x = F.mish(layer(x))
        values = self.layers[-1](x).float()  # (S * 2, B, 1), scaled and back to (S, 2, ...)
        scaled = values * self.scale.repeat_interleave(TWINS)[:, None, None]
        scaled = scaled.view(len(self.signals), TWINS, *inputs.shape[:-1])
        return dict(zip(self.signals, scaled, strict=True))

    def unit(self, signal: str) -> Tensor:
        """() the scale of a signal."""
        return self.scale[self.signals.index(signal)]

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> dict[str, Tensor]:
        """Scale the gradient of each signal's networks to at most `max_norm`; the norms before.

        The encoder's, to which all signals add, is scaled by itself.
        """
        n_signals = len(self.signals)
        if self.encoder is not None:
            nn.utils.clip_grad_norm_(self.encoder.parameters(), max_norm)
        grads = [p.grad for p in self.layers.parameters() if p.grad is not None]
        squares = [grad.view(n_signals, -1).square().sum(1) for grad in grads]
        norms = torch.stack(squares).sum(0).sqrt()
        factor = (max_norm / (norms + 1e-6)).clamp(max=1.0).repeat_interleave(TWINS)
        for grad in grads:
            grad.mul_(factor[:, None, None])
        return dict(zip(self.signals, norms, strict=True))


def target_network(module: ModuleT) -> ModuleT:
    """A copy that is never trained, only moved by `update_target`."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def update_target(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Soft update: move the target's parameters by `rate` towards the source's."""
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.lerp_(fast, rate)
