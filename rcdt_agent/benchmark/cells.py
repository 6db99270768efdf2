"""One cell: a policy trained for a task, method and seed, and its evaluations."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rcdt_agent._io import file_lock, read_json, versions, write_json, write_text
from rcdt_agent.agent import RCDT
from rcdt_agent.baselines import BC, BCSafe, BudgetBlind
from rcdt_agent.benchmark.data import TaskData
from rcdt_agent.benchmark.diagnostics import critic_error
from rcdt_agent.benchmark.methods import BASELINES, DEPLOYMENT_FIELDS, Method, deploy_agent
from rcdt_agent.config import Config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.deploy.targets import ReturnTargets
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import BudgetReport, evaluate_budgets
from rcdt_agent.runs import Run, load_agent_data, start_run, train_run
from rcdt_agent.tasks.registry import get_task

SEEDS_APART = 1_000
"""Training seed s is tested on reset seeds 1000 s, 1000 s + 1, ...: the same for all methods."""

Report = Callable[[str, str | None], None]
"""Told what was done (`training` or a deployment's id), and the error if it failed."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A policy to train and the ways to deploy it.

    Attributes:
        folder: Of the cell.
        data: Task and data.
        training: Any of the methods that share this policy.
        methods: One method for every evaluation.
        seed: Of training; it also decides the reset seeds.
        preset: Sizes.
        steps: Gradient steps; None: the preset's.
        episodes: Episodes a budget.
        device: Where to train.
    """

    folder: Path
    data: TaskData
    training: Method
    methods: tuple[Method, ...]
    seed: int
    preset: str
    steps: int | None
    episodes: int
    device: str = "cpu"

    @property
    def config(self) -> Config:
        """The settings to train with."""
        return self.training.make_config(self.preset, self.steps)

    @property
    def trained(self) -> bool:
        """Whether training is finished."""
        return training_file(self.folder).is_file()

    @property
    def missing(self) -> tuple[Method, ...]:
        """The evaluations that are not finished."""
        return tuple(
            method for method in self.methods if not evaluation_file(self.folder, method).is_file()
        )


def cell_folder(folder: Path, label: str, method: Method, seed: int) -> Path:
    """Where the policy of a task, method and seed is kept."""
    return folder / "cells" / _safe(label) / _safe(method.training_id) / f"seed-{seed}"


def training_file(folder: Path) -> Path:
    """What is known of a finished training."""
    return folder / "training.json"


def evaluation_file(folder: Path, method: Method) -> Path:
    """The report of one deployment."""
    return folder / "evaluations" / f"{_safe(method.deployment_id)}.json"


def work(cell: Cell, report: Report) -> None:
    """Do what is missing of a cell; errors are reported, and kept in error.txt."""
    with file_lock(cell.folder / "lock", wait=False) as ours:
        if not ours:
            report("training", "another process is working on this cell")
            return
        (cell.folder / "error.txt").unlink(missing_ok=True)
        if not cell.trained:
            with _reported(cell, "training", report) as failed:
                train_cell(cell)
            if failed:
                return
        else:
            with _reported(cell, "training", None) as failed:
                _check_same_settings(cell)
            if failed:
                report("training", failed[0])
                return
        for method in cell.missing:
            with _reported(cell, method.deployment_id, report):
                evaluate_cell(cell, method)


def train_cell(cell: Cell) -> None:
    """Train, or continue an interrupted training, and note how it went."""
    started = time.monotonic()
    resumed = Run(cell.folder).latest.is_file()
    notes = _train_baseline(cell) if cell.training.base in BASELINES else _train_agent(cell)
    write_json(
        training_file(cell.folder),
        {
            "task": cell.data.label,
            "method": cell.training.training_id,
            "seed": cell.seed,
            "preset": cell.preset,
            "steps": cell.config.total_steps,
            "seconds": round(time.monotonic() - started, 1),
            "resumed": resumed,
            "threads": torch.get_num_threads(),
            **notes,
            "versions": versions(),
        },
    )


def evaluate_cell(cell: Cell, method: Method) -> None:
    """Evaluate the trained policy at every budget and keep the report."""
    started = time.monotonic()
    seed = SEEDS_APART * cell.seed
    report = roll_out(cell, method, seed)
    write_json(
        evaluation_file(cell.folder, method),
        {
            "deployment": method.deployment_id,
            "episodes": cell.episodes,
            "reset_seed": seed,
            "seconds": round(time.monotonic() - started, 1),
            "results": [asdict(result) for result in report.results],
            "versions": versions(),
        },
    )


def roll_out(cell: Cell, method: Method, seed: int) -> BudgetReport:
    """The trained policy of a cell at every budget; episode e is reset with `seed + e`."""
    if method.base in BASELINES:
        return _evaluate_baseline(cell, seed)
    agent = RCDT.load(Run(cell.folder).final, device=cell.device)
    arguments = deploy_agent(agent, method, cell.data.env, cell.data.budgets)
    return evaluate_budgets(
        agent, cell.data.env, cell.data.budgets, n_episodes=cell.episodes, seed=seed, **arguments
    )


# -------------------------------------------------------------------- training


def _train_agent(cell: Cell) -> dict[str, Any]:
    data, dataset = cell.data.training_data()
    try:
        run = Run(cell.folder)
        run.options()
        _check_same_settings(cell)
    except (InvalidArgumentError, ValueError):
        if run.latest.is_file():
            raise
        (cell.folder / "run.json").unlink(missing_ok=True)  # cut short, or nothing trained yet
        run = start_run(
            data, cell.config, cell.folder, dataset=dataset, seed=cell.seed, device=cell.device
        )
    agent = train_run(run, progress_bar=False)
    log = run.log()
    metrics = {
        name.removeprefix("train/"): value
        for name, value in (log[-1] if log else {}).items()
        if name.startswith("train/")
    }
    return {
        "config": cell.config.to_dict(),
        "metrics": metrics,
        "critic_error": _critic_error(cell, agent),
        "critic_error_on": "held-out trajectories" if cell.data.heldout else "training data",
    }


def _critic_error(cell: Cell, agent: RCDT) -> dict[str, dict[str, float]]:
    if not agent.config.uses_critics:
        return {}
    if agent.learner is None:  # training was finished in an earlier process
        data, dataset = cell.data.training_data()
        _, trajectories = load_agent_data(data, dataset, cell.config, cell.seed, cell.device)
        agent._take_dataset(trajectories)
        agent._ready_learner(cell.config.total_steps)
    assert agent.dataset is not None
    heldout = cell.data.heldout
    return critic_error(agent, TrajectoryDataset.from_hdf5(heldout) if heldout else agent.dataset)


def _train_baseline(cell: Cell) -> dict[str, Any]:
    dataset = _dataset(cell)
    imitated = {}
    for name, policy in _baseline_policies(cell).items():
        policy.learn(dataset, cell.config.total_steps)
        policy.save(cell.folder / f"{name}.zip")
        imitated[name] = len(policy.choose(dataset))
    return {"config": policy.settings, "metrics": {}, "imitated_trajectories": imitated}


def _baseline_policies(cell: Cell) -> dict[str, BC]:
    """Untrained policies by file name: one for all budgets, or one for each."""
    budgets = cell.data.budgets
    if cell.training.base == "bc":
        return {"policy": BC(seed=cell.seed)}
    if cell.training.base == "bc-safe":
        return {"policy": BCSafe(cost_budget=min(budgets), seed=cell.seed)}
    return {f"policy-{budget:g}": BCSafe(cost_budget=budget, seed=cell.seed) for budget in budgets}


def _evaluate_baseline(cell: Cell, seed: int) -> BudgetReport:
    """Every budget with the policy that is meant for it."""
    dataset = _dataset(cell)
    targets = ReturnTargets(returns=dataset.episode_returns, costs=dataset.episode_costs)
    task = None if cell.data.env else get_task(cell.data.task)
    reports = []
    for name, untrained in _baseline_policies(cell).items():
        policy = type(untrained).load(cell.folder / f"{name}.zip")
        budgets = cell.data.budgets
        if cell.training.base == "bc-safe-each":
            budgets = (float(untrained.settings["cost_budget"]),)
        blind = BudgetBlind(policy, targets, task)
        reports.append(
            evaluate_budgets(blind, cell.data.env, budgets, n_episodes=cell.episodes, seed=seed)
        )
    results = tuple(result for report in reports for result in report.results)
    return replace(reports[0], results=results)


def _dataset(cell: Cell) -> TrajectoryDataset:
    data, dataset = cell.data.training_data()
    return load_agent_data(data, dataset, cell.config, cell.seed, cell.device)[1]


def _check_same_settings(cell: Cell) -> None:
    """Refuse to continue or reuse a policy trained with other settings than now asked for."""
    if cell.training.base in BASELINES:
        return
    stored = read_json(training_file(cell.folder)) or read_json(cell.folder / "run.json")
    now = Config.from_dict(cell.config.to_dict()).to_dict()
    for name, value in stored["config"].items():
        same = tuple(value) if isinstance(value, list) else value
        if name not in DEPLOYMENT_FIELDS and name in now and now[name] != same:
            raise InvalidArgumentError(
                f"{cell.folder} was trained with {name}={value}, now {name}={now[name]} is asked "
                f"for: remove that folder or name another `output`."
            )


# -------------------------------------------------------------------- small things


@contextmanager
def _reported(cell: Cell, what: str, report: Report | None) -> Iterator[list[str]]:
    """Report success, or the error, which is also written to error.txt and not raised."""
    failed: list[str] = []
    try:
        yield failed
    except Exception as error:
        failed.append(f"{type(error).__name__}: {error}")
        write_text(cell.folder / "error.txt", f"{what}\n{traceback.format_exc()}")
    if report is not None:
        report(what, failed[0] if failed else None)


def _safe(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^\w.+=-]", "_", name)
