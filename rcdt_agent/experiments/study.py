"""The Optuna study behind `rcdt tune`: opening, resuming, and what its trials mean."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcdt_agent.errors import InvalidArgumentError

STUDY = "rcdt"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting that was tried.

    Attributes:
        number: In order of time.
        settings: Fields of the algorithm's configuration.
        normalized_return: Mean over budgets, on the validation seeds.
        normalized_costs: Mean cost / budget of each budget.
    """

    number: int
    settings: dict[str, Any]
    normalized_return: float
    normalized_costs: tuple[float, ...]

    @property
    def feasible(self) -> bool:
        """Whether every budget was kept on average."""
        return max(self.normalized_costs) <= 1


def import_optuna() -> Any:
    """Optuna, quiet.

    Raises:
        InvalidArgumentError: The extra is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InvalidArgumentError(
            "Tuning needs the extra: `pip install rcdt_agent[tune]`."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(optuna: Any, folder: Path, seed: int) -> Any:
    """The study of a folder, new or as it was left."""
    storage = f"sqlite:///{(folder / 'study.db').resolve()}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constraints are marked experimental
        study = optuna.create_study(
            study_name=STUDY, storage=storage, direction="maximize", load_if_exists=True
        )
        study.sampler = optuna.samplers.TPESampler(
            # Another seed after a resumption: the same would repeat the first settings.
            seed=seed + len(study.trials),
            constraints_func=lambda trial: trial.user_attrs.get("constraints", [1.0]),
        )
    return study


def requeue_interrupted(optuna: Any, study: Any) -> None:
    """Close the trials of a killed process and put their settings first in the queue."""
    states = optuna.trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        study.set_user_attr(f"interrupted {trial.number}", True)
        study.tell(trial.number, state=states.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)


def ended_trials(optuna: Any, study: Any) -> list[Any]:
    """Trials that came to an end: complete, or failed by themselves."""
    states = optuna.trial.TrialState
    return [
        trial
        for trial in study.get_trials(states=(states.COMPLETE, states.FAIL))
        if f"interrupted {trial.number}" not in study.user_attrs
    ]


def finished_trials(optuna: Any, study: Any) -> list[Trial]:
    """Trials that were evaluated, in order."""
    return [
        Trial(
            number=trial.number,
            settings=dict(trial.params),
            normalized_return=float(trial.value),
            normalized_costs=tuple(trial.user_attrs["normalized_costs"]),
        )
        for trial in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    ]


def best_trial(trials: list[Trial]) -> Trial:
    """The feasible trial of highest return; without one, that of lowest worst cost."""
    feasible = [trial for trial in trials if trial.feasible]
    if feasible:
        return max(feasible, key=lambda trial: trial.normalized_return)
    return min(trials, key=lambda trial: max(trial.normalized_costs))


def suggest(trial: Any, name: str, kind: str, values: tuple[Any, ...]) -> Any:
    """A value of one field for a trial; see `SearchSpace`."""
    if kind == "choice":
        return trial.suggest_categorical(name, list(values))
    return trial.suggest_float(name, *values, log=kind == "log")
