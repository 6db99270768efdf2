"""Scripted drivers of Safety-Gymnasium's Circle and Goal tasks, for its point and its car.

They look at the simulator's own positions (of itself, the goal, whatever costs), which lidar
readings show only roughly; what is recorded is the task's observation as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.tasks.registry import get_task

NAVIGATION_TASKS = tuple(
    f"{agent}{task}{level}"
    for agent in ("Point", "Car")
    for task in ("Circle", "Goal")
    for level in (1, 2)
)


def around(
    position: Float64Array,
    *,
    speed: float,
    radius: float,
    walls: npt.ArrayLike,
    braking: float,
    clockwise: bool,
) -> Float64Array:
    """The velocity wished for on a circle that walls cut short.

    Args:
        position: (2,) from the circle's centre, in metres.
        speed: Metres per second.
        radius: Of the circle.
        walls: (2,) farthest |x| and |y| to go to; infinite where there is none.
        braking: Deceleration that can be relied on, in metres per second squared.
        clockwise: Direction of the round.
    """
    distance = max(float(np.linalg.norm(position)), 1e-6)
    outwards = position / distance
    ahead = np.array([outwards[1], -outwards[0]]) * (1.0 if clockwise else -1.0)
    wish = speed * ahead + 1.5 * (radius - distance) * outwards
    wish *= speed / max(float(np.linalg.norm(wish)), 1e-6)
    # As fast towards a wall as it can still brake from; beyond it, back.
    room = np.asarray(walls) - np.abs(position)
    most = np.where(room > 0.0, np.sqrt(2.0 * braking * np.abs(room)), 2.0 * room)
    return np.where(position > 0.0, np.minimum(wish, most), np.maximum(wish, -most))


def share_of_pass(left: float, *, speed: float, radius: float, seconds: float, walls: int) -> float:
    """Cost to spend at the next wall so that `left` is divided evenly among those to come.

    Args:
        left: Cost that may still be spent.
        speed: Metres per second.
        radius: Of the circle, in metres.
        seconds: Until the episode ends.
        walls: That a round leads past.
    """
    rounds = speed * seconds / (2.0 * np.pi * radius)
    return left / max(1, round(walls * rounds))


def radius_of_pass(share: float, *, wall: float, speed: float, step_seconds: float) -> float:
    """Radius in metres of the circle that lies beyond a wall for `share` steps at each pass."""
    angles = np.linspace(0.0, 1.5, 1001)  # of half the arc beyond it; at 1.5 that is 14 walls out
    lengths = 2.0 * wall * angles / np.cos(angles)
    return wall / float(np.cos(np.interp(share * step_seconds * speed, lengths, angles)))


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """How a robot of Safety-Gymnasium moves."""

    speed: float
    """As fast as it drives well, in metres per second."""
    braking: float
    """Deceleration on a straight line, in metres per second squared."""
    drift: float
    """Radius of the circle that it drives at that speed minus the radius aimed at, in metres."""
    slides: bool
    """Whether it keeps its momentum when it turns, as the point does."""


# Drifts are measured without noise: 0.27 to 0.37 and 0.11 to 0.18 m, by radius and speed.
_POINT = _Machine(speed=1.4, braking=0.4, drift=0.3, slides=True)
_CAR = _Machine(speed=0.6, braking=0.25, drift=0.13, slides=False)


class NavigationController:
    """Rounds the circle or seeks the goal, with habits drawn at random.

    As on Bullet's tasks, a driver is more or less fast, unsteady and careful, and skilled ones
    spend an allowance of cost: on the way to goals as it comes; on the circle evenly over the
    passes to come, by the radius at which they drive. The skilled do not brake at the walls:
    braking that ends within a centimetre of them was recorded before, and no policy tried could
    imitate it.
    """

    def __init__(self, task_name: str) -> None:
        """Prepare for one of `NAVIGATION_TASKS`."""
        self._machine = _POINT if task_name.startswith("Point") else _CAR
        self._is_circle = "Circle" in task_name
        self._axes = 2 if task_name.endswith("2") else 1  # of the circle, that have walls
        self._length = get_task(task_name).episode_length

    def begin(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        """Draw speed, unsteadiness, allowance and distances of one episode."""
        self._task: Any = env.unwrapped.task  # type: ignore[attr-defined]
        self._rng = rng
        self._skilled = rng.random() < (0.7 if self._is_circle else 0.8)
        # On the circle small allowances are the most frequent; on the way to goals about one in
        # seven has none, others one of up to 140.
        draw = rng.random()
        spendable = 300.0 * draw**1.5 if self._is_circle else 165.0 * draw - 25.0
        self._allowance = max(0.0, spendable) if self._skilled else np.inf
        self._spent, self._steps_left = 0.0, self._length
        most = 0.6 if self._is_circle else 1.1  # the unskilled are slow on the circle
        share = rng.uniform(0.9, 1.05) if self._skilled else rng.uniform(0.1, most)
        self._speed = share * self._machine.speed
        self._noise = rng.choice([0.0, 0.1, 0.2] if self._skilled else [0.0, 0.3, 0.6])
        self._radius = rng.uniform(0.6, 1.8)  # metres; the skilled plan theirs
        self._margin = rng.uniform(0.1, 0.25)  # metres kept from what costs, when careful
        wall = rng.uniform(1.0, 2.0)  # of those who turn at one
        self._wall = np.inf if self._skilled else wall

    def act(self, obs: Any) -> Float32Array:
        """Towards the velocity wished for at this place, give or take the noise."""
        agent = self._task.agent
        position, velocity = np.array(agent.pos[:2]), np.array(agent.vel[:2])
        self._spent += self._task.calculate_cost()["cost_sum"]
        self._steps_left -= 1
        wish = (self._round if self._is_circle else self._seek)(position)
        action = self._drive(wish, velocity, np.array(agent.mat))
        action += self._noise * self._rng.standard_normal(2)
        return np.asarray(np.clip(action, -1.0, 1.0), dtype=np.float32)

    def _round(self, position: Float64Array) -> Float64Array:
        limit = float(self._task.sigwalls.locate_factor)
        # A circle around four walls comes no nearer to the centre than its radius / sqrt(2).
        between = 0.8 * limit if self._axes == 1 else limit
        if self._skilled and np.abs(position[: self._axes]).max() < between:
            self._radius = self._planned_radius(limit) - self._machine.drift
        walls = np.full(2, np.inf)
        walls[: self._axes] = self._wall
        return around(
            position,
            speed=self._speed,
            radius=self._radius,
            walls=walls,
            braking=self._machine.braking,
            clockwise=False,
        )

    def _planned_radius(self, limit: float) -> float:
        """Of the circle that spends what is left evenly, or keeps away from the walls.

        Passes are counted as on the narrowest circle; planning anew at each pass corrects that.
        """
        step_seconds = self._task.sim_conf.frameskip_binom_n * self._task.model.opt.timestep
        share = share_of_pass(
            self._allowance - self._spent,
            speed=self._speed,
            radius=limit,
            seconds=step_seconds * self._steps_left,
            walls=2 * self._axes,
        )
        if share < 1.0:
            return limit - self._margin
        wide = radius_of_pass(share, wall=limit, speed=self._speed, step_seconds=step_seconds)
        return min(wide, float(self._task.circle.radius))

    def _seek(self, position: Float64Array) -> Float64Array:
        """Straight to the goal; careful ones go around what costs, and slower near to it."""
        goal = np.array(self._task.goal.pos[:2]) - position
        distance = max(float(np.linalg.norm(goal)), 1e-6)
        if self._spent < self._allowance:
            return np.asarray(self._speed * goal / distance)
        places, sizes = self._obstacles()
        to = places - position  # (N, 2)
        away = np.maximum(np.linalg.norm(to, axis=1), 1e-6)
        clear = sizes + self._margin
        ahead = to @ goal / distance
        aside = np.sqrt(np.maximum(away**2 - ahead**2, 0.0))
        blocks = (away > clear) & (ahead > 0.0) & (ahead < distance) & (aside < clear)
        direction = goal / distance
        if blocks.any():
            first = np.flatnonzero(blocks)[np.argmin(ahead[blocks])]
            direction = _tangent(to[first], float(clear[first]), direction)
        wish = self._speed * direction
        for vector, length, room in zip(to, away, away - clear, strict=True):
            inwards = vector / length
            brake = 0.5 * self._machine.braking
            most = np.sqrt(2.0 * brake * room) if room > 0.0 else 2.0 * room
            wish = wish - max(float(wish @ inwards) - most, 0.0) * inwards
        return np.asarray(wish)

    def _obstacles(self) -> tuple[Float64Array, Float64Array]:
        """Centres (N, 2) and radii (N,) of all that costs to touch or to enter."""
        kinds = [
            kind
            for group in (self._task._geoms, self._task._free_geoms)
            for kind in group.values()
            if kind.is_constrained
        ]
        places = [np.asarray(kind.pos)[:, :2] for kind in kinds]
        sizes = [np.full(len(kind.pos), kind.size) for kind in kinds]
        return np.concatenate(places), np.concatenate(sizes)

    def _drive(
        self, wish: Float64Array, velocity: Float64Array, frame: Float64Array
    ) -> Float64Array:
        """Thrust and turn for the point, two wheels for the car."""
        heading = frame[:2, 0] if self._machine.slides else -frame[:2, 1]
        heading = heading / max(float(np.linalg.norm(heading)), 1e-6)
        # What slides is turned to where thrust is needed, against damping (full thrust holds
        # 1.5 m/s) and for the change of velocity; the car to where it goes.
        aim = velocity / 1.5 + 1.5 * (wish - velocity) if self._machine.slides else wish
        turn = float(np.arctan2(heading[0] * aim[1] - heading[1] * aim[0], heading @ aim))
        if self._machine.slides:
            return np.array([float(aim @ heading), 3.0 * turn])
        thrust = 3.0 * (float(np.linalg.norm(wish)) * max(np.cos(turn), 0.0) - velocity @ heading)
        spin = float(self._task.agent.get_sensor("gyro")[2])
        steer = 1.0 * turn - 0.3 * spin
        return np.array([thrust + steer, thrust - steer])


def _tangent(to: Float64Array, clear: float, direction: Float64Array) -> Float64Array:
    """The direction that passes a ring of radius `clear` around `to`, on the shorter side."""
    away = float(np.linalg.norm(to))
    inwards = to / away
    left = np.array([-inwards[1], inwards[0]])
    sideways = left if left @ direction > 0.0 else -left
    sine = clear / away
    return np.asarray(sine * sideways + np.sqrt(1.0 - sine**2) * inwards)
