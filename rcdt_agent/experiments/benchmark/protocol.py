"""What is the same for every cell of a benchmark's folder, and the note of it in the folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcdt_agent._io import read_json, write_json
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark.data import TaskData
from rcdt_agent.experiments.benchmark.methods import Method
from rcdt_agent.variants import PRESETS

_EMPTY: dict[str, Any] = {"tasks": {}, "methods": {}, "seeds": [], "commands": []}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is the same for every cell of a folder.

    Attributes:
        preset: Sizes: paper, cpu or tiny.
        steps: Gradient steps; None: the preset's.
        episodes: Episodes a budget.
        holdout: Share of trajectories kept from training, for the critics' error.
    """

    preset: str = "cpu"
    steps: int | None = None
    episodes: int = 20
    holdout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values outside their rules."""
        for name, holds, rule in (
            ("preset", self.preset in PRESETS, f"one of {tuple(PRESETS)}"),
            ("steps", self.steps is None or self.steps >= 1, ">= 1"),
            ("episodes", self.episodes >= 1, ">= 1"),
            ("holdout", 0 <= self.holdout < 1, "in [0, 1)"),
        ):
            if not holds:
                raise InvalidArgumentError(f"`{name}` must be {rule}, got {getattr(self, name)!r}.")

    def arguments(self) -> list[str]:
        """Of the command line."""
        arguments = ["--preset", self.preset, "--episodes", str(self.episodes)]
        if self.steps:
            arguments += ["--steps", str(self.steps)]
        if self.holdout:
            arguments += ["--holdout", str(self.holdout)]
        return arguments


def check_protocol(folder: Path, protocol: Protocol) -> None:
    """Refuse to mix sizes in one folder."""
    before = read_json(folder / "protocol.json")
    if before is None:
        return
    for name, value in vars(protocol).items():
        if before["protocol"][name] != value:
            raise InvalidArgumentError(
                f"{folder} was begun with {name}={before['protocol'][name]}, now {name}={value} is "
                f"asked for: name another `output`."
            )


def note_protocol(
    folder: Path,
    protocol: Protocol,
    tasks: Sequence[TaskData],
    methods: Sequence[Method],
    seeds: Sequence[int],
    command: str = "",
) -> None:
    """Add what is requested to what the folder holds already."""
    before = read_json(folder / "protocol.json") or _EMPTY
    write_json(
        folder / "protocol.json",
        {
            "protocol": vars(protocol),
            "tasks": {**before["tasks"], **{data.label: data.to_dict() for data in tasks}},
            "methods": {**before["methods"], **{m.name: m.to_dict() for m in methods}},
            "seeds": sorted({*before["seeds"], *seeds}),
            "commands": list(dict.fromkeys([*before["commands"], *([command] if command else [])])),
        },
    )


def rerun_command(data: TaskData, method: str, seed: int, protocol: Protocol) -> str:
    """The command that makes one cell again, in a new folder."""
    if not data.by_protocol:
        return _compare_command(data, method, seed, protocol)
    command = ["rcdt", "benchmark", "--tasks", data.short]
    if data.source:
        command += ["--datasets", f"{data.short}={data.source}"]
    if data.variant:
        command += ["--variant-of-data", data.variant]
    command += ["--methods", method, "--seeds", str(seed), *protocol.arguments()]
    return shlex.join([*command, "--output", "rerun"])


def _compare_command(data: TaskData, method: str, seed: int, protocol: Protocol) -> str:
    """The same for a cell of `rcdt compare`."""
    command = ["rcdt", "compare", data.source or data.short, "--methods", method]
    if data.offline:
        command.append("--offline")
    elif data.env or data.task:
        command += ["--env", data.env] if data.env else ["--task", data.short]
    command += ["--budgets", *(f"{budget:g}" for budget in data.budgets), "--seeds", str(seed)]
    command += ["--preset", protocol.preset, "--episodes", str(protocol.episodes)]
    command += ["--steps", str(protocol.steps)] if protocol.steps else []
    return shlex.join([*command, "--output", "rerun"])
