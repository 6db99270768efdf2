"""`docs/results.md` shows what `docs/results.json` holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rcdt_agent.experiments.benchmark import fill_page

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = json.loads((DOCS / "results.json").read_text())


def test_the_page_is_rebuilt_from_the_json():
    page = (DOCS / "results.md").read_text()
    assert fill_page(page, RESULTS) == page


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
    rows = (DOCS / "results.md").read_text().splitlines()
    (row,) = [line for line in rows if line.startswith("| cdt | 10 |")]
    assert f"{np.mean(costs):.1f} [" in row.replace("**", "")
