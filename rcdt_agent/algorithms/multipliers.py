"""Coefficients of loss terms that training adapts, saved with the training state."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Multipliers(nn.Module):
    """The two coefficients that training adapts: entropy temperature and lambda."""

    lmbda: Tensor

    def __init__(self, temperature: float) -> None:
        """Begin with this temperature, and with lambda at zero."""
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.register_buffer("lmbda", torch.zeros(()))
