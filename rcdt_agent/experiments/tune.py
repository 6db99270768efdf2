"""`rcdt tune`: a search for settings that earn most among those that keep every budget."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import read_json, write_json
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.config import Config
from rcdt_agent.errors import InvalidArgumentError, RCDTError
from rcdt_agent.experiments.benchmark.cells import Cell, roll_out, train_cell
from rcdt_agent.experiments.benchmark.data import TaskData, prepare_data
from rcdt_agent.experiments.benchmark.methods import DEPLOYMENT_FIELDS, Method, parse_method
from rcdt_agent.experiments.benchmark.protocol import Protocol
from rcdt_agent.experiments.sources import DataSource
from rcdt_agent.experiments.study import (
    Trial,
    best_trial,
    ended_trials,
    finished_trials,
    import_optuna,
    open_study,
    requeue_interrupted,
    suggest,
)
from rcdt_agent.progress import progress
from rcdt_agent.stats import normalized_score

VALIDATION_SEED = 2_000_000
"""Episode e of a trial is reset with this plus e: apart from the tests' seeds (1000 s + e for
training seed s) and from those of calibration (1 000 000 + e)."""

SearchSpace = dict[str, tuple[str, tuple[Any, ...]]]
"""Field -> (choice or log or linear, values or bounds)."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What a search found.

    Attributes:
        trials: All finished trials.
        failed: How many trials ended in an error.
        best: The feasible trial of highest return; without one, that of lowest worst cost.
        command: Trains the best setting.
    """

    trials: tuple[Trial, ...]
    failed: int
    best: Trial
    command: str


def search_space(config: BaseConfig) -> SearchSpace:
    """What is searched: the learning rate, and what acts in the variant of RCDT.

    Eta where there is Q guidance, what shapes the weights where there are some, and how far the
    cost penalty goes.
    """
    rate = config.learning_rate
    space: SearchSpace = {"learning_rate": ("log", (rate / 3, rate * 3))}
    if not isinstance(config, Config):
        return space
    space["target_quantile"] = ("linear", (0.5, 0.95))
    space["context_length"] = ("choice", (1, 2, 5) if config.context_length < 5 else (5, 10, 20))
    if config.q_guidance:
        space["eta"] = ("choice", (0.1, 0.3, 0.5))  # the paper's grid
    if config.weighting == "return_cost":
        space["alpha"] = ("log", (0.3, 3.0))
        space["gamma"] = ("log", (0.01, 0.3))
    if config.weighting == "frontier":
        space["frontier_sharpness"] = ("log", (2.0, 32.0))
    if config.cost_penalty and config.kappa_mode == "data":
        space["cost_reduction"] = ("linear", (0.05, 0.3))
    return space


@dataclass(frozen=True, kw_only=True)
class Search:
    """What one folder's search is about.

    Attributes:
        folder: For the study, the policies and the result.
        data: Task and data.
        method: What is kept fixed.
        protocol: Sizes, and validation episodes a budget.
        seed: Of training and of the search.
        device: Where to train.
    """

    folder: Path
    data: TaskData
    method: Method
    protocol: Protocol
    seed: int
    device: str

    @property
    def space(self) -> SearchSpace:
        """What is searched: nothing that the method fixes."""
        config = self.method.make_config(self.protocol.preset, self.protocol.steps)
        return {
            name: values
            for name, values in search_space(config).items()
            if name not in self.method.config
        }

    def cell(self, settings: dict[str, Any]) -> Cell:
        """The policy of a trial; the same settings have the same folder."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        tried = replace(self.method, config={**self.method.config, **settings})
        return Cell(
            folder=self.folder / "trials" / digest,
            data=self.data,
            training=tried,
            methods=(tried,),
            seed=self.seed,
            protocol=self.protocol,
            device=self.device,
        )

    def objective(self, trial: Any) -> float:
        """Mean normalised return of a trial on the validation seeds; costs go to its notes."""
        settings = {name: suggest(trial, name, *values) for name, values in self.space.items()}
        cell = self.cell(settings)
        try:
            if not cell.trained:
                train_cell(cell)
            report = roll_out(cell, cell.training, VALIDATION_SEED)
        except RCDTError as error:
            trial.set_user_attr("error", str(error))
            raise
        ratios = [float(r.mean_cost / r.budget) for r in report.results]
        trial.set_user_attr("normalized_costs", ratios)
        trial.set_user_attr("constraints", [ratio - 1 for ratio in ratios])
        means = [result.mean_return for result in report.results]
        return float(np.mean(normalized_score(means, self.data.return_range)))

    def claim_folder(self) -> None:
        """Note what the search is about.

        Raises:
            InvalidArgumentError: The folder is of another search.
        """
        request = {
            "task": self.data.task, "fingerprint": self.data.fingerprint,
            "method": self.method.name, "preset": self.protocol.preset,
            "steps": self.protocol.steps, "episodes": self.protocol.episodes, "seed": self.seed,
        }  # fmt: skip
        before = read_json(self.folder / "tune.json")
        if before not in (None, request):
            changed = next(name for name in request if before.get(name) != request[name])
            raise InvalidArgumentError(
                f"{self.folder} holds a search with {changed}={before.get(changed)}, now "
                f"{request[changed]} is asked for: name another `output`."
            )
        write_json(self.folder / "tune.json", request)


def tune(
    data: str,
    folder: Path,
    *,
    dataset: Path | None = None,
    method: str = "rcdt",
    preset: str = "cpu",
    steps: int | None = None,
    n_trials: int = 20,
    episodes: int = 10,
    seed: int = 0,
    device: str = "cpu",
    progress_bar: bool = False,
) -> TuneResult:
    """Search with Optuna's TPE: highest mean normalised return, every budget kept.

    Trials are kept in `folder`; a call with the same folder goes on where the last one stopped, in
    the middle of a training too.

    Args:
        data: A task, or an HDF5 file named after one.
        folder: For the study, the policies and the result.
        dataset: A file to use instead of the task's own.
        method: Variant of RCDT or other algorithm, with switches, which are kept fixed.
        preset: Sizes.
        steps: Gradient steps of a trial; default: the preset's.
        n_trials: Trials in all.
        episodes: Validation episodes a budget.
        seed: Of training and of the search.
        device: Where to train.
        progress_bar: Show trials.

    Raises:
        InvalidArgumentError: No simulator is known for the data, or the folder is of another
            search.
    """
    optuna = import_optuna()
    if n_trials < 1 or episodes < 1:
        raise InvalidArgumentError(
            f"`n_trials` and `episodes` must be >= 1, got {n_trials} and {episodes}."
        )
    fixed = parse_method(method)
    if fixed.one_policy_per_budget:
        raise InvalidArgumentError(
            f"`method` must train one policy, got {method!r}: name the budget, as in "
            f"{fixed.algorithm}+cost_budget=20."
        )
    search = Search(
        folder=folder,
        data=_prepare(data, dataset, folder),
        method=fixed,
        protocol=Protocol(preset=preset, steps=steps, episodes=episodes),
        seed=seed,
        device=device,
    )
    search.claim_folder()
    study = open_study(optuna, folder, seed)
    requeue_interrupted(optuna, study)
    _run_trials(optuna, study, search, n_trials, progress_bar=progress_bar)
    return _conclude(optuna, study, search)


# -------------------------------------------------------------------- parts


def _run_trials(
    optuna: Any, study: Any, search: Search, n_trials: int, *, progress_bar: bool
) -> None:
    left = n_trials - len(ended_trials(optuna, study))
    with progress(progress_bar, total=n_trials, initial=n_trials - left, unit="trial") as bar:

        def show(study: Any, _trial: Any) -> None:
            found = finished_trials(optuna, study)
            if found:
                best = best_trial(found)
                kept = "" if best.feasible else " (no budget-keeping trial yet)"
                bar.set_postfix_str(f"return {best.normalized_return:.3f}{kept}", refresh=False)
            bar.update()

        if left > 0:
            study.optimize(search.objective, n_trials=left, catch=(RCDTError,), callbacks=[show])


def _conclude(optuna: Any, study: Any, search: Search) -> TuneResult:
    """Find the best trial and write best.json."""
    trials = finished_trials(optuna, study)
    if not trials:
        reasons = {t.user_attrs["error"] for t in study.trials if "error" in t.user_attrs}
        raise InvalidArgumentError(f"Every trial failed: {'; '.join(sorted(reasons))}")
    best = best_trial(trials)
    result = TuneResult(
        trials=tuple(trials),
        failed=len(ended_trials(optuna, study)) - len(trials),
        best=best,
        command=_command(search, best),
    )
    last = VALIDATION_SEED + search.protocol.episodes - 1
    write_json(
        search.folder / "best.json",
        {
            "settings": best.settings,
            "feasible": best.feasible,
            "normalized_return": best.normalized_return,
            "normalized_costs": best.normalized_costs,
            "budgets": search.data.budgets,
            "validation_seeds": [VALIDATION_SEED, last],
            "trials": len(trials),
            "command": result.command,
        },
    )
    return result


def _prepare(data: str, dataset: Path | None, folder: Path) -> TaskData:
    source = DataSource.find(data, dataset)
    if source.task is None:
        raise InvalidArgumentError(
            f"No task is named at the start of {Path(data).name!r}, so there is no simulator to "
            f"try settings in: give the task and `dataset`."
        )
    return prepare_data(source.task, source.file, folder, variant=None, holdout=0.0)


def _command(search: Search, best: Trial) -> str:
    """Trains the best setting, as a user would."""
    data, method, protocol = search.data, search.method, search.protocol
    command = ["rcdt", "train", data.short, *(["--dataset", data.source] if data.source else [])]
    command += (
        ["--variant", method.variant] if method.variant else ["--algorithm", method.algorithm]
    )
    command += ["--preset", protocol.preset, "--seed", str(search.seed)]
    deployed = {name: method.deploy[name] for name in method.deploy if name in DEPLOYMENT_FIELDS}
    settings = {**method.config, **deployed, **best.settings}
    if method.kind.budgets == "one":
        settings.setdefault("cost_budget", min(data.budgets))
    if protocol.steps:
        settings["total_steps"] = protocol.steps
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{option}" if value else f"--no-{option}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            texts = (f"{v:.6g}" if isinstance(v, float) else str(v) for v in values)
            command += [f"--{option}", *texts]
    return shlex.join(command)
