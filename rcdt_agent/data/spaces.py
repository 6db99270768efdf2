"""Whether the spaces of an environment are those of recorded data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rcdt_agent.action_spaces import DISCRETE, action_range, action_width, check_space
from rcdt_agent.data.checks import check_within
from rcdt_agent.errors import DatasetError
from rcdt_agent.images import image_shape, same_images
from rcdt_agent.observations import ObservationLayout

if TYPE_CHECKING:
    from rcdt_agent.data.dataset import TrajectoryDataset


def check_spaces(
    data: TrajectoryDataset, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    """Refuse an environment whose sizes are not the data's, or whose actions are not.

    Raises:
        DatasetError: Names the file, the key, and both sizes, or the first row outside.
    """
    check_space("observation_space", observation_space)
    check_space("action_space", action_space)
    sizes = gym.spaces.flatdim(observation_space), action_width(action_space)
    layout = ObservationLayout.of(observation_space)
    if not same_images(observation_space, data.image_shape):
        shapes = data.image_shape, image_shape(observation_space)
        kinds = [f"images {shape}" if shape else "numbers" for shape in shapes]
        raise DatasetError(
            f"{data.name}: `observations` are {kinds[0]}, but the environment's are {kinds[1]}."
        )
    if data.layout and layout and data.layout.parts != layout.parts:
        raise DatasetError(
            f"{data.name}: `observations` have the parts {data.layout.parts}, but the "
            f"environment's have {layout.parts}. Discrete parts become one-hot when the data "
            f"are read with `observation_space`."
        )
    data.check_sizes(*sizes, "the environment's")
    if isinstance(action_space, DISCRETE) and not data.discrete_actions:
        raise DatasetError(
            f"{data.name}: `actions` must be whole numbers (an integer dtype) for "
            f"{action_space}, got {data.actions.dtype}."
        )
    if isinstance(action_space, (*DISCRETE, gym.spaces.Box)):
        check_within(data.actions, action_range(action_space), "actions", data.name)
