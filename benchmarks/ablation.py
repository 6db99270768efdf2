"""What each term of RCDT brings: CDT, + W, + Q, + C, all, trained and deployed alike.

    python benchmarks/ablation.py FOLDER --output build/ablation

FOLDER holds HDF5 files whose names begin with the id of their task, as
`OfflineBallRun-v0-mine.hdf5`. Every cell (task, variant, seed) is one JSON file in the output
folder; the same command does what is missing. Development seeds only: training seed s is rolled out
on resets from 5000 + 1000 s on.

    python benchmarks/ablation.py FOLDER --seeds --page docs

runs nothing, and writes what the output folder holds into `ablation.json`, the tables between the
marks of `experiments.md`, and the figure of lambda.
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
    page: Path | None = None


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


def compact(cell: dict[str, Any]) -> dict[str, Any]:
    """What the page needs of a cell: means at each budget, and the trace of lambda."""
    rows = cell["results"]
    return {
        "task": cell["task"],
        "variant": cell["variant"],
        "seed": cell["seed"],
        "budgets": [r["budget"] for r in rows],
        "returns": [round(float(np.mean(r["returns"])), 2) for r in rows],
        "costs": [round(float(np.mean(r["costs"])), 3) for r in rows],
        "lambda": [[r["step"], round(r["lambda"], 3)] for r in cell["trace"] if "lambda" in r],
        "errors": {
            name: round(last[-1], 3)
            for name in ("q_error", "cost_error")
            if (last := [r[name] for r in cell["trace"] if name in r])
        },
    }


def cell_means(cell: dict[str, Any]) -> np.ndarray[Any, Any]:
    """(2, budgets) mean return and cost."""
    return np.array([cell["returns"], cell["costs"]])


def table(cells: list[dict[str, Any]]) -> str:
    """Return (cost) of each task and variant at its budgets, means over seeds."""
    tasks = sorted({cell["task"] for cell in cells})
    most = len({cell["seed"] for cell in cells})
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
            row.append(text + ("" if len(found) == most else f", {len(found)} of {most} seeds"))
        lines.append(f"| {' | '.join(row)} |")
    single, average = kept(cells)
    lines.append(f"| kept, single seeds | {' | '.join(single[v] for v in VARIANTS)} |")
    lines.append(f"| kept, mean of the seeds | {' | '.join(average[v] for v in VARIANTS)} |")
    return "\n".join(lines)


def kept(cells: list[dict[str, Any]]) -> tuple[dict[str, str], dict[str, str]]:
    """Budgets kept by each variant: of (task, budget, seed), and of means over seeds."""
    single, average = {}, {}
    for variant in VARIANTS:
        own = [c for c in cells if c["variant"] == variant]
        held = [cost <= k for c in own for cost, k in zip(c["costs"], c["budgets"], strict=True)]
        means = []
        for task in {c["task"] for c in own}:
            same = [c for c in own if c["task"] == task]
            means += list(np.mean([c["costs"] for c in same], axis=0) <= same[0]["budgets"])
        single[variant] = f"{sum(held)} of {len(held)}"
        average[variant] = f"{sum(means)} of {len(means)}"
    return single, average


def paired(cells: list[dict[str, Any]], variant: str, base: str) -> str:
    """Differences by seed, averaged over tasks and budgets, with a t interval over seeds.

    Returns are in shares of the base's own mean return of the task, costs in shares of the budget.
    Only tasks that both variants have at every seed count.
    """
    by_key = {(c["task"], c["variant"], c["seed"]): c for c in cells}
    seeds = sorted({c["seed"] for c in cells})
    tasks = [
        task
        for task in sorted({c["task"] for c in cells})
        if all((task, name, seed) in by_key for name in (variant, base) for seed in seeds)
    ]
    name = f"{VARIANTS[variant]} - {VARIANTS[base]} ({len(tasks)} tasks)"
    if len(seeds) < 2 or not tasks:
        return f"| {name} | no interval | no interval |"
    rows = []
    for seed in seeds:
        pairs = [(by_key[task, variant, seed], by_key[task, base, seed]) for task in tasks]
        gaps = [(cell_means(a) - cell_means(b), b) for a, b in pairs]
        earned = np.mean([gap[0].mean() / np.abs(b["returns"]).mean() for gap, b in gaps])
        spent = np.mean([(gap[1] / b["budgets"]).mean() for gap, b in gaps])
        rows.append((earned, spent))
    mean, error = np.mean(rows, axis=0), stats.sem(rows, axis=0)
    half = stats.t.ppf(0.975, len(seeds) - 1) * error
    texts = [f"{m:+.1%} ± {h:.1%}" for m, h in zip(mean, half, strict=True)]
    return f"| {name} | {' | '.join(texts)} |"


def differences(cells: list[dict[str, Any]]) -> str:
    """The table of paired differences."""
    pairs = (
        ("wdt", "cdt"), ("wqdt", "wdt"), ("wcdt", "wdt"), ("rcdt", "wcdt"), ("wcdt", "cdt"),
        ("rcdt", "cdt"),
    )  # fmt: skip
    return "\n".join(
        ["| difference | return | cost |", "|---|---|---|", *(paired(cells, *p) for p in pairs)]
    )


def errors(cells: list[dict[str, Any]]) -> str:
    """Held-out error of each critic at the end, in standard deviations: the seeds' range."""
    lines = ["| task | cost critic (W, C) | reward critic (W, Q) |", "|---|---|---|"]
    for task in sorted({c["task"] for c in cells}):
        row = [task]
        for variant, name in (("wcdt", "cost_error"), ("wqdt", "q_error")):
            found = [
                c["errors"][name]
                for c in cells
                if (c["task"], c["variant"]) == (task, variant) and name in c["errors"]
            ]
            row.append(f"{min(found):.2f} to {max(found):.2f}" if found else "not run")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def fill(page: str, cells: list[dict[str, Any]]) -> str:
    """The page with the tables between their marks made anew."""
    for mark, text in (
        ("table", table(cells)), ("differences", differences(cells)), ("errors", errors(cells)),
    ):  # fmt: skip
        begin, end = f"<!-- ablation:{mark} -->", f"<!-- /ablation:{mark} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def figure(cells: list[dict[str, Any]], path: Path) -> None:
    """Lambda of the default over training, one panel a task, one line a seed."""
    import matplotlib.pyplot as plt

    default = [c for c in cells if c["variant"] == "wcdt"]
    tasks = sorted({c["task"] for c in default})
    drawing, axes = plt.subplots(
        1, len(tasks), figsize=(2.6 * len(tasks), 2.6), layout="constrained", squeeze=False
    )
    styles = ["-", "--", ":", "-."]
    for axis, task in zip(axes[0], tasks, strict=True):
        for cell in (c for c in default if c["task"] == task):
            steps, values = np.array(cell["lambda"]).T
            style = styles[cell["seed"] % len(styles)]
            axis.plot(steps, values, style, color="0.2", label=f"seed {cell['seed']}")
        axis.set(title=task, xlabel="gradient step", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("lambda")
    axes[0, 0].legend(frameon=False, fontsize=8)
    drawing.savefig(path, dpi=110)
    plt.close(drawing)


def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    settings.output.mkdir(parents=True, exist_ok=True)
    for seed in settings.seeds:
        for file in sorted(settings.folder.glob("Offline*.hdf5")):
            for variant in settings.variants:
                path = settings.output / f"{file.stem}-{variant}-{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(run_cell(file, variant, seed, settings)))
    files = sorted(settings.output.glob("*.json"))
    cells = [compact(json.loads(path.read_text())) for path in files]
    print(table(cells), differences(cells), errors(cells), sep="\n\n")
    if settings.page is not None:
        rows = ",\n".join(json.dumps(cell) for cell in cells)
        (settings.page / "ablation.json").write_text(f"[\n{rows}\n]\n")
        page = settings.page / "experiments.md"
        page.write_text(fill(page.read_text(), cells))
        figure(cells, settings.page / "images" / "lambda.png")


if __name__ == "__main__":
    main(tyro.cli(Settings))
