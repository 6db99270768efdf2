"""The data of a benchmark: a task, the file it is trained on, and what was taken out of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rcdt_agent._io import read_json, write_json
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.runs import SPEED_LIMIT_BUDGETS, SPEED_LIMIT_NAMES
from rcdt_agent.tasks.registry import Task, get_task

SPEED_LIMIT = "SpeedLimit"


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """One row of the tables: a task and the data its policies are trained on.

    Attributes:
        label: Name in tables and folders, such as `BallCircle` or `BallCircle bottom 60`.
        task: Canonical task id, or SpeedLimit.
        suite: The simulator family.
        env: What is evaluated on, if not the agent's task.
        budgets: Cost budgets of the protocol.
        file: Name of the source of the data.
        source: Path of the file asked for; None: DSRL's own.
        variant: `bottom:60` or `extremes:10`; None: all trajectories.
        published: Whether the source is DSRL's own file.
        dataset: File to train on; None: DSRL's own.
        heldout: File of the trajectories kept from training.
        trajectories: How many are trained on.
        return_range: Returns that normalise to 0 and 1.
        range_source: Where that range is from.
        fingerprint: Of the data trained on.
    """

    label: str
    task: str
    suite: str
    env: str | None
    budgets: tuple[float, ...]
    file: str
    source: str | None
    variant: str | None
    published: bool
    dataset: str | None
    heldout: str | None
    trajectories: int
    return_range: tuple[float, float]
    range_source: str
    fingerprint: str

    @property
    def short(self) -> str:
        """The task as the command line takes it."""
        return SPEED_LIMIT if self.task == SPEED_LIMIT else get_task(self.task).name

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TaskData:
        """The inverse of `to_dict` after a trip through JSON."""
        lists = ("budgets", "return_range")
        return cls(**{**values, **{name: tuple(values[name]) for name in lists}})

    def training_data(self) -> tuple[str, Path | None]:
        """What a run folder takes: the task or file, and the file to use instead of DSRL's."""
        if self.task == SPEED_LIMIT:
            assert self.dataset is not None
            return self.dataset, None
        return self.task, Path(self.dataset) if self.dataset else None


def prepare_data(
    task: str, source: Path | None, folder: Path, *, variant: str | None, holdout: float
) -> TaskData:
    """Read a task's data, cut the variant and the held-out part, and note its figures.

    Returns are normalised by DSRL's published range where the source is DSRL's own file, else by
    the range of the whole source: the same for a variant as for all of it.

    Args:
        task: A DSRL task or SpeedLimit.
        source: A file to use instead of the task's own.
        folder: Of the benchmark; derived files and the figures go to `data` in it.
        variant: `bottom:RHO` or `extremes:RHO`.
        holdout: Share of trajectories kept from training, for the critics' error.

    Raises:
        InvalidArgumentError: Unknown variant, or the folder holds results on other data.
    """
    name, known = _name_task(task)
    label = name if variant is None else f"{name} {variant.replace(':', ' ')}"
    whole = _read_source(name, known, source)
    low, high = float(whole.episode_returns.min()), float(whole.episode_returns.max())
    file = source.name if source else (known.dataset_file if known else "record_drivers(1000)")
    published = known is not None and source is None
    if known is not None and published:
        (low, high), range_source = known.return_range, f"DSRL's published range of {name}"
    else:
        range_source = f"the range of returns in {file}"
    training, heldout = _cut(whole, variant), None
    if holdout:
        training, heldout = training.split(1 - holdout)
    stem = folder / "data" / label.replace(" ", "-")
    kept = training is whole and (known is not None or source is not None)
    data = TaskData(
        label=label,
        task=known.id if known else SPEED_LIMIT,
        suite=known.suite if known else "embedded",
        env=None if known else "rcdt_agent/SpeedLimit-v0",
        budgets=known.budgets if known else SPEED_LIMIT_BUDGETS,
        file=file,
        source=str(source) if source else None,
        variant=variant,
        published=published,
        dataset=(str(source) if source else None) if kept else f"{stem}.hdf5",
        heldout=None if heldout is None else f"{stem}-heldout.hdf5",
        trajectories=len(training),
        return_range=(low, high),
        range_source=range_source,
        fingerprint=training.fingerprint,
    )
    figures = Path(f"{stem}.json")
    before = read_json(figures)
    if before is not None and before["task"]["fingerprint"] != data.fingerprint:
        raise InvalidArgumentError(
            f"{folder} holds results for {label} on other data ({before['task']['file']}): name "
            f"another `output`."
        )
    for path, part in ((data.dataset, None if kept else training), (data.heldout, heldout)):
        if path is not None and part is not None and not Path(path).is_file():
            part.to_hdf5(path)
    points = {
        "returns": [round(float(value), 4) for value in training.episode_returns],
        "costs": [round(float(value), 4) for value in training.episode_costs],
    }
    write_json(figures, {"task": data.to_dict(), **points})
    return data


def _name_task(task: str) -> tuple[str, Task | None]:
    if task.lower() in SPEED_LIMIT_NAMES:
        return SPEED_LIMIT, None
    known = get_task(task)
    return known.name, known


def _read_source(name: str, known: Task | None, source: Path | None) -> TrajectoryDataset:
    if source is not None:
        return TrajectoryDataset.from_hdf5(source)
    if known is None:
        from rcdt_agent.tasks.speed_limit import record_drivers

        return TrajectoryDataset.from_arrays(**record_drivers(1000), name=name)
    from rcdt_agent.tasks.download import download_dataset

    return TrajectoryDataset.from_hdf5(download_dataset(known.dataset_file))


def _cut(dataset: TrajectoryDataset, variant: str | None) -> TrajectoryDataset:
    if variant is None:
        return dataset
    kind, _, rho = variant.partition(":")
    try:
        cut = {"bottom": dataset.bottom, "extremes": dataset.extremes}[kind]
        return cut(float(rho))
    except (KeyError, ValueError) as error:
        raise InvalidArgumentError(
            f"`variant_of_data` must be bottom:RHO or extremes:RHO with RHO in percent, got "
            f"{variant!r}."
        ) from error
