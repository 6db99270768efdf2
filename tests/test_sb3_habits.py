"""What stable-baselines3 users type first: it works, or says what to write instead."""

from __future__ import annotations

import io
import json

import gymnasium as gym
import numpy as np
import pytest
from commands import rcdt_process
from conftest import QUICK, random_arrays
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv
from test_training_guard import saved

from rcdt_agent import BC, RCDT, __version__, make_config
from rcdt_agent.errors import DatasetError, InvalidArgumentError
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
        ("observation_space", gym.spaces.Dict({"x": gym.spaces.Text(2)}), "must be a Box"),
        ("observation_space", gym.spaces.Text(4), "must be a Box"),
        ("action_space", gym.spaces.Text(3), "must be a Box of floating-point numbers"),
        ("action_space", gym.spaces.Box(0, 5, (1,), dtype=np.int64), "of floating-point numbers"),
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
    result = rcdt_process("--version")
    assert result.returncode == 0 and result.stdout.strip() == f"rcdt_agent {__version__}"


def test_a_policy_name_before_the_environment(drivers):
    with pytest.raises(InvalidArgumentError, match="no policy name to give: write RCDT.env"):
        RCDT("MlpPolicy", gym.make(ENV_ID))
    with pytest.raises(InvalidArgumentError, match="`config` must be a Config, got <"):
        RCDT(gym.make(ENV_ID), gym.make(ENV_ID))


def test_data_and_steps_in_either_order(drivers):
    assert RCDT(**QUICK).learn(3, drivers).num_timesteps == 3
    assert RCDT(**QUICK).learn(np.int64(2), dataset_or(drivers)).num_timesteps == 2
    with pytest.raises(InvalidArgumentError, match="one number of steps, got 10 and 5"):
        RCDT(**QUICK).learn(10, 5)
    with pytest.raises(InvalidArgumentError, match="must be a whole number >= 0, got 100000.0"):
        RCDT(**QUICK).learn(1e5, drivers)


def dataset_or(drivers):
    return {
        **{key: getattr(drivers, key) for key in ("observations", "actions", "rewards", "costs")},
        "dones": np.isin(np.arange(drivers.n_transitions), drivers.offsets[1:] - 1),
    }


def test_no_steps_train_nothing(drivers):
    agent, called = RCDT(**QUICK), []
    agent.learn(drivers, 0, callback=lambda *_: called.append(1))
    assert agent.num_timesteps == 0 and not called and not agent.training.ready
    assert agent.total_steps == QUICK["total_steps"]  # and later schedules are not spoiled
    agent.learn(4)
    weights = saved(agent)
    agent.learn(total_timesteps=0)
    assert saved(agent) == weights == saved(RCDT(**QUICK).learn(drivers, 4))


def test_resume_goes_on_to_the_goal_and_no_further(drivers):
    agent = RCDT(**QUICK)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(drivers, 12, callback=interrupt_at(agent, 5))
    assert (agent.num_timesteps, agent.total_steps) == (5, 12)
    with pytest.raises(InvalidArgumentError, match="`resume` goes on to step 12"):
        agent.learn(3, resume=True)
    agent.learn(resume=True)
    assert saved(agent) == saved(RCDT(**QUICK).learn(drivers, 12))
    assert agent.learn(resume=True).num_timesteps == 12  # nothing is left
    fresh = RCDT(**QUICK).learn(drivers, resume=True)  # nothing was interrupted: all of it
    assert fresh.num_timesteps == QUICK["total_steps"]


def interrupt_at(agent, step):
    def callback(_locals, _globals):
        if agent.num_timesteps == step:
            raise KeyboardInterrupt
        return True

    return callback


def test_more_steps_in_parts_are_the_same_as_a_goal(drivers):
    """What a run folder does: goal minus what was made, after any interruption."""
    agent = RCDT(**QUICK)
    agent.learn(drivers, 12, callback=lambda *_: agent.num_timesteps < 5)
    agent.learn(12 - agent.num_timesteps)
    assert saved(agent) == saved(RCDT(**QUICK).learn(drivers, 12))


@pytest.mark.parametrize("log_interval", [None, 0, -1, 2.5, "10"])
def test_log_interval(drivers, log_interval):
    message = f"`log_interval` must be a whole number >= 1, got {log_interval!r}"
    with pytest.raises(InvalidArgumentError, match=message):
        RCDT(**QUICK).learn(drivers, 2, log_interval=log_interval)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("seed", 1.5, "`seed` must be a whole number >= 0 or None, got 1.5"),
        ("seed", -1, "`seed` must be a whole number >= 0 or None, got -1"),
        ("seed", "3", "`seed` must be a whole number >= 0 or None, got '3'"),
        ("device", "gpu", "`device` must be 'auto', 'cpu' or 'cuda' .*got 'gpu'"),
        ("device", None, "`device` must be 'auto', 'cpu' or 'cuda' .*got None"),
        ("device", "cuda", "`device` is 'cuda', but torch finds 0 CUDA devices here"),
        ("batch_size", "64", "`batch_size` must be a whole number, got '64'"),
        ("learning_rate", "fast", "`learning_rate` must be a number, got 'fast'"),
        ("learning_rate", lambda _: -1.0, r"`learning_rate\(1\)` must be a number >= 0, got -1.0"),
        ("preset", "huge", r"`preset` must be one of \('auto', 'paper', 'cpu', 'tiny'\)"),
    ],
)
def test_bad_arguments_are_refused_by_the_constructor(argument, value, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for kind in (RCDT, BC):
        with pytest.raises(InvalidArgumentError, match=message):
            kind(**{argument: value})


def test_the_seed_is_checked_and_repeats_sampled_actions(agent, drivers):
    obs = drivers.observations[:4]
    draws = []
    for _ in range(2):
        agent.set_random_seed(3)
        starts = [agent.begin(4) for _ in range(3)]
        draws.append([agent.predict(obs, state, deterministic=False)[0] for state in starts])
    np.testing.assert_array_equal(*draws)
    assert not np.array_equal(draws[0][0], draws[0][1])
    with pytest.raises(InvalidArgumentError, match="`seed` must be"):
        agent.set_random_seed(0.5)


def test_a_new_seed_counts_also_for_a_loaded_agent(trained, drivers):
    """The random states of the file would otherwise come back when training goes on."""
    one, two = (RCDT.load(io.BytesIO(trained)) for _ in range(2))
    one.set_random_seed(11)
    assert saved(one.learn(drivers, 2))[0] != saved(two.learn(drivers, 2))[0]


@pytest.mark.parametrize("state", [(), 3, np.zeros(2)])
def test_a_state_that_is_none(agent, drivers, state):
    with pytest.raises(InvalidArgumentError, match="`state` must be what the last `predict`"):
        agent.predict(drivers.observations[0], state)


def test_no_observations(agent):
    with pytest.raises(InvalidArgumentError, match=r"at least one observation, got shape \(0, 4\)"):
        agent.predict(np.zeros((0, 4)))


def test_gamma_is_not_the_discount():
    with pytest.warns(UserWarning, match="called `discount` here"):
        RCDT(preset="tiny", gamma=0.99)


def test_spaces_without_an_environment():
    arrays = random_arrays([10] * 5)
    arrays["actions"] = arrays["actions"] * [5.0, 0.1] + [5.0, 0.0]
    space = gym.spaces.Box(np.array([0, -0.1], np.float32), np.array([10, 0.1], np.float32))
    agent = RCDT(action_space=space, **QUICK).learn(arrays, 5)
    actions, _ = agent.predict(arrays["observations"][:9])
    assert all(space.contains(action) for action in actions)
    wrong = RCDT(action_space=space, observation_space=gym.spaces.Box(-9, 9, (7,)), **QUICK)
    with pytest.raises(DatasetError, match="`observations` have size 3.* size 7"):
        wrong.learn(arrays, 5)
    narrow = RCDT(action_space=gym.spaces.Box(-1, 1, (1,)), **QUICK)
    with pytest.raises(DatasetError, match="`actions` have size 2.* size 1"):
        narrow.learn(arrays, 5)
    with pytest.raises(InvalidArgumentError, match="either `env` or its spaces"):
        RCDT(gym.make(ENV_ID), action_space=space)
    with pytest.raises(InvalidArgumentError, match="`observation_space` must be a Box"):
        RCDT(observation_space=gym.spaces.Text(3))


def test_auto_preset_is_said_once(drivers, capsys, caplog):
    caplog.set_level("INFO", logger="rcdt_agent")
    sizes = {name: value for name, value in QUICK.items() if name != "preset"}
    agent = RCDT(verbose=1, n_heads=2, device="cpu", **sizes)
    assert agent.preset == "cpu" and agent.config.critic_layers == 3
    agent.learn(drivers, 2, progress_bar=True).learn(2)
    shown = capsys.readouterr()
    assert shown.out.count("Preset auto: the sizes of `cpu`, for device cpu.") == 1
    assert [record.message for record in caplog.records if "Preset" in record.message] == [
        "Preset auto: the sizes of `cpu`, for device cpu."
    ]
    assert "RCDT (cpu)" in shown.err
    RCDT(preset="cpu", verbose=1, n_heads=2, **sizes).learn(drivers, 1)
    assert "Preset auto" not in capsys.readouterr().out
    assert RCDT(config=make_config("tiny")).preset is None


def test_remaining_time(drivers, monkeypatch, tmp_path, caplog):
    """A clock on which a step takes 30 seconds: told after the first, warned above a day."""
    now = [0.0]
    monkeypatch.setattr("rcdt_agent.progress.monotonic", lambda: now[0])
    caplog.set_level("INFO", logger="rcdt_agent")
    agent = RCDT(**QUICK)
    agent.set_logger(configure(str(tmp_path), ["json"]))

    def tick(_locals, _globals):
        now[0] += 30.0
        return agent.num_timesteps < 6

    agent.learn(drivers, 10, callback=tick, log_interval=3)
    told = [record.message for record in caplog.records if "training takes" in record.message]
    # Callbacks run after the estimate: the first 30 seconds are seen at the second step.
    assert told == ["At this speed training takes 2.0 minutes more."]
    with pytest.warns(UserWarning, match=r"takes 41666\d more hours.*`preset='cpu'`.*GPU"):
        agent.learn(100_000_004, callback=lambda *_: tick(0, 0) or agent.num_timesteps < 12)
    agent.logger.close()
    rows = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    assert [row["time/remaining_seconds"] for row in rows[:2]] == [140.0, 100.0]
