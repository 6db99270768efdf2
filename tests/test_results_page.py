"""`docs/results.md` shows what `docs/results.json` holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rcdt_agent.experiments.benchmark import fill_page
from rcdt_agent.experiments.benchmark.plots import plot_budgets
from rcdt_agent.experiments.benchmark.results import score_range, summarize

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = json.loads((DOCS / "results.json").read_text())
PAGE = (DOCS / "results.md").read_text()


def test_the_page_is_rebuilt_from_the_json():
    assert fill_page(PAGE, RESULTS) == PAGE
    others = {name for name in re.findall(r"<!-- table:(\w+)/", PAGE)}
    assert others == {path.stem.removeprefix("results_") for path in DOCS.glob("results_*.json")}
    for name in others:
        other = json.loads((DOCS / f"results_{name}.json").read_text())
        assert fill_page(PAGE, other, prefix=f"{name}/") == PAGE


def test_a_figure_of_the_page_by_hand():
    """Mean cost of CDT at BallCircle's budget of 10, from the episodes themselves."""
    costs = [
        cost
        for cell in RESULTS["cells"]
        if (cell["task"], cell["method"]) == ("BallCircle", "cdt")
        for result in cell["evaluation"]["results"]
        if result["budget"] == 10
        for cost in result["costs"]
    ]
    rows = PAGE.split("\n## BallCircle\n")[1].split("\n## ")[0].splitlines()
    (row,) = [line for line in rows if line.startswith("| cdt | 10 |")]
    assert f"{np.mean(costs):.1f} [" in row.replace("**", "")


@pytest.mark.parametrize(
    ("best", "top"), [(None, 7.0), (3.0, 3.0), (0.0, 0.0), (-10.0, 7.0), (-11.0, 7.0)]
)
def test_scores_end_at_the_best_within_the_budget_where_it_is_above_the_lowest(best, top):
    task = {"return_range": [-10.0, 7.0], "best_within": best}
    assert score_range(task) == (-10.0, top)


def test_costs_over_budget_have_a_panel_a_task_and_a_line_a_method():
    figure = plot_budgets(RESULTS)
    panels = [axes for axes in figure.axes if axes.axison]
    assert [panel.get_title() for panel in panels] == list(RESULTS["tasks"])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "RCDT (wcdt)" in labels
    for panel, task in zip(panels, RESULTS["tasks"], strict=True):
        *lines, limit = panel.get_lines()
        assert len(lines) == len(labels)
        assert list(limit.get_ydata()) == [1.0, 1.0]
        budgets = summarize(RESULTS, task, "wcdt").budgets
        shares = [min(budget.mean_cost / budget.budget, 2.0) for budget in budgets]
        np.testing.assert_allclose(lines[labels.index("RCDT (wcdt)")].get_ydata(), shares)
