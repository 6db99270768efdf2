"""`rcdt report`: one HTML page about a run that needs nothing but itself."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from string import Template
from typing import Any

import torch

from rcdt_agent._io import atomic_write
from rcdt_agent.agent import RCDT
from rcdt_agent.checkpoint import read_checkpoint
from rcdt_agent.config import Config
from rcdt_agent.data.sampler import normalize_weights
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.learner import dataset_weights
from rcdt_agent.plots import (
    learning_curves,
    page_style,
    plot_calibration,
    plot_frontier,
    plot_learning_curve,
    plot_return_cost,
    to_svg,
)
from rcdt_agent.runs import Run

_SIZE = (5.0, 3.9)  # inches: letters stay legible on a phone's width


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """Everything the page shows, read once."""

    folder: Path
    options: dict[str, Any]
    agent: RCDT
    versions: dict[str, str]
    log: list[dict[str, float]]
    results: dict[str, Any] | None


def write_report(run: Run, output: Path | None = None) -> Path:
    """Write the page of a run; the same run gives the same page.

    Args:
        run: A run folder, finished or not, evaluated or not: what is missing is said.
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


def _read(run: Run) -> _Contents:
    options = run.options()
    checkpoint = run.final if run.final.is_file() else run.latest
    if not checkpoint.is_file():
        raise InvalidArgumentError(
            f"{run.folder} holds no agent yet: continue it with `rcdt train --resume {run.folder}`."
        )
    meta, _ = read_checkpoint(checkpoint, RCDT.__name__)
    return _Contents(
        folder=run.folder,
        options=options,
        agent=run.agent(),
        versions=meta["versions"],
        log=run.log(),
        results=json.loads(run.report.read_text()) if run.report.is_file() else None,
    )


def _page(contents: _Contents) -> str:
    options, agent = contents.options, contents.agent
    name = Path(options["data"]).name
    return Template(_HTML).substitute(
        title=_text(f"{name}: {agent.config.variant} at several cost budgets"),
        heading=_text(name),
        lead=_lead(contents),
        command=_text(options.get("command") or "not recorded"),
        budgets=_budgets(contents),
        pictures=_pictures(contents),
        curves=_curves(contents),
        data=_data(contents),
        settings=_settings(agent.config),
        versions=_table(("package", "version"), sorted(contents.versions.items())),
    )


def _lead(contents: _Contents) -> str:
    """The page in a sentence or two."""
    agent, goal = contents.agent, int(contents.options["config"]["total_steps"])
    said = [f"Variant {agent.config.variant}, seed {agent.seed}, {agent.num_timesteps:,} steps."]
    if agent.num_timesteps < goal:
        resume = f"rcdt train --resume {shlex.quote(str(contents.folder))}"
        said.append(f"Unfinished: {goal:,} steps were asked for; continue with `{resume}`.")
    if contents.results is not None:
        results = contents.results["results"]
        kept = sum(result["passed"] for result in results)
        said.append(
            f"{kept} of {len(results)} budgets kept on average over "
            f"{len(results[0]['returns'])} episodes each."
        )
    return _prose(" ".join(said))


def _budgets(contents: _Contents) -> str:
    report = contents.results
    if report is None:
        command = f"rcdt evaluate {shlex.quote(str(contents.folder))}"
        return f"<p>{_prose(f'Not evaluated yet: `{command}` fills this table.')}</p>"
    optimum = _optimum(report["env"])
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
            f"{r['target_return']:.1f}",
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


def _optimum(env: str) -> Any:
    """The best expected return at a budget, where it is known."""
    from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return

    return optimal_return if env == ENV_ID else None


def _pictures(contents: _Contents) -> str:
    if contents.results is None:
        return ""
    targets = contents.agent.targets
    assert targets is not None
    with page_style():
        frontier = to_svg(
            plot_frontier(targets.returns, targets.costs, contents.results, title="", size=_SIZE),
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
    agent = contents.agent
    targets = agent.targets
    assert targets is not None
    raw = dataset_weights(targets, agent.config, agent.cost_limit)
    weights = normalize_weights(raw, torch.ones_like(raw), agent.config.max_weight)
    budgets = [r["budget"] for r in contents.results["results"]] if contents.results else []
    with page_style():
        scatter = to_svg(
            plot_return_cost(
                targets.returns,
                targets.costs,
                weights.numpy(),
                cost_limit=agent.cost_limit,
                budgets=budgets,
                size=_SIZE,
            ),
            "data",
        )
    caption = (
        f"{len(targets.returns):,} trajectories; returns {targets.returns.min():.4g} to "
        f"{targets.returns.max():.4g}, costs {targets.costs.min():.4g} to "
        f"{targets.costs.max():.4g}."
    )
    return _figure("Training data", caption, scatter)


def _settings(config: Config) -> str:
    """Every field, those that are not the paper's first."""
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
    words = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return f"<figure><h{level}>{_text(title)}</h{level}>{drawing}{words}</figure>"


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


_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --page: #ffffff; --quiet: #59636e;
  --line: #d1d9e0; --shade: #f3f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --page: #12161b; --quiet: #9aa6b2; --line: #343c46; --shade: #1c2229; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 66rem; color: var(--ink);
  background: var(--page); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
section { margin-top: 2rem; }
section > .grid { margin-top: .5rem; }
code, pre { font: .88em/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: var(--shade); border-radius: 6px; padding: .7rem .9rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
p code { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .92rem; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--quiet); }
td { min-width: 3rem; overflow-wrap: anywhere; }
#budgets td { white-space: nowrap; overflow-wrap: normal; }
small, h3 { color: var(--quiet); font-size: .85rem; }
h3 { margin: 0 0 .3rem; }
.note, figcaption { color: var(--quiet); font-size: .88rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 2rem 1.5rem; margin-top: 2rem; align-items: start; }
figure { margin: 0; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; max-width: 40rem; }
details { margin-top: .8rem; }
summary { cursor: pointer; color: var(--quiet); }
@media print {
  :root { --ink: #000; --page: #fff; --quiet: #444; --line: #bbb; --shade: #f3f3f3; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  .grid { grid-template-columns: 1fr 1fr; }
  h2, h3 { break-after: avoid; }
  tr { break-inside: avoid; }
}
</style>
</head>
<body>
<header>
<h1>$heading</h1>
<p>$lead</p>
</header>
<section id="budgets"><h2>Budgets</h2>$budgets</section>
<div class="grid">$pictures$data</div>
<section id="curves"><h2>Learning curves</h2>$curves</section>
<section id="made-by"><h2>Made by</h2><pre>$command</pre></section>
<section id="settings"><h2>Configuration</h2>$settings</section>
<section id="versions"><h2>Versions</h2>$versions</section>
</body>
</html>
"""
