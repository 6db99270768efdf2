"""The Optuna study behind `rcdt tune`: opening, resuming, and what its trials mean."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcdt_agent._io import file_lock
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


def open_study(optuna: Any, folder: Path, url: str | None = None, name: str = STUDY) -> Any:
    """The study of a folder, new or as it was left; any number of processes may open it.

    Args:
        optuna: The module.
        folder: Holds the journal file, or the database of an older version.
        url: Of a database instead.
        name: Of the study, which tells it from others in the database.
    """
    database = folder / "study.db"
    storage: Any = url
    if url is None and database.is_file():
        storage = f"sqlite:///{database.resolve()}"
    elif url is None:
        folder.mkdir(parents=True, exist_ok=True)
        journal = optuna.storages.journal
        storage = optuna.storages.JournalStorage(
            journal.JournalFileBackend(str(folder / "study.log"))
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna marks parts of it experimental
        return optuna.create_study(
            study_name=name, storage=storage, direction="maximize", load_if_exists=True
        )


@contextmanager
def next_trial(
    optuna: Any, study: Any, folder: Path, *, seed: int, n_trials: int, elsewhere: bool
) -> Iterator[Any | None]:
    """Ask for a trial and hold its lock for the block; None if `n_trials` have ended or run.

    Settings of killed processes come first: a running trial whose lock nobody holds has lost its
    process. The kernel releases a lock however its holder ends.

    Args:
        optuna: The module.
        study: As `open_study` gave it.
        folder: For the locks.
        seed: Of the search.
        n_trials: In all.
        elsewhere: Whether machines that do not share the folder may run trials, too: one without a
            lock file is theirs.
    """
    states = optuna.trial.TrialState
    with ExitStack() as held:
        with file_lock(folder / "ask.lock"):
            running = [
                trial
                for trial in study.get_trials(states=(states.RUNNING,))
                if not _requeued(optuna, study, folder, trial, elsewhere=elsewhere)
            ]
            trial = None
            if len(ended_trials(optuna, study)) + len(running) < n_trials:
                waiting = study.get_trials(states=(states.WAITING,))
                number = waiting[0].number if waiting else len(study.trials)
                held.enter_context(file_lock(_trial_lock(folder, number)))
                study.sampler = _sampler(optuna, seed + number)
                trial = study.ask()
        yield trial


def others_run(optuna: Any, study: Any, folder: Path) -> bool:
    """Whether other processes that share the folder have trials under way."""
    running = study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
    return any(_trial_lock(folder, trial.number).is_file() for trial in running)


def _trial_lock(folder: Path, number: int) -> Path:
    return folder / "running" / f"{number}.lock"


def _sampler(optuna: Any, seed: int) -> Any:
    """TPE; another seed for every trial, or processes would try the same settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constraints are marked experimental
        return optuna.samplers.TPESampler(
            seed=seed,
            constant_liar=True,  # settings under way elsewhere are not tried again
            constraints_func=lambda trial: trial.user_attrs.get("constraints", [1.0]),
        )


def _requeued(optuna: Any, study: Any, folder: Path, trial: Any, *, elsewhere: bool) -> bool:
    """Close the trial of a killed process, if it is one, and put its settings into the queue."""
    path = _trial_lock(folder, trial.number)
    if elsewhere and not path.is_file():
        return False
    with file_lock(path, wait=False) as free:
        if not free:
            return False
        study.set_user_attr(f"interrupted {trial.number}", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)
    return True


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
