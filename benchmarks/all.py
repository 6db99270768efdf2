"""All benchmarks one after the other; their tables, and one JSON file of them.

python benchmarks/all.py [--json build/bench.json] [--previous FOLDER]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

PROGRAMS = ("data", "train", "predict", "rollout", "preset")


def markdown(found: dict[str, Any]) -> str:
    """The tables of all programs in one, as the documentation shows it."""
    lines = ["| | ours, ms | other, ms | times faster | wanted |", "|---|---|---|---|---|"]
    for name in PROGRAMS:
        for row in found[name]["rows"]:
            spread = f"{row['times_faster']:.1f} ({row['least']:.1f} to {row['most']:.1f})"
            wanted = "" if row["wanted"] is None else f"{row['wanted']:g}"
            figures = f"{row['ours_ms']:.2f} | {row['peer_ms']:.1f}"
            lines.append(f"| {row['what']} | {figures} | {spread} | {wanted} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--previous", type=Path, help="another checkout, for preset.py")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:
            path = Path(folder) / f"{name}.json"
            command = [sys.executable, str(here / f"{name}.py"), "--json", str(path)]
            if name == "preset" and options.previous:
                command += ["--previous", str(options.previous)]
            subprocess.run(command, check=True)
            found[name] = json.loads(path.read_text())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n")
    print("\n" + markdown(found))
    print(f"\nwritten to {options.json}")


if __name__ == "__main__":
    main()
