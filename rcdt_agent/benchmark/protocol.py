"""The constraint-variation protocol: which cells there are, and doing what is missing of them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rcdt_agent._io import die_with_parent, file_lock, read_json, write_json
from rcdt_agent.benchmark.cells import Cell, cell_folder, work
from rcdt_agent.benchmark.data import TaskData, prepare_data
from rcdt_agent.benchmark.methods import Method, parse_method
from rcdt_agent.config import PRESETS
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.progress import progress

_NOTHING: dict[str, Any] = {"tasks": {}, "methods": {}, "seeds": [], "commands": []}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is the same for every cell of a folder.

    Attributes:
        preset: Sizes: paper, cpu or tiny.
        steps: Gradient steps; None: the preset's.
        episodes: Episodes a budget.
        holdout: Share of trajectories kept from training, for the critics' error.
    """

    preset: str = "cpu"
    steps: int | None = None
    episodes: int = 20
    holdout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values outside their rules."""
        for name, holds, rule in (
            ("preset", self.preset in PRESETS, f"one of {tuple(PRESETS)}"),
            ("steps", self.steps is None or self.steps >= 1, ">= 1"),
            ("episodes", self.episodes >= 1, ">= 1"),
            ("holdout", 0 <= self.holdout < 1, "in [0, 1)"),
        ):
            if not holds:
                raise InvalidArgumentError(f"`{name}` must be {rule}, got {getattr(self, name)!r}.")

    def options(self) -> list[str]:
        """As words of the command line."""
        words = ["--preset", self.preset, "--episodes", str(self.episodes)]
        if self.steps:
            words += ["--steps", str(self.steps)]
        if self.holdout:
            words += ["--holdout", str(self.holdout)]
        return words


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Something that did not work; the rest was done all the same."""

    cell: str
    what: str
    error: str


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
    cells = []
    for seed in seeds:
        for data in tasks:
            shared: dict[str, list[Method]] = {}
            for method in methods:
                shared.setdefault(method.training_id, []).append(method)
            for group in shared.values():
                distinct = {method.deployment_id: method for method in group}
                cells.append(
                    Cell(
                        folder=cell_folder(folder, data.label, group[0], seed),
                        data=data,
                        training=group[0],
                        methods=tuple(distinct.values()),
                        seed=seed,
                        preset=protocol.preset,
                        steps=protocol.steps,
                        episodes=protocol.episodes,
                        device=device,
                    )
                )
    return cells


def run_benchmark(
    folder: Path,
    tasks: Sequence[str],
    methods: Sequence[str],
    *,
    datasets: dict[str, Path] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    protocol: Protocol | None = None,
    variant_of_data: str | None = None,
    overrides: Sequence[str] = (),
    workers: int = 1,
    device: str = "cpu",
    command: str = "",
    progress_bar: bool = True,
) -> list[Failure]:
    """Train and evaluate what is missing in `folder`.

    Args:
        folder: Keeps everything; what is finished in it is not done again.
        tasks: DSRL tasks or SpeedLimit.
        methods: Names as `parse_method` reads them.
        datasets: Files to use instead of the tasks' own, by task.
        seeds: One policy each.
        protocol: Sizes and numbers, the same for all cells of a folder.
        variant_of_data: `bottom:RHO` or `extremes:RHO`.
        overrides: `FIELD=VALUE` for every method but the baselines.
        workers: Processes; with more than one, a script needs the guard
            `if __name__ == "__main__":`, and each uses one thread.
        device: Where to train.
        command: The command line, noted for the reader.
        progress_bar: Show trainings and evaluations, finished and in all.

    Returns:
        What failed.
    """
    protocol = protocol or Protocol()
    if workers < 1:
        raise InvalidArgumentError(f"`workers` must be >= 1, got {workers}.")
    if not tasks or not methods or not seeds:
        raise InvalidArgumentError("`tasks`, `methods` and `seeds` must not be empty.")
    parsed = [parse_method(method, overrides) for method in methods]
    for method in parsed:
        method.make_config(protocol.preset, protocol.steps)
    files = {_spelled(task): path for task, path in (datasets or {}).items()}
    unused = sorted(set(files) - {_spelled(task) for task in tasks})
    if unused:
        raise InvalidArgumentError(f"`datasets` names {unused}, which are not among `tasks`.")
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock"):
        check_protocol(folder, protocol)
        prepared = [
            prepare_data(
                task,
                files.get(_spelled(task)),
                folder,
                variant=variant_of_data,
                holdout=protocol.holdout,
            )
            for task in tasks
        ]
        note_protocol(folder, protocol, prepared, parsed, seeds, command)
    cells = plan(folder, prepared, parsed, seeds, protocol, device=device)
    todo = [cell for cell in cells if not cell.trained or cell.missing]
    total = sum(1 + len(cell.methods) for cell in cells)
    done = total - sum(len(_pieces(cell)) for cell in todo)
    failures: list[Failure] = []
    with progress(progress_bar, total=total, initial=done, unit="part", smoothing=0) as bar:
        bar.set_description(f"{len(cells) - len(todo)}/{len(cells)} cells", refresh=False)
        _run_all(todo, workers, failures, bar, len(cells))
    return failures


def check_protocol(folder: Path, protocol: Protocol) -> None:
    """Refuse to mix sizes in one folder."""
    before = read_json(folder / "protocol.json")
    if before is None:
        return
    for name, value in vars(protocol).items():
        if before["protocol"][name] != value:
            raise InvalidArgumentError(
                f"{folder} was begun with {name}={before['protocol'][name]}, now {name}={value} is "
                f"asked for: name another `output`."
            )


def note_protocol(
    folder: Path,
    protocol: Protocol,
    tasks: Sequence[TaskData],
    methods: Sequence[Method],
    seeds: Sequence[int],
    command: str = "",
) -> None:
    """Add what was asked to what the folder holds already."""
    before = read_json(folder / "protocol.json") or _NOTHING
    write_json(
        folder / "protocol.json",
        {
            "protocol": vars(protocol),
            "tasks": {**before["tasks"], **{data.label: data.to_dict() for data in tasks}},
            "methods": {**before["methods"], **{m.name: m.to_dict() for m in methods}},
            "seeds": sorted({*before["seeds"], *seeds}),
            "commands": list(dict.fromkeys([*before["commands"], *([command] if command else [])])),
        },
    )


def rerun_command(data: TaskData, method: str, seed: int, protocol: Protocol) -> str:
    """The command that makes one cell again, in a new folder."""
    words = ["rcdt", "benchmark", "--tasks", data.short]
    if data.source:
        words += ["--datasets", f"{data.short}={data.source}"]
    if data.variant:
        words += ["--variant-of-data", data.variant]
    words += ["--methods", method, "--seeds", str(seed), *protocol.options()]
    return shlex.join([*words, "--output", "rerun"])


# -------------------------------------------------------------------- processes


def _run_all(
    cells: list[Cell], workers: int, failures: list[Failure], bar: Any, n_cells: int
) -> None:
    outstanding = {cell.folder: _pieces(cell) for cell in cells}
    finished = n_cells - len(cells)

    def told(cell: Cell, what: str, error: str | None) -> None:
        left = outstanding[cell.folder]
        if error is not None:
            failures.append(Failure(cell=str(cell.folder), what=what, error=error))
        gone = left.copy() if what == "training" and error is not None else {what} & left
        left -= gone
        bar.update(len(gone))

    def ended(cell: Cell, reason: str) -> None:
        nonlocal finished
        for what in sorted(outstanding[cell.folder], key=lambda piece: piece != "training"):
            if what in outstanding[cell.folder]:
                told(cell, what, reason)
        finished += 1
        bar.set_description(f"{finished}/{n_cells} cells", refresh=False)

    if workers == 1:
        for cell in cells:
            work(cell, partial(told, cell))
            ended(cell, "not done")
        return
    waiting = cells[::-1]
    busy: dict[Any, tuple[Any, Cell]] = {}
    idle: list[tuple[Any, Any]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                pipe, process = idle.pop() if idle else _start_worker()
                with suppress(ConnectionError):  # it died meanwhile: the next wait tells
                    pipe.send(waiting[-1])
                busy[pipe] = (process, waiting.pop())
            arrived: Any = multiprocessing.connection.wait(list(busy), timeout=1.0)
            for pipe in arrived:
                process, cell = busy[pipe]
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionError):
                    process.join()  # killed, or crashed in a simulator: the others go on
                    del busy[pipe]
                    ended(cell, f"its process ended with code {process.exitcode}")
                    continue
                if message is None:
                    del busy[pipe]
                    idle.append((pipe, process))
                    ended(cell, "not done")
                else:
                    told(cell, *message)
            if sys.stderr.isatty():
                bar.refresh()
    finally:
        for pipe, process in idle:
            with suppress(ConnectionError):
                pipe.send(None)
            process.join()
        for process, _ in busy.values():
            process.terminate()
            process.join()


def _start_worker() -> tuple[Any, Any]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_worker, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _worker(pipe: Any) -> None:
    """Work off cells as they come, on one thread, until None; answer None after each."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    torch.set_num_threads(1)
    while (cell := pipe.recv()) is not None:
        work(cell, lambda what, error: pipe.send((what, error)))
        pipe.send(None)


def _pieces(cell: Cell) -> set[str]:
    """What there is to do in a cell."""
    trained = set() if cell.trained else {"training"}
    return trained | {method.deployment_id for method in cell.missing}


def _spelled(task: str) -> str:
    """One spelling of a task for all that are accepted."""
    from rcdt_agent.runs import SPEED_LIMIT_NAMES
    from rcdt_agent.tasks.registry import get_task

    return "SpeedLimit" if task.lower() in SPEED_LIMIT_NAMES else get_task(task).id
