"""`rcdt tune`: a search for settings that earn most among those that keep every budget."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rcdt_agent._io import write_json
from rcdt_agent.errors import InvalidArgumentError, TrainingError
from rcdt_agent.experiments.benchmark.data import TaskData, prepare_data
from rcdt_agent.experiments.benchmark.methods import DEPLOYMENT_FIELDS, parse_method
from rcdt_agent.experiments.benchmark.protocol import Protocol
from rcdt_agent.experiments.cluster import Cluster, refuse_torchrun, use_threads
from rcdt_agent.experiments.search import VALIDATION_SEED, Search, run_trials, search_space
from rcdt_agent.experiments.sources import DataSource
from rcdt_agent.experiments.study import (
    Trial,
    best_trial,
    ended_trials,
    finished_trials,
    import_optuna,
)
from rcdt_agent.progress import progress

__all__ = ["VALIDATION_SEED", "TuneResult", "search_space", "tune"]


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
    storage: str | None = None,
    cluster: Cluster | None = None,
    device: str = "cpu",
    progress_bar: bool = False,
) -> TuneResult:
    """Search with Optuna's TPE: highest mean normalised return, every budget kept.

    Trials are kept in `folder`; a call with the same folder goes on where the last one stopped, in
    the middle of a training too. Calls of several processes share the trials.

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
        storage: URL of a database for the study; default: a journal file in `folder`.
        cluster: A Ray cluster to run trials on, instead of this process.
        device: Where to train.
        progress_bar: Show trials.

    Raises:
        InvalidArgumentError: No simulator is known for the data, or the folder is of another
            search.
    """
    refuse_torchrun("A search", "`ray`, or several times at once")
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
        storage=storage,
    )
    search.claim_folder()
    study = search.open_study(optuna)
    left = n_trials - len(ended_trials(optuna, study))
    with progress(progress_bar, total=n_trials, initial=n_trials - left, unit="trial") as bar:
        if cluster is None:
            run_trials(search, n_trials, on_end=partial(_show, optuna, bar))
        else:
            for _, error in cluster.run(
                _run_on_ray, range(max(left, 0)), search, n_trials, cluster
            ):
                if isinstance(error, Exception):
                    raise TrainingError(f"A trial could not be run on Ray: {error}") from error
                _show(optuna, bar, study)
    return _conclude(optuna, study, search)


# -------------------------------------------------------------------- parts


def _run_on_ray(_number: int, search: Search, n_trials: int, cluster: Cluster) -> None:
    """The task of a Ray worker: one trial, if one is left."""
    use_threads(cluster.cpus)
    run_trials(search, n_trials, most=1, on_end=lambda _: None)


def _show(optuna: Any, bar: Any, study: Any) -> None:
    found = finished_trials(optuna, study)
    if found:
        best = best_trial(found)
        kept = "" if best.feasible else " (no budget-keeping trial yet)"
        bar.set_postfix_str(f"return {best.normalized_return:.3f}{kept}", refresh=False)
    bar.update()


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
