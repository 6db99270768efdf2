"""What each term of RCDT brings: CDT, + W, + Q, + C, all, trained and deployed alike.

    python benchmarks/ablation.py FOLDER --output build/ablation

FOLDER holds HDF5 files whose names begin with the id of their task, as
`OfflineBallRun-v0-mine.hdf5`. Every cell (task, variant, seed) is one JSON file in the output
folder; the same command does what is missing. Development seeds only: training seed s is rolled out
on resets from 5000 + 1000 s on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from scipy import stats
from stable_baselines3.common.logger import KVWriter, Logger

from rcdt_agent import RCDT

VARIANTS = {"cdt": "CDT", "wdt": "W", "wqdt": "W, Q", "wcdt": "W, C", "rcdt": "W, Q, C"}
TRACED = {"lambda", "cost_error", "q_error", "cost_estimate", "nll"}


@dataclass
class Settings:
    folder: tyro.conf.Positional[Path]
    output: Path = Path("build/ablation")
    seeds: tuple[int, ...] = (0, 1, 2)
    variants: tuple[str, ...] = tuple(VARIANTS)
    episodes: int = 20
    preset: str = "cpu"


class Trace(KVWriter):
    """Keeps what is logged every hundred steps."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0
    ) -> None:
        named = {key.split("/")[-1]: value for key, value in key_values.items()}
        kept = {name: float(named[name]) for name in TRACED & named.keys()}
        self.rows.append({"step": step, **kept})

    def close(self) -> None:
        pass


def run_cell(file: Path, variant: str, seed: int, settings: Settings) -> dict[str, Any]:
    """Train once, roll out at every budget of the task; final weights."""
    match = re.match(r"Offline\w+-v\d", file.name)
    assert match, f"{file.name} does not begin with the id of a task"
    trace = Trace()
    agent = RCDT.from_dsrl(
        match[0], dataset=file, variant=variant, preset=settings.preset, seed=seed
    )
    agent.set_logger(Logger(None, [trace]))
    agent.learn(log_interval=100, progress_bar=True)
    report = agent.evaluate(n_episodes=settings.episodes, seed=5000 + 1000 * seed)
    return {
        "task": agent.task.name,
        "variant": variant,
        "seed": seed,
        "trace": trace.rows,
        "results": [
            {"budget": r.budget, "returns": r.returns, "costs": r.costs, "early": r.ended_early}
            for r in report.results
        ],
    }


def cell_means(cell: dict[str, Any]) -> np.ndarray[Any, Any]:
    """(2, budgets) mean return and cost."""
    rows = cell["results"]
    return np.array([[np.mean(r[name]) for r in rows] for name in ("returns", "costs")])


def table(cells: list[dict[str, Any]]) -> str:
    """Return (cost) of each task and variant at its budgets, means over seeds."""
    tasks = sorted({cell["task"] for cell in cells})
    lines = [f"| task | {' | '.join(VARIANTS.values())} |", "|---" * (1 + len(VARIANTS)) + "|"]
    for task in tasks:
        row = [task]
        for variant in VARIANTS:
            found = [c for c in cells if (c["task"], c["variant"]) == (task, variant)]
            if not found:
                row.append("not run")
                continue
            returns, costs = np.mean([cell_means(c) for c in found], axis=0)
            text = " / ".join(f"{v:.0f}" for v in returns)
            text += f" ({' / '.join(f'{v:.1f}' for v in costs)})"
            row.append(text + ("" if len(found) == 3 else f", {len(found)} seed(s)"))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def paired(cells: list[dict[str, Any]], variant: str, base: str) -> str:
    """Differences by seed, averaged over tasks and budgets, with a t interval over seeds.

    Returns are in shares of the base's own mean return of the task, costs in shares of the budget.
    """
    by_key = {(c["task"], c["variant"], c["seed"]): c for c in cells}
    rows: dict[int, list[Any]] = {}
    for (task, name, seed), cell in by_key.items():
        other = by_key.get((task, base, seed))
        if name != variant or other is None:
            continue
        budgets = np.array([r["budget"] for r in cell["results"]])
        unit = np.abs(cell_means(other)[0]).mean()
        gap = cell_means(cell) - cell_means(other)
        rows.setdefault(seed, []).append((gap[0].mean() / unit, (gap[1] / budgets).mean()))
    most = max(map(len, rows.values()), default=0)
    seeds = [np.mean(gaps, axis=0) for gaps in rows.values() if len(gaps) == most]
    if len(seeds) < 2:
        return f"| {VARIANTS[variant]} - {VARIANTS[base]} | {len(seeds)} seed(s), no interval |  |"
    mean, error = np.mean(seeds, axis=0), stats.sem(seeds, axis=0)
    half = stats.t.ppf(0.975, len(seeds) - 1) * error
    texts = [f"{m:+.1%} ± {h:.1%}" for m, h in zip(mean, half, strict=True)]
    return f"| {VARIANTS[variant]} - {VARIANTS[base]} | {' | '.join(texts)} |"


def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    settings.output.mkdir(parents=True, exist_ok=True)
    for seed in settings.seeds:
        for file in sorted(settings.folder.glob("Offline*.hdf5")):
            for variant in settings.variants:
                path = settings.output / f"{file.stem}-{variant}-{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(run_cell(file, variant, seed, settings)))
    report([json.loads(path.read_text()) for path in sorted(settings.output.glob("*.json"))])


def report(cells: list[dict[str, Any]]) -> None:
    """Print both tables."""
    print(table(cells))
    print("\n| difference | return | cost |\n|---|---|---|")
    for variant, base in (
        ("wdt", "cdt"), ("wqdt", "wdt"), ("wcdt", "wdt"), ("rcdt", "wcdt"), ("rcdt", "cdt"),
        ("wcdt", "cdt"),
    ):  # fmt: skip
        print(paired(cells, variant, base))
    kept = {
        variant: [
            np.mean(r["costs"]) <= r["budget"]
            for c in cells
            if c["variant"] == variant
            for r in c["results"]
        ]
        for variant in VARIANTS
    }
    print("\nbudgets kept on average, by seed:")
    print({VARIANTS[v]: f"{sum(k)} of {len(k)}" for v, k in kept.items() if k})


if __name__ == "__main__":
    main(tyro.cli(Settings))
