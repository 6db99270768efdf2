"""`rcdt compare`: which method suits a user's own data, by the machinery of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rcdt_agent._io import file_lock
from rcdt_agent.algorithms import ALGORITHMS
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError, SimulatorError
from rcdt_agent.experiments.benchmark.data import TaskData, prepare_data
from rcdt_agent.experiments.benchmark.methods import EACH, SMALLEST_BUDGET, Method, parse_method
from rcdt_agent.experiments.benchmark.pool import Failure, run_cells
from rcdt_agent.experiments.benchmark.protocol import Protocol, check_protocol, note_protocol
from rcdt_agent.experiments.benchmark.runner import plan
from rcdt_agent.experiments.sources import environment_spaces
from rcdt_agent.tasks.registry import Task, get_task, guess_task
from rcdt_agent.variants import DEFAULT_VARIANT

DEFAULT_METHODS = (
    DEFAULT_VARIANT,
    "cdt",
    *(name for name in ALGORITHMS if name != "rcdt"),
)
"""RCDT with its default components, the CDT it builds on, and every other algorithm."""
N_BUDGETS = 3
HOLDOUT = 0.2
"""Share of trajectories that are kept from training where there is no environment."""
_QUANTILES = (0.25, 0.5, 0.75)


def choose_budgets(dataset: TrajectoryDataset, task: Task | None = None) -> tuple[float, ...]:
    """Three budgets: the task's smallest, middle and largest, or quartiles of the data's costs.

    Raises:
        InvalidArgumentError: The data have hardly any cost, so that no budget tells them apart.
    """
    refuse_several(dataset.cost_names, "A comparison of methods")
    if task is not None:
        own = task.budgets
        return own if len(own) <= N_BUDGETS else (own[0], task.reference_budget, own[-1])
    costs = dataset.episode_costs
    quartiles = np.quantile(costs[costs > 0], _QUANTILES) if (costs > 0).any() else []
    budgets = sorted({float(f"{value:.2g}") for value in quartiles})
    if len(budgets) < N_BUDGETS:
        raise InvalidArgumentError(
            f"{dataset.name}: the costs of its trajectories ({costs.min():g} to {costs.max():g}) "
            f"do not suggest three budgets: name some with `--budgets`."
        )
    return tuple(budgets)


def parse_methods(names: Sequence[str]) -> list[Method]:
    """The methods by name; those of one budget get one policy a budget.

    Raises:
        InvalidArgumentError: As `parse_method`, or there is none.
    """
    if not names:
        raise InvalidArgumentError("`methods` must not be empty.")
    methods = []
    for name in names:
        base, plus, rest = name.strip().partition("+")
        if base.lower() in SMALLEST_BUDGET and "cost_budget" not in rest:
            base += EACH
        methods.append(parse_method(base + plus + rest))
    return methods


def run_comparison(
    folder: Path,
    file: Path,
    *,
    task: str | None = None,
    env: str | None = None,
    offline: bool = False,
    methods: Sequence[str] = DEFAULT_METHODS,
    budgets: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    preset: str = "cpu",
    steps: int | None = None,
    episodes: int = 20,
    workers: int = 1,
    device: str = "cpu",
    command: str = "",
    progress_bar: bool = True,
) -> list[Failure]:
    """Train the methods on a file and evaluate them; what is finished in `folder` is kept.

    Args:
        folder: Keeps everything.
        file: HDF5 dataset.
        task: Of the registry, whose simulator and budgets count; default: by the file's name.
        env: Instead of a task: an environment of Gymnasium, such as `package:Name-v0`.
        offline: Do not roll out; also where neither task nor environment is known.
        methods: As `parse_method` reads them; those of one budget are trained for each.
        budgets: Cost budgets; default: `choose_budgets`.
        seeds: One policy each.
        preset: Sizes.
        steps: Gradient steps; None: the preset's.
        episodes: Episodes a budget, or held-out trajectories a budget, at most.
        workers: Processes.
        device: Where to train.
        command: The command line, noted for the reader.
        progress_bar: Show trainings and evaluations.

    Returns:
        What failed.

    Raises:
        InvalidArgumentError: An argument breaks its rule, or the folder is about other data.
        SimulatorError: The task's simulator is not installed.
    """
    if task is not None and env is not None:
        raise InvalidArgumentError("Give either `task` or `env`, not both.")
    if not seeds or workers < 1:
        raise InvalidArgumentError("`seeds` must not be empty, and `workers` must be >= 1.")
    if any(budget <= 0 for budget in budgets):
        raise InvalidArgumentError(f"`budgets` must be > 0, got {tuple(budgets)}.")
    parsed = parse_methods(methods)
    known = get_task(task) if task else None if env else guess_task(file.name)
    offline = offline or (known is None and env is None)
    _check_environment(env or (known.id if known else ""), offline=offline)
    protocol = Protocol(
        preset=preset, steps=steps, episodes=episodes, holdout=HOLDOUT if offline else 0.0
    )
    for method in parsed:
        method.make_config(preset, steps)
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock"):
        check_protocol(folder, protocol)
        data = _prepare(folder, file, known, env, tuple(sorted(budgets)), offline=offline)
        note_protocol(folder, protocol, [data], parsed, seeds, command)
    cells = plan(folder, [data], parsed, seeds, protocol, device=device)
    return run_cells(cells, workers=workers, progress_bar=progress_bar)


def _check_environment(env: str, *, offline: bool) -> None:
    """Refuse before training what could not be rolled out after it."""
    if offline:
        return
    try:
        environment_spaces(env)
    except SimulatorError as error:
        raise SimulatorError(
            f"{error} `--offline` compares the methods without a simulator."
        ) from error


def _prepare(
    folder: Path,
    file: Path,
    task: Task | None,
    env: str | None,
    budgets: tuple[float, ...],
    *,
    offline: bool,
) -> TaskData:
    if not budgets:
        budgets = choose_budgets(TrajectoryDataset.from_hdf5(file), task)
    return prepare_data(
        task,
        file.absolute(),
        folder,
        holdout=HOLDOUT if offline else 0.0,
        budgets=budgets,
        env=env,
        offline=offline,
    )
