"""The constraint-variation protocol: which cells there are, and doing what is missing of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rcdt_agent._io import file_lock
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark.cells import Cell, cell_folder
from rcdt_agent.experiments.benchmark.data import TaskData, prepare_data
from rcdt_agent.experiments.benchmark.methods import Method, parse_method
from rcdt_agent.experiments.benchmark.pool import Failure, run_cells
from rcdt_agent.experiments.benchmark.protocol import Protocol, check_protocol, note_protocol
from rcdt_agent.experiments.cluster import Cluster, refuse_torchrun
from rcdt_agent.tasks.registry import Task, get_task


def plan(
    folder: Path,
    tasks: Sequence[TaskData],
    methods: Sequence[Method],
    seeds: Sequence[int],
    protocol: Protocol,
    *,
    device: str = "cpu",
) -> list[Cell]:
    """The cells, seed by seed so that every method has results early; shared policies once."""
    shared: dict[str, list[Method]] = {}
    for method in methods:
        shared.setdefault(method.training_id, []).append(method)
    return [
        Cell(
            folder=cell_folder(folder, data.label, group[0], seed),
            data=data,
            training=group[0],
            methods=tuple({method.deployment_id: method for method in group}.values()),
            seed=seed,
            protocol=protocol,
            device=device,
        )
        for seed in seeds
        for data in tasks
        for group in shared.values()
    ]


def run_benchmark(
    folder: Path,
    tasks: Sequence[str],
    methods: Sequence[str],
    *,
    datasets: Mapping[str, Path] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    protocol: Protocol | None = None,
    variant_of_data: str | None = None,
    overrides: Sequence[str] = (),
    workers: int = 1,
    cluster: Cluster | None = None,
    shard: tuple[int, int] = (1, 1),
    device: str = "cpu",
    command: str = "",
    progress_bar: bool = True,
) -> list[Failure]:
    """Train and evaluate what is missing in `folder`.

    Args:
        folder: Keeps everything; what is finished in it is not done again.
        tasks: Tasks of the registry.
        methods: Names as `parse_method` reads them.
        datasets: Files to use instead of the tasks' own, by task.
        seeds: One policy each.
        protocol: Sizes and numbers, the same for all cells of a folder.
        variant_of_data: `bottom:RHO` or `extremes:RHO`.
        overrides: `FIELD=VALUE` for every variant of RCDT.
        workers: Processes; with more than one, a script needs the guard
            `if __name__ == "__main__":`, and each uses one thread.
        cluster: A Ray cluster to work on, instead of `workers`.
        shard: (i, n) does the i-th of n parts of the cells, from 1; other machines do the others.
        device: Where to train.
        command: The command line, noted for the reader.
        progress_bar: Show trainings and evaluations, finished and in all.

    Returns:
        What failed.
    """
    protocol = protocol or Protocol()
    refuse_torchrun("A benchmark", "`workers`, `ray` or `shard`")
    if not 1 <= shard[0] <= shard[1]:
        raise InvalidArgumentError(
            f"`shard` must be i/n with 1 <= i <= n, got {shard[0]}/{shard[1]}."
        )
    if workers < 1:
        raise InvalidArgumentError(f"`workers` must be >= 1, got {workers}.")
    if not tasks or not methods or not seeds:
        raise InvalidArgumentError("`tasks`, `methods` and `seeds` must not be empty.")
    parsed = [parse_method(method, overrides) for method in methods]
    for method in parsed:
        method.make_config(protocol.preset, protocol.steps)
    sources = _sources(tasks, datasets or {})
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock"):
        check_protocol(folder, protocol)
        prepared = [
            prepare_data(task, file, folder, variant=variant_of_data, holdout=protocol.holdout)
            for task, file in sources
        ]
        note_protocol(folder, protocol, prepared, parsed, seeds, command)
    cells = plan(folder, prepared, parsed, seeds, protocol, device=device)
    cells = cells[shard[0] - 1 :: shard[1]]
    return run_cells(cells, workers=workers, progress_bar=progress_bar, cluster=cluster)


def _sources(tasks: Sequence[str], datasets: Mapping[str, Path]) -> list[tuple[Task, Path | None]]:
    """Each task with the file to use instead of its own, whatever their spellings."""
    files = {get_task(name).id: file for name, file in datasets.items()}
    known = [get_task(name) for name in tasks]
    unused = sorted(set(files) - {task.id for task in known})
    if unused:
        raise InvalidArgumentError(f"`datasets` names {unused}, which are not among `tasks`.")
    return [(task, files.get(task.id)) for task in known]
