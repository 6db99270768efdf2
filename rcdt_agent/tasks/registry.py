"""The 38 DSRL tasks and SpeedLimit: ids in every spelling, dataset files, ranges, budgets.

Ranges are DSRL's own (`dsrl.infos`, cross-checked by a test); budgets are those of the
constraint-variation protocol of the paper; target returns are the ones published with CDT.
SpeedLimit's are those of its recorded drivers. This module imports no simulator.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rcdt_agent.errors import UnknownTaskError
from rcdt_agent.stats import normalized_score

Suite = Literal["bullet", "safety-gymnasium", "metadrive", "embedded"]
SUITES: tuple[Suite, ...] = ("bullet", "safety-gymnasium", "metadrive")
"""The simulator families; `embedded` tasks need none."""

BUDGETS: dict[Suite, tuple[float, ...]] = {
    "bullet": (10.0, 20.0, 40.0),
    "safety-gymnasium": (20.0, 40.0, 80.0),
    "metadrive": (10.0, 20.0, 40.0),
    "embedded": (2.0, 5.0, 10.0, 20.0, 40.0),
}
"""Cost budgets of the evaluation protocol."""

PARALLEL_ENVS: dict[Suite, int] = {
    "bullet": 16,
    "safety-gymnasium": 4,  # slow to make
    "metadrive": 1,  # one engine per process
    "embedded": 16,
}
"""Environments of an evaluation in one process, by default."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: everything that is known without a simulator or a file."""

    name: str
    """Short name without prefix and version, e.g. `HopperVelocity` or `easysparse`."""
    id: str
    """Canonical id; for Safety-Gymnasium the five-value spelling."""
    spellings: tuple[str, ...]
    """Every accepted id, the canonical one first. Lookups ignore case."""
    suite: Suite
    env_id: str
    """Id of the environment in the simulator's own registry (MetaDrive: the DSRL id)."""
    dataset_file: str
    """File name in DSRL's release; empty where the data are made on the spot."""
    episode_length: int
    observation_size: int
    action_size: int
    return_range: tuple[float, float]
    """Smallest and largest return of the dataset, as published; scores are normalised by it."""
    cost_range: tuple[float, float]
    """Smallest and largest cost of the dataset, as published."""
    budgets: tuple[float, ...]
    """Cost budgets of the evaluation protocol, increasing."""
    published_targets: tuple[float, ...]
    """Target returns published for CDT, one per budget, or none. Some exceed all the data."""

    @property
    def reference_budget(self) -> float:
        """The middle budget: the default cost limit of the trajectory weights."""
        return self.budgets[len(self.budgets) // 2]

    def normalized_return(self, value: float) -> float:
        """Scale a return to [0, 1] by the published range (can fall outside)."""
        return float(normalized_score(value, self.return_range))


class _Row(NamedTuple):
    name: str
    dataset_file: str
    episode_length: int
    returns: tuple[float, float]
    costs: tuple[float, float]
    targets: tuple[float, float, float]


# Target returns of CarCircle were published for budgets 10, 20, 50; those of mediumdense fell back
# to another task's default (far above its largest return), so its sisters' value stands here.
# fmt: off
_BULLET = (  # name, file, steps, returns, costs, target returns
    _Row("AntCircle", "SafetyAntCircle-v0-200-5728.hdf5", 500, (0.0177031010389328, 460.7091979980469), (0.0, 200.0), (300.0, 350.0, 400.0)),
    _Row("AntRun", "SafetyAntRun-v0-150-1816.hdf5", 200, (0.001767391717990563, 955.4818725585938), (0.0, 150.0), (700.0, 750.0, 800.0)),
    _Row("BallCircle", "SafetyBallCircle-v0-80-886.hdf5", 200, (0.38312244415283203, 881.46337890625), (0.0, 80.0), (700.0, 750.0, 800.0)),
    _Row("BallRun", "SafetyBallRun-v0-80-940.hdf5", 100, (26.339754104614258, 1327.445556640625), (0.0, 80.0), (500.0, 500.0, 700.0)),
    _Row("CarCircle", "SafetyCarCircle-v0-100-1450.hdf5", 300, (3.484419822692871, 534.3060913085938), (0.0, 100.0), (450.0, 500.0, 550.0)),
    _Row("CarRun", "SafetyCarRun-v0-40-651.hdf5", 200, (204.28726196289062, 574.6533203125), (0.0, 40.0), (575.0, 575.0, 575.0)),
    _Row("DroneCircle", "SafetyDroneCircle-v0-100-1923.hdf5", 300, (207.794189453125, 996.38916015625), (0.0, 100.0), (700.0, 750.0, 800.0)),
    _Row("DroneRun", "SafetyDroneRun-v0-140-1990.hdf5", 200, (10.557029724121094, 682.8330078125), (0.0, 140.0), (400.0, 500.0, 600.0)),
)
_SAFETY_GYMNASIUM = (
    _Row("CarButton1", "SafetyCarButton1Gymnasium-v0-250-2656.hdf5", 1000, (0.0028926206826067613, 44.420003345738984), (0.0, 250.0), (35.0, 35.0, 35.0)),
    _Row("CarButton2", "SafetyCarButton2Gymnasium-v0-300-3755.hdf5", 1000, (0.001767391717990563, 41.99513815522894), (0.0, 300.0), (40.0, 40.0, 40.0)),
    _Row("CarCircle1", "SafetyCarCircle1Gymnasium-v0-250-1271.hdf5", 500, (8.037073135375977, 24.94155502319336), (0.0, 250.0), (20.0, 22.5, 25.0)),
    _Row("CarCircle2", "SafetyCarCircle2Gymnasium-v0-400-940.hdf5", 500, (5.113386154174805, 25.950098037719727), (0.0, 398.0), (20.0, 21.0, 22.0)),
    _Row("CarGoal1", "SafetyCarGoal1Gymnasium-v0-120-1671.hdf5", 1000, (0.012232819540852091, 39.907809198384705), (0.0, 120.0), (40.0, 40.0, 40.0)),
    _Row("CarGoal2", "SafetyCarGoal2Gymnasium-v0-200-4105.hdf5", 1000, (0.001032874531954775, 28.902897990056502), (0.0, 200.0), (30.0, 30.0, 30.0)),
    _Row("CarPush1", "SafetyCarPush1Gymnasium-v0-200-2871.hdf5", 1000, (0.013700173533941762, 16.304467598905237), (0.0, 200.0), (15.0, 15.0, 15.0)),
    _Row("CarPush2", "SafetyCarPush2Gymnasium-v0-250-4407.hdf5", 1000, (0.00029391133526335267, 15.141648491514314), (0.0, 250.0), (12.0, 12.0, 12.0)),
    _Row("PointButton1", "SafetyPointButton1Gymnasium-v0-200-2268.hdf5", 1000, (0.008822109034937853, 41.19301568767707), (0.0, 200.0), (40.0, 40.0, 40.0)),
    _Row("PointButton2", "SafetyPointButton2Gymnasium-v0-250-3288.hdf5", 1000, (0.014114166087574098, 42.8985953616709), (0.0, 250.0), (40.0, 40.0, 40.0)),
    _Row("PointCircle1", "SafetyPointCircle1Gymnasium-v0-200-1098.hdf5", 500, (20.067626953125, 61.72819519042969), (0.0, 200.0), (50.0, 52.5, 55.0)),
    _Row("PointCircle2", "SafetyPointCircle2Gymnasium-v0-300-895.hdf5", 500, (20.478347778320312, 54.02184295654297), (0.0, 299.0), (45.0, 47.5, 50.0)),
    _Row("PointGoal1", "SafetyPointGoal1Gymnasium-v0-100-2022.hdf5", 1000, (0.01196012764197707, 30.071114857340543), (0.0, 100.0), (30.0, 30.0, 30.0)),
    _Row("PointGoal2", "SafetyPointGoal2Gymnasium-v0-200-3442.hdf5", 1000, (0.002616959830266108, 27.717709787852737), (0.0, 200.0), (30.0, 30.0, 30.0)),
    _Row("PointPush1", "SafetyPointPush1Gymnasium-v0-150-2379.hdf5", 1000, (0.0014001545292344209, 16.518654299293367), (0.0, 150.0), (15.0, 15.0, 15.0)),
    _Row("PointPush2", "SafetyPointPush2Gymnasium-v0-200-3242.hdf5", 1000, (0.0012438183001730607, 14.691039145644403), (0.0, 200.0), (12.0, 12.0, 12.0)),
    _Row("AntVelocity", "SafetyAntVelocityGymnasium-v1-250-2249.hdf5", 1000, (6.1519012451171875, 2976.276611328125), (0.0, 250.0), (2800.0, 2800.0, 2800.0)),
    _Row("HalfCheetahVelocity", "SafetyHalfCheetahVelocityGymnasium-v1-250-2495.hdf5", 1000, (5.7509765625, 2806.93310546875), (0.0, 250.0), (3000.0, 3000.0, 3000.0)),
    _Row("HopperVelocity", "SafetyHopperVelocityGymnasium-v1-250-2240.hdf5", 1000, (37.05154800415039, 1911.396728515625), (0.0, 250.0), (1750.0, 1750.0, 1750.0)),
    _Row("SwimmerVelocity", "SafetySwimmerVelocityGymnasium-v1-200-1686.hdf5", 1000, (0.07114458084106445, 238.95831298828125), (0.0, 200.0), (160.0, 160.0, 160.0)),
    _Row("Walker2dVelocity", "SafetyWalker2dVelocityGymnasium-v1-300-2729.hdf5", 1000, (18.668498992919922, 3418.223876953125), (0.0, 300.0), (2800.0, 2800.0, 2800.0)),
)
_METADRIVE = (
    _Row("easysparse", "SafeMetaDrive-easysparse-v0-85-1000.hdf5", 1000, (20.094310760498047, 425.8006286621094), (0.00025356505648232996, 82.42418670654297), (300.0, 350.0, 400.0)),
    _Row("easymean", "SafeMetaDrive-easymean-v0-85-1000.hdf5", 1000, (22.142553329467773, 425.82440185546875), (0.0, 82.38601684570312), (300.0, 350.0, 400.0)),
    _Row("easydense", "SafeMetaDrive-easydense-v0-85-1000.hdf5", 1000, (19.71139144897461, 425.81732177734375), (0.0, 80.36358642578125), (300.0, 350.0, 400.0)),
    _Row("mediumsparse", "SafeMetaDrive-mediumsparse-v0-50-1000.hdf5", 1000, (17.446578979492188, 269.80084228515625), (0.0, 46.46459197998047), (300.0, 300.0, 300.0)),
    _Row("mediummean", "SafeMetaDrive-mediummean-v0-50-1000.hdf5", 1000, (17.032529830932617, 269.8221435546875), (0.0, 46.46154022216797), (300.0, 300.0, 300.0)),
    _Row("mediumdense", "SafeMetaDrive-mediumdense-v0-50-1000.hdf5", 1000, (15.102348327636719, 269.7813415527344), (0.0, 46.45858383178711), (300.0, 300.0, 300.0)),
    _Row("hardsparse", "SafeMetaDrive-hardsparse-v0-85-1000.hdf5", 1000, (17.247974395751953, 486.80523681640625), (0.0, 85.010009765625), (300.0, 350.0, 400.0)),
    _Row("hardmean", "SafeMetaDrive-hardmean-v0-85-1000.hdf5", 1000, (19.387981414794922, 486.9967956542969), (0.00033149970113299787, 84.33995056152344), (300.0, 350.0, 400.0)),
    _Row("harddense", "SafeMetaDrive-harddense-v0-85-1000.hdf5", 1000, (15.386894226074219, 486.63616943359375), (0.0, 84.76679229736328), (300.0, 350.0, 400.0)),
)
# fmt: on

_SIZES = {  # of observation and action, as the simulators have them
    "AntCircle": (34, 8), "AntRun": (33, 8), "BallCircle": (8, 2), "BallRun": (7, 2),
    "CarCircle": (8, 2), "CarRun": (7, 2), "DroneCircle": (18, 4), "DroneRun": (17, 4),
    "CarButton1": (88, 2), "CarButton2": (88, 2), "CarCircle1": (40, 2), "CarCircle2": (40, 2),
    "CarGoal1": (72, 2), "CarGoal2": (72, 2), "CarPush1": (88, 2), "CarPush2": (88, 2),
    "PointButton1": (76, 2), "PointButton2": (76, 2), "PointCircle1": (28, 2),
    "PointCircle2": (28, 2), "PointGoal1": (60, 2), "PointGoal2": (60, 2), "PointPush1": (76, 2),
    "PointPush2": (76, 2), "AntVelocity": (27, 8), "HalfCheetahVelocity": (17, 6),
    "HopperVelocity": (11, 3), "SwimmerVelocity": (8, 2), "Walker2dVelocity": (17, 6),
}  # fmt: skip
_METADRIVE_SIZES = (259, 2)


def _build(suite: Suite, row: _Row) -> Task:
    name = row.name
    observation_size, action_size = _SIZES.get(name, _METADRIVE_SIZES)
    if suite == "bullet":
        env_id = f"Safety{name}-v0"
        spellings = [f"Offline{name}-v0", name, env_id]
    elif suite == "safety-gymnasium":
        version = "v1" if name.endswith("Velocity") else "v0"
        env_id = f"Safety{name}-{version}"
        spellings = [
            f"Offline{name}Gymnasium-{version}",
            f"Offline{name}-{version}",
            name,
            env_id,
            f"Safety{name}Gymnasium-{version}",
        ]
        if version == "v1":
            spellings.append(name.removesuffix("ocity"))  # the tables' short form: HopperVel
    else:
        env_id = f"OfflineMetadrive-{name}-v0"
        spellings = [env_id, name, f"SafeMetaDrive-{name}-v0", f"MetaDrive-{name}"]
    return Task(
        name=name,
        id=spellings[0],
        spellings=tuple(spellings),
        suite=suite,
        env_id=env_id,
        dataset_file=row.dataset_file,
        episode_length=row.episode_length,
        observation_size=observation_size,
        action_size=action_size,
        return_range=row.returns,
        cost_range=row.costs,
        budgets=BUDGETS[suite],
        published_targets=row.targets,
    )


DSRL_TASKS: dict[str, Task] = {
    task.id: task
    for suite, rows in zip(SUITES, (_BULLET, _SAFETY_GYMNASIUM, _METADRIVE), strict=True)
    for task in (_build(suite, row) for row in rows)
}
"""The 38 tasks of DSRL by canonical id, in the order of the suites."""

SPEED_LIMIT = Task(
    name="SpeedLimit",
    id="rcdt_agent/SpeedLimit-v0",
    spellings=("rcdt_agent/SpeedLimit-v0", "SpeedLimit", "SpeedLimit-v0"),
    suite="embedded",
    env_id="rcdt_agent/SpeedLimit-v0",
    dataset_file="",
    episode_length=60,
    observation_size=4,
    action_size=1,
    return_range=(18.52884864807129, 109.34586334228516),  # of `record_drivers(1000)`
    cost_range=(0.0, 79.64851379394531),
    budgets=BUDGETS["embedded"],
    published_targets=(),
)
"""The embedded task, whose optimal return is known at every budget."""

TASKS: dict[str, Task] = {**DSRL_TASKS, SPEED_LIMIT.id: SPEED_LIMIT}
"""Every task by canonical id, SpeedLimit last."""

_BY_SPELLING = {spelling.lower(): task for task in TASKS.values() for spelling in task.spellings}


def get_task(task_id: str | Task) -> Task:
    """Look a task up by any accepted spelling; case does not matter.

    Args:
        task_id: For example `OfflineHopperVelocity-v1`, `OfflineHopperVelocityGymnasium-v1`,
            `HopperVelocity`, `OfflineMetadrive-easysparse-v0`, `SpeedLimit`; a `Task` is passed
            through.

    Raises:
        UnknownTaskError: Names the nearest ids.
    """
    if isinstance(task_id, Task):
        return task_id
    if not isinstance(task_id, str):
        raise UnknownTaskError(f"`task` must be the id of a task, got {task_id!r}.")
    task = _BY_SPELLING.get(task_id.strip().lower())
    if task is None:
        nearest = _nearest_ids(task_id)
        hint = f" Did you mean {', '.join(nearest)}?" if nearest else ""
        raise UnknownTaskError(
            f"Unknown task {task_id!r}.{hint} `rcdt tasks` lists all {len(TASKS)} ids."
        )
    return task


def guess_task(file_name: str) -> Task | None:
    """The task named at the start of a file name, e.g. `SafetyBallRun-v0-80-940.hdf5`."""
    matches = [
        (len(spelling), task)
        for task in TASKS.values()
        for spelling in (*task.spellings, task.env_id)
        if file_name.lower().startswith(spelling.lower())
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def tasks_of(suite: Suite) -> Iterator[Task]:
    """Iterate over the tasks of one suite."""
    return (task for task in TASKS.values() if task.suite == suite)


def _nearest_ids(task_id: str, count: int = 3) -> list[str]:
    matches = difflib.get_close_matches(task_id.lower(), _BY_SPELLING, n=3 * count, cutoff=0.5)
    return list(dict.fromkeys(_BY_SPELLING[match].id for match in matches))[:count]
