"""The policy's distribution of actions, in the form that networks see, and the heads that make it.

Actions of a Box, scaled to [-1, 1], have a Gaussian; those of a discrete space, in one-hot form, a
Categorical. Losses, critics, acting and export know no more of an action than `ActionDistribution`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from rcdt_agent import losses


class ActionDistribution(ABC):
    """Of actions in the form that the networks see, (..., A)."""

    mean: Tensor
    """(..., A) the expected action; not clipped, so that a gradient can move it from anywhere."""

    @classmethod
    @abstractmethod
    def cat(cls, parts: Sequence[Any]) -> Self:
        """Join distributions along the first axis."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> Self:
        """The distributions at an index."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """(...,) log density of actions (..., A), averaged over dimensions or choices."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """(...,) entropy, averaged over dimensions or choices."""

    @abstractmethod
    def rsample(self, noise: Tensor) -> Tensor:
        """(..., A) what critics judge; gradients reach the parameters."""

    @abstractmethod
    def mode(self) -> Tensor:
        """(..., A) the most likely action."""

    @abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """(..., A) a draw; the generator is on the CPU."""

    @abstractmethod
    def candidates(self, n: int) -> Tensor:
        """(M, N, A) actions besides the mode, always the same ones; about `n`."""

    @abstractmethod
    def nearness(self, actions: Tensor) -> Tensor:
        """(...,) the larger, the more an action (..., A) is like this policy's."""

    @staticmethod
    def draw_noise(like: Tensor, generator: torch.Generator) -> Tensor:
        """Standard noise for `rsample`, in the shape of `like`; the generator is on the CPU."""
        return torch.randn(like.shape, generator=generator).to(like.device)


class Gaussian(ActionDistribution):
    """Diagonal Gaussian over actions in [-1, 1]; samples and mode are clipped to the box."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Mean and log standard deviation, each (..., A)."""
        self.mean = mean
        self.log_std = log_std

    @classmethod
    def cat(cls, parts: Sequence[Gaussian]) -> Gaussian:
        """Join distributions along the first axis."""
        if len(parts) == 1:
            return parts[0]
        return Gaussian(
            torch.cat([part.mean for part in parts]), torch.cat([part.log_std for part in parts])
        )

    def __getitem__(self, rows: Any) -> Gaussian:
        """The distributions at an index."""
        return Gaussian(self.mean[rows], self.log_std[rows])

    def log_prob(self, actions: Tensor) -> Tensor:
        """(...,) log density, averaged over action dimensions."""
        return losses.gaussian_log_prob(actions, self.mean, self.log_std)

    def entropy(self) -> Tensor:
        """(...,) entropy, averaged over action dimensions."""
        return losses.gaussian_entropy(self.log_std)

    def rsample(self, noise: Tensor) -> Tensor:
        """(..., A) the draw that `noise` stands for; gradients reach mean and deviation."""
        return (self.mean + self.log_std.exp() * noise).clamp(-1.0, 1.0)

    def mode(self) -> Tensor:
        """(..., A) the most likely action."""
        return self.mean.clamp(-1.0, 1.0)

    def sample(self, generator: torch.Generator) -> Tensor:
        """(..., A) a draw."""
        return self.rsample(self.draw_noise(self.mean, generator))

    def candidates(self, n: int) -> Tensor:
        """(n, N, A) fixed multiples of the standard deviation around the mean."""
        offsets = torch.randn((n, self.mean.shape[1]), generator=torch.Generator().manual_seed(0))
        offsets = offsets.to(self.mean)
        return (self.mean + offsets[:, None] * self.log_std.exp()).clamp(-1.0, 1.0)

    def nearness(self, actions: Tensor) -> Tensor:
        """(...,) minus the squared distance to the mean, in deviations."""
        return -((actions - self.mean) / self.log_std.exp()).square().sum(-1)


class Categorical(ActionDistribution):
    """Independent choices, in one-hot form one after the other."""

    def __init__(self, logits: Tensor, counts: Sequence[int]) -> None:
        """Logits (..., A) of the options of all choices, and the options of each."""
        self.counts = tuple(counts)
        parts = torch.split(logits, list(self.counts), dim=-1)
        self.log_probs = torch.cat([part.log_softmax(-1) for part in parts], dim=-1)

    @classmethod
    def cat(cls, parts: Sequence[Categorical]) -> Categorical:
        """Join distributions along the first axis."""
        return Categorical(torch.cat([part.log_probs for part in parts]), parts[0].counts)

    def __getitem__(self, rows: Any) -> Categorical:
        """The distributions at an index."""
        return Categorical(self.log_probs[rows], self.counts)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """(..., A) probabilities: the expected one-hot form."""
        return self.log_probs.exp()

    def log_prob(self, actions: Tensor) -> Tensor:
        """(...,) log probability of one-hot actions (..., A), averaged over choices."""
        return (actions * self.log_probs).sum(-1) / len(self.counts)

    def entropy(self) -> Tensor:
        """(...,) entropy, averaged over choices."""
        return -(self.mean * self.log_probs).sum(-1) / len(self.counts)

    def rsample(self, noise: Tensor) -> Tensor:
        """(..., A) probabilities, whatever the noise: critics judge the expected action."""
        return self.mean

    def mode(self) -> Tensor:
        """(..., A) one-hot form of the most likely options."""
        return self._one_hot(self.log_probs)

    def sample(self, generator: torch.Generator) -> Tensor:
        """(..., A) one-hot form of a draw: the largest of logits with Gumbel noise."""
        uniform = torch.rand(self.log_probs.shape, generator=generator).to(self.log_probs)
        return self._one_hot(self.log_probs - torch.log(-torch.log(uniform)))

    def candidates(self, n: int) -> Tensor:
        """(M, N, A) every option of a single choice; of several, `n` combinations."""
        if len(self.counts) == 1:
            rows = torch.eye(self.counts[0])
        else:
            generator = torch.Generator().manual_seed(0)
            rows = self._one_hot(torch.rand((n, sum(self.counts)), generator=generator))
        return rows.to(self.log_probs)[:, None].expand(-1, len(self.log_probs), -1)

    def nearness(self, actions: Tensor) -> Tensor:
        """(...,) the log probability."""
        return self.log_prob(actions)

    def _one_hot(self, scores: Tensor) -> Tensor:
        parts = torch.split(scores, list(self.counts), dim=-1)
        chosen = [F.one_hot(part.argmax(-1), part.shape[-1]) for part in parts]
        return torch.cat(chosen, dim=-1).float()


# ------------------------------------------------------------ heads


class GaussianHead(nn.Module):
    """Features (..., D) to a `Gaussian` over actions (..., A)."""

    def __init__(
        self,
        n_features: int,
        action_size: int,
        log_std_range: tuple[float, float],
        *,
        width: int = 0,
        state_dependent_std: bool = True,
    ) -> None:
        """Make the layers of mean and log standard deviation.

        Args:
            n_features: D.
            action_size: A.
            log_std_range: Bounds of the log standard deviation.
            width: Units of two hidden layers; 0: none, a linear head.
            state_dependent_std: Otherwise there is one deviation for all features.
        """
        super().__init__()
        self.action_size = action_size
        self.log_std_range = log_std_range
        n_outputs = 2 * action_size if state_dependent_std else action_size
        self.layers = _layers(n_features, width, n_outputs)
        self.log_std = None if state_dependent_std else nn.Parameter(torch.zeros(action_size))

    @property
    def target_entropy(self) -> float:
        """What the entropy temperature aims at: -A."""
        return -float(self.action_size)

    def forward(self, features: Tensor) -> Gaussian:
        """The action distribution, in float32 also under autocast."""
        outputs = self.layers(features).float()
        mean = outputs[..., : self.action_size]
        if self.log_std is None:
            log_std = outputs[..., self.action_size :]
        else:
            log_std = self.log_std.float().expand_as(mean)
        return Gaussian(mean, log_std.clamp(*self.log_std_range))


class CategoricalHead(nn.Module):
    """Features (..., D) to a `Categorical` over one-hot actions (..., A)."""

    target_entropy = 0.0
    """A discrete policy may become certain."""

    def __init__(self, n_features: int, counts: Sequence[int], *, width: int = 0) -> None:
        """Make the layers of the logits; arguments as for `GaussianHead`."""
        super().__init__()
        self.counts = tuple(counts)
        self.layers = _layers(n_features, width, sum(self.counts))

    def forward(self, features: Tensor) -> Categorical:
        """The action distribution, in float32 also under autocast."""
        return Categorical(self.layers(features).float(), self.counts)


def make_head(
    n_features: int,
    action_size: int,
    choices: Sequence[int] = (),
    *,
    width: int,
    log_std_range: tuple[float, float],
    state_dependent_std: bool,
) -> GaussianHead | CategoricalHead:
    """The head of discrete actions, if there are choices; otherwise of continuous ones."""
    if choices:
        return CategoricalHead(n_features, choices, width=width)
    return GaussianHead(
        n_features,
        action_size,
        log_std_range,
        width=width,
        state_dependent_std=state_dependent_std,
    )


def _layers(n_features: int, width: int, n_outputs: int) -> nn.Sequential:
    sizes = [n_features, width, width] if width else [n_features]
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], n_outputs))
