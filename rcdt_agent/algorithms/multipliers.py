"""Coefficients of loss terms that training adapts, saved with the training state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rcdt_agent import distributed


class Multipliers(nn.Module):
    """The two coefficients that training adapts: entropy temperature and lambda.

    Attributes:
        lmbda: (); of several costs (m,), one for each.
    """

    lmbda: Tensor

    def __init__(self, temperature: float, n_costs: int = 1) -> None:
        """Begin with this temperature, and with lambda at zero."""
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.register_buffer("lmbda", torch.zeros(() if n_costs == 1 else (n_costs,)))

    def of_cost(self, i: int) -> Tensor:
        """() lambda of a cost, in place."""
        return self.lmbda.view(-1)[i]


class PIDLagrangian(nn.Module):
    """Lambda as a PID controller of the constraint's violation; its state is saved.

    Attributes:
        lmbda: () the multiplier in force.
        integral: () sum of violations, never negative.
        previous: () violation at the last update.
    """

    lmbda: Tensor
    integral: Tensor
    previous: Tensor

    def __init__(
        self, gains: tuple[float, float, float], maximum: float | None, *, start: float = 0.0
    ) -> None:
        """Begin with no violation seen.

        Args:
            gains: Proportional, integral, derivative.
            maximum: Cap of lambda, which also stops the integral from winding up; None: no cap.
            start: Lambda before the first update.
        """
        super().__init__()
        self.gains = gains
        self.maximum = math.inf if maximum is None else maximum
        self.register_buffer("lmbda", torch.tensor(float(start)))
        self.register_buffer("integral", torch.zeros(()))
        self.register_buffer("previous", torch.zeros(()))

    @torch.no_grad()
    def update(self, violation: Tensor) -> Tensor:
        """The multiplier after a violation () of the constraint, negative where it is kept.

        lambda = [K_P [e]_+ + K_I I + K_D [e - e_previous]_+]_+ with I <- [I + e]_+, e the mean
        violation over processes.
        """
        violation = distributed.mean(violation)
        proportional, integral, derivative = self.gains
        rise = (violation - self.previous).clamp(min=0.0)
        most = self.maximum / integral if integral > 0 else math.inf
        self.integral.copy_((self.integral + violation).clamp(0.0, most))
        self.previous.copy_(violation)
        lmbda = (
            proportional * violation.clamp(min=0.0) + integral * self.integral + derivative * rise
        )
        self.lmbda.copy_(lmbda.clamp(0.0, self.maximum))
        return self.lmbda


class LogMultiplier(nn.Module):
    """A positive coefficient exp(l) moved by gradient ascent, l within [-5, 5]; saved.

    Attributes:
        log_value: () l.
    """

    log_value: Tensor

    LOG_RANGE = (-5.0, 5.0)

    def __init__(self, step_size: float, *, start: float = 1.0) -> None:
        """Begin at `start`."""
        super().__init__()
        self.step_size = step_size
        self.register_buffer("log_value", torch.tensor(math.log(start)))

    @property
    def value(self) -> Tensor:
        """() the coefficient."""
        return self.log_value.exp()

    @torch.no_grad()
    def ascend(self, violation: Tensor) -> None:
        """Raise it where `violation` () is positive: one step along the gradient in l."""
        step = self.step_size * self.value * distributed.mean(violation)
        self.log_value.copy_((self.log_value + step).clamp(*self.LOG_RANGE))
