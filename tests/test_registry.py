"""The registry: counts, spellings, and DSRL's own figures."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from test_simulators import SHAPES

from rcdt_agent import make_env
from rcdt_agent.errors import UnknownTaskError
from rcdt_agent.tasks import register_environments
from rcdt_agent.tasks.datasets import load_task_dataset
from rcdt_agent.tasks.registry import (
    DSRL_TASKS,
    PARALLEL_ENVS,
    SPEED_LIMIT,
    SUITES,
    TASKS,
    get_task,
    guess_task,
    tasks_of,
)
from rcdt_agent.tasks.speed_limit import HORIZON


@pytest.fixture(scope="module")
def infos():
    """`dsrl.infos` from the installed wheel, loaded alone: importing `dsrl` starts simulators."""
    package = importlib.util.find_spec("dsrl")
    path = Path(package.submodule_search_locations[0]) / "infos.py"
    spec = importlib.util.spec_from_file_location("dsrl_infos", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_counts_per_suite():
    assert Counter(task.suite for task in TASKS.values()) == {
        "bullet": 8,
        "safety-gymnasium": 21,
        "metadrive": 9,
        "embedded": 1,
    }
    assert len(DSRL_TASKS) == 38 and list(TASKS) == [*DSRL_TASKS, SPEED_LIMIT.id]
    assert set(SUITES) == {task.suite for task in DSRL_TASKS.values()}
    assert set(PARALLEL_ENVS) == {*SUITES, "embedded"}
    assert len(list(tasks_of("metadrive"))) == 9


@pytest.mark.simulator  # dsrl comes with them
def test_every_figure_equals_dsrl(infos):
    assert {task.name for task in DSRL_TASKS.values()} == set(infos.DATASET_URLS)
    for task in DSRL_TASKS.values():
        name = task.name
        assert task.dataset_file == infos.DATASET_URLS[name].rsplit("/", 1)[1]
        assert task.episode_length == infos.DEFAULT_MAX_EPISODE_STEPS[name]
        assert task.return_range == (infos.MIN_EPISODE_REWARD[name], infos.MAX_EPISODE_REWARD[name])
        assert task.cost_range == (infos.MIN_EPISODE_COST[name], infos.MAX_EPISODE_COST[name])


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("OfflineHopperVelocity-v1", "OfflineHopperVelocityGymnasium-v1"),
        ("OfflineHopperVelocityGymnasium-v1", "OfflineHopperVelocityGymnasium-v1"),
        ("SafetyHopperVelocity-v1", "OfflineHopperVelocityGymnasium-v1"),
        ("HopperVel", "OfflineHopperVelocityGymnasium-v1"),
        ("OfflinePointButton1-v0", "OfflinePointButton1Gymnasium-v0"),
        ("CarCircle", "OfflineCarCircle-v0"),
        ("CarCircle1", "OfflineCarCircle1Gymnasium-v0"),
        ("offlineballrun-V0", "OfflineBallRun-v0"),
        (" EasySparse ", "OfflineMetadrive-easysparse-v0"),
        ("SpeedLimit", "rcdt_agent/SpeedLimit-v0"),
        ("speedlimit-v0", "rcdt_agent/SpeedLimit-v0"),
        ("RCDT_agent/SpeedLimit-v0", "rcdt_agent/SpeedLimit-v0"),
    ],
)
def test_spellings(spelling, canonical):
    assert get_task(spelling).id == canonical


def test_no_spelling_means_two_tasks():
    spellings = [s.lower() for task in TASKS.values() for s in task.spellings]
    assert len(spellings) == len(set(spellings))


def test_unknown_id_names_the_nearest():
    with pytest.raises(UnknownTaskError, match="OfflineHopperVelocityGymnasium-v1.*rcdt tasks"):
        get_task("OfflineHoperVelocity-v1")
    with pytest.raises(ValueError, match="Unknown task 'zzz'. `rcdt tasks` lists all 39 ids"):
        get_task("zzz")


def test_protocol_budgets_and_scores():
    hopper = get_task("HopperVelocity")
    assert hopper.budgets == (20, 40, 80)
    assert hopper.reference_budget == 40
    assert hopper.published_targets == (1750, 1750, 1750)
    assert get_task("BallRun").budgets == get_task("easymean").budgets == (10, 20, 40)
    low, high = hopper.return_range
    assert hopper.normalized_return(low) == 0
    assert hopper.normalized_return(high) == 1
    assert hopper.normalized_return((low + high) / 2) == pytest.approx(0.5)


def test_speed_limit_is_a_task():
    """Its ranges are those of its dataset."""
    task = get_task("SpeedLimit")
    assert task is SPEED_LIMIT
    assert task.budgets == (2, 5, 10, 20, 40) and task.reference_budget == 10
    assert task.published_targets == () and task.dataset_file == ""
    dataset = load_task_dataset("SpeedLimit")
    assert len(dataset) == 1000 and dataset.name == "SpeedLimit drivers"
    assert set(dataset.lengths) == {task.episode_length}
    assert dataset.outcomes.return_range == task.return_range
    assert (dataset.episode_costs.min(), dataset.episode_costs.max()) == task.cost_range
    env = make_env("speedlimit")
    dataset.check_spaces(env.observation_space, env.action_space)
    assert task.episode_length == HORIZON


def test_sizes_of_every_task():
    """Those that `test_simulators.py` and `test_metadrive.py` find in the simulators."""
    assert (SPEED_LIMIT.observation_size, SPEED_LIMIT.action_size) == (4, 1)
    for task in DSRL_TASKS.values():
        expected = (259, 2) if task.suite == "metadrive" else SHAPES[task.name]
        assert (task.observation_size, task.action_size) == expected


def test_make_env_of_speed_limit():
    ours, theirs = make_env("SpeedLimit"), gym.make("rcdt_agent/SpeedLimit-v0")
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    action = np.array([0.5], dtype=np.float32)
    for one, two in zip(ours.step(action), theirs.step(action), strict=True):
        np.testing.assert_equal(one, two)
    with pytest.raises(ValueError, match=r"`action` must have shape \(1,\)"):
        ours.step(np.zeros(2))
    with pytest.raises(ValueError, match="`render_mode` must be None or 'rgb_array', got 'human'"):
        make_env("SpeedLimit", render_mode="human")


def test_every_task_is_registered_with_gymnasium_once():
    register_environments()  # again: it changes nothing
    ids = [name for name in gym.registry if name.startswith("rcdt_agent/")]
    assert sorted(ids) == sorted([SPEED_LIMIT.id, *(f"rcdt_agent/{name}" for name in DSRL_TASKS)])


def test_dataset_of_a_dsrl_task_is_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path))
    task = get_task("BallRun")
    load_task_dataset("SpeedLimit").select([1, 2]).to_hdf5(tmp_path / task.dataset_file)
    assert len(load_task_dataset(task)) == 2


def test_guess_task():
    assert guess_task("SafetyBallRun-v0-80-940.hdf5").name == "BallRun"
    assert guess_task("SafetyCarCircle1Gymnasium-v0-250-1271.hdf5").name == "CarCircle1"
    assert guess_task("speedlimit-drivers.hdf5") is SPEED_LIMIT
    assert guess_task("robot_arm.hdf5") is None
