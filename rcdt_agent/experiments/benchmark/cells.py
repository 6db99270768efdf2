"""One cell: what is trained for a task, method and seed, and its evaluations."""

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
from rcdt_agent.algorithms import BC, load_agent
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.budget_report import BudgetReport
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import evaluate_budgets
from rcdt_agent.experiments.benchmark.data import TaskData
from rcdt_agent.experiments.benchmark.methods import DEPLOYMENT_FIELDS, Method, deploy_agent
from rcdt_agent.experiments.benchmark.protocol import Protocol
from rcdt_agent.experiments.diagnostics import critic_error
from rcdt_agent.experiments.offline import imitation_error
from rcdt_agent.experiments.runs import Run, RunOptions, start_run, train_run
from rcdt_agent.experiments.sources import AnyAlgorithm

SEEDS_APART = 1_000
"""Training seed s is tested on reset seeds 1000 s, 1000 s + 1, ...: the same for all methods."""

OnPart = Callable[[str, str | None], None]
"""Called with what was done (`training` or a deployment's id), and the error if it failed."""


@dataclass(frozen=True, kw_only=True)
class CellPolicy:
    """One policy of a cell.

    Attributes:
        name: In the cell's notes.
        run: Where it is trained.
        config: How.
        budgets: Which budgets it is evaluated at.
    """

    name: str
    run: Run
    config: BaseConfig
    budgets: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Policies to train and the ways to deploy them.

    Attributes:
        folder: Of the cell.
        data: Task and data.
        training: Any of the methods that share the trained policies.
        methods: One method for every evaluation.
        seed: Of training; it also decides the reset seeds.
        protocol: Sizes and numbers.
        device: Where to train.
    """

    folder: Path
    data: TaskData
    training: Method
    methods: tuple[Method, ...]
    seed: int
    protocol: Protocol
    device: str = "cpu"

    @property
    def policies(self) -> tuple[CellPolicy, ...]:
        """One policy for all budgets, or one for each."""
        budgets = self.data.budgets
        if self.training.one_policy_per_budget:
            return tuple(
                CellPolicy(
                    name=f"policy-{budget:g}",
                    run=Run(self.folder / f"budget-{budget:g}"),
                    config=self._config(budget),
                    budgets=(budget,),
                )
                for budget in budgets
            )
        config = self._config(min(budgets))
        return (CellPolicy(name="policy", run=Run(self.folder), config=config, budgets=budgets),)

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

    @property
    def parts_left(self) -> set[str]:
        """What there is to do: `training`, and ids of deployments."""
        training = set() if self.trained else {"training"}
        return training | {method.deployment_id for method in self.missing}

    def _config(self, cost_budget: float) -> BaseConfig:
        return self.training.make_config(self.protocol.preset, self.protocol.steps, cost_budget)


def cell_folder(folder: Path, label: str, method: Method, seed: int) -> Path:
    """Where the policy of a task, method and seed is kept."""
    return folder / "cells" / _safe(label) / _safe(method.training_id) / f"seed-{seed}"


def training_file(folder: Path) -> Path:
    """What is known of a finished training."""
    return folder / "training.json"


def evaluation_file(folder: Path, method: Method) -> Path:
    """The report of one deployment."""
    return folder / "evaluations" / f"{_safe(method.deployment_id)}.json"


def work(cell: Cell, on_part: OnPart, *, wait: bool = False) -> None:
    """Do what is missing of a cell; errors are reported, and kept in error.txt.

    Args:
        cell: The cell.
        on_part: Called after each part.
        wait: Wait for another process that works on the cell; otherwise it is an error.
    """
    with file_lock(cell.folder / "lock", wait=wait) as ours:
        if not ours:
            on_part("training", "another process is working on this cell")
            return
        (cell.folder / "error.txt").unlink(missing_ok=True)
        trained = cell.trained
        with _errors_kept(cell, "training") as errors:
            if trained:
                _check_same_settings(cell.policies[0], training_file(cell.folder))
            else:
                train_cell(cell)
        if errors or not trained:
            on_part("training", errors[0] if errors else None)
        if errors:
            return
        for method in cell.missing:
            with _errors_kept(cell, method.deployment_id) as errors:
                evaluate_cell(cell, method)
            on_part(method.deployment_id, errors[0] if errors else None)


def train_cell(cell: Cell) -> None:
    """Train, or continue an interrupted training, and note how it went."""
    started = time.monotonic()
    policies = cell.policies
    resumed = any(policy.run.checkpoint is not None for policy in policies)
    agents = {policy.name: _train_policy(cell, policy) for policy in policies}
    first = policies[0]
    write_json(
        training_file(cell.folder),
        {
            "task": cell.data.label,
            "method": cell.training.training_id,
            "seed": cell.seed,
            "preset": cell.protocol.preset,
            "steps": first.config.total_steps,
            "seconds": round(time.monotonic() - started, 1),
            "resumed": resumed,
            "policies": len(policies),
            "threads": torch.get_num_threads(),
            "config": first.config.to_dict(),
            "metrics": _last_metrics(first.run),
            **_notes(cell, agents),
            "versions": versions(),
        },
    )


def evaluate_cell(cell: Cell, method: Method) -> None:
    """Evaluate the trained policies at every budget and keep the report."""
    started = time.monotonic()
    seed = SEEDS_APART * cell.seed
    if cell.data.offline:
        results = imitation_results(cell, method)
    else:
        results = [asdict(result) for result in roll_out(cell, method, seed).results]
    write_json(
        evaluation_file(cell.folder, method),
        {
            "deployment": method.deployment_id,
            "episodes": cell.protocol.episodes,
            "reset_seed": seed,
            "seconds": round(time.monotonic() - started, 1),
            "results": results,
            "versions": versions(),
        },
    )


def roll_out(cell: Cell, method: Method, seed: int) -> BudgetReport:
    """Every budget with the policy that is meant for it; episode e is reset with `seed + e`."""
    reports = []
    for policy in cell.policies:
        agent = load_agent(policy.run.final, device=cell.device)
        arguments = deploy_agent(agent, method, cell.data.env, policy.budgets)
        reports.append(
            evaluate_budgets(
                agent,
                cell.data.env,
                policy.budgets,
                n_episodes=cell.protocol.episodes,
                seed=seed,
                **arguments,
            )
        )
    results = tuple(result for report in reports for result in report.results)
    return replace(reports[0], results=results)


def imitation_results(cell: Cell, method: Method) -> list[dict[str, Any]]:
    """Without an environment: errors on held-out trajectories, at every budget."""
    assert cell.data.heldout is not None
    held_out = TrajectoryDataset.from_hdf5(cell.data.heldout)
    results = []
    for policy in cell.policies:
        agent = load_agent(policy.run.final, device=cell.device)
        deploy_agent(agent, method, None, policy.budgets)
        results += [
            asdict(imitation_error(agent, held_out, budget, most=cell.protocol.episodes))
            for budget in policy.budgets
        ]
    return results


# -------------------------------------------------------------------- training


def _options(cell: Cell, policy: CellPolicy) -> RunOptions:
    task, file = cell.data.task, cell.data.training_file
    return RunOptions(
        data=task or str(file),
        config=policy.config,
        algorithm=cell.training.algorithm,
        dataset=file if task else None,
        env=None if task else cell.data.env,
        seed=cell.seed,
        device=cell.device,
    )


def _train_policy(cell: Cell, policy: CellPolicy) -> AnyAlgorithm:
    """Train in the policy's run folder, from its checkpoint if there is one."""
    agent = None
    if policy.run.checkpoint is None:  # nothing is lost by beginning again
        policy.run.options_file.unlink(missing_ok=True)
        _, agent = start_run(_options(cell, policy), policy.run.folder)
    else:
        _check_same_settings(policy, policy.run.options_file)
    return train_run(policy.run, agent, progress_bar=False)


def _last_metrics(run: Run) -> dict[str, float]:
    log = run.log()
    return {
        name.removeprefix("train/"): value
        for name, value in (log[-1] if log else {}).items()
        if name.startswith("train/")
    }


def _notes(cell: Cell, agents: dict[str, AnyAlgorithm]) -> dict[str, Any]:
    """What only some algorithms have: the critics' error, the trajectories imitated."""
    first = next(iter(agents.values()))
    data = first.dataset
    if data is None:  # training was finished by an earlier process
        data = _options(cell, cell.policies[0]).source.read()
    if isinstance(first, BC):
        imitated = {
            name: len(agent.imitated(data)) for name, agent in agents.items()
            if isinstance(agent, BC)
        }  # fmt: skip
        return {"imitated_trajectories": imitated}
    heldout = cell.data.heldout
    return {
        "critic_error": critic_error(
            first, TrajectoryDataset.from_hdf5(heldout) if heldout else data
        ),
        "critic_error_on": "held-out trajectories" if heldout else "training data",
    }


def _check_same_settings(policy: CellPolicy, file: Path) -> None:
    """Refuse to continue or reuse a policy trained with other settings than now requested."""
    now = policy.config.to_dict()
    for name, value in read_json(file)["config"].items():
        same = tuple(value) if isinstance(value, list) else value
        if name not in DEPLOYMENT_FIELDS and name in now and now[name] != same:
            raise InvalidArgumentError(
                f"{file.parent} was trained with {name}={value}, now {name}={now[name]} is asked "
                f"for: remove that folder or name another `output`."
            )


# -------------------------------------------------------------------- small things


@contextmanager
def _errors_kept(cell: Cell, part: str) -> Iterator[list[str]]:
    """Collect the error of the block, which is also written to error.txt and not raised."""
    errors: list[str] = []
    try:
        yield errors
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
        write_text(cell.folder / "error.txt", f"{part}\n{traceback.format_exc()}")


def _safe(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^\w.+=-]", "_", name)
