"""Fitted Q estimates beside roll-outs: several policies of each task at three cost budgets.

    python benchmarks/offline_evaluation.py FOLDER --output build/offline_evaluation

FOLDER holds HDF5 files whose names begin with the id of their task. Every policy is trained on all
of the file and estimated from the same file, as a user without a simulator would. The output folder
keeps trained agents, roll-outs and estimates apart: the same command does what is missing, and
estimates that were deleted are made anew without training. Development seeds only: training seed
0, resets from 5000 on.

    python benchmarks/offline_evaluation.py FOLDER --tasks --page docs

runs nothing, and writes what the output folder holds into `offline_evaluation.json` and the tables
between the marks of `offline_evaluation.md`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from scipy import stats

from rcdt_agent import BC, RCDT, BCSafe, OfflineAlgorithm, TrajectoryDataset, get_task, load_agent
from rcdt_agent.stats import bootstrap_interval
from rcdt_agent.tasks.datasets import load_task_dataset

TASKS = {
    "SpeedLimit": (5.0, 10.0, 20.0),
    "BallCircle": (10.0, 20.0, 40.0),
    "HopperVelocity": (20.0, 40.0, 80.0),
}
METHODS = {
    "wcdt": "RCDT",
    "wcdt-200": "RCDT, 200 steps",
    "cdt": "CDT",
    "wdt": "W",
    "bc": "BC",
    "bc-safe": "BC-Safe",
}
SIGNALS = ("return", "cost")
SEED, RESETS, EPISODES = 0, 5000, 10


@dataclass
class Settings:
    folder: tyro.conf.Positional[Path]
    output: Path = Path("build/offline_evaluation")
    tasks: tuple[str, ...] = tuple(TASKS)
    methods: tuple[str, ...] = tuple(METHODS)
    preset: str = "tiny"
    page: Path | None = None


def train(method: str, task: str, data: TrajectoryDataset, budget: float, preset: str) -> Any:
    """One agent; BC-Safe for a budget of its own."""
    common: dict[str, Any] = {"preset": preset, "seed": SEED}
    agent: OfflineAlgorithm[Any, Any]
    if method == "bc":
        agent = BC.from_dsrl(task, dataset=data, **common)
    elif method == "bc-safe":
        agent = BCSafe.from_dsrl(task, dataset=data, cost_budget=budget, **common)
    else:
        variant, _, steps = method.partition("-")
        chosen = {"total_steps": int(steps)} if steps else {}
        agent = RCDT.from_dsrl(task, dataset=data, variant=variant, **common, **chosen)
    return agent.learn()


def policies(method: str, budgets: tuple[float, ...]) -> list[tuple[str, tuple[float, ...]]]:
    """The agents of a method and the budgets at which each is another policy."""
    if method == "bc":
        return [(method, budgets[1:2])]  # knows no budget: one policy
    if method == "bc-safe":
        return [(f"{method}-{budget:g}", (budget,)) for budget in budgets]
    return [(method, budgets)]


def find_data(folder: Path, task: str) -> TrajectoryDataset:
    """The task's file in the folder; SpeedLimit's drivers are made on the spot."""
    if task == "SpeedLimit":
        return load_task_dataset(task)
    (file,) = folder.glob(f"{get_task(task).id}*.hdf5")
    return TrajectoryDataset.from_hdf5(file)


def run_policy(
    name: str, method: str, task: str, data: TrajectoryDataset, budgets: tuple[float, ...],
    settings: Settings,
) -> None:  # fmt: skip
    """Train, roll out and estimate what is missing."""
    stem = settings.output / f"{task}-{name}"
    saved, rolled, estimated = (
        stem.with_name(stem.name + ending) for ending in (".zip", ".rolled.json", ".offline.json")
    )
    if not saved.exists():
        train(method, task, data, budgets[0], settings.preset).save(saved)
    if not rolled.exists():
        report = load_agent(saved).evaluate(None, budgets, n_episodes=EPISODES, seed=RESETS)
        rows = [{"returns": r.returns, "costs": r.costs} for r in report.results]
        rolled.write_text(json.dumps(rows))
    if not estimated.exists():
        begun = time.perf_counter()
        estimate = json.loads(load_agent(saved).evaluate_offline(data, budgets).to_json())
        estimate["seconds"] = time.perf_counter() - begun
        estimated.write_text(json.dumps(estimate))


def read_rows(output: Path) -> list[dict[str, Any]]:
    """One row a policy and budget, of everything that is finished."""
    rows = []
    for task, budgets in TASKS.items():
        for method in METHODS:
            for name, own in policies(method, budgets):
                files = [output / f"{task}-{name}.{kind}.json" for kind in ("rolled", "offline")]
                if not all(file.exists() for file in files):
                    continue
                rolled, offline = (json.loads(file.read_text()) for file in files)
                for budget, real, ours in zip(own, rolled, offline["results"], strict=True):
                    row = {"task": task, "method": method, "budget": budget}
                    for signal in SIGNALS:
                        values = real[f"{signal}s"]
                        measured = [np.mean(values), *bootstrap_interval(values)]
                        estimate = [ours[f"mean_{signal}"], *ours[f"{signal}_interval"]]
                        row[signal] = {
                            "rolled": [round(float(v), 2) for v in measured],
                            "offline": [round(float(v), 2) for v in estimate],
                            "nearest": round(float(ours[f"nearest_{signal}"]), 2),
                            "deviation": round(offline["check"][signal]["deviation"], 2),
                        }
                    row["action_gap"] = round(ours["action_gap"], 3)
                    row["seconds"] = round(offline["seconds"] / len(own), 1)
                    rows.append(row)
    return rows


def _spread(values: list[float], *more: float) -> str:
    mean, low, high = values
    digits = 0 if max(map(abs, (*values, *more))) >= 100 else 1
    means = ", ".join(f"{v:.{digits}f}" for v in (mean, *more))
    return f"{means} [{low:.{digits}f}, {high:.{digits}f}]"


def table(rows: list[dict[str, Any]], task: str) -> str:
    """Estimate and roll-out of every policy of a task."""
    lines = [
        "| method | budget | return: Q, nearest [interval] | rolled out "
        "| cost: Q, nearest [interval] | rolled out | action gap |",
        "|---" * 7 + "|",
    ]
    for row in (r for r in rows if r["task"] == task):
        cells = [METHODS[row["method"]], "any" if row["method"] == "bc" else f"{row['budget']:g}"]
        for signal in SIGNALS:
            found = row[signal]
            cells += [_spread(found["offline"], found["nearest"]), _spread(found["rolled"])]
        lines.append(f"| {' | '.join(cells)} | {row['action_gap']:.2f} |")
    return "\n".join(lines)


def contained(row: dict[str, Any], signal: str) -> bool:
    """Whether the estimate's interval holds the roll-outs' mean."""
    _, low, high = row[signal]["offline"]
    return bool(low <= row[signal]["rolled"][0] <= high)


def estimates(rows: list[dict[str, Any]], signal: str, kind: str) -> Any:
    """(n, 2) estimate of a kind, `offline` or `nearest`, and roll-out."""
    found = [r[signal] for r in rows]
    return np.array(
        [(f["nearest"] if kind == "nearest" else f["offline"][0], f["rolled"][0]) for f in found]
    )


def rank_correlation(rows: list[dict[str, Any]], signal: str, kind: str) -> float:
    """Spearman's, of estimates and roll-outs."""
    pairs = estimates(rows, signal, kind)
    return float(stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def error(rows: list[dict[str, Any]], signal: str, kind: str) -> float:
    """Mean magnitude of estimate - roll-out, in deviations of the data's episodes."""
    pairs = estimates(rows, signal, kind)
    deviations = [r[signal]["deviation"] for r in rows]
    return float(np.mean(np.abs(pairs[:, 0] - pairs[:, 1]) / deviations))


def verdicts(rows: list[dict[str, Any]]) -> tuple[int, int, int, int]:
    """Policies said to keep the budget, and kept of these; said to break it, and broken of these.

    One is said to keep it if both estimates do. Plain behaviour cloning has no budget and does not
    count.
    """
    said = {True: [0, 0], False: [0, 0]}
    for r in (r for r in rows if r["method"] != "bc"):
        keeps = max(r["cost"]["offline"][0], r["cost"]["nearest"]) <= r["budget"]
        kept = r["cost"]["rolled"][0] <= r["budget"]
        said[keeps][0] += 1
        said[keeps][1] += keeps == kept
    return said[True][0], said[True][1], said[False][0], said[False][1]


def summary(rows: list[dict[str, Any]]) -> str:
    """Of each task and signal: rank correlation and error of both estimates, coverage."""
    lines = [
        "| task | policies | signal | Spearman, Q | Spearman, nearest | error, Q | error, nearest "
        "| roll-out in the interval |",
        "|---" * 8 + "|",
    ]
    for task in TASKS:
        own = [r for r in rows if r["task"] == task]
        if len(own) < 2:
            continue
        for signal in SIGNALS:
            cells = [task, str(len(own)), signal]
            for measure in (rank_correlation, error):
                cells += [f"{measure(own, signal, kind):.2f}" for kind in ("offline", "nearest")]
            inside = sum(contained(r, signal) for r in own)
            lines.append(f"| {' | '.join(cells)} | {inside} of {len(own)} |")
    return "\n".join(lines)


def verdict_table(rows: list[dict[str, Any]]) -> str:
    """Of each task: how far `passed` could be trusted."""
    lines = [
        "| task | said to keep the budget | of these kept | said to break it | of these broken |",
        "|---" * 5 + "|",
    ]
    for task in TASKS:
        counts = verdicts([r for r in rows if r["task"] == task])
        lines.append(f"| {task} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def fill(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with the tables between their marks made anew."""
    texts = {"summary": summary(rows), "verdicts": verdict_table(rows)}
    texts |= {task: table(rows, task) for task in TASKS}
    for mark, text in texts.items():
        begin, end = f"<!-- offline:{mark} -->", f"<!-- /offline:{mark} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    settings.output.mkdir(parents=True, exist_ok=True)
    for task in settings.tasks:
        data = find_data(settings.folder, task)
        for method in settings.methods:
            for name, budgets in policies(method, TASKS[task]):
                begun = time.perf_counter()
                run_policy(name, method, task, data, budgets, settings)
                print(f"{task} {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    rows = read_rows(settings.output)
    print(summary(rows), verdict_table(rows), *(table(rows, task) for task in TASKS), sep="\n\n")
    if settings.page is not None:
        text = ",\n".join(json.dumps(row) for row in rows)
        (settings.page / "offline_evaluation.json").write_text(f"[\n{text}\n]\n")
        page = settings.page / "offline_evaluation.md"
        page.write_text(fill(page.read_text(), rows))


if __name__ == "__main__":
    main(tyro.cli(Settings))
