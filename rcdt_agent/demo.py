"""`make demo`: one policy at several cost budgets, next to the exact optimum and in a simulator.

Two agents are trained side by side, one on each of two cores: one on SpeedLimit, whose best return
is known for every budget, one on the packaged recordings of Bullet's BallCircle.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from rcdt_agent._io import write_json
from rcdt_agent.algorithms import RCDT
from rcdt_agent.budget_report import BudgetReport
from rcdt_agent.plots import plot_frontier, save_figure
from rcdt_agent.tasks.speed_limit import optimal_return

BALL_CIRCLE = Path(__file__).parent / "demo_data" / "OfflineBallCircle-v0-demo.hdf5"
SPEED_STEPS, BALL_STEPS = 1_500, 3_000


def train_speed_limit(folder: Path, total_steps: int = SPEED_STEPS) -> BudgetReport:
    """Train on 1000 drivers, evaluate at five budgets, and write everything to `folder`."""
    agent = RCDT.from_dsrl("SpeedLimit", preset="tiny", seed=0).learn(total_steps=total_steps)
    report = agent.evaluate(n_episodes=20, n_envs=50)
    _store(agent, report, folder, "speed_limit")
    return report


def train_ball_circle(
    folder: Path, total_steps: int = BALL_STEPS, *, progress_bar: bool = False
) -> BudgetReport:
    """Train on the packaged recordings and evaluate in Bullet at the protocol's budgets."""
    agent = RCDT.from_dsrl("OfflineBallCircle-v0", dataset=BALL_CIRCLE, preset="cpu", seed=0)
    agent.learn(total_steps=total_steps, progress_bar=progress_bar)
    report = agent.evaluate(n_episodes=20, progress_bar=progress_bar)
    _store(agent, report, folder, "ball_circle")
    return report


def speed_limit_table(report: BudgetReport) -> str:
    """The report next to the exact optimum."""
    head = ("budget", "cost", "return", "best possible", "reached", "kept")
    lines = [f"{head[0]:>8} {head[1]:>8} {head[2]:>8} {head[3]:>14} {head[4]:>8} {head[5]:>5}"]
    for result in report.results:
        best = optimal_return(result.budget)
        share, kept = result.mean_return / best, "yes" if result.passed else "no"
        lines.append(
            f"{result.budget:>8g} {result.mean_cost:>8.2f} {result.mean_return:>8.1f} "
            f"{best:>14.1f} {share:>8.0%} {kept:>5}"
        )
    return "\n".join(lines)


def main(folder: Path = Path("demo")) -> None:
    """Run both parts and say what to try next."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    console.print(
        "Training two agents side by side, in a few minutes:\n"
        "  SpeedLimit, a road with a known optimum (1000 recorded drivers), and\n"
        f"  Bullet's BallCircle (recordings in {BALL_CIRCLE.name})."
    )
    torch.set_num_threads(1)
    side = subprocess.Popen([sys.executable, "-m", "rcdt_agent.demo", "speed-limit", str(folder)])
    try:
        ball = train_ball_circle(folder, progress_bar=True)
        if side.wait() != 0:
            sys.exit("The SpeedLimit part failed; its output is above.")
    finally:
        side.kill()
    speed = json.loads((folder / "speed_limit.json").read_text())
    console.print("\n[bold]SpeedLimit[/]: one policy, five budgets, against the exact optimum")
    console.print(speed["table"])
    console.print("\n[bold]BallCircle[/]: one policy, three budgets, in the real simulator")
    console.print(ball.as_table())
    console.print(
        f"\nWritten to {folder}/ in {time.perf_counter() - started:.0f} s: the agents (.zip), the "
        f"reports (.json), the pictures (.png).\n\nTry next:\n"
        f"  .venv/bin/rcdt evaluate {folder}/ball_circle.zip --budgets 5 15 60\n"
        f"  .venv/bin/rcdt calibrate {folder}/ball_circle.zip\n"
        f"  .venv/bin/rcdt train {BALL_CIRCLE} --variant cdt"
    )


def _store(agent: RCDT, report: BudgetReport, folder: Path, name: str) -> None:
    outcomes = agent.policy.outcomes
    agent.save(folder / f"{name}.zip")
    content = json.loads(report.to_json())
    if name == "speed_limit":
        content["table"] = speed_limit_table(report)
    write_json(folder / f"{name}.json", content)
    figure = plot_frontier(outcomes.returns, outcomes.costs, content)
    save_figure(figure, folder / f"{name}.png")


if __name__ == "__main__":
    if sys.argv[1:2] == ["speed-limit"]:
        torch.set_num_threads(1)
        train_speed_limit(Path(sys.argv[2]))
    else:
        main(*map(Path, sys.argv[1:2]))
