"""The `rcdt` command line: thin commands over the library; heavy imports happen inside them."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from rcdt_agent.cli_benchmark import benchmark, tune
from rcdt_agent.cli_collect import collect
from rcdt_agent.cli_export import convert, export
from rcdt_agent.config import PRESETS, Config, make_config
from rcdt_agent.errors import InvalidArgumentError, RCDTError
from rcdt_agent.tasks.registry import SUITES, TASKS, Suite

app = tyro.extras.SubcommandApp()
console = Console()
SuiteName = Literal["bullet", "safety-gymnasium", "metadrive"]


@app.command
def doctor() -> int:
    """Show what is installed and really step each simulator; exit code 1 if one is broken."""
    from rcdt_agent.doctor import run_checks

    colours = {"ok": "green", "missing": "yellow", "broken": "red"}
    table = Table("check", "status", "detail", title="rcdt doctor")
    with console.status("stepping the simulators ..."):
        checks = run_checks()
    for check in checks:
        colour = colours[check.status]
        table.add_row(check.name, f"[{colour}]{check.status}[/]", check.detail)
    console.print(table)
    return int(any(check.status == "broken" for check in checks))


@app.command
def tasks(*, suite: SuiteName | None = None) -> int:
    """List the DSRL tasks: ids, episode length, published ranges and evaluation budgets.

    Args:
        suite: Only this simulator family.
    """
    table = Table("task", "suite", "steps", "return", "cost", "budgets", "dataset file")
    for task in TASKS.values():
        if suite in (None, task.suite):
            low, high = task.return_range
            table.add_row(
                task.id,
                task.suite,
                str(task.episode_length),
                f"{low:.4g} .. {high:.4g}",
                f"{task.cost_range[0]:.4g} .. {task.cost_range[1]:.4g}",
                " ".join(f"{budget:g}" for budget in task.budgets),
                task.dataset_file,
            )
    console.print(table)
    return 0


@app.command(name="install-simulators")
def install_simulators_command(
    suites: Annotated[tuple[SuiteName, ...], tyro.conf.Positional] = (),
    *,
    constraints: Path | None = None,
) -> int:
    """Install the simulators in the versions that are tested together.

    Args:
        suites: Which families; none named means all three.
        constraints: Another file of versions to keep to.
    """
    from rcdt_agent.tasks.install import CONSTRAINTS, install_simulators

    chosen: tuple[Suite, ...] = suites or SUITES
    install_simulators(
        chosen,
        constraints=constraints or CONSTRAINTS,
        say=lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False),
    )
    console.print(f"Installed: {', '.join(chosen)}. `rcdt doctor` checks that they run.")
    return 0


@app.command
def inspect(
    file: Annotated[Path, tyro.conf.Positional],
    *,
    output: Path | None = None,
    task: str | None = None,
    cost_limit: float | None = None,
    alpha: float = 1.0,
    gamma: float = 0.1,
) -> int:
    """Describe a dataset file and draw its return-cost plane.

    Args:
        file: HDF5 file in DSRL's layout.
        output: PNG to write; by default the file's name with .png in the current folder.
        task: Task whose budgets are shown; guessed from the file name.
        cost_limit: c_lim of the trajectory weights; by default the middle budget.
        alpha: Sensitivity of the weights to return.
        gamma: Sensitivity of the weights to cost.
    """
    from rcdt_agent.inspection import inspect_file

    path = output or Path(f"{file.stem}.png")
    tables = inspect_file(file, path, task=task, cost_limit=cost_limit, alpha=alpha, gamma=gamma)
    for title, rows in tables.items():
        table = Table(*rows[0], title=title)
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    console.print(f"Picture: {path}")
    return 0


@app.command
def evaluate(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: str | None = None,
    budgets: tuple[float, ...] = (),
    episodes: int = 20,
    seed: int = 0,
    output: Path | None = None,
) -> int:
    """Roll a trained agent out at every cost budget and print the table.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets; by default those of the task.
        episodes: Episodes a budget.
        seed: Episode e is reset with seed + e.
        output: JSON file for the report; by default report.json in the run folder.
    """
    from rcdt_agent.agent import RCDT
    from rcdt_agent.runs import Run, evaluate_run

    is_run = agent.is_dir()
    loaded = Run(agent).agent() if is_run else RCDT.load(agent)
    source = env or (Run(agent).options()["data"] if is_run else "")
    if env is not None and env.lower() not in ("speedlimit", "rcdt_agent/speedlimit-v0"):
        report = loaded.evaluate(env, budgets or None, episodes, seed, progress_bar=True)
    else:
        found = evaluate_run(
            loaded, source, budgets=budgets or None, n_episodes=episodes, seed=seed, say=_say
        )
        if found is None:
            return 1
        report = found
    target = output or (Run(agent).report if is_run else None)
    if target is not None:
        report.to_json(target)
        _say(f"Report: {target}")
    _say(report.as_table())
    return 0


@app.command
def calibrate(
    agent: Annotated[Path, tyro.conf.Positional],
    *,
    env: str | None = None,
    budgets: tuple[float, ...] = (),
    episodes: int = 20,
    seed: int = 1_000_000,
    confidence: float = 0.95,
    output: Path | None = None,
) -> int:
    """Measure which token keeps each cost budget, and store it in the agent.

    Args:
        agent: A run folder or a checkpoint.
        env: A task or environment id; by default the one it was trained for.
        budgets: Cost budgets that will be asked for; by default those of the task.
        episodes: Episodes a token; ten tokens are measured.
        seed: Episode e is reset with seed + e; not the seeds of an evaluation.
        confidence: One-sided, of the bound on the mean cost.
        output: Where to write the agent; by default over the one given.
    """
    from rcdt_agent.agent import RCDT
    from rcdt_agent.runs import Run, simulator_of

    is_run = agent.is_dir()
    loaded = Run(agent).agent() if is_run else RCDT.load(agent)
    source = env or (Run(agent).options()["data"] if is_run else "")
    where, usual = simulator_of(loaded, source)
    found = loaded.calibrate(
        where, budgets or usual, episodes, seed, confidence=confidence, progress_bar=True
    )
    target = output or (Run(agent).final if is_run else agent)
    loaded.save(target)
    bound = f"{confidence:.0%} bound"
    _say(f"{'token':>8} {'cost':>8} {bound:>10}")
    for token, cost, upper in zip(found.tokens, found.costs, found.upper, strict=True):
        _say(f"{token:>8.3g} {cost:>8.2f} {upper:>10.2f}")
    for budget in budgets or usual or ():
        _say(f"budget {budget:g}: token {float(found.token(budget)):.3g}")
        found.warn_if_uncovered(budget)
    _say(f"Calibrated agent: {target}")
    return 0


@app.command
def plot(run: Annotated[Path, tyro.conf.Positional]) -> int:
    """Draw a run: learning curves, and the agent on the data's return-cost frontier.

    Args:
        run: A run folder.
    """
    from rcdt_agent.runs import Run, draw_run

    found = Run(run)
    found.options()
    written = draw_run(found)
    _say("\n".join(map(str, written)) or "Nothing to draw yet: no log and no report.")
    return 0


@app.command
def report(run: Annotated[Path, tyro.conf.Positional], *, output: Path | None = None) -> int:
    """Write one HTML page about a run: budgets, frontier, calibration, curves, settings.

    Args:
        run: A run folder.
        output: HTML file; by default report.html in the run folder.
    """
    from rcdt_agent.report import write_report
    from rcdt_agent.runs import Run

    _say(f"Report: {write_report(Run(run), output)}")
    return 0


def train(
    data: Annotated[str | None, tyro.conf.Positional] = None,
    *,
    config: Annotated[Config, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="")],
    preset: Literal["paper", "cpu", "tiny"] = "cpu",
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
        data: A DSRL task (its dataset is downloaded if need be), an HDF5 file, or SpeedLimit.
        config: Settings of the agent; their defaults are the preset's and the variant's.
        preset: Sizes: as published, for two CPU cores in minutes, or for tests.
        dataset: An HDF5 file to use instead of the task's own.
        output: Run folder; by default runs/<data>-<variant>-<seed>.
        resume: Continue this run folder; nothing else needs to be said.
        seed: The same seed gives the same agent.
        device: auto, cpu or cuda.
        checkpoint_every: Steps between checkpoints.
        evaluate: Evaluate at the end, if there is a simulator.
        episodes: Episodes a budget.
    """
    from rcdt_agent.runs import Run, draw_run, evaluate_run, start_run, train_run

    if resume is not None:
        run = Run(resume)
        run.options()
    elif data is None:
        raise InvalidArgumentError(
            "Say what to train on: a task, an HDF5 file or SpeedLimit; or `--resume RUN`."
        )
    else:
        name = f"{Path(data).stem}-{config.variant}-{seed}"
        run = start_run(
            data,
            config,
            output or Path("runs") / name,
            dataset=dataset,
            seed=seed,
            device=device,
            checkpoint_every=checkpoint_every,
            command=shlex.join(["rcdt", *sys.argv[1:]]),
        )
    _say(f"Run folder: {run.folder}")
    agent = train_run(run)
    if evaluate:
        report = evaluate_run(agent, run.options()["data"], n_episodes=episodes, say=_say)
        if report is not None:
            report.to_json(run.report)
            _say(report.as_table())
    for path in draw_run(run):
        _say(f"Picture: {path}")
    return 0


app.command(collect)
app.command(benchmark)
app.command(tune)
app.command(convert)
app.command(export)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _with_train(arguments: list[str]) -> tyro.extras.SubcommandApp:
    """Add `train`, whose options take their defaults from the preset and variant asked for."""
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--preset", choices=tuple(PRESETS), default="cpu")
    known.add_argument("--variant", default=None)
    default = make_config("cpu")
    if arguments[:1] == ["train"]:
        chosen, _ = known.parse_known_args(arguments[1:])
        default = make_config(chosen.preset, chosen.variant)
    assert train.__kwdefaults__ is not None
    train.__kwdefaults__["config"] = default
    app.command(train)
    return app


def main() -> None:
    """Entry point: run a command, print the package's own errors as one line."""
    try:
        code = _with_train(sys.argv[1:]).cli(
            prog="rcdt", description="Train once offline, choose the cost budget later."
        )
    except RCDTError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
    sys.exit(code)
