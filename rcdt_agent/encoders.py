"""`ImageEncoder`: a small convolutional network from an image to a feature vector."""

from __future__ import annotations

import math
from itertools import pairwise

import gymnasium as gym
from torch import Tensor, nn

from rcdt_agent.images import ImageShape, image_shape

CHANNELS = (16, 32, 32, 64, 64)
"""Of the convolutions; the last again, where there are more."""
SMALLEST_SIDE = 8
"""Convolutions halve an image until it is no larger; at least twice."""


class ImageEncoder(nn.Module):
    """Images to features: convolutions of stride 2 with ReLU, a linear layer, layer normalisation.

    No pooling: where in the picture something is matters as much as what it is. No statistics of a
    batch either, so that an image has the same features alone and among others.

    Attributes:
        shape: (C, H, W).
        n_features: F.
    """

    def __init__(self, shape: ImageShape, n_features: int) -> None:
        """Make the layers for images (C, H, W)."""
        super().__init__()
        self.shape, self.n_features = shape, n_features
        n_channels, *sides = shape
        n_layers = max(2, math.ceil(math.log2(max(sides) / SMALLEST_SIDE)))
        channels = [CHANNELS[min(i, len(CHANNELS) - 1)] for i in range(n_layers)]
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise([n_channels, *channels]):
            layers += [nn.Conv2d(size_in, size_out, 3, stride=2, padding=1), nn.ReLU()]
            sides = [-(-side // 2) for side in sides]
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Linear(channels[-1] * math.prod(sides), n_features)
        self.norm = nn.LayerNorm(n_features)

    def forward(self, images: Tensor) -> Tensor:
        """(..., F) features of rows (..., C * H * W) in [0, 1]."""
        maps = self.convolutions(images.reshape(-1, *self.shape))  # (N, C', H', W')
        features: Tensor = self.norm(self.linear(maps.flatten(1)))
        return features.view(*images.shape[:-1], self.n_features)


def make_encoder(space: gym.spaces.Box, n_features: int) -> ImageEncoder | None:
    """An encoder for a space of images; None for others, which networks read as they are."""
    shape = image_shape(space)
    return None if shape is None else ImageEncoder(shape, n_features)
