"""Real simulators: every Bullet and Safety-Gymnasium task (MetaDrive: test_metadrive.py)."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from rcdt_agent import make_env
from rcdt_agent.errors import InvalidArgumentError, SimulatorError, UnknownTaskError
from rcdt_agent.tasks import simulators
from rcdt_agent.tasks.registry import TASKS

SHAPES = {  # observation and action size of each robot and task
    "AntCircle": (34, 8), "AntRun": (33, 8), "BallCircle": (8, 2), "BallRun": (7, 2),
    "CarCircle": (8, 2), "CarRun": (7, 2), "DroneCircle": (18, 4), "DroneRun": (17, 4),
    "CarButton1": (88, 2), "CarButton2": (88, 2), "CarCircle1": (40, 2), "CarCircle2": (40, 2),
    "CarGoal1": (72, 2), "CarGoal2": (72, 2), "CarPush1": (88, 2), "CarPush2": (88, 2),
    "PointButton1": (76, 2), "PointButton2": (76, 2), "PointCircle1": (28, 2),
    "PointCircle2": (28, 2), "PointGoal1": (60, 2), "PointGoal2": (60, 2), "PointPush1": (76, 2),
    "PointPush2": (76, 2), "AntVelocity": (27, 8), "HalfCheetahVelocity": (17, 6),
    "HopperVelocity": (11, 3), "SwimmerVelocity": (8, 2), "Walker2dVelocity": (17, 6),
}  # fmt: skip


def task_params():
    for task in TASKS.values():
        if task.suite == "bullet":
            yield pytest.param(task, id=task.name, marks=pytest.mark.simulator)
        elif task.suite == "safety-gymnasium":
            marks = [pytest.mark.simulator, pytest.mark.safety_gymnasium]
            yield pytest.param(task, id=task.name, marks=marks)


def roll(env, seed, steps=20):
    """The seeded start of an episode as rows of observation, reward and cost."""
    actions = np.random.default_rng(0)
    low, high = env.action_space.low, env.action_space.high
    obs, _ = env.reset(seed=seed)
    rows = [np.append(obs, [0.0, 0.0])]
    for _ in range(steps):
        action = actions.uniform(low, high).astype(env.action_space.dtype)
        obs, reward, terminated, truncated, info = env.step(action)
        assert isinstance(reward, float)
        assert isinstance(info["cost"], float)
        rows.append(np.append(obs, [reward, info["cost"]]))
        if terminated or truncated:
            break
    return np.array(rows)


@pytest.mark.parametrize("task", list(task_params()))
def test_task_steps_and_repeats(task):
    env = make_env(task.id)
    observation_size, action_size = SHAPES[task.name]
    assert env.observation_space.shape == (observation_size,)
    assert env.action_space.shape == (action_size,)
    first = roll(env, seed=11)
    assert np.isfinite(first).all()
    assert (first[:, -1] >= 0).all()
    other = roll(env, seed=12)
    assert not np.array_equal(first[0], other[0])
    again = roll(env, seed=11)
    # What the last episode left in the physics engine is rounding; for drones a little more.
    tolerance = 1e-2 if "Drone" in task.name else 1e-8
    np.testing.assert_allclose(again, first, atol=tolerance)
    env.close()
    if task.suite == "bullet" or "Velocity" in task.name:  # a new one is cheap here
        fresh = make_env(task.id)
        np.testing.assert_array_equal(roll(fresh, seed=11), first)
        fresh.close()


@pytest.mark.simulator
def test_episode_is_truncated_at_the_task_length():
    env = make_env("BallRun")
    env.reset(seed=0)
    flags = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(100)]
    assert flags == [(False, False)] * 99 + [(False, True)]


@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_both_spellings_are_the_same_environment():
    rolls = [
        roll(make_env(spelling), seed=3)
        for spelling in ("OfflineHopperVelocity-v1", "OfflineHopperVelocityGymnasium-v1")
    ]
    np.testing.assert_array_equal(*rolls)


@pytest.mark.simulator
def test_gymnasium_knows_the_tasks():
    env = gym.make("rcdt_agent/OfflineBallRun-v0")
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[4]["cost"] >= 0


@pytest.mark.simulator
def test_global_randomness_is_left_alone():
    np.random.seed(4)  # noqa: NPY002
    random.seed(4)
    expected = np.random.rand(), random.random()  # noqa: NPY002
    np.random.seed(4)  # noqa: NPY002
    random.seed(4)
    make_env("CarRun").reset(seed=9)
    assert (np.random.rand(), random.random()) == expected  # noqa: NPY002


@pytest.mark.simulator
@pytest.mark.parametrize(
    "task", ["BallRun", pytest.param("HopperVelocity", marks=pytest.mark.safety_gymnasium)]
)
def test_bad_actions_are_refused(task):
    env = make_env(task)
    env.reset(seed=0)
    expected = env.action_space.shape
    with pytest.raises(InvalidArgumentError, match=rf"shape \({expected[0]},\), got shape \(7,\)"):
        env.step(np.zeros(7))
    with pytest.raises(InvalidArgumentError, match="`action` must be finite"):
        env.step(np.full(expected, np.nan))
    env.step(np.zeros(expected, np.float32))  # and the environment is still usable


def test_unknown_task():
    with pytest.raises(UnknownTaskError, match="Did you mean OfflineBallRun-v0"):
        make_env("OfflineBalRun-v0")


@pytest.mark.parametrize("suite", ["bullet", "safety-gymnasium"])
def test_missing_simulator_names_the_command(suite, monkeypatch):
    monkeypatch.setitem(sys.modules, simulators.MODULES[suite], None)
    task = {"bullet": "BallRun", "safety-gymnasium": "PointGoal1"}[suite]
    assert not simulators.is_installed(suite)
    with pytest.raises(SimulatorError, match=f"rcdt install-simulators {suite}"):
        make_env(task)


def test_broken_simulator_names_reason_and_command(monkeypatch, tmp_path):
    package = tmp_path / "bullet_safety_gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no engine')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bullet_safety_gym", raising=False)
    with pytest.raises(SimulatorError, match=r"no engine.*rcdt install-simulators bullet"):
        make_env("BallRun")


def test_array_defaults_are_allowed_for_one_package_only():
    original = dataclasses.dataclass
    array = np.zeros(3)
    with simulators.array_defaults_allowed("friendly"):
        theirs = type(
            "Theirs",
            (),
            {"__module__": "friendly.sub", "__annotations__": {"a": object}, "a": array},
        )
        made = dataclasses.dataclass(theirs)
        made().a[0] = 5
        assert made().a[0] == 0  # every instance has its own copy
        if sys.version_info >= (3, 11):
            other = type(
                "Other", (), {"__module__": "strict", "__annotations__": {"a": object}, "a": array}
            )
            with pytest.raises(ValueError, match="mutable default"):
                dataclasses.dataclass(other)
    assert dataclasses.dataclass is original


def test_import_starts_no_simulator():
    code = (
        "import sys, rcdt_agent;"
        "names = {'pybullet', 'bullet_safety_gym', 'mujoco', 'safety_gymnasium', 'metadrive'};"
        "print(sorted(names & {m.split('.')[0] for m in sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
