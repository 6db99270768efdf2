"""Pictures of running episodes, from whatever renderer a simulator has without a screen.

Bullet has a software renderer, MuJoCo needs EGL or OSMesa, MetaDrive has a view from above, and
SpeedLimit is drawn here. Any other environment is asked for its frames (`rgb_array`).
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from rcdt_agent.errors import InvalidArgumentError, SimulatorError, UnknownTaskError
from rcdt_agent.tasks.registry import get_task
from rcdt_agent.tasks.simulators import make_env
from rcdt_agent.tasks.speed_limit import HORIZON, MAX_SPEED, SpeedLimitEnv, limit_at

Env = gym.Env[Any, Any]
Picture = Image.Image

ASPECT = 4 / 3
"""Width over height of pictures whose camera is ours."""
SUPERSAMPLING = 2
"""Rendered larger by this factor and reduced, so that edges are smooth."""
TRAIL = 50
"""Steps of the way behind the agent that are drawn."""
SMALL = 0.01
"""Share of the picture below which an agent has a ring around it, so that the eye finds it."""
SAFE, COSTLY = (34, 153, 84), (204, 41, 41)
"""Colours of steps without and with a cost."""
_INK, _ROAD, _PAPER = (55, 65, 81), (222, 226, 232), (250, 250, 250)
_RING = (255, 221, 51)

_RENDERER_HELP = (
    "Without a screen MuJoCo renders through EGL or OSMesa: install one of them "
    "(Debian and Ubuntu: `apt install libegl1` or `libosmesa6`) and set `MUJOCO_GL=egl` or "
    "`MUJOCO_GL=osmesa`."
)


class Camera:
    """Frames of an environment made with `render_mode="rgb_array"`; the others are subclasses."""

    def __init__(self, env: Env, width: int) -> None:
        """Film `env` in pictures of this width."""
        self.env, self.width = env, width

    def follow(self, obs: Any, costly: bool) -> None:
        """Take note of a step, also where no picture of it is taken.

        Args:
            obs: Observation after the step, or after `reset`.
            costly: Whether the step cost anything.
        """

    def picture(self) -> Picture:
        """The environment as it is now, as wide as asked.

        Raises:
            SimulatorError: The renderer does not start, or gives no picture.
        """
        try:
            frame = np.asarray(self.env.render())
        except Exception as error:
            raise SimulatorError(self._refusal(repr(error))) from error
        if frame.ndim != 3 or frame.shape[-1] not in (3, 4):
            raise SimulatorError(self._refusal(f"a frame of shape {frame.shape}"))
        image = Image.fromarray(frame[..., :3].astype(np.uint8))
        return _fitted(image, self.width)

    def _refusal(self, reason: str) -> str:
        name = type(self.env.unwrapped).__name__
        hint = f" {_RENDERER_HELP}" if "mujoco" in sys.modules else ""
        return f"{name} could not be rendered: {reason}.{hint}"


class BulletCamera(Camera):
    """Bullet's software renderer from the task's own point of view, and the way behind the agent.

    The way is green, and red where it cost something.
    """

    def __init__(self, env: Env, width: int) -> None:
        """Film `env`, of Bullet-Safety-Gym."""
        super().__init__(env, width)
        self._trail: list[tuple[npt.NDArray[np.float64], bool]] = []

    def follow(self, obs: Any, costly: bool) -> None:
        """Remember where the agent was."""
        simulator: Any = self.env.unwrapped
        self._trail.append((np.array(simulator.agent.get_position()), costly))
        del self._trail[: -TRAIL - 1]

    def picture(self) -> Picture:
        """The world, the way, and the agent in front of it."""
        simulator: Any = self.env.unwrapped
        client, view = simulator.bc, simulator.world.camera
        size = SUPERSAMPLING * self.width, SUPERSAMPLING * round(self.width / ASPECT)
        seen_from = client.computeViewMatrixFromYawPitchRoll(
            cameraTargetPosition=view.cam_base_pos,
            distance=view.cam_dist,
            yaw=view.cam_yaw,
            pitch=view.cam_pitch,
            roll=0,
            upAxisIndex=2,
        )
        lens = client.computeProjectionMatrixFOV(fov=60, aspect=ASPECT, nearVal=0.1, farVal=100.0)
        _, _, pixels, _, bodies = client.getCameraImage(
            *size, seen_from, lens, shadow=0, renderer=client.ER_TINY_RENDERER
        )
        rendered = np.asarray(pixels, np.uint8).reshape(size[1], size[0], 4)[..., :3]
        image = Image.fromarray(rendered)
        # Matrices are stored column by column.
        projection = np.reshape(lens, (4, 4)).T @ np.reshape(seen_from, (4, 4)).T
        self._draw_trail(ImageDraw.Draw(image), projection, size)
        agent = np.reshape(bodies, (size[1], size[0])) == simulator.agent.body_id
        image = Image.fromarray(np.where(agent[..., None], rendered, np.asarray(image)))
        here = _place(self._trail[-1][0], projection, size)
        if here is not None and agent.mean() < SMALL:
            box = [value + sign * size[0] / 45 for sign in (-1, 1) for value in here]
            ImageDraw.Draw(image).ellipse(box, outline=_RING, width=max(size[0] // 150, 2))
        return _fitted(image, self.width)

    def _draw_trail(
        self, draw: Any, projection: npt.NDArray[np.float64], size: tuple[int, int]
    ) -> None:
        points = [_place(position, projection, size) for position, _ in self._trail]
        for before, after, (_, costly) in zip(points, points[1:], self._trail[1:], strict=False):
            if before is not None and after is not None:
                color = COSTLY if costly else SAFE
                draw.line([before, after], fill=color, width=max(size[0] // 90, 2))


class SpeedLimitCamera(Camera):
    """SpeedLimit's road from left to right: its limit, and the speed driven so far."""

    def __init__(self, env: Env, width: int) -> None:
        """Film `env`, a `SpeedLimitEnv`."""
        super().__init__(env, width)
        self._speeds: list[float] = []
        self._costly: list[bool] = []
        self._zone_start = 0

    def follow(self, obs: Any, costly: bool) -> None:
        """Remember the speed; the first observation says where the zone is."""
        speed, _, ahead, _ = np.asarray(obs, dtype=float)
        if not self._speeds:
            self._zone_start = round(ahead * HORIZON)
        self._speeds.append(speed)
        self._costly.append(costly)

    def picture(self) -> Picture:
        """The limit as a grey road, the speed as a line that is red where it cost something."""
        width = SUPERSAMPLING * self.width
        height = SUPERSAMPLING * round(self.width / ASPECT)
        image = Image.new("RGB", (width, height), _PAPER)
        draw = ImageDraw.Draw(image)

        def place(step: float, speed: float) -> tuple[float, float]:
            return step / HORIZON * width, (1 - speed / (1.05 * MAX_SPEED)) * (height - 1)

        for step, limit in enumerate(limit_at(np.arange(HORIZON), self._zone_start)):
            draw.rectangle([*place(step, limit), *place(step + 1, 0)], fill=_ROAD)
        line = max(width // 90, 2)
        for step in range(1, len(self._speeds)):
            color = COSTLY if self._costly[step] else SAFE
            ends = place(step - 1, self._speeds[step - 1]), place(step, self._speeds[step])
            draw.line(ends, fill=color, width=line)
        x, y = place(len(self._speeds) - 1, self._speeds[-1])
        draw.ellipse([x - 2 * line, y - 2 * line, x + 2 * line, y + 2 * line], fill=_INK)
        return _fitted(image, self.width)


def filmed(env: str | Env | Callable[[], Env], width: int) -> tuple[Env, Camera]:
    """An environment that can be filmed, and its camera.

    Args:
        env: A task or environment id, an environment, or a function that makes one.
        width: Of the pictures, in pixels.

    Raises:
        InvalidArgumentError: It is no environment, or one that does not render.
        SimulatorError: The simulator is not installed, or its renderer does not start.
    """
    made = _make(env) if isinstance(env, str) else env if isinstance(env, gym.Env) else None
    if made is None and callable(env):
        made = env()
    if not isinstance(made, gym.Env):
        raise InvalidArgumentError(
            f"`env` must be an id, an environment or a function that makes one, got "
            f"{made or env!r}."
        )
    inner = made.unwrapped
    if isinstance(inner, SpeedLimitEnv):
        return made, SpeedLimitCamera(made, width)
    if type(inner).__module__.split(".")[0] == "bullet_safety_gym":
        return made, BulletCamera(made, width)
    if made.render_mode != "rgb_array":
        raise InvalidArgumentError(
            f"`env` must be made with `render_mode='rgb_array'` to be recorded, got "
            f"{made.render_mode!r} of {type(inner).__name__}."
        )
    return made, Camera(made, width)


def _make(env_id: str) -> Env:
    try:
        task = get_task(env_id)
    except UnknownTaskError:
        if env_id not in gym.registry:
            raise
        return gym.make(env_id, render_mode="rgb_array")
    if task.suite in ("bullet", "embedded"):
        return make_env(task)
    if task.suite == "safety-gymnasium":
        choose_mujoco_renderer()
    return make_env(task, render_mode="rgb_array")


def choose_mujoco_renderer() -> None:
    """Set `MUJOCO_GL` where neither it nor a screen is there, to EGL or else OSMesa.

    Raises:
        SimulatorError: There is neither; says what to install.
    """
    if os.environ.get("MUJOCO_GL") or os.environ.get("DISPLAY") or sys.platform != "linux":
        return
    for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return
    raise SimulatorError(f"No renderer was found for Safety-Gymnasium. {_RENDERER_HELP}")


def _place(
    position: npt.NDArray[np.float64], projection: npt.NDArray[np.float64], size: tuple[int, int]
) -> tuple[float, float] | None:
    """Pixel of a point in the world (3,); None behind the camera."""
    x, y, _, depth = projection @ (*position, 1.0)
    if depth <= 0:
        return None
    return (x / depth + 1) / 2 * size[0], (1 - y / depth) / 2 * size[1]


def _fitted(image: Picture, width: int) -> Picture:
    """Resized to `width`, proportions kept."""
    height = max(round(image.height * width / image.width), 1)
    return image.resize((width, height), Image.Resampling.LANCZOS)
