"""DSRL's nine MetaDrive tasks on the PyPI release `metadrive-simulator` 0.4.3, without rendering.

DSRL wrote these tasks for a fork of MetaDrive 0.2.6 that was never released: an older step
signature, a left-handed world, speeds in km/h. Here they run on 0.4.3 with DSRL's settings, and
observations, costs and the exit ramp are turned back into what they were for DSRL, so that a
policy trained on DSRL's data sees the world it was trained on. What stays different: a car gains
speed slightly faster in 0.4.3.

MetaDrive runs one engine per process and wants an asset archive that only rendering reads;
`metadrive_assets` puts a marked placeholder where the archive would be.
"""

from __future__ import annotations

import logging
import operator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike

from rcdt_agent._types import Float32Array
from rcdt_agent.errors import InvalidArgumentError, SimulatorError, UnknownTaskError
from rcdt_agent.tasks import metadrive_assets
from rcdt_agent.tasks.metadrive_assets import simulator_module


@dataclass(frozen=True, kw_only=True)
class MetaDriveSettings:
    """What sets one of the nine tasks apart from the others."""

    blocks: str
    """Road blocks in order: S straight, C curve, X and T junctions, R ramp, O roundabout."""
    start_seed: int
    """Number of the first scenario; a scenario fixes the shape of each block and the start lane."""
    traffic_density: float
    """Traffic vehicles per 10 m of lane."""

    def config(self) -> dict[str, Any]:
        """The configuration of MetaDrive 0.4.3 for this task.

        Renamed since DSRL's fork: `environment_num` is `num_scenarios`, `safe_rl_env` is the two
        `crash_*_done`. Without a counterpart: `idm_target_speed`, `idm_acc_factor` and
        `idm_deacc_factor`, which drove the fork's data-collecting car, never the traffic.
        """
        return {
            "map": 3,  # MetaDrive insists on its default here when `map_config` names the blocks
            "map_config": {"type": "block_sequence", "config": self.blocks},
            "start_seed": self.start_seed,
            "num_scenarios": 1,  # the data seem to come from ten
            "traffic_density": self.traffic_density,
            "traffic_mode": "hybrid",  # a car that leaves the road starts again elsewhere
            "random_traffic": True,  # drawn anew each episode, not fixed by the scenario
            "accident_prob": 0.0,
            "crash_vehicle_done": False,
            "crash_object_done": False,
            "crash_vehicle_penalty": 0.0,
            "horizon": 1000,
            "force_destroy": True,  # a reused car keeps traces of its last episode's physics
            "log_level": logging.ERROR,
        }


_ROADS = {"easy": ("SCS", 0), "medium": ("XST", 100), "hard": ("TRO", 200)}
_DENSITIES = {"sparse": 0.1, "mean": 0.15, "dense": 0.2}

SETTINGS = {
    f"{road}{traffic}": MetaDriveSettings(
        blocks=blocks, start_seed=start_seed, traffic_density=density
    )
    for road, (blocks, start_seed) in _ROADS.items()
    for traffic, density in _DENSITIES.items()
}
"""The nine tasks by their short name: `easysparse` ... `harddense`."""

COST_NAMES = ("crash", "out_of_road", "speed")
"""Of `info["costs"]`, for an agent with a budget for each (`cost_key="costs"`)."""

FREE_SPEED, SPEED_COST = 10.0, 0.01
"""DSRL's cost of speed begins at so many km/h, and is so much for each km/h above."""

OBSERVATION_SIZE, ACTION_SIZE = 259, 2
_LAST_ACTION = slice(5, 7)  # steering and throttle
_CHECKPOINT_SIDE = [10, 15]  # how far the next two checkpoints lie to the side
_LIDAR = slice(19, 259)  # 240 beams, 1.0 where nothing is within 50 m

_open_task: MetaDriveTask | None = None


def make_metadrive(
    name: str, *, render_mode: str | None = None, **overrides: Any
) -> gymnasium.Env[Float32Array, Float32Array]:
    """Make one of the nine tasks.

    Args:
        name: A key of `SETTINGS`, or its DSRL id such as `OfflineMetadrive-easysparse-v0`.
        render_mode: `None`, `"rgb_array"` (top view, needs no assets) or `"human"` (a 3D window).
        **overrides: Settings of MetaDrive's own configuration, for example `num_scenarios=10`.

    Returns:
        A five-value environment with 259 observations, 2 actions and `info["cost"]`.

    Raises:
        UnknownTaskError: `name` is not one of the nine.
        InvalidArgumentError: MetaDrive refuses an override, or it changes the spaces.
        SimulatorError: MetaDrive is not installed, another one is open in this process, or a
            3D window is asked for while its assets are missing.
    """
    global _open_task
    settings = SETTINGS.get(name.removeprefix("OfflineMetadrive-").removesuffix("-v0"))
    if settings is None:
        raise UnknownTaskError(f"`name` must be one of {', '.join(SETTINGS)}, got {name!r}.")
    modes = (None, *MetaDriveTask.metadata["render_modes"])
    if render_mode not in modes:
        raise InvalidArgumentError(f"`render_mode` must be one of {modes}, got {render_mode!r}.")

    envs = simulator_module("metadrive.envs")
    if _open_task is not None or simulator_module("metadrive.engine.engine_utils").get_engine():
        raise SimulatorError(
            "MetaDrive runs one environment per process and one is open already: close it "
            "(`env.close()`, or `rcdt_agent.tasks.metadrive.close_open_task()` when `env` is "
            "lost), or run each in a process of its own (stable-baselines3's `SubprocVecEnv`)."
        )
    config = settings.config() | {"block_dist_config": _dsrl_blocks()}
    config |= {"use_render": render_mode == "human"} | overrides
    _require_assets(for_window=config["use_render"])
    _open_task = MetaDriveTask(_make_simulator(envs, config, overrides), render_mode)
    return _open_task


def _require_assets(*, for_window: bool) -> None:
    """Prepare the assets folder; a 3D window needs the real assets."""
    if not metadrive_assets.prepare_assets() and for_window:
        raise SimulatorError(
            f"A 3D window needs MetaDrive's assets, but {metadrive_assets.assets_folder()} is a "
            f"placeholder, fit for physics only. Run `{metadrive_assets.PULL_COMMAND}` (it "
            "downloads them), or use `render_mode='rgb_array'`, a top view that needs no assets."
        )


def _make_simulator(envs: Any, config: dict[str, Any], overrides: dict[str, Any]) -> Any:
    try:
        simulator = envs.SafeMetaDriveEnv(config)
        shapes = simulator.observation_space.shape, simulator.action_space.shape
        if shapes != ((OBSERVATION_SIZE,), (ACTION_SIZE,)):
            raise ValueError(f"observation and action are of shape {shapes}")
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise InvalidArgumentError(
            "`overrides` must be settings of MetaDrive that keep the 259 observations and 2 "
            f"actions, got {overrides}: {str(error)[:200]}"
        ) from error
    return simulator


def close_open_task() -> None:
    """Close the MetaDrive environment that is open in this process, if there is one."""
    if _open_task is not None:
        _open_task.close()


class MetaDriveTask(gymnasium.Env[Float32Array, Float32Array]):
    """One task; made by `make_metadrive`.

    `info["cost"]` is 1 for a crash or for leaving the road, plus the `velocity_cost` and the
    `proximity_cost` of the step. `info["costs"]` holds `COST_NAMES` apart: a crash, leaving the
    road, and the `velocity_cost`; the rest, closeness, is at most 0.0001 a step. An episode
    terminates on arrival, crash or leaving the road, and
    is truncated after 1000 steps. `simulator` is MetaDrive's own environment.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, simulator: Any, render_mode: str | None) -> None:
        """Wrap `simulator`, whose engine starts at the first `reset`."""
        self.simulator = simulator
        self.render_mode = render_mode
        self.observation_space = Box(0.0, 1.0, (OBSERVATION_SIZE,), np.float32)
        self.action_space = Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Any integer >= 0. It chooses the scenario, `start_seed + seed % num_scenarios`
                (DSRL has one scenario, so always the same road), and seeds the traffic. Without
                it, scenario and traffic are drawn on from where the last episode left off.
            options: Not used.
        """
        simulator = self._open_simulator()
        if seed is not None:
            seed = operator.index(seed)
            if seed < 0:
                raise InvalidArgumentError(f"`seed` must be >= 0, got {seed}.")
        super().reset(seed=seed)
        simulator.lazy_init()  # the traffic exists only once the engine runs
        num_scenarios = simulator.config["num_scenarios"]
        if seed is None:
            number = int(self.np_random.integers(num_scenarios))
        else:
            number = seed % num_scenarios
            random_utils = simulator_module("metadrive.utils.random_utils")
            simulator.engine.traffic_manager.np_random = random_utils.get_np_random(seed)
        obs, info = simulator.reset(seed=simulator.config["start_seed"] + number)
        self._running = True
        return self._observation(obs), info

    def step(self, action: Float32Array) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Drive 0.1 s with `action` = (steering, left positive; throttle, negative brakes)."""
        simulator = self._open_simulator()
        if not self._running:
            raise gymnasium.error.ResetNeeded("Call `reset` before `step`.")
        obs, reward, _, _, info = simulator.step(_checked_action(action))
        obs = self._observation(obs)
        # 0.4.3 reports m/s where DSRL's fork reported km/h.
        info["velocity_cost"] = velocity_cost(3.6 * info["velocity"])
        off_road = float(info["cost"]) if info["out_of_road"] else 0.0
        info["costs"] = {
            "crash": float(info["cost"]) - off_road,
            "out_of_road": off_road,
            "speed": info["velocity_cost"],
        }
        info["proximity_cost"] = proximity_cost(float(obs[_LIDAR].min()))
        info["cost"] = float(info["cost"] + info["velocity_cost"] + info["proximity_cost"])
        terminated = bool(info["arrive_dest"] or info["crash"] or info["out_of_road"])
        return obs, float(reward), terminated, bool(info["max_step"]), info

    def render(self) -> Any:
        """Return the top view (600, 600, 3), or redraw the 3D window."""
        if self.render_mode == "rgb_array":
            size = (600, 600)
            view = self._open_simulator().render(mode="topdown", window=False, screen_size=size)
            return np.asarray(view, np.uint8)
        if self.render_mode == "human":
            self._open_simulator().render()
        return None

    def close(self) -> None:
        """End the engine, so that the process may make another one; closing twice is harmless."""
        global _open_task
        if self.simulator is not None:
            self.simulator.close()
            self.simulator = None
        if _open_task is self:
            _open_task = None

    def _open_simulator(self) -> Any:
        if self.simulator is None:
            raise SimulatorError("This MetaDrive environment is closed: make a new one.")
        return self.simulator

    def _observation(self, obs: Float32Array) -> Float32Array:
        return dsrl_observation(obs, self.simulator.agent.last_current_action[0])


def velocity_cost(speed_km_h: float) -> float:
    """DSRL's cost of speed: 0.01 for each km/h above 10."""
    return max(0.0, SPEED_COST * (speed_km_h - FREE_SPEED))


def proximity_cost(nearest: float) -> float:
    """DSRL's cost of closeness: `0.01 max(0, 0.1 - nearest)^2`, `nearest` the least lidar value."""
    return 0.01 * max(0.0, 0.1 - nearest) ** 2


def dsrl_observation(obs: Float32Array, action_before_last: ArrayLike) -> Float32Array:
    """Turn an observation of MetaDrive 0.4.3 (259,) into the convention of DSRL's data.

    In DSRL's left-handed world a checkpoint to the right is above 0.5 and the lidar turns
    clockwise, and the action it shows is one step older. The rest agrees: the same driver on 0.2.6
    and on 0.4.3 sees each entry differ by less than 0.02 on average, on each of the three roads.
    """
    out = np.array(obs, np.float32)
    out[_LAST_ACTION] = np.clip((np.asarray(action_before_last) + 1.0) / 2.0, 0.0, 1.0)
    out[_CHECKPOINT_SIDE] = 1.0 - out[_CHECKPOINT_SIDE]
    out[_LIDAR] = np.roll(out[_LIDAR][::-1], 1)  # beam i -> beam -i, straight ahead stays first
    return out


def _dsrl_blocks() -> Any:
    """MetaDrive's road blocks, with the exit ramp `R` as it was for DSRL.

    In 0.4.3 the ramp opens over 20 to 40 m and, a bug, always towards east: on the hard road,
    which runs north there, it cuts across every lane, so that nobody can arrive. Here it opens
    along the road and over one lane width, which gives the lane lengths of 0.2.6.
    """
    ramp = simulator_module("metadrive.component.pgblock.ramp")
    space = simulator_module("metadrive.component.pg_space")
    lane = simulator_module("metadrive.component.lane.extension_lane")
    base = simulator_module("metadrive.component.algorithm.blocks_prob_dist").PGBlockDistConfig

    def merge_part(self: Any, beside: Any, length: float) -> Any:
        width = self.lane_width
        ends = beside.position(0.0, width), beside.position(length, width)
        lines = [ramp.PGLineType.NONE, ramp.PGLineType.CONTINUOUS]
        return lane.ExtendingLane(lane.ExtensionDirection.EXTEND, *ends, width, lines)

    parameters = space.ParameterSpace(
        space.BlockParameterSpace.RAMP_PARAMETER | {"extension_length": space.ConstantSpace(3.5)}
    )
    exit_ramp = type(
        "ExitRamp",
        (ramp.OutRampOnStraight,),
        {"PARAMETER_SPACE": parameters, "_get_merge_part": merge_part},
    )

    def get_block(block_id: str, version: str = "v2") -> Any:
        return exit_ramp if block_id == "R" else base.get_block(block_id, version)

    return type("DsrlBlocks", (base,), {"get_block": staticmethod(get_block)})


def _checked_action(action: ArrayLike) -> Float32Array:
    values = np.asarray(action, np.float32)
    if values.shape != (ACTION_SIZE,) or not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"`action` must be finite and of shape ({ACTION_SIZE},), got shape {values.shape}: "
            f"{values}."
        )
    return values
