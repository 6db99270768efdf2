"""The command `rcdt train`, whose settings are those of the chosen algorithm."""

# Without `from __future__ import annotations`: the type of `config` is known when the command is
# made, and tyro reads it from the annotation.

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rcdt_agent.base_config import BaseConfig, resolve_preset
from rcdt_agent.cli.console import echo
from rcdt_agent.config import make_config
from rcdt_agent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rcdt_agent.experiments.runs import Run, RunOptions

Preset = Literal["auto", "paper", "cpu", "tiny"]


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
    return _make_train(choice, kind.make_config(preset, choice.variant))


def _make_train(choice: _Choice, default: BaseConfig) -> Callable[..., int]:
    settings: Any = Annotated[type(default), tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")]

    def train(
        data: Annotated[str | None, tyro.conf.Positional] = None,
        *,
        algorithm: str = choice.algorithm,
        config: settings = default,
        preset: Preset = "auto",
        dataset: Path | None = None,
        output: Path | None = None,
        resume: Path | None = None,
        seed: int = 0,
        device: str = "auto",
        checkpoint_every: int = 1_000,
        evaluate: bool = True,
        episodes: int = 20,
    ) -> int:
        """Train an agent in a run folder, evaluate it at every budget, and draw the result.

        Args:
            data: A task (its dataset is downloaded if need be), SpeedLimit, or an HDF5 file.
            algorithm: rcdt, bc or bc-safe; the settings below are its own.
            config: Settings of the algorithm; their defaults are the preset's and the variant's.
            preset: Sizes: as published, for two CPU cores in minutes, or for tests. auto: as
                published with a GPU, cpu without.
            dataset: An HDF5 file to use instead of the task's own.
            output: Run folder; by default runs/<data>-<algorithm or variant>-<seed>.
            resume: Continue this run folder; nothing else needs to be said.
            seed: The same seed gives the same agent.
            device: auto, cpu or cuda.
            checkpoint_every: Steps between checkpoints.
            evaluate: Evaluate at the end, if there is a simulator.
            episodes: Episodes a budget.
        """
        from rcdt_agent.experiments.runs import Run, RunOptions

        n_episodes = episodes if evaluate else None
        if resume is not None:
            return _train(Run(resume), None, n_episodes)
        if data is None:
            raise InvalidArgumentError(
                "Say what to train on: a task, an HDF5 file or SpeedLimit; or `--resume RUN`."
            )
        options = RunOptions(
            data=data, config=config, algorithm=algorithm, dataset=dataset, seed=seed,
            device=device, checkpoint_every=checkpoint_every,
            command=shlex.join(["rcdt", *sys.argv[1:]]),
        )  # fmt: skip
        if preset == "auto":
            echo(f"Preset auto: {resolve_preset(preset, device)}")
        name = f"{Path(data).stem}-{options.method}-{seed}"
        return _train(Run(output or Path("runs") / name), options, n_episodes)

    return train


def _train(run: "Run", options: "RunOptions | None", n_episodes: int | None) -> int:
    """Start or resume a run, and evaluate it if a number of episodes is given."""
    from rcdt_agent.experiments.report import draw_run
    from rcdt_agent.experiments.runs import evaluate_run, start_run, train_run

    agent = None
    if options is None:
        run.options()  # refuse what is no run folder
    else:
        run, agent = start_run(options, run.folder)
    echo(f"Run folder: {run.folder}")
    agent = train_run(run, agent)
    if n_episodes is not None:
        report = evaluate_run(agent, n_episodes=n_episodes, echo=echo)
        if report is not None:
            report.to_json(run.report)
            echo(report.as_table())
    for path in draw_run(run):
        echo(f"Picture: {path}")
    return 0
