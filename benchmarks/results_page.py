"""Put a benchmark's results into the documentation: JSON, tables and pictures.

    rcdt benchmark ... --output results
    python benchmarks/results_page.py results docs

writes docs/results.json, fills the tables between the marks of docs/results.md, and draws
docs/images/results_*.png. `--tasks` names the tasks to show, where a folder has more of them.
`--also more=FOLDER:TASK,TASK degraded=FOLDER` adds further benchmarks, or other tasks of the same
one, whose tables are marked `more/main`, and whose JSON is docs/results_more.json. Tables that the
README shows are filled in there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from PIL import Image

from rcdt_agent.experiments.benchmark import collect_results, dump_results, fill_page
from rcdt_agent.experiments.benchmark.plots import draw_frontiers


@dataclass
class Settings:
    folder: tyro.conf.Positional[Path]
    docs: tyro.conf.Positional[Path] = Path("docs")
    tasks: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def store(
    folder: Path, docs: Path, pages: list[Path], name: str = "", tasks: Sequence[str] = ()
) -> None:
    """Write one benchmark's JSON and pictures, and fill its tables in the pages."""
    results = collect_results(folder, tasks)
    stem = f"results_{name}" if name else "results"
    (docs / f"{stem}.json").write_text(dump_results(results))
    for path in draw_frontiers(folder, results):
        if name and not path.name.startswith("frontier-"):
            continue  # over all tasks: of the main benchmark alone
        picture = path.name.lower().replace("-", "_").removeprefix("frontier_")
        few_colours = Image.open(path).convert("RGB").quantize(128)  # a third of the bytes
        few_colours.save(docs / "images" / f"{stem}_{picture}", optimize=True)
    for page in pages:
        text = fill_page(page.read_text(), results, prefix=f"{name}/" if name else "")
        page.write_text(text)


def main(settings: Settings) -> None:
    """Rebuild everything that comes from results."""
    pages = [settings.docs / "results.md", settings.docs.parent / "README.md"]
    store(settings.folder, settings.docs, pages, tasks=settings.tasks)
    for entry in settings.also:
        name, _, source = entry.partition("=")
        folder, _, tasks = source.partition(":")
        store(Path(folder), settings.docs, pages, name, tasks.split(",") if tasks else ())


if __name__ == "__main__":
    main(tyro.cli(Settings))
