"""The data of a benchmark: a task, the file it is trained on, and what was taken out of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rcdt_agent._io import read_json, write_json
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.sources import DataSource
from rcdt_agent.tasks.registry import Task, get_task


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """One row of the tables: a task and the data its policies are trained on.

    Attributes:
        label: Name in tables and folders, such as `BallCircle` or `BallCircle bottom 60`.
        task: Canonical task id; None: the data belong to no task of the registry.
        suite: The simulator family; `own` without a task.
        budgets: Cost budgets of the protocol.
        file: Name of the source of the data.
        source: Path of the file asked for; None: the task's own.
        variant: `bottom:60` or `extremes:10`; None: all trajectories.
        published: Whether the source is DSRL's own file.
        dataset: File to train on; None: the task's own.
        heldout: File of the trajectories kept from training.
        trajectories: How many are trained on.
        return_range: Returns that normalise to 0 and 1.
        range_source: Where that range is from.
        fingerprint: Of the data trained on.
        env: Environment to roll out in; None: the task's.
        offline: Policies are not rolled out but compared with held-out trajectories.
    """

    label: str
    task: str | None
    suite: str
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
    env: str | None = None
    offline: bool = False

    @property
    def short(self) -> str:
        """The task as the command line takes it, or the label of data without one."""
        return get_task(self.task).name if self.task else self.label

    @property
    def by_protocol(self) -> bool:
        """Whether it is a task as the benchmark has it: its own simulator, all its budgets."""
        if self.task is None or self.env is not None or self.offline:
            return False
        return self.budgets == get_task(self.task).budgets

    @property
    def training_file(self) -> Path | None:
        """The file to train on; None: the task's own."""
        return Path(self.dataset) if self.dataset else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TaskData:
        """The inverse of `to_dict` after a trip through JSON; other keys are left out."""
        names = [field.name for field in fields(cls) if field.name in values]
        known: dict[str, Any] = {name: values[name] for name in names}
        for name in ("budgets", "return_range"):
            known[name] = tuple(known[name])
        return cls(**known)


def prepare_data(
    task: Task | None,
    source: Path | None,
    folder: Path,
    *,
    variant: str | None = None,
    holdout: float = 0.0,
    budgets: tuple[float, ...] = (),
    **evaluation: Any,
) -> TaskData:
    """Read a task's data, cut the variant and the held-out part, and note its figures.

    Args:
        task: Of the registry; None: `source` belongs to none.
        source: A file to use instead of the task's own.
        folder: Of the benchmark; derived files and the figures go to `data` in it.
        variant: `bottom:RHO` or `extremes:RHO`.
        holdout: Share of trajectories kept from training, for the critics' error.
        budgets: Cost budgets; default: the task's.
        **evaluation: The fields `env` and `offline`.

    Raises:
        InvalidArgumentError: Unknown variant, or the folder holds results on other data.
    """
    assert task is not None or source is not None
    name = task.name if task else source.stem if source else ""
    label = name if variant is None else f"{name} {variant.replace(':', ' ')}"
    stem = folder / "data" / label.replace(" ", "-")
    whole = DataSource(task=task, file=source).read()
    refuse_several(whole.cost_names, "A benchmark, or `rcdt tune`,")
    training, heldout = _cut(whole, variant), None
    if holdout:
        training, heldout = training.split(1 - holdout)
    derived = training is not whole
    data = TaskData(
        label=label,
        task=task.id if task else None,
        suite=task.suite if task else "own",
        budgets=budgets or (task.budgets if task else ()),
        source=str(source) if source else None,
        variant=variant,
        dataset=f"{stem}.hdf5" if derived else (str(source) if source else None),
        heldout=None if heldout is None else f"{stem}-heldout.hdf5",
        trajectories=len(training),
        fingerprint=training.fingerprint,
        **_range_and_file(task, source, whole),
        **evaluation,
    )
    _note_figures(Path(f"{stem}.json"), data, training)
    for path, part in ((data.dataset, training if derived else None), (data.heldout, heldout)):
        if path is not None and part is not None and not Path(path).is_file():
            part.to_hdf5(path)
    return data


def _range_and_file(
    task: Task | None, source: Path | None, whole: TrajectoryDataset
) -> dict[str, Any]:
    """Returns are normalised by DSRL's published range where the source is DSRL's own file.

    Otherwise by the range of the whole source: the same for a variant as for all of it.
    """
    own = task.dataset_file if task else ""
    file = source.name if source else own or whole.name
    if task is not None and source is None and task.suite != "embedded":
        published = f"DSRL's published range of {task.name}"
        return {
            "file": file,
            "published": True,
            "return_range": task.return_range,
            "range_source": published,
        }
    low, high = float(whole.episode_returns.min()), float(whole.episode_returns.max())
    return {
        "file": file,
        "published": False,
        "return_range": (low, high),
        "range_source": f"the range of returns in {file}",
    }


_EVALUATED = ("task", "env", "budgets", "offline")
"""Fields of `TaskData` that evaluations depend on."""


def _note_figures(path: Path, data: TaskData, training: TrajectoryDataset) -> None:
    """Write return and cost of each trajectory, unless the folder is about other data."""
    before = read_json(path)
    if before is not None and before["task"]["fingerprint"] != data.fingerprint:
        raise InvalidArgumentError(
            f"{path.parent.parent} holds results for {data.label} on other data "
            f"({before['task']['file']}): name another `output`."
        )
    for name in _EVALUATED if before is not None else ():
        then, now = before["task"].get(name), data.to_dict()[name]
        if now != (tuple(then) if isinstance(then, list) else then):
            raise InvalidArgumentError(
                f"{path.parent.parent} holds results for {data.label} with {name}={then}, now "
                f"{name}={now} is asked for: name another `output`."
            )
    points = {
        "returns": [round(float(value), 4) for value in training.episode_returns],
        "costs": [round(float(value), 4) for value in training.episode_costs],
    }
    write_json(path, {"task": data.to_dict(), **points})


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
