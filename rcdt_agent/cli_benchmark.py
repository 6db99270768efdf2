"""The commands `rcdt benchmark` and `rcdt tune`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.registry import tasks_of

console = Console()
Preset = Literal["paper", "cpu", "tiny"]


def benchmark(
    *,
    output: Path,
    tasks: tuple[str, ...] = (),
    suite: Literal["bullet", "safety-gymnasium", "metadrive"] | None = None,
    datasets: tuple[str, ...] = (),
    methods: tuple[str, ...] = ("bc", "bc-safe", "cdt", "wqdt", "wcdt", "qcdt", "rcdt"),
    seeds: tuple[int, ...] = (0, 1, 2),
    preset: Preset = "cpu",
    steps: int | None = None,
    episodes: int = 20,
    variant_of_data: str | None = None,
    overrides: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
    holdout: float = 0.0,
    workers: int = 1,
    device: str = "cpu",
) -> int:
    """Train and evaluate methods on tasks by the paper's protocol; finished parts are kept.

    Writes results.json, results.md and one picture a task. Safe to interrupt and to repeat, also
    with more tasks, methods or seeds: only what is missing is done. Without tasks, the tables of
    what is finished in the folder are written again.

    Args:
        output: Folder for everything.
        tasks: DSRL tasks or SpeedLimit.
        suite: All tasks of a simulator family.
        datasets: TASK=FILE: train on this HDF5 file instead of DSRL's own.
        methods: Variants and baselines, with switches: cdt, rcdt+pareto, rcdt+eta=0.1.
        seeds: One policy each.
        preset: Sizes: as published, for two CPU cores in minutes, or for tests.
        steps: Gradient steps; by default the preset's.
        episodes: Episodes a budget.
        variant_of_data: bottom:RHO or extremes:RHO, the paper's degraded data, RHO in percent.
        overrides: FIELD=VALUE of the configuration, for every method but the baselines.
        holdout: Share of trajectories kept from training, to measure the critics' error on.
        workers: Processes; with more than one, each uses one thread.
        device: cpu or cuda.
    """
    from rcdt_agent.benchmark import Protocol, run_benchmark

    chosen = [*tasks, *(task.name for task in tasks_of(suite))] if suite else list(tasks)
    failures = []
    if chosen or not (output / "protocol.json").is_file():
        failures = run_benchmark(
            output,
            chosen,
            methods,
            datasets=_files(datasets),
            seeds=seeds,
            protocol=Protocol(preset=preset, steps=steps, episodes=episodes, holdout=holdout),
            variant_of_data=variant_of_data,
            overrides=overrides,
            workers=workers,
            device=device,
            command=shlex.join(["rcdt", *sys.argv[1:]]),
        )
    for path in write_results(output):
        _say(f"Written: {path}")
    _say((output / "results.md").read_text().split("\n\n## ")[0])
    for failure in failures:
        _say(f"FAILED: {failure.cell} ({failure.what}): {failure.error}")
    if failures:
        _say(f"{len(failures)} parts failed; error.txt in their folders holds the details.")
    return int(bool(failures))


def tune(
    data: Annotated[str, tyro.conf.Positional],
    *,
    output: Path,
    dataset: Path | None = None,
    method: str = "rcdt",
    preset: Preset = "cpu",
    steps: int | None = None,
    trials: int = 20,
    episodes: int = 10,
    seed: int = 0,
    device: str = "cpu",
) -> int:
    """Search settings: highest return among those that keep every budget, on validation seeds.

    Safe to interrupt: the same command goes on where it stopped.

    Args:
        data: A DSRL task, an HDF5 file named after one, or SpeedLimit.
        output: Folder for the search.
        dataset: An HDF5 file to use instead of the task's own.
        method: Variant, and switches that are kept fixed: rcdt, cdt, rcdt+relabel.
        preset: Sizes.
        steps: Gradient steps of a trial; by default the preset's.
        trials: Settings to try, in all.
        episodes: Validation episodes a budget.
        seed: Of training and of the search.
        device: cpu or cuda.
    """
    from rcdt_agent.tune import VALIDATION_SEED
    from rcdt_agent.tune import tune as search

    result = search(
        data,
        output,
        dataset=dataset,
        method=method,
        preset=preset,
        steps=steps,
        n_trials=trials,
        episodes=episodes,
        seed=seed,
        device=device,
        progress_bar=True,
    )
    best = result.best
    costs = ", ".join(f"{cost:.2f}" for cost in best.normalized_costs)
    _say(
        f"{len(result.trials)} trials, {result.failed} failed, evaluated on reset seeds "
        f"{VALIDATION_SEED} .. {VALIDATION_SEED + episodes - 1}."
    )
    if not best.feasible:
        _say("No setting kept every budget; this one came nearest:")
    _say(f"Best: trial {best.number}, normalised return {best.normalized_return:.3f}, cost {costs}")
    for name, value in best.settings.items():
        _say(f"  {name} = {value:.6g}" if isinstance(value, float) else f"  {name} = {value}")
    _say(f"Train it: {result.command}")
    return 0 if best.feasible else 1


def write_results(folder: Path) -> list[Path]:
    """Write results.json, results.md and the pictures of a benchmark's folder."""
    from rcdt_agent._io import write_text
    from rcdt_agent.benchmark import collect_results, dump_results, results_tables
    from rcdt_agent.benchmark.pictures import draw_pictures

    results = collect_results(folder)
    written = [folder / "results.json", folder / "results.md"]
    write_text(written[0], dump_results(results))
    write_text(written[1], results_tables(results))
    return [*written, *draw_pictures(folder, results)]


def _files(texts: tuple[str, ...]) -> dict[str, Path]:
    files = {}
    for text in texts:
        task, equals, path = text.partition("=")
        if not equals or not Path(path).is_file():
            raise InvalidArgumentError(
                f"`datasets` must be TASK=FILE with a file that exists, got {text!r}."
            )
        files[task] = Path(path)
    return files


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
