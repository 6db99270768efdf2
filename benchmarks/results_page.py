"""Put a benchmark's results into the documentation: JSON, tables and pictures.

    rcdt benchmark ... --output results
    python benchmarks/results_page.py results docs

writes docs/results.json, fills the tables between the marks of docs/results.md, and draws
docs/images/results_*.png. `--degraded FOLDER` adds a benchmark of degraded data, whose marks begin
with `degraded/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from rcdt_agent.experiments.benchmark import collect_results, dump_results, fill_page
from rcdt_agent.experiments.benchmark.plots import draw_frontiers
from rcdt_agent.experiments.benchmark.results import Results


@dataclass
class Settings:
    folder: tyro.conf.Positional[Path]
    docs: tyro.conf.Positional[Path] = Path("docs")
    degraded: Path | None = None


def store(folder: Path, name: Path, page: str, prefix: str) -> tuple[str, Results]:
    """Write one benchmark's JSON and fill its tables."""
    results = collect_results(folder)
    name.write_text(dump_results(results))
    return fill_page(page, results, prefix=prefix), results


def main(settings: Settings) -> None:
    """Rebuild everything that comes from results."""
    docs, page = settings.docs, settings.docs / "results.md"
    text, results = store(settings.folder, docs / "results.json", page.read_text(), "")
    if settings.degraded is not None:
        text, _ = store(settings.degraded, docs / "results_degraded.json", text, "degraded/")
    page.write_text(text)
    for path in draw_frontiers(settings.folder, results):
        name = path.name.lower().replace("-", "_").removeprefix("frontier_")
        (docs / "images" / f"results_{name}").write_bytes(path.read_bytes())


if __name__ == "__main__":
    main(tyro.cli(Settings))
