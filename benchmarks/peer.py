"""The peer: `osrl-lib` from the package index, without its dependencies, in a folder of its own.

Only its files are loaded, one by one; its own `__init__` modules pull in an unmaintained stack.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "build" / "peer"
REQUIREMENT = "osrl-lib==0.1.0"


def load(relative: str) -> ModuleType:
    """Load one file of the peer as a module, e.g. `common/dataset.py`."""
    path = FOLDER / "osrl" / relative
    if not path.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(FOLDER), REQUIREMENT], check=True)
    name = f"peer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints about a missing optional package
        spec.loader.exec_module(module)
    return module
