"""The command `rcdt compare`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import tyro

from rcdt_agent.base_config import resolve_preset
from rcdt_agent.cli.benchmark import Preset, echo_failures
from rcdt_agent.cli.console import check_budgets, check_output, echo
from rcdt_agent.errors import InvalidArgumentError


def compare(
    file: Annotated[Path, tyro.conf.Positional],
    *,
    task: Annotated[str | None, tyro.conf.arg(metavar="TASK")] = None,
    env: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None,
    offline: bool = False,
    methods: tuple[str, ...] = (),
    budgets: tuple[float, ...] = (),
    seeds: tuple[int, ...] = (0,),
    preset: Preset = "cpu",
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    episodes: int = 20,
    output: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    jobs: int = 1,
    device: str = "cpu",
) -> int:
    """Train every method on your file and show which one suits it; finished parts are kept.

    Rolls out at three budgets and writes the table, the methods on the return-cost plane of the
    data, and an HTML page. Without an environment it compares how well the methods predict
    held-out trajectories within each budget, which says nothing about return and cost.

    Args:
        file: HDF5 dataset.
        task: Task whose simulator is used; by default the one that the file is named after.
        env: Gymnasium environment to use instead, such as my_package:Name-v0.
        offline: Do not roll out, even if there is a simulator.
        methods: As for rcdt benchmark; by default wcdt (RCDT's default variant), cdt and every
            other algorithm. Those of one budget are trained once for each.
        budgets: Cost budgets; by default the task's, or quartiles of the data's costs.
        seeds: Training seeds, with one policy each.
        preset: Sizes; cpu takes minutes per method.
        steps: Gradient steps; by default the preset's.
        episodes: Episodes per budget; offline, at most as many held-out trajectories per budget.
        output: Output folder; by default runs/compare-NAME.
        jobs: Processes; with more than one, each uses one thread.
        device: cpu or cuda.
    """
    from rcdt_agent.experiments.compare import DEFAULT_METHODS, run_comparison
    from rcdt_agent.experiments.comparison_page import write_comparison

    if not file.is_file():
        raise InvalidArgumentError(f"`file` must be an HDF5 file that exists, got {file}.")
    check_budgets(budgets)
    folder = output or Path("runs") / f"compare-{file.stem}"
    check_output(folder / "results.json")
    failures = run_comparison(
        folder,
        file,
        task=task,
        env=env,
        offline=offline,
        methods=methods or DEFAULT_METHODS,
        budgets=budgets,
        seeds=seeds,
        preset=resolve_preset(preset, device),
        steps=steps,
        episodes=episodes,
        workers=jobs,
        device=device,
        command=shlex.join(["rcdt", *sys.argv[1:]]),
    )
    if len(failures) and not any(folder.glob("cells/*/*/*/evaluations/*.json")):
        return echo_failures(failures)
    table, files = write_comparison(folder)
    echo(table.as_text())
    for path in files:
        echo(f"Written: {path}")
    return echo_failures(failures)
