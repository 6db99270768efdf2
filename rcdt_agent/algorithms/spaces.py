"""Spaces of environments: whether they are supported, and whether they are a policy's."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rcdt_agent.action_spaces import DISCRETE, check_action_space, check_space, same_actions
from rcdt_agent.deploy.policy import Policy
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.images import image_shape, same_images
from rcdt_agent.observations import ObservationLayout


def check_supported(observation: gym.Space[Any] | None, action: gym.Space[Any] | None) -> None:
    """Refuse spaces that no algorithm here serves; None is not known yet.

    Raises:
        InvalidArgumentError: Names the space, the rule and what to do.
    """
    if observation is not None:
        check_space("observation_space", observation)
        ObservationLayout.of(observation)
    if action is not None:
        check_action_space(action)


def check_same_spaces(observation: gym.Space[Any], action: gym.Space[Any], policy: Policy) -> None:
    """Refuse spaces of another size, other parts or images, or other discrete actions.

    Raises:
        InvalidArgumentError: Names both sides.
    """
    layout, own_layout = ObservationLayout.of(observation), policy.layout
    own_images = image_shape(policy.observation_space)
    if not same_images(observation, own_images):
        shapes = image_shape(observation), own_images
        kinds = [f"images {shape}" if shape else "numbers" for shape in shapes]
        raise InvalidArgumentError(
            f"The environment's observations are {kinds[0]}, the agent's {kinds[1]}."
        )
    if layout and own_layout and layout.parts != own_layout.parts:
        raise InvalidArgumentError(
            f"The environment's observation has the parts {layout.parts}, the agent's "
            f"has {own_layout.parts}."
        )
    own_actions = policy.action_space
    discrete = isinstance(own_actions, DISCRETE) or isinstance(action, DISCRETE)
    if discrete and not same_actions(action, own_actions):
        raise InvalidArgumentError(
            f"The environment's actions are {action}, the agent's {own_actions}."
        )
    for name, space, own in (
        ("observation", observation, policy.observation_space),
        ("action", action, own_actions),
    ):
        if gym.spaces.flatdim(space) != gym.spaces.flatdim(own):
            raise InvalidArgumentError(
                f"The environment's {name} has size {gym.spaces.flatdim(space)}, the "
                f"agent's has size {gym.spaces.flatdim(own)}."
            )
