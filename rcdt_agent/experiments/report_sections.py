"""Sections of a run's report: what each shows, as HTML."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcdt_agent._types import Float32Array
from rcdt_agent.algorithms import RCDT, get_algorithm
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.config import Config
from rcdt_agent.costs import budget_label
from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.data.weights import normalize_weights, outcome_weights
from rcdt_agent.experiments.page import escape_prose, escape_text, html_figure, html_table
from rcdt_agent.experiments.runs import RunOptions
from rcdt_agent.experiments.sources import AnyAlgorithm
from rcdt_agent.plots import (
    learning_curves,
    page_style,
    plot_calibration,
    plot_frontier,
    plot_learning_curve,
    plot_return_cost,
    to_svg,
)
from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return

_SIZE = (5.0, 3.9)  # inches: letters stay legible on a phone's width


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything the page shows, read once."""

    folder: Path
    options: RunOptions
    agent: AnyAlgorithm
    versions: dict[str, str]
    log: list[dict[str, float]]
    results: dict[str, Any] | None
    offline: dict[str, Any] | None


def lead(contents: Contents) -> str:
    """The page in a sentence or two."""
    agent, options = contents.agent, contents.options
    goal = options.config.total_steps
    kind = "Variant" if isinstance(agent, RCDT) else "Algorithm"
    sentences = [f"{kind} {options.method}, seed {agent.seed}, {agent.num_timesteps:,} steps."]
    if agent.num_timesteps < goal:
        resume = f"rcdt train --resume {shlex.quote(str(contents.folder))}"
        sentences.append(f"Unfinished: {goal:,} steps were asked for; continue with `{resume}`.")
    if contents.results is not None:
        results = contents.results["results"]
        kept = sum(result["passed"] for result in results)
        episodes = sorted({len(result["returns"]) for result in results})
        sentences.append(
            f"{kept} of {len(results)} budgets kept on average over "
            f"{' or '.join(map(str, episodes))} episodes each."
        )
    return escape_prose(" ".join(sentences))


def budget_table(contents: Contents) -> str:
    """Return and cost at each budget; how to measure them, if nobody has."""
    report = contents.results
    if report is None:
        command = f"rcdt evaluate {shlex.quote(str(contents.folder))}"
        return f"<p>{escape_prose(f'Not evaluated yet: `{command}` fills this table.')}</p>"
    results = report["results"]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        **_cost_columns(results[0]["budget"]),
        "return": lambda r: _spread(r["mean_return"], r["return_interval"]),
        "kept": lambda r: "yes" if r["passed"] else "no",
        "episodes over": lambda r: f"{r['over_budget']:.0%}",
        "target return": lambda r: (
            "-" if r["target_return"] is None else f"{r['target_return']:.1f}"
        ),
        "normalised return": lambda r: f"{r['normalized_return']:.3f}",
    }
    if any(r.get("interventions") for r in results):
        columns["steps shielded"] = lambda r: f"{r['interventions']:.1%}"
    if any(r.get("ended_early") for r in results):
        columns["ended early"] = lambda r: f"{r['ended_early']:.0%}"
    if report["env"] == ENV_ID:
        columns["of the optimum"] = lambda r: (
            f"{r['mean_return'] / optimal_return(r['budget']):.0%}"
        )
    seeds = [_reset_seeds(report, result) for result in results]
    measured = f"{len(results[0]['returns'])} episodes a budget, reset with seeds {seeds[0]}"
    if len(set(seeds)) > 1:
        columns["reset seeds"] = lambda r: _reset_seeds(report, r)
        measured = "one episode for each of the reset seeds"
    note = (
        f"{report['env']}, {measured}. Mean and 95 % bootstrap interval of the mean; a budget is "
        f"kept when the mean cost is within it. Returns are normalised by "
        f"{report['range_source']}."
    )
    rows = [[cell(result) for cell in columns.values()] for result in results]
    return html_table(list(columns), rows) + f"<p class=note>{escape_text(note)}</p>"


def offline_table(contents: Contents) -> str:
    """Estimates from logged data beside what was measured; empty if none were made."""
    report = contents.offline
    if report is None:
        return ""
    measured = contents.results["results"] if contents.results else ()
    rows, head = [], ["budget"]
    for ours in report["results"]:
        real = next((r for r in measured if r["budget"] == ours["budget"]), None)
        several = isinstance(ours["budget"], dict)
        row = [budget_label(ours["budget"])]
        for name in report["check"]:
            word = "return" if name == "return" else "cost"
            keys = (f"mean_{word}", f"nearest_{word}", f"{word}_interval")
            found = [[r[k] for k in keys if k in r] for r in (ours, real) if r]
            if several and word == "cost":
                found = [[value[name] for value in values] for values in found]
            (mean, near, span), *rolled = found
            row += [f"{mean:.2f}, {near:.2f}\n{span[0]:.2f} to {span[1]:.2f}"]
            row += [_spread(*values) for values in rolled] or ["not measured"]
        rows.append(row)
    for name in report["check"]:
        head += [f"{name}, estimated", f"{name}, measured"]
    note = (
        f"Estimated from {report['dataset']}: fitted Q, mean of the nearest trajectories, and the "
        f"interval that spans both. {report['limits']}"
    )
    title = "<h3>Estimated without a simulator</h3>"
    return f"{title}{html_table(head, rows)}<p class=note>{escape_text(note)}</p>"


def _cost_columns(budget: Any) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Budget and cost; of several costs, a pair of columns each."""
    if not isinstance(budget, dict):
        return {
            "budget": lambda r: f"{r['budget']:g}",
            "cost": lambda r: _spread(r["mean_cost"], r["cost_interval"]),
        }
    found: dict[str, Callable[[dict[str, Any]], str]] = {}
    for name in budget:
        found[f"{name} budget"] = lambda r, name=name: f"{r['budget'][name]:g}"  # type: ignore[misc]
        found[f"{name} cost"] = lambda r, name=name: _spread(  # type: ignore[misc]
            r["mean_cost"][name], r["cost_interval"][name]
        )
    return found


def _reset_seeds(report: dict[str, Any], result: dict[str, Any]) -> str:
    """The seeds that episodes were reset with; an entry that was added has its own."""
    first = result.get("seed", report["seed"])
    return f"{first} to {first + len(result['returns']) - 1}"


def pictures(contents: Contents) -> str:
    """Frontier and calibration, of each cost; empty if nothing was measured."""
    if contents.results is None:
        return ""
    outcomes, figures = contents.agent.policy.outcomes, []
    for name, costs, view in cost_views(outcomes, contents.results):
        suffix, aside = (f": {name}", " Other costs are left aside.") if name else ("", "")
        with page_style():
            frontier = to_svg(
                plot_frontier(outcomes.returns, costs, view, title="", size=_SIZE),
                f"frontier{name}",
            )
            calibration = to_svg(plot_calibration(view, size=_SIZE), f"calibration{name}")
        figures.append(
            html_figure(
                f"Frontier{suffix}",
                f"One policy at each budget, on the return-cost plane of its training data.{aside}",
                frontier,
            )
        )
        figures.append(
            html_figure(
                f"Calibration{suffix}",
                "What episodes cost over what they were allowed; below the line the budget is "
                "kept.",
                calibration,
            )
        )
    return "".join(figures)


def curves(contents: Contents) -> str:
    """Learning curves, one drawing for each group of metrics."""
    if not contents.log:
        return "<p>No log was written.</p>"
    groups = learning_curves(contents.log)
    panels = []
    with page_style():
        for i, (title, names) in enumerate(groups.items()):
            svg = to_svg(plot_learning_curve(contents.log, names), f"curve{i}")
            caption = _caption(contents.log, names)
            panels.append(html_figure(title[0].upper() + title[1:], caption, svg, level=3))
    note = "Means over the steps between two log entries."
    return f"<div class=grid>{''.join(panels)}</div><p class=note>{note}</p>"


_LAMBDA_AT_ZERO = (
    "Zero throughout: wherever the cost critic was asked, it put the policy's cost below the "
    "limit, so the penalty did not act. The budget then acts through the cost-to-go token alone."
)


_HELD_OUT = (
    "In standard deviations of the sums that followed on trajectories the critics never saw. A "
    "critic's term acts while this is below 1, where the critic is better than a constant."
)


def _caption(log: list[dict[str, float]], names: Sequence[str]) -> str:
    """What a reader should know of these curves; empty for most."""
    if "lambda" in names and not any(row.get("train/lambda") for row in log):
        return _LAMBDA_AT_ZERO
    return _HELD_OUT if {"q_error", "cost_error"} & set(names) else ""


def data_pictures(contents: Contents) -> str:
    """The training data on the return-cost plane, of each cost."""
    agent, outcomes = contents.agent, contents.agent.policy.outcomes
    weights, limits = None, [None] * len(outcomes.cost_names)
    if isinstance(agent, RCDT) and agent.config.weighting in ("return_cost", "expert"):
        raw = outcome_weights(outcomes, agent.config, agent.policy.cost_limit)
        weights = normalize_weights(raw, torch.ones_like(raw), agent.config.max_weight).numpy()
        limits = np.ravel(agent.policy.cost_limit).tolist()
    figures = []
    views = cost_views(outcomes, contents.results)
    for limit, (name, costs, view) in zip(limits, views, strict=True):
        budgets = [r["budget"] for r in view.get("results", ())]
        with page_style():
            figure = plot_return_cost(
                outcomes.returns, costs, weights, cost_limit=limit, budgets=budgets, size=_SIZE
            )
            scatter = to_svg(figure, f"data{name}")
        caption = (
            f"{len(outcomes):,} trajectories; returns {outcomes.returns.min():.4g} to "
            f"{outcomes.returns.max():.4g}, {name or 'costs'} {costs.min():.4g} to "
            f"{costs.max():.4g}."
        )
        title = f"Training data: {name}" if name else "Training data"
        figures.append(html_figure(title, caption, scatter))
    return "".join(figures)


def settings(options: RunOptions, config: BaseConfig) -> str:
    """Every field, those that are not the defaults first."""
    defaults, origin = _defaults(options, config)
    rows = [
        (field.name, getattr(config, field.name), getattr(defaults, field.name))
        for field in fields(config)
    ]
    changed = [
        (name, f"{value}", f"{default}") for name, value, default in rows if value != default
    ]
    same = [(name, f"{value}") for name, value, default in rows if value == default]
    own = html_table(("setting", "value", f"default of {origin}"), changed) if changed else ""
    return (
        f"{own}<details><summary>{len(same)} settings at the defaults of "
        f"{escape_text(origin)}</summary>"
        f"{html_table(('setting', 'value'), same)}</details>"
    )


def _defaults(options: RunOptions, config: BaseConfig) -> tuple[BaseConfig, str]:
    """What `rcdt train --help` shows as defaults for the same preset and variant, and their name.

    A run that was not started by the command line is compared with the class's own.
    """
    if options.preset is None:
        return type(config)(), "the class"
    variant = config.variant if isinstance(config, Config) else None
    defaults = get_algorithm(options.algorithm).make_config(options.preset, variant)
    words = f" and variant {variant}" if variant else ""
    return defaults, f"preset {options.preset}{words}"


def _spread(mean: float, interval: Sequence[float]) -> str:
    return f"{mean:.2f}\n{interval[0]:.2f} to {interval[1]:.2f}"


def cost_views(
    outcomes: Outcomes, report: dict[str, Any] | None
) -> Iterator[tuple[str, Float32Array, dict[str, Any]]]:
    """One cost after the other: its name, the data's costs (M,), and the report of it alone.

    One cost has no name, and the report as it is.
    """
    if len(outcomes.cost_names) == 1:
        yield "", outcomes.costs, report or {}
        return
    for j, name in enumerate(outcomes.cost_names):
        results = [
            {
                **r,
                **{key: r[key][name] for key in _PER_COST},
                "passed": r["mean_cost"][name] <= r["budget"][name],
            }
            for r in (report["results"] if report else ())
        ]
        yield name, outcomes.costs[:, j], {**(report or {}), "results": results}


_PER_COST = ("budget", "costs", "mean_cost", "cost_interval", "normalized_cost")
