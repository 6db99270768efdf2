"""The table, the picture and the HTML page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import atomic_write, read_json, write_text
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark.methods import Method
from rcdt_agent.experiments.benchmark.plots import draw_frontiers, plot_methods
from rcdt_agent.experiments.benchmark.results import (
    MethodSummary,
    Results,
    best_of,
    collect_results,
    dump_results,
    summarize,
)
from rcdt_agent.experiments.page import (
    escape_prose,
    escape_text,
    html_figure,
    html_table,
    page_css,
)
from rcdt_agent.plots import page_style, to_svg
from rcdt_agent.stats import nested_bootstrap_interval
from rcdt_agent.variants import DEFAULT_VARIANT

NOT_SAFETY = (
    "Without an environment nothing is known of return and cost: this is how well each method "
    "predicts the recorded actions of held-out trajectories within a budget, as a share of their "
    "variance (0: exactly, 1: no better than their mean). A method that improves on the data "
    "differs from them. Use it to see whether a method learned at all, not to choose the safest."
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text: for the terminal, a Markdown file and a page.

    Attributes:
        head: Names of the columns.
        rows: As many cells each; a cell may have a second line.
        note: What the numbers are, and what follows from them.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str

    def as_text(self) -> str:
        """Columns of equal width."""
        lines: list[Sequence[str]] = [self.head]
        for row in self.rows:
            parts = [cell.partition("\n") for cell in row]
            lines.append([first for first, _, _ in parts])
            if any(second for _, _, second in parts):
                lines.append([second for _, _, second in parts])
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        padded = [
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines
        ]
        return "\n".join([*(line.rstrip() for line in padded), "", self.note])

    def as_markdown(self) -> str:
        """A pipe table."""
        rows = [[cell.replace("\n", " ") for cell in row] for row in self.rows]
        lines = [self.head, ["---"] * len(self.head), *rows]
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", self.note])

    def as_html(self) -> str:
        """With the note below."""
        return html_table(self.head, self.rows) + f"<p class=note>{escape_text(self.note)}</p>"


def serves(method: Method, n_budgets: int) -> str:
    """Which budgets one trained model serves, and how many were trained."""
    if method.kind.budgets == "any":
        return "any, one model"
    if method.one_policy_per_budget:
        return f"one, {n_budgets} models"
    return "one, one model" if method.kind.budgets == "one" else "none, one model"


def comparison_table(results: Results) -> Table:
    """Rows methods, columns budgets: mean return and cost with their intervals.

    Of one seed there is no interval; the share of episodes over the budget takes its place.
    """
    ((label, task),) = results["tasks"].items()
    if task["offline"]:
        return _offline_table(results, label, task["budgets"])
    found = _summaries(results, label)
    best = best_of(found, strict=True)
    rows = []
    for summary in found:
        method = Method.from_dict(results["methods"][summary.method])
        several = len(summary.seeds) > 1
        cells = [
            f"{_number(b.mean_return)} / {_number(b.mean_cost)}{'' if b.passed else ' !'}\n"
            + (
                f"{_span(b.return_interval)} / {_span(b.cost_interval)}"
                if several
                else f"{b.over_budget:.0%} over"
            )
            for b in summary.budgets
        ]
        name = summary.method + (" *" if summary.method == best else "")
        rows.append([name, serves(method, len(task["budgets"])), *cells, f"{summary.kept}"])
    head = ["method", "budgets served", *(f"budget {b:g}" for b in task["budgets"]), "kept"]
    several = any(len(summary.seeds) > 1 for summary in found)
    note = (
        f"Mean return / mean cost of an episode, {results['protocol']['episodes']} episodes a "
        f"budget and seed; !: costs more than the budget. "
        + ("In brackets 95 % t intervals over seeds. " if several else "")
        + ("" if all(len(s.seeds) > 1 for s in found) else "Over: episodes over the budget. ")
        + _verdict(found, best)
        + " Methods of one budget were trained once for each."
    )
    if DEFAULT_VARIANT in results["methods"]:
        note += f" {DEFAULT_VARIANT} is RCDT with its default components."
    return Table(head=head, rows=rows, note=note)


def _verdict(found: Sequence[MethodSummary], best: str | None) -> str:
    """Which method the comparison speaks for, if it does."""
    if best:
        return f"*: {best} has the highest return of the methods that keep every budget."
    if any(summary.keeps_all for summary in found):
        return "None is marked as the best: one training seed says too little (`--seeds 0 1 2`)."
    return "No method keeps every budget."


def _offline_table(results: Results, label: str, budgets: Sequence[float]) -> Table:
    rows = []
    for name, values in results["methods"].items():
        cells = [c for c in results["cells"] if c["task"] == label and c["method"] == name]
        if not cells:
            continue
        shares = [_unexplained([c["evaluation"]["results"][i] for c in cells])
                  for i in range(len(budgets))]  # fmt: skip
        rows.append([name, serves(Method.from_dict(values), len(budgets)), *shares])
    head = ["method", "budgets served", *(f"within {b:g}" for b in budgets)]
    return Table(head=head, rows=rows, note=NOT_SAFETY)


def _unexplained(entries: list[dict[str, Any]]) -> str:
    """Error over variance, with its interval over seeds and trajectories."""
    if not entries[0]["errors"] or not entries[0]["variance"]:
        return "-"
    shares = np.array([entry["errors"] for entry in entries]) / entries[0]["variance"]
    interval = nested_bootstrap_interval(shares[:, None])  # (seeds, 1, trajectories)
    return f"{shares.mean():.2f} {_span(interval)}"


def write_comparison(folder: Path) -> tuple[Table, list[Path]]:
    """Write results.json, comparison.md, the picture and comparison.html of a folder.

    Returns:
        The table, and the files.

    Raises:
        InvalidArgumentError: Nothing is finished in the folder, or it is not of one dataset.
    """
    results = collect_results(folder)
    if not results["cells"] or len(results["tasks"]) != 1:
        raise InvalidArgumentError(f"{folder} holds no finished comparison of one dataset.")
    table = comparison_table(results)
    files = [folder / "results.json", folder / "comparison.md", folder / "comparison.html"]
    write_text(files[0], dump_results(results))
    write_text(files[1], table.as_markdown() + "\n")
    with atomic_write(files[2], InvalidArgumentError) as partial:
        partial.write_text(_page(folder, results, table), encoding="utf-8")
    ((_, task),) = results["tasks"].items()
    return table, files if task["offline"] else [*files, *draw_frontiers(folder, results)]


def _page(folder: Path, results: Results, table: Table) -> str:
    ((label, task),) = results["tasks"].items()
    lead = (
        f"{len(table.rows)} methods on {task['trajectories']} trajectories of {task['file']}, "
        f"preset {results['protocol']['preset']}, seeds {', '.join(map(str, results['seeds']))}."
    )
    minutes = [
        (t["method"], f"{t['seed']}", f"{t['steps']:,}", f"{t['seconds'] / 60:.1f}")
        for t in results["trainings"].values()
    ]
    commands = "\n".join(results["commands"]) or "not recorded"
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        "<meta http-equiv=Content-Security-Policy "
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape_text(label)}: methods compared</title><style>{page_css()}</style></head>\n"
        f"<body><header><h1>{escape_text(label)}: methods compared</h1>"
        f"<p>{escape_prose(lead)}</p></header>\n"
        f"<section id=budgets><h2>Budgets</h2>{table.as_html()}</section>\n"
        f'<div class="grid">{_picture(folder, results, label)}</div>\n'
        f"<section><h2>Training</h2>"
        f"{html_table(('method', 'seed', 'steps', 'minutes'), minutes)}</section>\n"
        f"<section><h2>Made by</h2><pre>{escape_text(commands)}</pre></section>\n"
        f"<section><h2>Versions</h2>"
        f"{html_table(('package', 'version'), sorted(results['versions'].items()))}</section>\n"
        "</body></html>\n"
    )


def _picture(folder: Path, results: Results, label: str) -> str:
    points = read_json(folder / "data" / f"{label.replace(' ', '-')}.json")
    if results["tasks"][label]["offline"] or points is None:
        return ""
    returns, costs = (np.array(points[key], dtype=np.float32) for key in ("returns", "costs"))
    with page_style():
        svg = to_svg(plot_methods(returns, costs, _summaries(results, label)), "plane")
    caption = "Mean return and cost at every budget, on the return-cost plane of the data."
    return html_figure("Return and cost", caption, svg)


def _summaries(results: Results, label: str) -> list[MethodSummary]:
    found = (summarize(results, label, method) for method in results["methods"])
    return [summary for summary in found if summary is not None]


def _number(value: float) -> str:
    """Three digits, all of them above 100; what is next to nothing is zero."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else "0"


def _span(interval: tuple[float, float]) -> str:
    return f"[{_number(interval[0])}, {_number(interval[1])}]"
