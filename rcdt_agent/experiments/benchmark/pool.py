"""Working cells off: in this process, in worker processes that may die, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rcdt_agent._io import die_with_parent
from rcdt_agent.experiments.benchmark.cells import Cell, work
from rcdt_agent.experiments.cluster import Cluster, use_threads
from rcdt_agent.progress import progress

OnProgress = Callable[[Cell, str, str | None], None]
"""Called with a cell, the part of it that is finished, and the error if it failed."""
OnDone = Callable[[Cell, str], None]
"""Called with a cell that is worked off, and why parts of it may be missing."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Something that did not work; the rest was done all the same."""

    cell: str
    what: str
    error: str


def run_cells(
    cells: Sequence[Cell], *, workers: int, progress_bar: bool, cluster: Cluster | None = None
) -> list[Failure]:
    """Do what is missing of each cell, with one bar over all parts.

    Args:
        cells: Finished ones are counted and not touched.
        workers: Processes; 1: this one.
        progress_bar: Show the bar.
        cluster: Instead of processes of this machine.

    Returns:
        What failed.
    """
    todo = [cell for cell in cells if cell.parts_left]
    total = sum(1 + len(cell.methods) for cell in cells)
    done = total - sum(len(cell.parts_left) for cell in todo)
    with progress(progress_bar, total=total, initial=done, unit="part", smoothing=0) as bar:
        ledger = _Ledger(todo, n_cells=len(cells), bar=bar)
        if cluster is not None:
            _run_on_cluster(cluster, todo, ledger)
        elif workers == 1:
            for cell in todo:
                work(cell, partial(ledger.on_progress, cell))
                ledger.on_done(cell, "not done")
        else:
            with _Pool(workers, ledger.on_progress, ledger.on_done) as pool:
                pool.run(todo, refresh=bar.refresh if sys.stderr.isatty() else lambda: None)
    return ledger.failures


def _run_on_cluster(cluster: Cluster, todo: Sequence[Cell], ledger: _Ledger) -> None:
    """One Ray task a cell; one whose worker was lost goes on from the cell's checkpoint."""
    jobs = [(cell, tuple(sorted(cell.parts_left))) for cell in todo]
    for (cell, _), outcome in cluster.run(work_cell, jobs, cluster.cpus):
        if isinstance(outcome, Exception):
            ledger.on_done(cell, f"{type(outcome).__name__}: {str(outcome).splitlines()[0]}")
            continue
        for part, error in outcome:
            ledger.on_progress(cell, part, error)
        ledger.on_done(cell, "not done")


def work_cell(job: tuple[Cell, tuple[str, ...]], cpus: float) -> list[tuple[str, str | None]]:
    """The task of a Ray worker: what is missing of a cell, whoever began it.

    Args:
        job: The cell, and the parts that were left when the driver looked.
        cpus: Cores of the task.

    Returns:
        Those parts that are finished or failed, with the errors.
    """
    cell, parts = job
    use_threads(cpus)
    errors: dict[str, str | None] = {}
    work(cell, errors.__setitem__, wait=True)
    left = cell.parts_left
    return [(part, errors.get(part)) for part in parts if part not in left or part in errors]


class _Ledger:
    """Which parts are left, what failed, and the bar that shows it."""

    def __init__(self, todo: Sequence[Cell], *, n_cells: int, bar: Any) -> None:
        self.failures: list[Failure] = []
        self._left = {cell.folder: set(cell.parts_left) for cell in todo}
        self._finished, self._n_cells, self._bar = n_cells - len(todo), n_cells, bar
        self._describe()

    def on_progress(self, cell: Cell, part: str, error: str | None) -> None:
        """Count a part; without its training, nothing else of a cell can be done either."""
        left = self._left[cell.folder]
        if error is not None:
            self.failures.append(Failure(cell=str(cell.folder), what=part, error=error))
        gone = left.copy() if part == "training" and error is not None else {part} & left
        left -= gone
        self._bar.update(len(gone))

    def on_done(self, cell: Cell, reason: str) -> None:
        """Close a cell: what is left of it failed for this reason."""
        left = self._left[cell.folder]
        for part in sorted(left, key=lambda name: name != "training"):
            if part in left:
                self.on_progress(cell, part, reason)
        self._finished += 1
        self._describe()

    def _describe(self) -> None:
        self._bar.set_description(f"{self._finished}/{self._n_cells} cells", refresh=False)


class _Pool:
    """Worker processes, each with a pipe; one that dies costs its cell only."""

    def __init__(self, workers: int, on_progress: OnProgress, on_done: OnDone) -> None:
        self._workers, self._on_progress, self._on_done = workers, on_progress, on_done
        self._busy: dict[Any, tuple[Any, Cell]] = {}
        self._idle: list[tuple[Any, Any]] = []

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_error: Any) -> None:
        for pipe, process in self._idle:
            with suppress(ConnectionError):
                pipe.send(None)
            process.join()
        for process, _ in self._busy.values():
            process.terminate()
            process.join()

    def run(self, cells: Sequence[Cell], *, refresh: Callable[[], Any]) -> None:
        """Work all cells off, calling `refresh` at least once a second."""
        waiting = list(cells[::-1])
        while waiting or self._busy:
            while waiting and len(self._busy) < self._workers:
                self._assign(waiting.pop())
            arrived: Any = multiprocessing.connection.wait(list(self._busy), timeout=1.0)
            for pipe in arrived:
                self._receive(pipe)
            refresh()

    def _assign(self, cell: Cell) -> None:
        pipe, process = self._idle.pop() if self._idle else _start_worker()
        with suppress(ConnectionError):  # it died meanwhile: the next wait tells
            pipe.send(cell)
        self._busy[pipe] = (process, cell)

    def _receive(self, pipe: Any) -> None:
        process, cell = self._busy[pipe]
        try:
            message = pipe.recv()
        except (EOFError, ConnectionError):
            process.join()  # killed, or crashed in a simulator: the others go on
            del self._busy[pipe]
            self._on_done(cell, f"its process ended with code {process.exitcode}")
            return
        if message is None:
            del self._busy[pipe]
            self._idle.append((pipe, process))
            self._on_done(cell, "not done")
        else:
            self._on_progress(cell, *message)


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
        work(cell, lambda part, error: pipe.send((part, error)))
        pipe.send(None)
