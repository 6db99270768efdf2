"""`TrajectoryStore`: trajectories on disk that survive an interrupt, even SIGKILL.

HDF5 files are damaged when a process dies while appending to them. So nothing is ever appended:
every few seconds the new trajectories become a small file of their own in `<output>.parts/`,
written aside and renamed, and now and then (whenever half as many again have come together)
`output` itself is replaced by a merge of all parts. Whatever the moment of death, `output` and the
parts are whole, and at most the last few seconds are lost.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import read_json, write_json
from rcdt_agent.collect.recorder import Trajectory, join_trajectories
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError


class TrajectoryStore:
    """Takes finished trajectories and keeps them on disk.

    Trajectories belong to numbered runs (one for each PPO penalty, say), and within a run they are
    numbered from 0 without gaps; a part's file name is `<run>-<first>-<end>.hdf5`. So the files
    alone tell where to continue.
    """

    def __init__(
        self,
        output: str | Path,
        *,
        options: dict[str, Any] | None = None,
        resume: bool = False,
        seconds: float = 5.0,
        select: Callable[[TrajectoryDataset], TrajectoryDataset] | None = None,
    ) -> None:
        """Open a store; what `resume` finds is counted, not read.

        Args:
            output: The HDF5 file in the end; parts are kept in `<output>.parts/` until then.
            options: What was asked for, as JSON; resuming with other options is refused.
            resume: Continue with what is there.
            seconds: Longest time that finished trajectories are only in memory, >= 0.
            select: Chooses what of all trajectories goes into `output`.

        Raises:
            InvalidArgumentError: `output` is there already, or was made with other options.
        """
        if seconds < 0:
            raise InvalidArgumentError(f"`seconds` must be >= 0, got {seconds}.")
        self.output = Path(output)
        self.folder = self.output.with_name(f"{self.output.name}.parts")
        self._seconds, self._select = seconds, select
        self._pending: list[Trajectory] = []
        self._run, self._merged_at, self._written_at = 0, 0, -np.inf
        self._open(json.loads(json.dumps(options or {})), resume)
        self._stored = self._count()  # trajectories on disk, by run

    @property
    def run(self) -> int:
        """The run that trajectories are appended to."""
        return self._run

    @property
    def last_run(self) -> int:
        """The last run that has trajectories on disk (0: none or the first)."""
        return max(self._stored, default=0)

    def __len__(self) -> int:
        """Trajectories of all runs, those in memory included."""
        return sum(self._stored.values()) + len(self._pending)

    def count(self, run: int) -> int:
        """Trajectories of one run: the number that its next one gets."""
        return self._stored[run] + (len(self._pending) if run == self._run else 0)

    def begin_run(self, run: int) -> None:
        """Append to this run from now on."""
        self.flush()
        self._run = run

    def append(self, trajectory: Trajectory) -> None:
        """Take a finished trajectory; write if the last time is long enough ago."""
        self._pending.append(trajectory)
        if time.monotonic() - self._written_at >= self._seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a part; merge if much has come together."""
        if self._pending:
            first = self._stored[self._run]
            end = first + len(self._pending)
            path = self.folder / f"{self._run:03d}-{first:08d}-{end:08d}.hdf5"
            join_trajectories(self._pending, str(path)).to_hdf5(path)
            # Two stores without a call between: no interrupt can fall between them.
            self._stored[self._run], self._pending = end, []
        if len(self) > 1.5 * self._merged_at:
            self.merge()
        self._written_at = time.monotonic()

    def merge(self, *, compression: int = 1) -> TrajectoryDataset | None:
        """Replace `output` by what `select` chooses of all parts; None if there are none.

        Args:
            compression: Level of gzip, 0 .. 9.
        """
        if not len(self):
            return None
        dataset = self.read()
        if self._select is not None:
            dataset = self._select(dataset)
        dataset.to_hdf5(self.output, compression=compression)
        self._merged_at = len(self)
        return dataset

    def read(self) -> TrajectoryDataset:
        """All trajectories on disk, whether or not `select` would choose them."""
        return read_parts(self.folder)

    def runs(self) -> Iterator[tuple[int, TrajectoryDataset]]:
        """Each part on disk with its run."""
        for part in _parts(self.folder):
            yield int(part.stem.split("-")[0]), TrajectoryDataset.from_hdf5(part)

    def finish(self) -> TrajectoryDataset:
        """Write everything to `output` and remove the parts.

        Raises:
            DatasetError: There is no trajectory.
        """
        self.flush()
        dataset = self.merge(compression=9)
        if dataset is None:
            raise DatasetError(f"{self.output}: no episode has run to its end, nothing is stored.")
        shutil.rmtree(self.folder)
        return dataset

    def _open(self, options: dict[str, Any], resume: bool) -> None:
        path = self.folder / "options.json"
        if resume and path.is_file():
            before = read_json(path)
            for key in options.keys() | before.keys():
                if options.get(key) != before.get(key):
                    raise InvalidArgumentError(
                        f"`{key}` must be {before.get(key)!r} to resume {self.output}, got "
                        f"{options.get(key)!r}."
                    )
            return
        if self.output.exists() or path.is_file():
            unfinished = "continue it with `resume`, or name another"
            hint = unfinished if path.is_file() else "it is complete, so name another"
            raise InvalidArgumentError(
                f"`output` must be a new file, but {self.output} is there: {hint}."
            )
        write_json(path, options)

    def _count(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for part in _parts(self.folder):
            run, first, end = map(int, part.stem.split("-"))
            if first != counts[run]:
                raise DatasetError(f"{part}: the trajectories from {counts[run]} on are missing.")
            counts[run] = end
        return counts


def read_parts(folder: str | Path) -> TrajectoryDataset:
    """All trajectories of a parts folder, in order.

    Raises:
        DatasetError: There is no part, or one is damaged.
    """
    datasets = [TrajectoryDataset.from_hdf5(part) for part in _parts(Path(folder))]
    if not datasets:
        raise DatasetError(f"{folder}: there are no parts in it.")
    sizes = np.cumsum([0, *(data.n_transitions for data in datasets)])
    joined = {
        key: np.concatenate([getattr(data, key) for data in datasets])
        for key in (
            "observations", "actions", "rewards", "costs", "terminated", "truncated",
            "final_observations", "final_known",
        )
    }  # fmt: skip
    offsets = [data.offsets[:-1] + size for data, size in zip(datasets, sizes, strict=False)]
    return TrajectoryDataset(
        **joined,
        offsets=np.concatenate((*offsets, sizes[-1:])),
        name=str(folder),
        cost_names=datasets[0].cost_names,
        layout=datasets[0].layout,
    )


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.hdf5"))
