"""The commands `rcdt benchmark` and `rcdt tune`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rcdt_agent.base_config import resolve_preset
from rcdt_agent.cli.console import echo
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.tasks.registry import tasks_of

if TYPE_CHECKING:
    from rcdt_agent.experiments.benchmark import Failure
    from rcdt_agent.experiments.cluster import Cluster
    from rcdt_agent.experiments.tune import TuneResult

Preset = Literal["auto", "paper", "cpu", "tiny"]


def benchmark(
    *,
    output: Path,
    tasks: tuple[str, ...] = (),
    suite: Annotated[
        Literal["bullet", "safety-gymnasium", "metadrive"] | None, tyro.conf.arg(metavar="SUITE")
    ] = None,
    datasets: tuple[str, ...] = (),
    methods: tuple[str, ...] = ("bc", "bc-safe", "cdt", "wqdt", "wcdt", "qcdt", "rcdt"),
    seeds: tuple[int, ...] = (0, 1, 2),
    preset: Preset = "auto",
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    episodes: int = 20,
    variant_of_data: Annotated[str | None, tyro.conf.arg(metavar="KIND:RHO")] = None,
    overrides: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
    holdout: float = 0.0,
    workers: int = 1,
    ray: Annotated[str | None, tyro.conf.arg(metavar="[ADDRESS]")] = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    shard: Annotated[str, tyro.conf.arg(metavar="I/N")] = "1/1",
    device: str = "cpu",
) -> int:
    """Train and evaluate methods on tasks by the paper's protocol; finished parts are kept.

    Writes results.json, results.md and one plot per task. Safe to interrupt and to repeat, also
    with more tasks, methods or seeds: only what is missing is done. Without tasks, the tables of
    what is finished in the folder are written again.

    Args:
        output: Output folder.
        tasks: DSRL tasks or SpeedLimit, in any spelling.
        suite: All tasks of a simulator family: bullet, safety-gymnasium or metadrive.
        datasets: TASK=FILE: train on this HDF5 file instead of DSRL's own.
        methods: Variants of RCDT and other algorithms, with switches: cdt, rcdt+pareto, bc-safe,
            rcdt+eta=0.1, bc+width=64. bc-safe-each trains a policy for every budget.
        seeds: Training seeds, with one policy each.
        preset: Sizes: as published, for two CPU cores in minutes, or for tests; auto: by
            the device.
        steps: Gradient steps; by default the preset's.
        episodes: Episodes per budget.
        variant_of_data: bottom:RHO or extremes:RHO, the paper's degraded data, RHO in percent.
        overrides: FIELD=VALUE of the configuration, for every variant of RCDT.
        holdout: Share of trajectories held out to measure the critics' error.
        workers: Processes; with more than one, each uses one thread.
        ray: Run on a Ray cluster instead: no address starts one on this machine, auto finds the
            one that `ray start` made, HOST:PORT names one. Its machines must share the output.
        cpus: Cores of one cell on Ray.
        gpus: GPUs of one cell on Ray; 0.25 puts four cells on a GPU. Goes with --device cuda.
        shard: Run the I-th of N parts of the cells, and the others on other machines.
        device: cpu or cuda.
    """
    from rcdt_agent.experiments.benchmark import Protocol, run_benchmark

    chosen = [*tasks, *(task.name for task in tasks_of(suite))] if suite else list(tasks)
    failures = []
    if chosen or not (output / "protocol.json").is_file():
        failures = run_benchmark(
            output,
            chosen,
            methods,
            datasets=_files(datasets),
            seeds=seeds,
            protocol=Protocol(
                preset=resolve_preset(preset, device),
                steps=steps,
                episodes=episodes,
                holdout=holdout,
            ),
            variant_of_data=variant_of_data,
            overrides=overrides,
            workers=workers,
            cluster=_cluster(ray, cpus, gpus),
            shard=_shard(shard),
            device=device,
            command=shlex.join(["rcdt", *sys.argv[1:]]),
        )
    for path in write_results(output):
        echo(f"Written: {path}")
    echo((output / "results.md").read_text().split("\n\n## ")[0])
    return echo_failures(failures)


def echo_failures(failures: Sequence[Failure]) -> int:
    """Say what failed; 1 if anything did."""
    for failure in failures:
        echo(f"FAILED: {failure.cell} ({failure.what}): {failure.error}")
    if failures:
        echo(f"{len(failures)} parts failed; error.txt in their folders holds the details.")
    return int(bool(failures))


def tune(
    data: Annotated[str, tyro.conf.Positional],
    *,
    output: Path,
    dataset: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    method: str = "rcdt",
    preset: Preset = "auto",
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    trials: int = 20,
    episodes: int = 10,
    seed: int = 0,
    storage: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None,
    ray: Annotated[str | None, tyro.conf.arg(metavar="[ADDRESS]")] = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    device: str = "cpu",
) -> int:
    """Search for the settings with the highest return that keep every budget, on validation seeds.

    Safe to interrupt: the same command continues the search. If it is started several times at
    once, the processes share the trials.

    Args:
        data: A DSRL task, an HDF5 file named after one, or SpeedLimit.
        output: Folder for the search.
        dataset: An HDF5 file to use instead of the task's own.
        method: Variant of RCDT or other algorithm, and switches that are kept fixed: rcdt,
            rcdt+relabel, bc.
        preset: Sizes; auto: by the device.
        steps: Gradient steps of a trial; by default the preset's.
        trials: Total number of settings to try.
        episodes: Validation episodes per budget.
        seed: Seed of training and of the search.
        storage: URL of a database for the study, as Optuna takes it; default: a journal file in
            the output.
        ray: Try settings on a Ray cluster, as for `rcdt benchmark`.
        cpus: Cores of one trial on Ray.
        gpus: GPUs of one trial on Ray.
        device: cpu or cuda.
    """
    from rcdt_agent.experiments.tune import VALIDATION_SEED
    from rcdt_agent.experiments.tune import tune as search

    result = search(
        data,
        output,
        dataset=dataset,
        method=method,
        preset=resolve_preset(preset, device),
        steps=steps,
        n_trials=trials,
        episodes=episodes,
        seed=seed,
        storage=storage,
        cluster=_cluster(ray, cpus, gpus),
        device=device,
        progress_bar=True,
    )
    _echo_best(result, f"{VALIDATION_SEED} .. {VALIDATION_SEED + episodes - 1}")
    return 0 if result.best.feasible else 1


def _echo_best(result: TuneResult, reset_seeds: str) -> None:
    best = result.best
    costs = ", ".join(f"{cost:.2f}" for cost in best.normalized_costs)
    echo(
        f"{len(result.trials)} trials, {result.failed} failed, evaluated on reset seeds "
        f"{reset_seeds}."
    )
    if not best.feasible:
        echo("No setting kept every budget; this one came nearest:")
    echo(f"Best: trial {best.number}, normalised return {best.normalized_return:.3f}, cost {costs}")
    for name, value in best.settings.items():
        echo(f"  {name} = {value:.6g}" if isinstance(value, float) else f"  {name} = {value}")
    echo(f"Train it: {result.command}")


def _cluster(address: str | None, cpus: float, gpus: float) -> Cluster | None:
    from rcdt_agent.experiments.cluster import Cluster

    return None if address is None else Cluster(address=address, cpus=cpus, gpus=gpus)


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise InvalidArgumentError(f"`shard` must be I/N, such as 1/4, got {text!r}.")
    return int(part), int(parts)


def write_results(folder: Path) -> list[Path]:
    """Write results.json, results.md and the pictures of a benchmark's folder."""
    from rcdt_agent._io import write_text
    from rcdt_agent.experiments.benchmark import collect_results, dump_results, results_tables
    from rcdt_agent.experiments.benchmark.plots import draw_frontiers

    results = collect_results(folder)
    written = [folder / "results.json", folder / "results.md"]
    write_text(written[0], dump_results(results))
    write_text(written[1], results_tables(results))
    return [*written, *draw_frontiers(folder, results)]


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
