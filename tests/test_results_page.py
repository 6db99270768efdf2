"""`docs/results.md` shows what `docs/results.json` holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark import fill_page
from rcdt_agent.experiments.benchmark.plots import plot_budgets, plot_methods
from rcdt_agent.experiments.benchmark.results import collect_results, score_range, summarize
from rcdt_agent.experiments.benchmark.tables import returns_table

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


README = (DOCS.parent / "README.md").read_text()


def test_the_readme_is_rebuilt_from_the_json():
    assert fill_page(README, RESULTS) == README


def test_returns_and_costs_by_hand():
    """Two budgets, two seeds of two episodes; one policy ignores the budget."""

    def cell(method, seed, results):
        return {"task": "T", "method": method, "seed": seed, "evaluation": {"results": results}}

    def at(budget, returns, costs):
        return {"budget": budget, "returns": returns, "costs": costs}

    results = {
        "tasks": {"T": {"budgets": [5, 9], "return_range": [0, 100], "best_each": [None, 90.4]}},
        "methods": {"a": {}, "b": {}},
        "protocol": {"episodes": 2},
        "cells": [
            cell("a", 1, [at(5, [10, 20], [4, 5]), at(9, [30, 40], [9, 11])]),
            cell("a", 2, [at(5, [30, 40], [5, 6]), at(9, [50, 60], [8, 9])]),
            cell("b", 1, [at(5, [7, 8], [6, 6]), at(9, [7, 8], [6, 6])]),
        ],
    }
    found = {"T": {method: summarize(results, "T", method) for method in ("a", "b")}}
    *_, row, _, note = returns_table(results, found).splitlines()
    assert row == "| T (5 / 9) | 25 / 45 (5.0 / 9.2!) | 8 (6.0!) | - / 90 |"
    assert "over 1 to 2 training seeds with 2 episodes each" in note


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
    (row,) = [line for line in rows if line.startswith("| CDT | 10 |")]
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
    assert "RCDT" in labels
    for panel, task in zip(panels, RESULTS["tasks"], strict=True):
        *lines, limit = panel.get_lines()
        assert len(lines) == len(labels)
        assert list(limit.get_ydata()) == [1.0, 1.0]
        budgets = summarize(RESULTS, task, "wcdt").budgets
        shares = [min(budget.mean_cost / budget.budget, 2.0) for budget in budgets]
        np.testing.assert_allclose(lines[labels.index("RCDT")].get_ydata(), shares)


def test_bars_reach_from_the_lowest_to_the_highest_seed():
    found = summarize(RESULTS, "CarCircle", "wcdt")
    seeds = [
        np.mean([entry["costs"] for entry in cell["evaluation"]["results"]], axis=1)
        for cell in RESULTS["cells"]
        if (cell["task"], cell["method"]) == ("CarCircle", "wcdt")
    ]
    nothing = np.zeros(1, dtype=np.float32)
    (axes,) = plot_methods(nothing, nothing, [found]).axes
    (across, _) = axes.containers[0].lines[2]
    ends = np.array([segment[:, 0] for segment in across.get_segments()])
    np.testing.assert_allclose(ends, np.stack((np.min(seeds, 0), np.max(seeds, 0)), axis=1))


def test_results_of_some_tasks_alone(tmp_path):
    folder = tmp_path / "results"
    restored = Path(__file__).parent.parent / "benchmarks" / "restore_results.py"
    subprocess.run([sys.executable, restored, DOCS / "results.json", folder], check=True)
    everything, some = collect_results(folder), collect_results(folder, ("BallRun",))
    assert list(some["tasks"]) == ["BallRun"]
    assert some["cells"] == [cell for cell in everything["cells"] if cell["task"] == "BallRun"]
    assert everything["cells"] == RESULTS["cells"]
    with pytest.raises(InvalidArgumentError, match="no results for Nowhere"):
        collect_results(folder, ("Nowhere",))
