"""The commands about a trained agent: `rcdt evaluate`, `calibrate`, `plot` and its pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.cli.console import check_budgets, check_output, echo, echo_error
from rcdt_agent.costs import parse_budget
from rcdt_agent.errors import InvalidArgumentError

ENOUGH_EPISODES = 20
"""Per token. Of simulated calibrations with exponential costs, 3 % chose a token that breaks the
budget with 20 episodes, 8 % with 10 and 27 % with 3, where 95 % confidence allows 5 %."""

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
OptionalEnv = Annotated[str | None, tyro.conf.arg(metavar="ID")]


def evaluate(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: OptionalEnv = None,
    budgets: tuple[float, ...] = (),
    cost_budgets: tuple[str, ...] = (),
    episodes: int = 20,
    seed: int = 0,
    output: OptionalPath = None,
    offline: OptionalPath = None,
) -> int:
    """Evaluate a trained agent at every cost budget and print the table.

    The results are added to the run's report.json: a budget that was measured before is replaced,
    the others stay. With --offline there are no roll-outs: return and cost are estimated from
    logged data and written to the run's offline.json, which `rcdt report` shows beside the
    measured ones.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets; by default those of the task.
        cost_budgets: For an agent with several costs, each as collision=5,speeding=20.
        episodes: Episodes per budget.
        seed: Episode e is reset with seed + e.
        output: JSON file for this evaluation alone; the run's own files stay as they are.
        offline: Dataset to estimate from, instead of rolling out.
    """
    from rcdt_agent.experiments.evaluate import (
        add_to_report,
        evaluate_run,
        predict_latency,
        write_offline,
    )
    from rcdt_agent.experiments.runs import Run, open_agent

    check_budgets(budgets)
    check_output(output)
    if budgets and cost_budgets:
        raise InvalidArgumentError("Give either `--budgets` or `--cost-budgets`, not both.")
    named = tuple(parse_budget(text) for text in cost_budgets)
    if offline is not None and env is not None:
        raise InvalidArgumentError("Give either `--offline` or `--env`, not both.")
    loaded = open_agent(agent)
    if offline is not None:
        estimate = loaded.evaluate_offline(offline, budgets or named or None, seed=seed)
        if output is not None:
            estimate.to_json(output)
        elif agent.is_dir():
            output = write_offline(Run(agent), estimate)
        if output is not None:
            echo(f"Report: {output}")
        echo(estimate.as_table())
        return 0
    report = evaluate_run(
        loaded, env, budgets=budgets or named or None, n_episodes=episodes, seed=seed
    )
    if output is not None:
        report.to_json(output)
    elif agent.is_dir():
        output = add_to_report(Run(agent), loaded, report)
    if output is not None:
        echo(f"Report: {output}")
    echo(report.as_table())
    median, slowest = predict_latency(loaded)
    echo(f"predict, one environment: {median:.2f} ms (median), {slowest:.2f} ms (99th percentile)")
    return 0


def calibrate(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: OptionalEnv = None,
    budgets: tuple[float, ...] = (),
    episodes: int = 20,
    seed: int = 1_000_000,
    confidence: float = 0.95,
    output: OptionalPath = None,
    in_place: bool = False,
    offline: OptionalPath = None,
) -> int:
    """Measure which cost-to-go token keeps each cost budget, and write a calibrated agent.

    With --offline there are no roll-outs: costs are estimated from logged data, and budgets that
    these do not cover are an error.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets to calibrate for; by default those of the task.
        episodes: Episodes for each of ten tokens; fewer than 20 raise a warning.
        seed: Episode e is reset with seed + e; other seeds than those of an evaluation.
        confidence: Confidence level of the one-sided bound on the mean cost of the episodes.
        output: Where to write the calibrated agent; by default beside the one given, with
            -calibrated in its name.
        in_place: Overwrite the given agent.
        offline: Dataset to estimate from, instead of rolling out.
    """
    from rcdt_agent.evaluation import task_budgets
    from rcdt_agent.experiments.evaluate import find_simulator
    from rcdt_agent.experiments.runs import open_budget_conditioned

    check_budgets(budgets)
    target = _calibrated_file(agent, output, in_place)
    check_output(target)
    if offline is not None and env is not None:
        raise InvalidArgumentError("Give either `--offline` or `--env`, not both.")
    loaded = open_budget_conditioned(agent, "calibrated")
    if offline is not None:
        requested: Sequence[float] = task_budgets(loaded, budgets or None)
        found = loaded.calibrate_offline(offline, requested, seed=seed)
        bound = "upper end"
    else:
        simulator = find_simulator(loaded, env)
        requested = budgets or simulator.budgets or ()
        found = loaded.calibrate(
            simulator.env,
            requested or None,
            episodes,
            seed,
            confidence=confidence,
            progress_bar=True,
        )
        bound = f"{confidence:.0%} bound"
    loaded.save(target)
    echo(f"{'token':>8} {'cost':>8} {bound:>10}")
    for token, cost, upper in zip(found.tokens, found.costs, found.upper, strict=True):
        echo(f"{token:>8.3g} {cost:>8.2f} {upper:>10.2f}")
    for budget in requested:
        echo(f"budget {budget:g}: token {float(found.token(budget)):.3g}")
        found.warn_if_uncovered(budget)
    if offline is None and episodes < ENOUGH_EPISODES:
        echo_error(
            f"the {bound} rests on {episodes} episodes a token and is too low more often than it "
            f"says; `--episodes {ENOUGH_EPISODES}` or more make it trustworthy.",
            "warning",
        )
    echo(f"Calibrated agent: {target}")
    return 0


def _calibrated_file(agent: Path, output: Path | None, in_place: bool) -> Path:
    """Where `rcdt calibrate` writes."""
    from rcdt_agent.experiments.runs import Run

    if output is not None and in_place:
        raise InvalidArgumentError("Give either `--output` or `--in-place`, not both.")
    if output is not None:
        return output
    source = Run(agent).checkpoint or agent if agent.is_dir() else agent
    return source if in_place else source.with_name(f"{source.stem}-calibrated.zip")


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


def report(run: Annotated[Path, tyro.conf.Positional], *, output: OptionalPath = None) -> int:
    """Write one HTML page about a run: budgets, frontier, calibration, curves, settings.

    Args:
        run: A run folder.
        output: HTML file; by default report.html in the run folder.
    """
    from rcdt_agent.experiments.report import write_report
    from rcdt_agent.experiments.runs import Run

    check_output(output)
    echo(f"Report: {write_report(Run(run), output)}")
    return 0


def dashboard(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    open_page: Annotated[bool, tyro.conf.arg(name="open")] = False,
) -> int:
    """Write a run's page with a slider over cost budgets, if it is not up to date; print its path.

    Args:
        run: A run folder that has been evaluated.
        open_page: Open the page in the web browser.
    """
    import webbrowser

    from rcdt_agent.experiments.report import current_dashboard
    from rcdt_agent.experiments.runs import Run

    page = current_dashboard(Run(run))
    echo(f"Dashboard: {page}")
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        echo_error("no web browser was found: open the file in one yourself.", "warning")
    return 0
