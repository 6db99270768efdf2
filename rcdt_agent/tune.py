"""`rcdt tune`: a search for settings that earn most among those that keep every budget."""

from __future__ import annotations

import hashlib
import json
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import read_json, write_json
from rcdt_agent.benchmark.cells import Cell, roll_out, train_cell
from rcdt_agent.benchmark.data import SPEED_LIMIT, TaskData, prepare_data
from rcdt_agent.benchmark.methods import BASELINES, DEPLOYMENT_FIELDS, Method, parse_method
from rcdt_agent.config import Config
from rcdt_agent.errors import InvalidArgumentError, RCDTError
from rcdt_agent.progress import progress
from rcdt_agent.tasks.registry import guess_task

VALIDATION_SEED = 2_000_000
"""Episode e of a trial is reset with this plus e: apart from the tests' seeds (1000 s + e for
training seed s) and from those of calibration (1 000 000 + e)."""

STUDY = "rcdt"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting that was tried.

    Attributes:
        number: In order of time.
        settings: Fields of `Config`.
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


def search_space(config: Config) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """What is searched: field -> (choice or log or linear, values or bounds).

    Only what acts in the variant: eta where there is Q guidance, alpha and gamma where there are
    trajectory weights.
    """
    rate = config.learning_rate
    space: dict[str, tuple[str, tuple[Any, ...]]] = {
        "learning_rate": ("log", (rate / 3, rate * 3)),
        "target_quantile": ("linear", (0.5, 0.95)),
        "context_length": ("choice", (5, 10, 20)),
    }
    if config.q_guidance:
        space["eta"] = ("choice", (0.1, 0.3, 0.5))  # the paper's grid
    if config.weighting == "return_cost":
        space["alpha"] = ("log", (0.3, 3.0))
        space["gamma"] = ("log", (0.01, 0.3))
    return space


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
        data: A DSRL task, an HDF5 file named after one, or SpeedLimit.
        folder: For the study, the policies and the result.
        dataset: A file to use instead of the task's own.
        method: Variant and switches, which are kept fixed.
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
    optuna = _optuna()
    if n_trials < 1 or episodes < 1:
        raise InvalidArgumentError(
            f"`n_trials` and `episodes` must be >= 1, got {n_trials} and {episodes}."
        )
    fixed = parse_method(method)
    if fixed.base in BASELINES:
        raise InvalidArgumentError(f"`method` must be a variant, got {method!r}.")
    prepared = _prepare(data, dataset, folder)
    asked = {
        "task": prepared.task, "fingerprint": prepared.fingerprint, "method": method,
        "preset": preset, "steps": steps, "episodes": episodes, "seed": seed,
    }  # fmt: skip
    before = read_json(folder / "tune.json")
    if before not in (None, asked):
        changed = [name for name in asked if before.get(name) != asked[name]]
        raise InvalidArgumentError(
            f"{folder} holds a search with {changed[0]}={before.get(changed[0])}, now "
            f"{asked[changed[0]]} is asked for: name another `output`."
        )
    write_json(folder / "tune.json", asked)
    space = {
        name: values
        for name, values in search_space(fixed.make_config(preset, steps)).items()
        if name not in fixed.config
    }

    def objective(trial: Any) -> float:
        settings = {name: _suggest(trial, name, *values) for name, values in space.items()}
        tried = Method(
            name=method,
            base=fixed.base,
            config={**fixed.config, **settings},
            deploy=fixed.deploy,
            prepare=fixed.prepare,
        )
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        cell = Cell(
            folder=folder / "trials" / digest,
            data=prepared, training=tried, methods=(tried,), seed=seed, preset=preset, steps=steps,
            episodes=episodes, device=device,
        )  # fmt: skip
        try:
            if not cell.trained:
                train_cell(cell)
            report = roll_out(cell, tried, VALIDATION_SEED)
        except RCDTError as error:
            trial.set_user_attr("error", str(error))
            raise
        low, high = prepared.return_range
        ratios = [float(r.mean_cost / r.budget) for r in report.results]
        trial.set_user_attr("normalized_costs", ratios)
        trial.set_user_attr("constraints", [ratio - 1 for ratio in ratios])
        return float(np.mean([(r.mean_return - low) / (high - low) for r in report.results]))

    study = _open_study(optuna, folder, seed)
    _forget_interrupted(optuna, study)
    left = n_trials - len(_ended(optuna, study))
    with progress(progress_bar, total=n_trials, initial=n_trials - left, unit="trial") as bar:

        def show(study: Any, trial: Any) -> None:
            found = _trials(optuna, study)
            if found:
                best = _best(found)
                kept = "" if best.feasible else " (no budget-keeping trial yet)"
                bar.set_postfix_str(f"return {best.normalized_return:.3f}{kept}", refresh=False)
            bar.update()

        if left > 0:
            study.optimize(objective, n_trials=left, catch=(RCDTError,), callbacks=[show])
    trials = _trials(optuna, study)
    if not trials:
        reasons = {t.user_attrs["error"] for t in study.trials if "error" in t.user_attrs}
        raise InvalidArgumentError(f"Every trial failed: {'; '.join(sorted(reasons))}")
    best = _best(trials)
    result = TuneResult(
        trials=tuple(trials),
        failed=len(_ended(optuna, study)) - len(trials),
        best=best,
        command=_command(prepared, fixed, best, preset, steps, seed),
    )
    write_json(
        folder / "best.json",
        {
            "settings": best.settings,
            "feasible": best.feasible,
            "normalized_return": best.normalized_return,
            "normalized_costs": best.normalized_costs,
            "budgets": prepared.budgets,
            "validation_seeds": [VALIDATION_SEED, VALIDATION_SEED + episodes - 1],
            "trials": len(trials),
            "command": result.command,
        },
    )
    return result


# -------------------------------------------------------------------- parts


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InvalidArgumentError(
            "Tuning needs the extra: `pip install rcdt_agent[tune]`."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _prepare(data: str, dataset: Path | None, folder: Path) -> TaskData:
    path = Path(data)
    if path.suffix in (".hdf5", ".h5") or path.is_file():
        task = guess_task(path.name)
        if task is None:
            raise InvalidArgumentError(
                f"No task is named at the start of {path.name!r}, so there is no simulator to try "
                f"settings in: give the task and `dataset`."
            )
        data, dataset = task.id, path
    return prepare_data(data, dataset, folder, variant=None, holdout=0.0)


def _open_study(optuna: Any, folder: Path, seed: int) -> Any:
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


def _forget_interrupted(optuna: Any, study: Any) -> None:
    """Close the trials of a killed process and put their settings first in the queue."""
    states = optuna.trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        study.set_user_attr(f"interrupted {trial.number}", True)
        study.tell(trial.number, state=states.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)


def _ended(optuna: Any, study: Any) -> list[Any]:
    """Trials that came to an end: complete, or failed by themselves."""
    states = optuna.trial.TrialState
    return [
        trial
        for trial in study.get_trials(states=(states.COMPLETE, states.FAIL))
        if f"interrupted {trial.number}" not in study.user_attrs
    ]


def _trials(optuna: Any, study: Any) -> list[Trial]:
    return [
        Trial(
            number=trial.number,
            settings=dict(trial.params),
            normalized_return=float(trial.value),
            normalized_costs=tuple(trial.user_attrs["normalized_costs"]),
        )
        for trial in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    ]


def _best(trials: list[Trial]) -> Trial:
    feasible = [trial for trial in trials if trial.feasible]
    if feasible:
        return max(feasible, key=lambda trial: trial.normalized_return)
    return min(trials, key=lambda trial: max(trial.normalized_costs))


def _suggest(trial: Any, name: str, kind: str, values: tuple[Any, ...]) -> Any:
    if kind == "choice":
        return trial.suggest_categorical(name, list(values))
    return trial.suggest_float(name, *values, log=kind == "log")


def _command(
    data: TaskData, fixed: Method, best: Trial, preset: str, steps: int | None, seed: int
) -> str:
    words = ["rcdt", "train"]
    if data.task == SPEED_LIMIT:  # which has no dataset of its own to replace
        words.append(data.source or SPEED_LIMIT)
    else:
        words += [data.task, *(["--dataset", data.source] if data.source else [])]
    words += ["--variant", fixed.base, "--preset", preset, "--seed", str(seed)]
    deployed = {name: fixed.deploy[name] for name in fixed.deploy if name in DEPLOYMENT_FIELDS}
    settings = {**fixed.config, **deployed, **best.settings}
    if steps:
        settings["total_steps"] = steps
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [
                f"--{option}",
                *(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values),
            ]
    return shlex.join(words)
