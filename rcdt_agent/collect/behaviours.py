"""Behaviours that span the return-cost plane: scripted drivers, MetaDrive's IDM, random actions.

Each is a `Controller`: it draws the habits of one episode (how fast, how near to the limit, how
unsteady), and then acts. PPO, which learns instead, is in `rcdt_agent.collect.ppo`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import gymnasium as gym
import numpy as np

from rcdt_agent._types import Float32Array, Float64Array
from rcdt_agent.collect.driving import IDMController
from rcdt_agent.collect.navigation import (
    NAVIGATION_TASKS,
    NavigationController,
    around,
    share_of_pass,
)
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.registry import Task, get_task

BehaviourName = Literal["scripted", "idm", "ppo", "random"]
BEHAVIOURS: tuple[BehaviourName, ...] = get_args(BehaviourName)

CIRCLE_WALL, RUN_WALL = 6.0, 2.0  # cost begins at this |x| on the circle, |y| on the run (metres)
STEP_SECONDS = 0.1
BULLET_TASKS = ("BallRun", "BallCircle", "CarRun", "CarCircle")
SCRIPTED_TASKS = (*BULLET_TASKS, *NAVIGATION_TASKS)


@runtime_checkable
class Controller(Protocol):
    """Anything that drives episodes; the same generator must give the same episode."""

    def begin(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        """Draw the habits of one episode; `env` has just been reset."""

    def act(self, obs: Any) -> Any:
        """The action at this observation."""


def default_behaviour(task: Task | None) -> BehaviourName:
    """Scripted where there is a script, IDM for MetaDrive, PPO for everything else."""
    if task is not None and task.name in SCRIPTED_TASKS:
        return "scripted"
    return "idm" if task is not None and task.suite == "metadrive" else "ppo"


def reach_for(share: float, *, braking: float, step_seconds: float) -> float:
    """Metres to go beyond a limit so as to be there for `share` steps: braking out, and back."""
    return braking * (share * step_seconds) ** 2 / 8.0


def make_controller(behaviour: str, task: Task | None) -> Controller:
    """The controller behind a name.

    Raises:
        InvalidArgumentError: No such behaviour, or not for this task.
    """
    if behaviour == "random":
        return RandomController()
    name = task.name if task is not None else "an environment of your own"
    if behaviour == "idm":
        if task is None or task.suite != "metadrive":
            raise InvalidArgumentError(
                f"`behaviour` idm drives MetaDrive's tasks only, not {name}."
            )
        return IDMController()
    if behaviour == "scripted":
        if name not in SCRIPTED_TASKS:
            raise InvalidArgumentError(
                f"`behaviour` scripted drives {', '.join(SCRIPTED_TASKS)}, not {name}: use ppo."
            )
        return ScriptedController(name) if name in BULLET_TASKS else NavigationController(name)
    raise InvalidArgumentError(f"`behaviour` must be one of {BEHAVIOURS}, got {behaviour!r}.")


class RandomController:
    """Actions drawn evenly, held for a few steps, within a share of the action's range."""

    def begin(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        """Draw how large the actions are, and how long each is held."""
        space = env.action_space
        assert isinstance(space, gym.spaces.Box)
        self._rng, self._step = rng, 0
        self._hold = int(rng.integers(1, 11))
        middle, half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
        reach = half * rng.uniform(0.2, 1.0)
        self._low, self._high = middle - reach, middle + reach
        self._action = middle

    def act(self, obs: Any) -> Float32Array:
        """A new draw, or the last one again."""
        if self._step % self._hold == 0:
            self._action = self._rng.uniform(self._low, self._high)
        self._step += 1
        return np.asarray(self._action, dtype=np.float32)


@dataclass(kw_only=True)
class Habits:
    """What a scripted driver aims at; lengths in metres, speeds in metres per second."""

    speed: float
    """Speed along the way."""
    radius: float
    """Circle: distance from the centre to drive at. The reward is best at 7."""
    wall: float
    """Circle: no farther out than this |x|; cost begins at 6."""
    side: float
    """Run: the y to drive at."""


class ScriptedController:
    """Drives Bullet's ball or car along a circle or down the lane, with habits drawn at random.

    The habits fix a velocity wished for at each place; the ball is pushed towards that velocity,
    the car steered towards its direction. A driver is unsteady (noise) and fickle (draws new habits
    in mid-episode), more or less so in each episode. Skilled ones drive where the reward is, and
    spend an allowance of cost: so every budget has its good examples. On the run they are careful
    once it is spent. The circle leads past a wall twice each round, and a ball at full speed cannot
    turn back at once: there they divide what is left among the passes to come, evenly, and go as
    far beyond the wall as the share of each pass allows.
    """

    def __init__(self, task_name: str) -> None:
        """Prepare for one of `BULLET_TASKS`."""
        self._is_car = task_name.startswith("Car")
        self._is_circle = task_name.endswith("Circle")
        self._speed_limit = 1.5 if self._is_car else 2.5  # on the run, cost begins here
        self._braking = 0.8 if self._is_car else 5.0  # metres per second squared
        self._overshoot = 0.5 if self._is_car else 0.05  # metres beyond a wall that it aims at
        self._length = get_task(task_name).episode_length

    def begin(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        """Draw the habits, the unsteadiness and the fickleness of one episode."""
        self._rng = rng
        self._skilled = rng.random() < 0.7
        # Small allowances are the most frequent, and about one in seven has none.
        spendable = max(0.0, 85.0 * rng.random() ** 1.5 - 5.0)
        self._allowance = spendable if self._skilled else np.inf
        self._spent, self._steps_left = 0, self._length
        self._margin = rng.uniform(0.9, 0.99)  # of the limit, when careful
        self._noise = rng.choice([0.0, 0.05, 0.1, 0.2] if self._skilled else [0.0, 0.1, 0.3, 0.6])
        self._fickle = rng.choice([0.0, 0.01, 0.03])  # chance of new habits, each step
        self._gain = rng.uniform(2.0, 3.0) if self._skilled else rng.uniform(0.6, 1.5)
        self._habits = self._draw_habits()
        self._wall = self._margin * CIRCLE_WALL

    def act(self, obs: Any) -> Float32Array:
        """Towards the velocity wished for at this place, give or take the noise."""
        position = 10.0 * np.asarray(obs[:2], dtype=np.float64)
        velocity = (1.0 if self._is_car else 5.0) * np.asarray(obs[2:4], dtype=np.float64)
        self._spent += self._costs(position, velocity)
        self._steps_left -= 1
        habits = self._habits
        if self._skilled and self._is_circle:
            habits = replace(habits, wall=self._planned_wall(habits, position))
        elif self._spent >= self._allowance:
            habits = self._careful(habits)
        wish = (self._circle if self._is_circle else self._run)(habits, position)
        if self._is_car:
            action = self._steer_car(obs, velocity, wish)
        else:
            action = self._push_ball(velocity, wish)
        action = action + self._noise * self._rng.standard_normal(2)
        if self._rng.random() < self._fickle:
            self._habits = self._draw_habits()
        return np.asarray(np.clip(action, -1.0, 1.0), dtype=np.float32)

    def _costs(self, position: Float64Array, velocity: Float64Array) -> bool:
        if self._is_circle:
            return bool(abs(position[0]) > CIRCLE_WALL)
        return bool(abs(position[1]) > RUN_WALL or np.linalg.norm(velocity) > self._speed_limit)

    def _planned_wall(self, habits: Habits, position: Float64Array) -> float:
        """How far out to go in the next pass; decided between passes."""
        if abs(position[0]) < 0.7 * CIRCLE_WALL:
            share = share_of_pass(
                self._allowance - self._spent,
                speed=habits.speed,
                radius=habits.radius,
                seconds=STEP_SECONDS * self._steps_left,
                walls=2,
            )
            beyond = reach_for(share, braking=self._braking, step_seconds=STEP_SECONDS)
            wall = CIRCLE_WALL + beyond if share >= 1.0 else self._margin * CIRCLE_WALL
            self._wall = wall - self._overshoot
        return self._wall

    def _careful(self, habits: Habits) -> Habits:
        """The same habits on the run, kept within the limits."""
        side = float(np.clip(habits.side, -0.7 * RUN_WALL, 0.7 * RUN_WALL))
        return replace(habits, speed=min(habits.speed, self._safe_speed), side=side)

    @property
    def _safe_speed(self) -> float:
        return self._margin * self._speed_limit

    def _draw_habits(self) -> Habits:
        rng = self._rng
        if not self._is_circle:
            fastest = 3.0 if self._is_car else 12.0
            slow = rng.random() < 0.4
            speed = rng.uniform(0.3, 1.0) * self._speed_limit if slow else rng.uniform(1.0, fastest)
            side = rng.normal(0.0, 0.5) if self._skilled else rng.uniform(-4.0, 4.0)
            return Habits(speed=speed, radius=0.0, wall=np.inf, side=side)
        fastest = 3.5 if self._is_car else 8.0
        if self._skilled:  # fast, near the best radius; the plan decides about the wall
            speed, radius = rng.uniform(0.9, 1.1) * fastest, rng.uniform(6.6, 7.0)
            wall = np.inf
        else:
            speed, radius = rng.uniform(0.05, 1.0) * fastest, rng.uniform(2.5, 8.5)
            wall = rng.uniform(4.0, 9.0)
        return Habits(speed=speed, radius=radius, wall=wall, side=0.0)

    def _circle(self, habits: Habits, position: Float64Array) -> Float64Array:
        """Clockwise at the radius, turning along the wall where the circle crosses it."""
        return around(
            position,
            speed=habits.speed,
            radius=habits.radius,
            walls=(habits.wall, np.inf),
            braking=self._braking,
            clockwise=True,
        )

    def _run(self, habits: Habits, position: Float64Array) -> Float64Array:
        """Forwards, and gently towards the chosen side."""
        sideways = np.clip(0.8 * (habits.side - position[1]), -1.0, 1.0)
        return np.array([habits.speed, sideways])

    def _push_ball(self, velocity: Float64Array, wish: Float64Array) -> Float64Array:
        return np.asarray(self._gain * (wish - velocity))

    def _steer_car(self, obs: Any, velocity: Float64Array, wish: Float64Array) -> Float64Array:
        # The car's nose points against its yaw, negative throttle drives it forwards, and
        # positive steering turns it clockwise.
        heading = np.arctan2(-obs[4], -obs[5])
        speed = float(np.linalg.norm(wish))
        turn = np.arctan2(wish[1], wish[0]) - heading
        turn = (turn + np.pi) % (2.0 * np.pi) - np.pi
        ahead = velocity @ [np.cos(heading), np.sin(heading)]
        throttle = 0.33 * speed + self._gain * (speed - ahead)
        return np.array([-throttle, -2.0 * turn])
