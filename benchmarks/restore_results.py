"""Make a benchmark's folder again from its published JSON, so that only what is missing is run.

    python benchmarks/restore_results.py docs/results.json results
    rcdt benchmark ... --output results

The trained policies are not in the JSON: what is restored counts as finished, and is not trained or
evaluated again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from rcdt_agent._io import read_json, write_json
from rcdt_agent.experiments.benchmark.cells import evaluation_file, training_file
from rcdt_agent.experiments.benchmark.methods import Method


@dataclass
class Settings:
    results: tyro.conf.Positional[Path]
    folder: tyro.conf.Positional[Path]
    methods: tuple[str, ...] = ()
    """Only these; all without."""


def main(settings: Settings) -> None:
    """Write what `rcdt benchmark` writes when it has finished these cells."""
    results = read_json(settings.results)
    wanted = settings.methods or tuple(results["methods"])
    methods = {name: results["methods"][name] for name in wanted}
    noted = {key: results[key] for key in ("commands", "protocol", "tasks", "seeds")}
    write_json(settings.folder / "protocol.json", noted | {"methods": methods})
    for cell in results["cells"]:
        if cell["method"] in methods:
            place = settings.folder / "cells" / cell["training"]
            method = Method.from_dict(methods[cell["method"]])
            write_json(training_file(place), results["trainings"][cell["training"]])
            write_json(evaluation_file(place, method), cell["evaluation"])


if __name__ == "__main__":
    main(tyro.cli(Settings))
