"""Animations of an agent at several budgets: an episode at each, side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rcdt_agent._io import atomic_write
from rcdt_agent.algorithms.agent import Agent
from rcdt_agent.arguments import check_flags, check_number, check_path, check_whole
from rcdt_agent.costs import by_name
from rcdt_agent.deploy.checks import check_budgets
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.env_step import CostFunction, CostKey, check_cost_source, step_cost
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.eval_envs import NO_ENVIRONMENT, EnvSource, SeededEpisodes
from rcdt_agent.evaluation import Budgets, check_agent, task_budgets
from rcdt_agent.experiments.animation import (
    FASTEST_GIF,
    Frames,
    check_ending,
    write_gif,
    write_mp4,
)
from rcdt_agent.experiments.panels import Panel, PanelLayout, Spent, number
from rcdt_agent.progress import progress
from rcdt_agent.tasks.cameras import Camera, filmed

MOST_FRAMES = 100
"""Of an animation whose `every` is not given."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What was recorded; costs of several costs, and their budgets, are by name.

    Attributes:
        path: The file.
        budgets: One a panel.
        returns: Of each panel's episode.
        costs: Of each panel's episode.
        steps: Of each panel's episode.
        n_frames: Of the animation.
        size: Width and height of a frame, in pixels.
    """

    path: Path
    budgets: tuple[Any, ...]
    returns: tuple[float, ...]
    costs: tuple[Any, ...]
    steps: tuple[int, ...]
    n_frames: int
    size: tuple[int, int]


def record_episodes(
    agent: Agent[Any, Any],
    path: str | Path,
    budgets: Budgets = None,
    *,
    env: EnvSource = None,
    seed: int = 0,
    fps: float = 20,
    every: int | None = None,
    width: int = 280,
    cost_key: CostKey = "cost",
    cost_fn: CostFunction | None = None,
    deterministic: bool = True,
    progress_bar: bool = False,
) -> Recording:
    """Record one episode at each budget, side by side, as a GIF or an MP4.

    Every episode begins with the same seed; one that ends before the others shows its last frame.

    Args:
        agent: Any trained agent; one of a single budget or none acts the same in every panel.
        path: File to write; its ending, `.gif` or `.mp4`, says what.
        budgets: Cost budgets, one panel each; default: those of the agent's task. Of an agent with
            several costs, dicts by name: a bar each.
        env: A task or environment id, a function that makes an environment, one environment, or
            None for the agent's task.
        seed: Of the reset of every episode.
        fps: Frames a second; of a GIF at most 50.
        every: Steps from one frame to the next; default: as many as give 100 frames at most.
        width: Of a panel, in pixels.
        cost_key: Where in `info` the cost is; several costs as for `wrap`.
        cost_fn: Computes the cost instead: (observation, action, next observation, info).
        deterministic: Take the mean action.
        progress_bar: Show recorded steps.

    Raises:
        InvalidArgumentError: An argument breaks its rule, or the environment does not render.
        SimulatorError: The simulator or its renderer is missing; says what to install.
    """
    check_agent(agent)
    path = check_ending(check_path("path", path))
    check_cost_source(cost_key, cost_fn)
    check_flags(deterministic=deterministic, progress_bar=progress_bar)
    _check_numbers(path, fps, every, width, seed)
    chosen = task_budgets(agent, budgets)
    if not len(chosen):
        raise InvalidArgumentError("`budgets` must not be empty.")
    if env is None:
        if agent.task is None:
            raise InvalidArgumentError(NO_ENVIRONMENT)
        env = agent.task.id
    episodes = []
    with progress(progress_bar, unit="step", leave=False) as bar:
        for budget in chosen:
            made, camera = filmed(env, width)
            try:
                bar.set_description(_title(budget))
                episodes.append(
                    _film(
                        agent,
                        SeededEpisodes(made, [seed], cost_key, cost_fn, agent.cost_names),
                        camera,
                        budget,
                        every or _every(agent, made),
                        deterministic,
                        bar,
                    )
                )
            finally:
                if not isinstance(env, gym.Env):
                    made.close()  # type: ignore[no-untyped-call]
    height = episodes[0][0].picture.height
    layout = PanelLayout(width, height, len(agent.cost_names))
    n_frames = max(map(len, episodes))
    frames = Frames(episodes, layout, n_frames)
    with atomic_write(path, InvalidArgumentError) as partial:
        (write_gif if path.suffix.lower() == ".gif" else write_mp4)(partial, frames, fps)
    last = [panels[-1] for panels in episodes]
    return Recording(
        path=path,
        budgets=tuple(chosen),
        returns=tuple(panel.episode_return for panel in last),
        costs=tuple(
            by_name(np.array([s.cost for s in panel.spent]), agent.cost_names)
            if len(panel.spent) > 1
            else panel.spent[0].cost
            for panel in last
        ),
        steps=tuple(panel.step for panel in last),
        n_frames=n_frames,
        size=layout.frame_size(len(episodes)),
    )


def _film(
    agent: Agent[Any, Any],
    env: SeededEpisodes,
    camera: Camera,
    budget: Any,
    every: int,
    deterministic: bool,
    bar: Any,
) -> list[Panel]:
    """Roll one episode out: its start, every n-th step and its end as panels."""
    names = agent.cost_names
    allowed = check_budgets(budget, 1, names)
    state: Any = None  # others act the same at every budget
    if agent.budgets == "any":
        target = agent.resolve_target(budget)
        state = agent.begin(1).with_own_targets([target or 0.0], allowed)
    limits = np.ravel(allowed)
    total = np.zeros(len(names))
    earned, step, done, costly = 0.0, 0, False, False
    obs, _ = env.reset()
    camera.follow(obs, False)
    panels = []

    def keep() -> None:
        spent = tuple(
            Spent(name=name, cost=float(cost), budget=float(limit))
            for name, cost, limit in zip(names, total, limits, strict=True)
        )
        panels.append(
            Panel(
                title=_title(budget),
                picture=camera.picture(),
                spent=spent,
                episode_return=earned,
                step=step,
                costly=costly,
                ended=done,
            )
        )

    keep()
    start = np.array([True])
    while not done:
        actions, state = agent.predict(np.asarray(obs)[None], state, start, deterministic)
        obs, reward, terminated, truncated, info = env.step(actions[0])
        cost = step_cost(info["cost"], names)
        if isinstance(state, AgentState):
            state = state.observe(np.array([reward]), np.array([cost]))
        start = np.array([False])
        earned, total, step = earned + reward, total + np.ravel(cost), step + 1
        done, costly = terminated or truncated, bool(np.any(np.ravel(cost) > 0))
        camera.follow(obs, costly)
        if done or step % every == 0:
            keep()
        bar.update()
    return panels


def _title(budget: Any) -> str:
    if isinstance(budget, dict):
        return "budget " + ", ".join(number(value) for value in budget.values())
    return f"budget {number(budget)}"


def _every(agent: Agent[Any, Any], env: gym.Env[Any, Any]) -> int:
    """Steps between frames such that the longest episode has 100 of them."""
    longest = env.spec.max_episode_steps if env.spec else None
    if longest is None and agent.task is not None:
        longest = agent.task.episode_length
    return max(math.ceil((longest or 1) / MOST_FRAMES), 1)


def _check_numbers(path: Path, fps: float, every: int | None, width: int, seed: int) -> None:
    if not (check_number("fps", fps) > 0 and math.isfinite(fps)):
        raise InvalidArgumentError(f"`fps` must be > 0, got {fps}.")
    if path.suffix.lower() == ".gif" and fps > FASTEST_GIF:
        raise InvalidArgumentError(f"`fps` must be <= {FASTEST_GIF} for a GIF, got {fps}.")
    if every is not None:
        check_whole("every", every, 1)
    if not 80 <= check_whole("width", width) <= 1920:
        raise InvalidArgumentError(f"`width` must be from 80 to 1920 pixels, got {width}.")
    check_whole("seed", seed)
