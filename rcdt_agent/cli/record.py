"""The command `rcdt record`: an animation of an agent at several budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.cli.console import check_budgets, check_output, echo
from rcdt_agent.cli.evaluate import OptionalEnv, OptionalPath
from rcdt_agent.costs import budget_label, parse_budget
from rcdt_agent.errors import InvalidArgumentError

OptionalNumber = Annotated[int | None, tyro.conf.arg(metavar="INT")]


def record(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: OptionalEnv = None,
    budgets: tuple[float, ...] = (),
    cost_budgets: tuple[str, ...] = (),
    seed: int = 0,
    fps: float = 20.0,
    every: OptionalNumber = None,
    width: int = 280,
    output: OptionalPath = None,
) -> int:
    """Record an episode at every cost budget, side by side, as a GIF or an MP4.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets, one panel each; by default those of the task.
        cost_budgets: For an agent with several costs, each as collision=5,speeding=20.
        seed: Reset seed of every episode.
        fps: Frames per second; at most 50 in a GIF.
        every: Steps between frames; by default chosen for at most 100 frames.
        width: Width of a panel in pixels.
        output: File ending in .gif or .mp4; by default recording.gif in the run folder, or a GIF
            beside the checkpoint.
    """
    from rcdt_agent.experiments.animation import check_ending
    from rcdt_agent.experiments.record import record_episodes
    from rcdt_agent.experiments.runs import open_agent

    check_budgets(budgets)
    if budgets and cost_budgets:
        raise InvalidArgumentError("Give either `--budgets` or `--cost-budgets`, not both.")
    if output is None:
        output = agent / "recording.gif" if agent.is_dir() else agent.with_suffix(".gif")
    check_ending(output)
    check_output(output)
    named = tuple(parse_budget(text) for text in cost_budgets)
    recording = record_episodes(
        open_agent(agent),
        output,
        budgets or named or None,
        env=env,
        seed=seed,
        fps=fps,
        every=every,
        width=width,
        progress_bar=True,
    )
    for budget, earned, cost, steps in zip(
        recording.budgets, recording.returns, recording.costs, recording.steps, strict=True
    ):
        echo(
            f"budget {budget_label(budget)}: return {earned:.1f}, cost {_text(cost)}, {steps} steps"
        )
    size = output.stat().st_size / 1e6
    echo(f"Recording: {output} ({recording.n_frames} frames, {size:.2f} MB)")
    return 0


def _text(cost: float | dict[str, float]) -> str:
    if isinstance(cost, dict):
        return ", ".join(f"{name} {value:.1f}" for name, value in cost.items())
    return f"{cost:.1f}"
