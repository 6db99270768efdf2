"""The commands about a trained agent: `rcdt evaluate`, `calibrate`, `plot` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.cli.console import echo


def evaluate(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: str | None = None,
    budgets: tuple[float, ...] = (),
    episodes: int = 20,
    seed: int = 0,
    output: Path | None = None,
) -> int:
    """Roll a trained agent out at every cost budget and print the table.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets; by default those of the task.
        episodes: Episodes a budget.
        seed: Episode e is reset with seed + e.
        output: JSON file for the report; by default report.json in the run folder.
    """
    from rcdt_agent.experiments.runs import Run, evaluate_run, open_agent

    report = evaluate_run(
        open_agent(agent), env, budgets=budgets or None, n_episodes=episodes, seed=seed, echo=echo
    )
    if report is None:
        return 1
    target = output or (Run(agent).report if agent.is_dir() else None)
    if target is not None:
        report.to_json(target)
        echo(f"Report: {target}")
    echo(report.as_table())
    return 0


def calibrate(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: str | None = None,
    budgets: tuple[float, ...] = (),
    episodes: int = 20,
    seed: int = 1_000_000,
    confidence: float = 0.95,
    output: Path | None = None,
) -> int:
    """Measure which token keeps each cost budget, and store it in the agent.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets that will be asked for; by default those of the task.
        episodes: Episodes a token; ten tokens are measured.
        seed: Episode e is reset with seed + e; not the seeds of an evaluation.
        confidence: One-sided, of the bound on the mean cost.
        output: Where to write the agent; by default over the one given.
    """
    from rcdt_agent.experiments.runs import Run, find_simulator, open_budget_conditioned

    loaded = open_budget_conditioned(agent, "calibrated")
    simulator = find_simulator(loaded, env)
    requested = budgets or simulator.budgets
    found = loaded.calibrate(
        simulator.env, requested, episodes, seed, confidence=confidence, progress_bar=True
    )
    target = output or (Run(agent).final if agent.is_dir() else agent)
    loaded.save(target)
    bound = f"{confidence:.0%} bound"
    echo(f"{'token':>8} {'cost':>8} {bound:>10}")
    for token, cost, upper in zip(found.tokens, found.costs, found.upper, strict=True):
        echo(f"{token:>8.3g} {cost:>8.2f} {upper:>10.2f}")
    for budget in requested or ():
        echo(f"budget {budget:g}: token {float(found.token(budget)):.3g}")
        found.warn_if_uncovered(budget)
    echo(f"Calibrated agent: {target}")
    return 0


def plot(run: Annotated[Path, tyro.conf.Positional]) -> int:
    """Draw a run: learning curves, and the agent on the data's return-cost frontier.

    Args:
        run: A run folder.
    """
    from rcdt_agent.experiments.report import draw_run
    from rcdt_agent.experiments.runs import Run

    found = Run(run)
    found.options()  # refuse what is no run folder
    written = draw_run(found)
    echo("\n".join(map(str, written)) or "Nothing to draw yet: no log and no report.")
    return 0


def report(run: Annotated[Path, tyro.conf.Positional], *, output: Path | None = None) -> int:
    """Write one HTML page about a run: budgets, frontier, calibration, curves, settings.

    Args:
        run: A run folder.
        output: HTML file; by default report.html in the run folder.
    """
    from rcdt_agent.experiments.report import write_report
    from rcdt_agent.experiments.runs import Run

    echo(f"Report: {write_report(Run(run), output)}")
    return 0
