"""What a search of `rcdt tune` is about, and running its trials, by any number of processes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import file_lock, read_json, write_json
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.config import Config
from rcdt_agent.errors import InvalidArgumentError, RCDTError
from rcdt_agent.experiments.benchmark.cells import Cell, roll_out, train_cell
from rcdt_agent.experiments.benchmark.data import TaskData
from rcdt_agent.experiments.benchmark.methods import Method
from rcdt_agent.experiments.benchmark.protocol import Protocol
from rcdt_agent.experiments.study import (
    STUDY,
    import_optuna,
    next_trial,
    open_study,
    others_run,
    suggest,
)
from rcdt_agent.stats import normalized_score

VALIDATION_SEED = 2_000_000
"""Episode e of a trial is reset with this plus e: apart from the tests' seeds (1000 s + e for
training seed s) and from those of calibration (1 000 000 + e)."""

POLL_SECONDS = 0.5
"""Between looks at the trials of other processes."""

SearchSpace = dict[str, tuple[str, tuple[Any, ...]]]
"""Field -> (choice or log or linear, values or bounds)."""


def search_space(config: BaseConfig) -> SearchSpace:
    """What is searched: the learning rate, and what acts in the variant of RCDT.

    Half and twice the context length; the target return's quantile where there is a return token,
    eta where there is Q guidance, what shapes the weights where there are some, and how far the
    cost penalty goes.
    """
    rate = config.learning_rate
    space: SearchSpace = {"learning_rate": ("log", (rate / 3, rate * 3))}
    if not isinstance(config, Config):
        return space
    length = config.context_length
    space["context_length"] = ("choice", tuple(sorted({max(1, length // 2), length, 2 * length})))
    if config.return_token:
        space["target_quantile"] = ("linear", (0.5, 0.95))
    if config.q_guidance:
        space["eta"] = ("choice", (0.1, 0.3, 0.5))  # the paper's grid
    if config.weighting == "return_cost":
        space["alpha"] = ("log", (0.3, 3.0))
        space["gamma"] = ("log", (0.01, 0.3))
    if config.weighting == "frontier":
        space["frontier_sharpness"] = ("log", (2.0, 32.0))
    if config.cost_penalty and config.kappa_mode == "data":
        space["kappa_share"] = ("linear", (0.7, 0.95))
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
        storage: URL of the study's database; None: a journal file in the folder.
    """

    folder: Path
    data: TaskData
    method: Method
    protocol: Protocol
    seed: int
    device: str
    storage: str | None = None

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
            with file_lock(cell.folder / "lock"):  # two trials may have the same settings
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

    @property
    def request(self) -> dict[str, Any]:
        """What tells it from other searches."""
        return {
            "task": self.data.task, "fingerprint": self.data.fingerprint,
            "method": self.method.name, "preset": self.protocol.preset,
            "steps": self.protocol.steps, "episodes": self.protocol.episodes, "seed": self.seed,
        }  # fmt: skip

    def open_study(self, optuna: Any) -> Any:
        """Its study; in a database it has a name of its own."""
        if self.storage is None:
            return open_study(optuna, self.folder)
        digest = hashlib.sha256(json.dumps(self.request).encode()).hexdigest()[:12]
        return open_study(optuna, self.folder, self.storage, f"{STUDY}-{digest}")

    def claim_folder(self) -> None:
        """Note what the search is about.

        Raises:
            InvalidArgumentError: The folder is of another search.
        """
        request, before = self.request, read_json(self.folder / "tune.json")
        if before not in (None, request):
            changed = next(name for name in request if before.get(name) != request[name])
            raise InvalidArgumentError(
                f"{self.folder} holds a search with {changed}={before.get(changed)}, now "
                f"{request[changed]} is asked for: name another `output`."
            )
        write_json(self.folder / "tune.json", request)


def run_trials(
    search: Search, n_trials: int, *, most: int | None = None, on_end: Callable[[Any], None]
) -> None:
    """Run trials until `n_trials` have ended in all, those of other processes included.

    Args:
        search: What to search.
        n_trials: In all.
        most: Of this call; default: as many as there are.
        on_end: Called with the study after each of this call's.
    """
    optuna = import_optuna()
    study, made = search.open_study(optuna), 0
    while most is None or made < most:
        due = next_trial(
            optuna,
            study,
            search.folder,
            seed=search.seed,
            n_trials=n_trials,
            elsewhere=search.storage is not None,
        )
        with due as trial:
            if trial is not None:
                _run_trial(optuna, study, trial, search)
                made += 1
                on_end(study)
                continue
        if not others_run(optuna, study, search.folder):
            return
        time.sleep(POLL_SECONDS)  # should another process be lost, its trial is done here


def _run_trial(optuna: Any, study: Any, trial: Any, search: Search) -> None:
    failed = optuna.trial.TrialState.FAIL
    try:
        value = search.objective(trial)
    except RCDTError:  # noted by the objective
        study.tell(trial, state=failed)
    except Exception:
        study.tell(trial, state=failed)
        raise
    else:
        study.tell(trial, value)
