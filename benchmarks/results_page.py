"""Put a benchmark's results into the documentation: JSON, tables and pictures.

    rcdt benchmark ... --output results
    python benchmarks/results_page.py results docs

writes docs/results.json, fills the tables between the marks of docs/results.md, and draws
docs/images/results_*.png. `--also unseen=FOLDER degraded=FOLDER` adds further benchmarks, whose
tables are marked `unseen/main`, and whose JSON is docs/results_unseen.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from rcdt_agent.experiments.benchmark import collect_results, dump_results, fill_page
from rcdt_agent.experiments.benchmark.plots import draw_frontiers


@dataclass
class Settings:
    folder: tyro.conf.Positional[Path]
    docs: tyro.conf.Positional[Path] = Path("docs")
    also: tuple[str, ...] = ()


def store(folder: Path, docs: Path, page: str, name: str = "") -> str:
    """Write one benchmark's JSON and pictures, and fill its tables in the page."""
    results = collect_results(folder)
    stem = f"results_{name}" if name else "results"
    (docs / f"{stem}.json").write_text(dump_results(results))
    for path in draw_frontiers(folder, results):
        if name and not path.name.startswith("frontier-"):
            continue  # over all tasks: of the main benchmark alone
        picture = path.name.lower().replace("-", "_").removeprefix("frontier_")
        (docs / "images" / f"{stem}_{picture}").write_bytes(path.read_bytes())
    return fill_page(page, results, prefix=f"{name}/" if name else "")


def main(settings: Settings) -> None:
    """Rebuild everything that comes from results."""
    page = settings.docs / "results.md"
    text = store(settings.folder, settings.docs, page.read_text())
    for entry in settings.also:
        name, _, folder = entry.partition("=")
        text = store(Path(folder), settings.docs, text, name)
    page.write_text(text)


if __name__ == "__main__":
    main(tyro.cli(Settings))
