"""The registry: counts, spellings, and DSRL's own figures."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from rcdt_agent.errors import UnknownTaskError
from rcdt_agent.tasks.registry import TASKS, get_task, tasks_of


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
    }
    assert len(list(tasks_of("metadrive"))) == 9


def test_every_figure_equals_dsrl(infos):
    assert {task.name for task in TASKS.values()} == set(infos.DATASET_URLS)
    for task in TASKS.values():
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
    with pytest.raises(ValueError, match="Unknown task 'zzz'. `rcdt tasks` lists all 38 ids"):
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
