"""What stable-baselines3 users type first: it works, or says what to write instead."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from conftest import QUICK
from stable_baselines3.common.vec_env import DummyVecEnv
from test_cli import rcdt

from rcdt_agent import BC, RCDT, __version__
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.speed_limit import ENV_ID


@pytest.mark.parametrize("name", ["MlpPolicy", "SafetyHopperVelocity-v1"])
def test_a_policy_name_or_an_id_instead_of_an_environment(name):
    with pytest.raises(InvalidArgumentError, match=f"got '{name}'.*write BC.env.*BC.from_dsrl"):
        BC(name)
    with pytest.raises(InvalidArgumentError, match="no policy name"):
        RCDT(name, **QUICK)


def test_a_number_first_means_steps_once_there_are_data(drivers):
    agent = RCDT(**QUICK)
    with pytest.raises(InvalidArgumentError, match="`learn` needs `dataset`"):
        agent.learn(10)
    agent.set_dataset(drivers)
    assert agent.learn(10).num_timesteps == 10


def test_two_names_of_the_steps_are_not_given_at_once(drivers):
    with pytest.raises(InvalidArgumentError, match="either `total_steps` or `total_timesteps`"):
        RCDT(**QUICK).learn(drivers, total_steps=4, total_timesteps=60)


@pytest.mark.parametrize(
    ("name", "space", "rule"),
    [
        ("observation_space", gym.spaces.Dict({"x": gym.spaces.Discrete(2)}), "must be a Box"),
        ("observation_space", gym.spaces.Discrete(4), "FlattenObservation"),
        ("action_space", gym.spaces.Discrete(3), "must be a bounded Box"),
        ("action_space", gym.spaces.Box(-np.inf, np.inf, (1,)), "must be a bounded Box"),
    ],
)
def test_spaces_that_are_not_supported_are_refused_at_once(name, space, rule):
    env = gym.make(ENV_ID).unwrapped
    setattr(env, name, space)
    with pytest.raises(InvalidArgumentError, match=f"`{name}` .*{rule}"):
        RCDT(env, **QUICK)


def test_only_one_environment_can_be_wrapped(agent):
    for many in (DummyVecEnv([lambda: gym.make(ENV_ID)]), "rcdt_agent/SpeedLimit-v0"):
        with pytest.raises(InvalidArgumentError, match="must be one Gymnasium environment"):
            agent.wrap(many)


def test_version():
    result = rcdt("--version")
    assert result.returncode == 0 and result.stdout.strip() == f"rcdt_agent {__version__}"
