"""Images among the observation spaces: a `Box` of uint8, 0 to 255, with three axes.

Inside, an image is a row (O,) of its bytes, channels first: the data, the batches and the states
hold uint8 rows, `Normalizer.obs` scales them on the device, and `encoders.ImageEncoder` gives them
their shape (C, H, W) back. Images with channels last are transposed in `image_rows`, nowhere else.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent.errors import InvalidArgumentError

ImageShape: TypeAlias = tuple[int, int, int]
"""(C, H, W)."""
UInt8Array = npt.NDArray[np.uint8]

MAX_BYTES = 2**22
"""Of an image; a file that claims more is refused before memory is taken."""


def image_space(shape: Any) -> gym.spaces.Box:
    """The space of images of a shape (C, H, W) or (H, W, C).

    Raises:
        InvalidArgumentError: It is no such shape, or too large.
    """
    sizes = tuple(int(n) for n in shape)
    if len(sizes) != 3 or min(sizes) < 1 or math.prod(sizes) > MAX_BYTES:
        raise InvalidArgumentError(
            f"The shape of an image must have three axes and at most {MAX_BYTES} bytes, got "
            f"{sizes}."
        )
    return gym.spaces.Box(0, 255, sizes, dtype=np.uint8)


def is_image(space: gym.Space[Any]) -> bool:
    """Whether a space is of images, as for stable-baselines3: uint8, 0 to 255, three axes."""
    return (
        isinstance(space, gym.spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def image_shape(space: gym.Space[Any]) -> ImageShape | None:
    """(C, H, W) of a space of images, whichever axis its channels are; None of other spaces.

    Raises:
        InvalidArgumentError: Neither the first nor the last axis can be the channels.
    """
    if not is_image(space):
        return None
    first, middle, last = image_space(space.shape).shape
    if first < min(middle, last):
        return first, middle, last
    if last < min(first, middle):
        return last, first, middle
    raise InvalidArgumentError(
        f"`observation_space`: an image must have its channels in the first or last axis, fewer "
        f"than its height and width, got shape {space.shape}."
    )


def same_images(space: gym.Space[Any], shape: ImageShape | None) -> bool:
    """Whether a space is of images (C, H, W), or of their rows; without a shape, of no images."""
    found = image_shape(space)
    if shape is None or found is not None:
        return found == shape
    return space.dtype == np.uint8 and space.shape == (math.prod(shape),)


def images_of(observations: Any) -> gym.spaces.Box | None:
    """The space of recorded images, uint8 (N, C, H, W) or (N, H, W, C); None of other data.

    Raises:
        InvalidArgumentError: An axis is empty, or the images are too large.
    """
    shape: tuple[int, ...] = getattr(observations, "shape", ())
    if len(shape) != 4 or getattr(observations, "dtype", None) != np.uint8:
        return None
    return image_space(shape[1:])


def image_rows(
    observation: Any, shape: ImageShape, n: int | None = None
) -> tuple[UInt8Array, bool]:
    """Images as rows (N, O) of bytes, channels first, and whether a single one was given.

    Args:
        observation: Images (C, H, W) or (H, W, C), also with a leading axis, or rows already.
        shape: (C, H, W) that they must have.
        n: How many they must be, where it is known.

    Raises:
        InvalidArgumentError: Not uint8, or of another shape or number.
    """
    array = np.asarray(observation)
    n_channels, height, width = shape
    if array.dtype != np.uint8:
        raise InvalidArgumentError(
            f"`observation` must be an image of uint8, 0 to 255, got {array.dtype} of shape "
            f"{array.shape}. The agent scales it itself."
        )
    size, last = math.prod(shape), (height, width, n_channels)
    for own in ((size,), shape, last):
        single = array.shape == own and n is None
        if single or (array.shape[1:] == own and n in (None, len(array))):
            images = array[None] if single else array
            if own == last:
                images = images.transpose(0, 3, 1, 2)
            return images.reshape(len(images), size), single
    raise InvalidArgumentError(
        f"`observation` must be an image of shape {shape} or {last}, or "
        f"{'N' if n is None else n} of them, got shape {array.shape}."
    )


def as_images(rows: UInt8Array, space: gym.Space[Any]) -> UInt8Array:
    """Rows (N, O) as images (N, ...) of a space, with channels first or last: as it has them."""
    shape = image_shape(space)
    assert shape is not None and space.shape is not None
    images = rows.reshape(-1, *shape)
    return images if space.shape == shape else images.transpose(0, 2, 3, 1)
