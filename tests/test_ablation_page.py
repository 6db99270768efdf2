"""`docs/experiments.md` shows what `docs/ablation.json` holds, and its statistics are right."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent


def _load():
    spec = importlib.util.spec_from_file_location("ablation", ROOT / "benchmarks" / "ablation.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ablation"] = module
    spec.loader.exec_module(module)
    return module


ablation = _load()
CELLS = json.loads((ROOT / "docs" / "ablation.json").read_text())


def _cell(variant: str, seed: int, returns: list[float], costs: list[float]) -> dict:
    return {
        "task": "T", "variant": variant, "seed": seed, "budgets": [10, 20],
        "returns": returns, "costs": costs, "lambda": [], "errors": {},
    }  # fmt: skip


def test_the_page_is_rebuilt_from_the_json():
    page = (ROOT / "docs" / "experiments.md").read_text()
    assert ablation.fill(page, CELLS) == page


def test_a_figure_of_the_page_by_hand():
    costs = [c["costs"][0] for c in CELLS if (c["task"], c["variant"]) == ("CarCircle", "wcdt")]
    page = (ROOT / "docs" / "experiments.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| CarCircle | 2")]
    assert f"({np.mean(costs):.1f} / " in row.split("|")[5]


def test_paired_differences_by_hand():
    """Seed 0: +10 % and -10 % of the budget; seed 1: +30 % and -20 %. t(1) at 0.975 is 12.706."""
    cells = [
        _cell("cdt", 0, [100, 100], [10, 20]),
        _cell("wdt", 0, [110, 110], [9, 18]),
        _cell("cdt", 1, [200, 200], [10, 20]),
        _cell("wdt", 1, [260, 260], [8, 16]),
    ]
    assert ablation.paired(cells, "wdt", "cdt") == (
        "| W - CDT (1 tasks) | +20.0% ± 127.1% | -15.0% ± 63.5% |"
    )
    assert "no interval" in ablation.paired(cells, "wcdt", "cdt")


def test_kept_counts_single_seeds_and_means():
    cells = [_cell("cdt", 0, [1, 1], [9, 25]), _cell("cdt", 1, [1, 1], [10, 14])]
    single, average = ablation.kept(cells)
    assert single["cdt"] == "3 of 4"
    assert average["cdt"] == "2 of 2"  # 9.5 of 10, 19.5 of 20
