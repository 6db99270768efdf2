"""`rcdt report` and `rcdt plot`: one self-contained HTML page about a run, and its plots."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from string import Template

from rcdt_agent._io import atomic_write
from rcdt_agent.checkpoint import checkpoint_kind, read_checkpoint
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments import report_sections as sections
from rcdt_agent.experiments.dashboard import SECTION, dashboard
from rcdt_agent.experiments.evaluate import read_offline
from rcdt_agent.experiments.page import escape_text, html_table
from rcdt_agent.experiments.runs import Run
from rcdt_agent.experiments.stored import read_evaluation
from rcdt_agent.plots import plot_frontier, plot_learning_curves, save_figure


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


def current_dashboard(run: Run) -> Path:
    """The page of an evaluated run, written only if it is missing or older than the run's files.

    Raises:
        InvalidArgumentError: Not a run folder, or it has not been evaluated yet.
        CheckpointError: Its agent cannot be read.
    """
    run.options()  # refuse what is no run folder
    if run.checkpoint is not None and not run.report.is_file():
        raise InvalidArgumentError(
            f"{run.folder} has not been evaluated yet, which the dashboard is about: "
            f"`rcdt evaluate {shlex.quote(str(run.folder))}` does it."
        )
    page = run.folder / "report.html"
    sources = [run.options_file, run.report, run.checkpoint, *run.folder.glob("logs/*/*.csv")]
    sources += [run.offline] if run.offline.is_file() else []
    newest = max(path.stat().st_mtime_ns for path in sources if path is not None)
    fresh = page.is_file() and page.stat().st_mtime_ns > newest
    if fresh and SECTION in page.read_text(encoding="utf-8"):
        return page
    return write_report(run)


def draw_run(run: Run) -> list[Path]:
    """Write the plots of a run: learning curves, and the agent on the data's frontier."""
    written = []
    log, results = run.log(), read_evaluation(run.report)
    if log:
        written.append(run.folder / "curves.png")
        save_figure(plot_learning_curves(log), written[-1])
    if results is not None:
        outcomes = run.agent().policy.outcomes
        for name, costs, view in sections.cost_views(outcomes, results):
            written.append(run.folder / (f"frontier-{name}.png" if name else "frontier.png"))
            save_figure(plot_frontier(outcomes.returns, costs, view), written[-1])
    return written


def _read(run: Run) -> sections.Contents:
    options, agent = run.options(), run.agent()
    checkpoint = run.checkpoint
    assert checkpoint is not None  # `agent` says if there is none
    meta, _ = read_checkpoint(checkpoint, checkpoint_kind(checkpoint))
    return sections.Contents(
        folder=run.folder,
        options=options,
        agent=agent,
        versions=meta["versions"],
        log=run.log(),
        results=read_evaluation(run.report),
        offline=read_offline(run),
    )


def _page(contents: sections.Contents) -> str:
    options = contents.options
    name = Path(options.data).name
    explore, style, policy = dashboard(
        contents.agent.policy.outcomes, contents.results, contents.folder
    )
    template = (files("rcdt_agent.experiments") / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=escape_text(f"{name}: {options.method} at several cost budgets"),
        heading=escape_text(name),
        lead=sections.lead(contents),
        command=escape_text(options.command or "not recorded"),
        budgets=sections.budget_table(contents) + sections.offline_table(contents),
        explore=explore,
        explore_style=style,
        policy=policy,
        pictures=sections.pictures(contents),
        curves=sections.curves(contents),
        data=sections.data_pictures(contents),
        settings=sections.settings(contents.options, contents.agent.config),
        versions=html_table(("package", "version"), sorted(contents.versions.items())),
    )
