"""Gradients and figures of a batch that is computed in parts, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Gradients:
    """Sums of gradients apart from the parameters, so that threads need not share them."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Begin with nothing."""
        self._parameters = parameters
        self._sums: list[Tensor | None] = []

    def add(self, output: Tensor, slope: Tensor | None = None) -> None:
        """Add the gradient of `output`, or of its product with `slope` if it is not a number."""
        grads = torch.autograd.grad(output, self._parameters, slope, allow_unused=True)
        if not self._sums:
            self._sums = list(grads)
            return
        used = [pair for pair in zip(self._sums, grads, strict=True) if pair[1] is not None]
        torch._foreach_add_(*map(list, zip(*used, strict=True)))

    def give(self) -> None:
        """Add the sums to the parameters' own gradients."""
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            if total is not None:
                parameter.grad = total if parameter.grad is None else parameter.grad.add_(total)


class Terms(dict[str, Tensor]):
    """Means of parts, which add up by the share of the steps that each part holds."""

    def add(self, others: Mapping[str, Tensor], share: Tensor | float = 1.0) -> None:
        """Add the figures of a part."""
        for name, value in others.items():
            self[name] = self[name] + share * value if name in self else share * value
