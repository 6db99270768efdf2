"""`rcdt report` and `rcdt plot`: one self-contained HTML page about a run, and its plots."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import torch

from rcdt_agent._io import atomic_write, read_json
from rcdt_agent.algorithms import RCDT
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.checkpoint import checkpoint_kind, read_checkpoint
from rcdt_agent.data.weights import normalize_weights, outcome_weights
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.runs import Run, RunOptions
from rcdt_agent.experiments.sources import AnyAlgorithm
from rcdt_agent.plots import (
    learning_curves,
    page_style,
    plot_calibration,
    plot_frontier,
    plot_learning_curve,
    plot_learning_curves,
    plot_return_cost,
    save_figure,
    to_svg,
)
from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return

_SIZE = (5.0, 3.9)  # inches: letters stay legible on a phone's width


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """Everything the page shows, read once."""

    folder: Path
    options: RunOptions
    agent: AnyAlgorithm
    versions: dict[str, str]
    log: list[dict[str, float]]
    results: dict[str, Any] | None


def write_report(run: Run, output: Path | None = None) -> Path:
    """Write the page of a run; the same run gives the same page.

    Args:
        run: A run folder, finished or not, evaluated or not: gaps are named.
        output: HTML file; default: `report.html` in the folder.

    Returns:
        The file written.

    Raises:
        InvalidArgumentError: Not a run folder, nothing has been trained in it yet, or `output`
            cannot be written.
        CheckpointError: Its agent cannot be read.
    """
    page = _page(_read(run))
    path = output or run.folder / "report.html"
    with atomic_write(path, InvalidArgumentError) as partial:
        partial.write_text(page, encoding="utf-8")
    return path


def draw_run(run: Run) -> list[Path]:
    """Write the plots of a run: learning curves, and the agent on the data's frontier."""
    written = []
    log, results = run.log(), read_json(run.report)
    if log:
        written.append(run.folder / "curves.png")
        save_figure(plot_learning_curves(log), written[-1])
    if results is not None:
        outcomes = run.agent().policy.outcomes
        written.append(run.folder / "frontier.png")
        save_figure(plot_frontier(outcomes.returns, outcomes.costs, results), written[-1])
    return written


def _read(run: Run) -> _Contents:
    options, agent = run.options(), run.agent()
    checkpoint = run.checkpoint
    assert checkpoint is not None  # `agent` says if there is none
    meta, _ = read_checkpoint(checkpoint, checkpoint_kind(checkpoint))
    return _Contents(
        folder=run.folder,
        options=options,
        agent=agent,
        versions=meta["versions"],
        log=run.log(),
        results=read_json(run.report),
    )


def _page(contents: _Contents) -> str:
    options = contents.options
    name = Path(options.data).name
    template = (files("rcdt_agent.experiments") / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=_text(f"{name}: {options.method} at several cost budgets"),
        heading=_text(name),
        lead=_lead(contents),
        command=_text(options.command or "not recorded"),
        budgets=_budgets(contents),
        pictures=_pictures(contents),
        curves=_curves(contents),
        data=_data(contents),
        settings=_settings(contents.agent.config),
        versions=_table(("package", "version"), sorted(contents.versions.items())),
    )


def _lead(contents: _Contents) -> str:
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
        sentences.append(
            f"{kept} of {len(results)} budgets kept on average over "
            f"{len(results[0]['returns'])} episodes each."
        )
    return _prose(" ".join(sentences))


def _budgets(contents: _Contents) -> str:
    report = contents.results
    if report is None:
        command = f"rcdt evaluate {shlex.quote(str(contents.folder))}"
        return f"<p>{_prose(f'Not evaluated yet: `{command}` fills this table.')}</p>"
    optimum = optimal_return if report["env"] == ENV_ID else None
    head = ["budget", "cost", "return", "kept", "episodes over", "asked for", "normalised return"]
    shielded = any(r.get("interventions") for r in report["results"])
    if shielded:
        head.append("steps shielded")
    if optimum is not None:
        head.append("of the optimum")
    rows = []
    for r in report["results"]:
        row = [
            f"{r['budget']:g}",
            _spread(r["mean_cost"], r["cost_interval"]),
            _spread(r["mean_return"], r["return_interval"]),
            "yes" if r["passed"] else "no",
            f"{r['over_budget']:.0%}",
            "-" if r["target_return"] is None else f"{r['target_return']:.1f}",
            f"{r['normalized_return']:.3f}",
        ]
        if shielded:
            row.append(f"{r['interventions']:.1%}")
        if optimum is not None:
            row.append(f"{r['mean_return'] / optimum(r['budget']):.0%}")
        rows.append(row)
    episodes = len(report["results"][0]["returns"])
    note = (
        f"{report['env']}, {episodes} episodes a budget, reset with seeds {report['seed']} to "
        f"{report['seed'] + episodes - 1}. Mean and 95 % bootstrap interval of the mean; a budget "
        f"is kept when the mean cost is within it. Returns are normalised by "
        f"{report['range_source']}."
    )
    return _table(head, rows) + f"<p class=note>{_text(note)}</p>"


def _pictures(contents: _Contents) -> str:
    if contents.results is None:
        return ""
    outcomes = contents.agent.policy.outcomes
    with page_style():
        frontier = to_svg(
            plot_frontier(outcomes.returns, outcomes.costs, contents.results, title="", size=_SIZE),
            "frontier",
        )
        calibration = to_svg(plot_calibration(contents.results, size=_SIZE), "calibration")
    return _figure(
        "Frontier",
        "One policy at each budget, on the return-cost plane of its training data.",
        frontier,
    ) + _figure(
        "Calibration",
        "What episodes cost over what they were allowed; below the line the budget is kept.",
        calibration,
    )


def _curves(contents: _Contents) -> str:
    if not contents.log:
        return "<p>No log was written.</p>"
    panels = []
    with page_style():
        for i, (title, names) in enumerate(learning_curves(contents.log).items()):
            svg = to_svg(plot_learning_curve(contents.log, names), f"curve{i}")
            panels.append(_figure(title[0].upper() + title[1:], "", svg, level=3))
    note = "Means over the steps between two log entries."
    return f"<div class=grid>{''.join(panels)}</div><p class=note>{note}</p>"


def _data(contents: _Contents) -> str:
    agent, outcomes = contents.agent, contents.agent.policy.outcomes
    weighting: dict[str, Any] = {}
    if isinstance(agent, RCDT):
        limit = agent.policy.cost_limit
        raw = outcome_weights(outcomes, agent.config, limit)
        weights = normalize_weights(raw, torch.ones_like(raw), agent.config.max_weight)
        weighting = {"weights": weights.numpy(), "cost_limit": limit}
    budgets = [r["budget"] for r in contents.results["results"]] if contents.results else []
    with page_style():
        figure = plot_return_cost(
            outcomes.returns, outcomes.costs, **weighting, budgets=budgets, size=_SIZE
        )
        scatter = to_svg(figure, "data")
    caption = (
        f"{len(outcomes):,} trajectories; returns {outcomes.returns.min():.4g} to "
        f"{outcomes.returns.max():.4g}, costs {outcomes.costs.min():.4g} to "
        f"{outcomes.costs.max():.4g}."
    )
    return _figure("Training data", caption, scatter)


def _settings(config: BaseConfig) -> str:
    """Every field, those that are not the defaults first."""
    rows = [(field.name, getattr(config, field.name), field.default) for field in fields(config)]
    changed = [
        (name, f"{value}", f"{default}") for name, value, default in rows if value != default
    ]
    same = [(name, f"{value}") for name, value, default in rows if value == default]
    own = _table(("setting", "value", "default"), changed) if changed else ""
    return (
        f"{own}<details><summary>{len(same)} settings at their defaults</summary>"
        f"{_table(('setting', 'value'), same)}</details>"
    )


def _figure(title: str, caption: str, svg: str, *, level: int = 2) -> str:
    label = html.escape(f"{title}. {caption}".strip(), quote=True)
    drawing = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    figcaption = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return f"<figure><h{level}>{_text(title)}</h{level}>{drawing}{figcaption}</figure>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text; a cell's second line, if any, is set small."""
    top = "".join(f"<th scope=col>{_text(cell)}</th>" for cell in head)
    body = ""
    for row in rows:
        lines = [_text(cell).partition("\n") for cell in row]
        cells = (f"{main}<br><small>{rest}</small>" if rest else main for main, _, rest in lines)
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return (
        f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _spread(mean: float, interval: Sequence[float]) -> str:
    return f"{mean:.2f}\n{interval[0]:.2f} to {interval[1]:.2f}"


def _text(value: str) -> str:
    return html.escape(value, quote=False)


def _prose(value: str) -> str:
    """Escaped text with `code` in back-ticks."""
    parts = _text(value).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
