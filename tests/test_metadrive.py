"""MetaDrive: one engine per process, so each script below runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rcdt_agent.errors import SimulatorError, UnknownTaskError
from rcdt_agent.tasks import metadrive, metadrive_assets

ROOT = Path(__file__).parents[1]
VERSION = "0.4.3"
NINE = [
    road + traffic for road in ("easy", "medium", "hard") for traffic in ("sparse", "mean", "dense")
]

# The first 19 observations on each road, measured on MetaDrive 0.2.6.0, which DSRL's fork is of.
STRAIGHT_AHEAD = [0.0, 0.5, 0.5]  # radius, direction and angle of a straight lane
LEFT_LANE = [0.09722, 0.48611, 0.5, 0.01235, 0.5, 0.5, 0.5, 0.0, 0.5]
LEFT_LANE += [0.55, 0.535, *STRAIGHT_AHEAD, 0.95, 0.535, *STRAIGHT_AHEAD]
RIGHT_LANE = [0.48611, 0.09722, 0.5, 0.01235, 0.5, 0.5, 0.5, 0.0, 0.5]
RIGHT_LANE += [0.55, 0.465, *STRAIGHT_AHEAD, 0.95, 0.465, *STRAIGHT_AHEAD]
FIRST = {"easy": LEFT_LANE, "medium": RIGHT_LANE, "hard": LEFT_LANE}

PREAMBLE = """
import json, sys
import numpy as np
from rcdt_agent.tasks.metadrive import *
from rcdt_agent.tasks import metadrive_assets
from rcdt_agent.tasks.metadrive_assets import PLACEHOLDER_MARK
from rcdt_agent.errors import *
from rcdt_agent import errors

def message(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""


def start(script, *args):
    """Start `script` in a process that turns warnings into errors."""
    command = [sys.executable, "-W", "error", "-c", PREAMBLE + script, *args]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, **pipes)


def finish(process):
    """The one line of JSON that a script prints; anything else it says is noise, and fails."""
    try:
        stdout, stderr = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, stderr
    assert stderr == ""
    assert stdout.count("\n") == 1
    return json.loads(stdout)


def run(script, *args):
    return finish(start(script, *args))


TASKS = """
def roll(env, seed, steps=20):
    actions = np.random.default_rng(0)
    obs, _ = env.reset(seed=seed)
    traffic = [list(car.position) for car in env.simulator.engine.traffic_manager.vehicles]
    rows, contained = [np.append(obs, [0.0, 0.0])], env.observation_space.contains(obs)
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(actions.uniform([-0.1, 0.8], [0.1, 1]))
        contained = contained and env.observation_space.contains(obs)
        assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
        assert type(info["cost"]) is float and not terminated and not truncated
        rows.append(np.append(obs, [reward, info["cost"]]))
    return np.array(rows).tolist(), contained, traffic

result = {}
for name in sys.argv[1:]:
    env = make_metadrive(name)
    spaces = [type(env.observation_space).__name__, type(env.action_space).__name__]
    rows, contained, traffic = roll(env, 7)
    other = roll(env, 8, 10)
    again = roll(env, 7)
    result[name] = dict(
        rows=rows, contained=contained, traffic=traffic, other=other[2], spaces=spaces,
        again=(rows, contained, traffic) == again,
        shapes=[env.observation_space.shape, env.action_space.shape],
    )
    env.close()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def nine():
    """What two processes saw of all nine tasks."""
    processes = [start(TASKS, *NINE) for _ in range(2)]
    return [finish(process) for process in processes]


@pytest.mark.simulator
@pytest.mark.parametrize("name", NINE)
def test_task_steps_and_repeats(nine, name):
    seen, elsewhere = (results[name] for results in nine)
    assert seen["spaces"] == ["Box", "Box"]
    assert seen["shapes"] == [[259], [2]]
    rows = np.array(seen["rows"])
    assert rows.shape == (21, 261)
    assert np.isfinite(rows).all()
    assert seen["contained"]  # float32 within [0, 1]
    assert (rows[:, -1] >= 0).all()
    assert rows[-1, -1] > 0  # fast enough for the velocity cost
    assert rows[:, -2].sum() > 4  # nearly the metres driven
    (first,) = (first for road, first in FIRST.items() if name.startswith(road))
    np.testing.assert_allclose(rows[0, :19], first, atol=2e-5)
    assert seen["again"]  # in the same process, after an episode with another seed
    assert seen == elsewhere  # in another process, bit for bit
    assert len(seen["traffic"]) > 1
    assert seen["traffic"] != seen["other"]  # the seed draws the traffic


COST = """
env = make_metadrive("mediumsparse", traffic_density=0.0)  # starts in the right of three lanes
agent = lambda: env.simulator.agent
rows, actions = [], []
obs, _ = env.reset(seed=0)
for t in range(60):
    actions.append([0.001 * t, 0.6])
    obs, reward, terminated, truncated, info = env.step(np.array(actions[-1]))
    rows.append([float(obs[3]), float(obs[5]), float(obs[6]), info["cost"], info["velocity_cost"]])
driving = dict(rows=rows, actions=actions, terminated=terminated)

def place(lane, ahead, throttle):
    from metadrive.component.vehicle.vehicle_type import SVehicle
    env.reset(seed=0)
    road = agent().lane_index[:2]
    car = dict(spawn_lane_index=(*road, lane), spawn_longitude=5.0 + ahead)
    env.simulator.engine.traffic_manager.spawn_object(SVehicle, vehicle_config=car)
    for t in range(300):
        obs, reward, terminated, truncated, info = env.step(np.array([0.0, throttle]))
        if terminated or throttle == 0:
            break
    costs = [info[key] for key in ("cost", "velocity_cost", "proximity_cost")]
    events = [info[key] for key in ("crash", "out_of_road", "arrive_dest")]
    return dict(lidar=obs[19:].tolist(), costs=costs, events=events, terminated=terminated,
                truncated=truncated, reward=reward, speed=float(obs[3]))

left, crash = place(0, 3.0, 0.0), place(2, 8.0, 0.5)

env.reset(seed=0)
for t in range(300):
    obs, reward, terminated, truncated, info = env.step(np.array([-0.5, 0.5]))
    if terminated:
        break
off = dict(cost=info["cost"], extra=info["velocity_cost"] + info["proximity_cost"], reward=reward,
           terminated=terminated, truncated=truncated, out=info["out_of_road"])
print(json.dumps(dict(driving=driving, left=left, crash=crash, off=off)))
"""


@pytest.fixture(scope="module")
def cost():
    return run(COST)


@pytest.mark.simulator
def test_cost_of_speed_is_in_km_per_hour(cost):
    rows, actions = np.array(cost["driving"]["rows"]), np.array(cost["driving"]["actions"])
    speed = rows[:, 0] * 81 - 1  # the observation is (v + 1) / (80 + 1), v in km/h
    assert speed[0] < 10 < 25 < speed[-1]
    np.testing.assert_allclose(rows[:, 3], np.maximum(0, 0.01 * (speed - 10)), atol=1e-5)
    np.testing.assert_array_equal(rows[:, 3], rows[:, 4])
    assert not cost["driving"]["terminated"]
    # An observation shows the action before last, as in DSRL's data.
    np.testing.assert_allclose(rows[1:, 1:3], (actions[:-1] + 1) / 2, atol=1e-6)
    np.testing.assert_allclose(rows[0, 1:3], [0.5, 0.5])


@pytest.mark.simulator
def test_lidar_turns_clockwise_and_closeness_costs(cost):
    lidar = np.array(cost["left"]["lidar"])
    hit = np.flatnonzero(lidar < 1)
    assert hit.min() >= 180  # a car ahead on the left: the last quarter of the turn
    assert lidar[hit].min() > 0.1  # 5 m: too far to cost
    assert cost["left"]["costs"] == [0.0, 0.0, 0.0]
    assert not cost["left"]["terminated"]

    nearest = min(cost["crash"]["lidar"])
    assert nearest < 0.1
    assert cost["crash"]["costs"][2] == pytest.approx(0.01 * (0.1 - nearest) ** 2)


@pytest.mark.simulator
def test_crash_and_leaving_the_road_cost_one_and_terminate(cost):
    crash, off = cost["crash"], cost["off"]
    total, velocity, proximity = crash["costs"]
    assert crash["events"] == [True, False, False]
    assert total == pytest.approx(1 + velocity + proximity)
    assert velocity == pytest.approx(max(0, 0.01 * (crash["speed"] * 81 - 11)), abs=1e-5)
    assert (crash["terminated"], crash["truncated"], crash["reward"]) == (True, False, 0.0)

    assert off["out"]
    assert off["cost"] == pytest.approx(1 + off["extra"])
    assert (off["terminated"], off["truncated"], off["reward"]) == (True, False, -5.0)


DRIVE = """
from metadrive.policy.idm_policy import IDMPolicy
IDMPolicy.NORMAL_SPEED = 21
result = {}
for road in ("easy", "medium", "hard"):
    env = make_metadrive(road + "mean", agent_policy=IDMPolicy, traffic_density=0.0)
    env.reset(seed=0)
    total, cost, over = 0.0, 0.0, False
    while not over:
        obs, reward, terminated, truncated, info = env.step(np.zeros(2))
        total, cost, over = total + reward, cost + info["cost"], terminated or truncated
    result[road] = [total, cost, info["arrive_dest"]]
    env.close()
print(json.dumps(result))
"""


@pytest.mark.simulator
def test_driver_at_21_km_per_hour_earns_and_costs_what_it_did_on_0_2_6():
    measured = {"easy": (425.41, 74.54), "medium": (262.37, 44.98), "hard": (305.75, 52.90)}
    for road, (total, cost, arrived) in run(DRIVE).items():
        assert (total, cost) == pytest.approx(measured[road], abs=0.3)
        assert arrived


LIFE = """
import gymnasium
out = {}
env = make_metadrive("OfflineMetadrive-easydense-v0", num_scenarios=10, render_mode="rgb_array")
out["early"] = message(gymnasium.error.ResetNeeded, env.step, np.zeros(2))
out["second"] = message(SimulatorError, make_metadrive, "easymean")
scenario = lambda seed: env.reset(seed=seed)[1]["env_seed"]
out["scenarios"] = [scenario(seed) for seed in (0, 9, 10, 23, np.int64(4), 2**40 + 3)]
first = [env.reset()[1]["env_seed"] for _ in range(6)]
scenario(2**40 + 3)
out["goes on"] = first == [env.reset()[1]["env_seed"] for _ in range(6)] and len(set(first)) > 1
out["negative"] = message(InvalidArgumentError, env.reset, seed=-1)
out["still second"] = message(SimulatorError, make_metadrive, "easymean")
out["shape"] = message(InvalidArgumentError, env.step, np.zeros(3))
out["nan"] = message(InvalidArgumentError, env.step, [0.0, float("nan")])
picture = env.render()
out["picture"] = [picture.shape, str(picture.dtype), bool(picture.std() > 1)]
close_open_task()
env.close()
out["closed"] = message(SimulatorError, env.reset)

out["bad key"] = message(InvalidArgumentError, make_metadrive, "easymean", no_such_setting=1)
out["discrete"] = message(InvalidArgumentError, make_metadrive, "easymean", discrete_action=True)
out["bad mode"] = message(InvalidArgumentError, make_metadrive, "easymean", render_mode="ansi")

env = make_metadrive("hardsparse", traffic_density=0.0)
env.reset(seed=0)
ends = [env.step(np.array([0.0, -1.0]))[2:4] for _ in range(1000)]
out["ends"] = [ends.index((False, True)), len(set(ends[:-1])), ends[0]]
env.close()

from metadrive.envs import MetaDriveEnv
foreign = MetaDriveEnv(dict(log_level=50))
foreign.reset()
out["foreign"] = message(SimulatorError, make_metadrive, "easymean")
foreign.close()

from pathlib import Path
empty = Path(sys.argv[1])
metadrive_assets.assets_folder = lambda: empty / "assets"
out["render"] = message(SimulatorError, make_metadrive, "easymean", render_mode="human")
out["marked"] = (empty / "assets" / PLACEHOLDER_MARK).exists()
from metadrive import version
from metadrive.engine.asset_loader import AssetLoader
AssetLoader.asset_path = empty / "assets"
version.__file__ = str(empty / "version.py")
out["accepted"] = not AssetLoader.should_update_asset()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    return run(LIFE, str(tmp_path_factory.mktemp("simulator")))


@pytest.mark.simulator
def test_one_environment_per_process(life):
    for key in ("second", "still second", "foreign"):
        assert "close it" in life[key]
        assert "SubprocVecEnv" in life[key]
    assert "closed" in life["closed"]


@pytest.mark.simulator
def test_seed_chooses_the_scenario(life):
    assert life["scenarios"] == [0, 9, 0, 3, 4, (2**40 + 3) % 10]
    assert life["goes on"]
    assert life["negative"] == "`seed` must be >= 0, got -1."


@pytest.mark.simulator
def test_bad_input_is_named(life):
    assert "shape (2,), got shape (3,)" in life["shape"]
    assert "must be finite" in life["nan"]
    assert "reset" in life["early"]
    assert "no_such_setting" in life["bad key"]
    assert "discrete_action" in life["discrete"]
    assert "'ansi'" in life["bad mode"]


@pytest.mark.simulator
def test_horizon_truncates(life):
    assert life["ends"] == [999, 1, [False, False]]  # at the last of 1000 steps, not before


@pytest.mark.simulator
def test_rendering_needs_real_assets_but_the_top_view_does_not(life):
    assert life["picture"] == [[600, 600, 3], "uint8", True]
    assert "placeholder" in life["render"]
    assert "python -m metadrive.pull_asset --update" in life["render"]
    assert life["marked"]
    assert life["accepted"]  # by MetaDrive's own check


# ---- without the simulator ----


def test_settings_are_dsrls():
    assert list(metadrive.SETTINGS) == NINE
    densities = [settings.traffic_density for settings in metadrive.SETTINGS.values()]
    assert densities == [0.1, 0.15, 0.2] * 3
    roads = [(settings.blocks, settings.start_seed) for settings in metadrive.SETTINGS.values()]
    assert roads == [("SCS", 0)] * 3 + [("XST", 100)] * 3 + [("TRO", 200)] * 3
    config = metadrive.SETTINGS["hardmean"].config()
    fixed = ["horizon", "num_scenarios", "accident_prob", "crash_vehicle_penalty", "traffic_mode"]
    assert [config[key] for key in fixed] == [1000, 1, 0.0, 0.0, "hybrid"]
    assert config["random_traffic"] is True


@pytest.mark.parametrize(("speed", "cost"), [(0.0, 0.0), (10.0, 0.0), (35.0, 0.25), (80.0, 0.7)])
def test_velocity_cost(speed, cost):
    assert metadrive.velocity_cost(speed) == pytest.approx(cost)


@pytest.mark.parametrize(("nearest", "cost"), [(1.0, 0.0), (0.1, 0.0), (0.06, 1.6e-5), (0.0, 1e-4)])
def test_proximity_cost(nearest, cost):
    assert metadrive.proximity_cost(nearest) == pytest.approx(cost)


def test_dsrl_observation():
    obs = np.zeros(259, np.float32)
    obs[[5, 6, 9, 10, 14, 15]] = [0.9, 0.9, 0.7, 0.3, 0.6, 1.0]
    obs[19:] = np.arange(240)
    before = obs.copy()
    out = metadrive.dsrl_observation(obs, (-1.0, 0.5))
    np.testing.assert_array_equal(obs, before)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[[5, 6, 9, 10, 14, 15]], [0.0, 0.75, 0.7, 0.7, 0.6, 0.0])
    np.testing.assert_array_equal(out[[19, 20, 21, 258]], [0, 239, 238, 1])
    np.testing.assert_array_equal(np.sort(out[19:]), np.arange(240))


def test_unknown_task():
    with pytest.raises(UnknownTaskError, match="easysparse.*'easyempty'"):
        metadrive.make_metadrive("easyempty")


def test_missing_simulator(monkeypatch):
    monkeypatch.setitem(sys.modules, "metadrive", None)
    with pytest.raises(SimulatorError, match="rcdt install-simulators metadrive"):
        metadrive.make_metadrive("easysparse")


def test_import_leaves_the_simulator_alone():
    assert run('print(json.dumps("metadrive" in sys.modules))') is False


@pytest.fixture
def assets(monkeypatch, tmp_path):
    """The assets folder of a MetaDrive that is installed without them."""
    package = SimpleNamespace(VERSION=VERSION, __file__=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(metadrive_assets, "simulator_module", lambda name: package)
    return tmp_path / "assets"


def write_assets(folder, version):
    texture = folder / "textures" / "grass1" / "GroundGrassGreen002_COL_1K.jpg"
    texture.parent.mkdir(parents=True)
    texture.write_bytes(b"grass")
    (folder / "version.txt").write_text(version)


def test_placeholder_is_made_once_and_marked(assets):
    assert metadrive_assets.prepare_assets() is False
    assert (assets / "version.txt").read_text() == f"{VERSION}\n"
    assert "pull_asset --update" in (assets / metadrive_assets.PLACEHOLDER_MARK).read_text()
    assert (assets / "textures" / "grass1" / "GroundGrassGreen002_COL_1K.jpg").exists()
    assert [path.name for path in assets.parent.iterdir()] == ["assets"]
    inode = assets.stat().st_ino
    assert metadrive_assets.prepare_assets() is False
    assert assets.stat().st_ino == inode


def test_placeholder_of_another_release_is_replaced(assets):
    metadrive_assets.prepare_assets()
    (assets / "version.txt").write_text("0.4.2\n")
    assert metadrive_assets.prepare_assets() is False
    assert (assets / "version.txt").read_text() == f"{VERSION}\n"


def test_real_assets_are_used_and_never_touched(assets):
    write_assets(assets, VERSION)
    assert metadrive_assets.prepare_assets() is True
    (assets / "version.txt").write_text("0.4.1")
    with pytest.raises(SimulatorError, match="pull_asset --update"):
        metadrive_assets.prepare_assets()
    assert (assets / "version.txt").read_text() == "0.4.1"
    assert not (assets / metadrive_assets.PLACEHOLDER_MARK).exists()


def test_unwritable_folder_is_named(assets, monkeypatch):
    folder = assets.parent / "a file" / "assets"
    folder.parent.write_text("not a folder")  # a mode would not stop root
    monkeypatch.setattr(metadrive_assets, "assets_folder", lambda: folder)
    with pytest.raises(SimulatorError, match="a file/assets, which cannot be written"):
        metadrive_assets.prepare_assets()
