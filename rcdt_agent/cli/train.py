"""The command `rcdt train`, whose settings are those of the chosen algorithm."""

# Without `from __future__ import annotations`: the type of `config` is known when the command is
# made, and tyro reads it from the annotation.

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro

from rcdt_agent.base_config import BaseConfig, resolve_preset
from rcdt_agent.cli.console import check_output, echo
from rcdt_agent.errors import InvalidArgumentError, LostProcessError, SimulatorError
from rcdt_agent.variants import make_config

if TYPE_CHECKING:
    from rcdt_agent.experiments.runs import Run

Preset = Literal["auto", "paper", "cpu", "tiny"]

RESUMABLE = ("total-steps", "episodes", "evaluate", "no-evaluate", "checkpoint-every", "device")
"""Options that a resumed run can still change."""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What decides which settings there are, and their defaults."""

    algorithm: str = "rcdt"
    preset: str = "auto"
    variant: str | None = None
    device: str = "auto"


def train_command(arguments: Sequence[str]) -> Callable[..., int]:
    """The command for the algorithm, preset and variant that the arguments name.

    Args:
        arguments: As typed after `rcdt`, of any command.

    Raises:
        InvalidArgumentError: No such algorithm, preset or variant.
    """
    if list(arguments[:1]) != ["train"]:
        return _make_train(_Choice(), make_config("cpu"))
    from rcdt_agent.algorithms import get_algorithm

    choice, _ = tyro.cli(_Choice, args=arguments[1:], return_unknown_args=True, add_help=False)
    kind = get_algorithm(choice.algorithm)
    preset = resolve_preset(choice.preset, choice.device)
    return _make_train(choice, kind.make_config(preset, choice.variant), _named(arguments))


def _named(arguments: Sequence[str]) -> frozenset[str]:
    """The options that arguments name, without dashes and values."""
    options = (word.partition("=")[0] for word in arguments if word.startswith("--"))
    return frozenset(option[2:].replace("_", "-") for option in options)


def _make_train(
    choice: _Choice, default: BaseConfig, named: frozenset[str] = frozenset()
) -> Callable[..., int]:
    settings: Any = Annotated[type(default), tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")]

    def train(
        data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = None,
        *,
        algorithm: str = choice.algorithm,
        config: settings = default,
        preset: Preset = "auto",
        dataset: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
        output: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
        resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None,
        seed: int = 0,
        device: str = "auto",
        checkpoint_every: int = 1_000,
        evaluate: bool = True,
        episodes: int = 20,
    ) -> int:
        """Train an agent in a run folder, evaluate it at every budget, and plot the results.

        Ctrl-C and SIGTERM save a checkpoint and print the command that resumes the run.
        Several processes or GPUs: torchrun --nproc-per-node 4 -m rcdt_agent train DATA ...

        A letter after a setting is the source of its value in preset `paper`: (P) the paper,
        (C) the CDT code that it builds on, or a baseline's published code, (Q) the Q-regularised
        transformer, (I) our inference.
        {None}|FLOAT takes a number or the word None.

        Args:
            data: A task (its dataset is downloaded if needed), SpeedLimit, or an HDF5 file.
            algorithm: rcdt, bc, bc-safe, bcq-lag, bear-lag, cpq, coptidice, trac, fisor or caps;
                it determines the settings below.
            config: Settings of the algorithm; their defaults are the preset's and the variant's.
            preset: Sizes: as published, for two CPU cores in minutes, or for tests. auto: as
                published with a GPU, cpu without.
            dataset: An HDF5 file to use instead of the task's own.
            output: Run folder; by default runs/<data>-<algorithm or variant>-<seed>.
            resume: Run folder to continue with its own options, to its planned end or to
                --total-steps in all. Only --episodes, --evaluate, --checkpoint-every and --device
                can be changed besides.
            seed: The same seed gives the same agent.
            device: auto, cpu or cuda.
            checkpoint_every: Steps between checkpoints.
            evaluate: Evaluate at the end, if there is a simulator.
            episodes: Episodes per budget.
        """
        from rcdt_agent import distributed
        from rcdt_agent.experiments.runs import Run, RunOptions, start_run

        distributed.start()
        typed = f"{distributed.launcher()} {shlex.join(sys.argv[1:])}"
        if resume is not None:
            changed: dict[str, Any] = {"checkpoint_every": checkpoint_every, "device": device}
            if distributed.is_main():
                _change(Run(resume), data, named, config.total_steps, changed, episodes, typed)
            return _train(Run(resume), None)
        if data is None:
            raise InvalidArgumentError(
                "Say what to train on: a task, an HDF5 file or SpeedLimit; or `--resume RUN`."
            )
        options = RunOptions(
            data=data, config=config, algorithm=algorithm, dataset=dataset, seed=seed,
            device=device, checkpoint_every=checkpoint_every,
            episodes=episodes if evaluate else None, preset=_preset_of(choice, default),
            command=typed,
        )  # fmt: skip
        if preset == "auto":
            echo(f"Preset auto: {resolve_preset(preset, device)}")
        run = Run(output or Path("runs") / f"{Path(data).stem}-{options.method}-{seed}")
        if distributed.restarted() and run.started:
            return _train(run, None)
        check_output(run.options_file)
        return _train(*start_run(options, run.folder))

    return train


def _preset_of(choice: _Choice, default: BaseConfig) -> str | None:
    """The preset whose sizes the defaults are."""
    from rcdt_agent.algorithms import get_algorithm

    kind = get_algorithm(choice.algorithm)
    sized = [name for name in get_args(Preset) if name != "auto"]
    found = (name for name in sized if kind.make_config(name, choice.variant) == default)
    return next(found, None)


def _change(
    run: "Run",
    data: str | None,
    named: frozenset[str],
    total_steps: int,
    values: dict[str, Any],
    episodes: int,
    typed: str,
) -> None:
    """Write what `--resume` may change of a run into its folder; refuse the rest by name."""
    from rcdt_agent.experiments.runs import extend_run

    options = run.options()  # refuse what is no run folder
    refused = sorted(named - {"resume", *RESUMABLE})
    if data is not None or refused:
        words = " ".join(f"--{name}" for name in refused) or data
        raise InvalidArgumentError(
            f"`--resume` continues a run as it was started, so {words} cannot be said with it. "
            f"What can: {', '.join(f'--{name}' for name in RESUMABLE)}."
        )
    if "total-steps" in named:
        extend_run(run, total_steps, typed)
        options = run.options()
    changes = {key: value for key, value in values.items() if key.replace("_", "-") in named}
    if "no-evaluate" in named:
        changes["episodes"] = None
    elif "episodes" in named or ("evaluate" in named and options.episodes is None):
        changes["episodes"] = episodes
    run.write_options(replace(options, **changes))


def _train(run: "Run", agent: Any) -> int:
    """Train a started run to its goal; rank 0 evaluates it if it says so, and draws it."""
    from rcdt_agent import distributed
    from rcdt_agent.experiments.evaluate import add_to_report, evaluate_run
    from rcdt_agent.experiments.report import draw_run
    from rcdt_agent.experiments.runs import train_run

    with _saying_how_to_go_on(run):
        echo(f"Run folder: {run.folder}")
        agent = train_run(run, agent)
        is_main = distributed.is_main()
        distributed.stop()  # the others need not wait for the evaluation
        if not is_main:
            return 0
        episodes = run.options().episodes
        if episodes is not None:
            try:
                report = evaluate_run(agent, n_episodes=episodes)
            except (InvalidArgumentError, SimulatorError) as error:
                echo(f"Not evaluated: {error}")
            else:
                add_to_report(run, agent, report)
                echo(report.as_table())
        for path in draw_run(run):
            echo(f"Picture: {path}")
    return 0


@contextmanager
def _saying_how_to_go_on(run: "Run") -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if run.checkpoint is not None:
            echo(f"Checkpoint: {run.checkpoint}")
        echo(f"Go on with: {run.resume_command}")
        raise
    except LostProcessError as error:
        raise LostProcessError(f"{error} Go on with: {run.resume_command}") from error
