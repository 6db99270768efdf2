"""MetaDrive's assets, or the placeholder that is enough for its physics."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rcdt_agent.errors import SimulatorError

PLACEHOLDER_MARK = "RCDT_PLACEHOLDER.txt"
PULL_COMMAND = "python -m metadrive.pull_asset --update"
_CHECKED_TEXTURE = Path("textures", "grass1", "GroundGrassGreen002_COL_1K.jpg")


def prepare_assets() -> bool:
    """Make sure that MetaDrive starts, with its own assets or with a placeholder for them.

    Without rendering MetaDrive only asks whether its assets are there; when they are not, it
    would fetch them without a time limit. So it gets a placeholder, a folder that holds
    `RCDT_PLACEHOLDER.txt`, and nothing here ever uses the network. The real assets replace it by
    `python -m metadrive.pull_asset --update`, at any time.

    Returns:
        Whether the real assets are there.

    Raises:
        SimulatorError: MetaDrive is not installed, its folder cannot be written, or it holds
            assets of another release, which are left alone.
    """
    version = simulator_module("metadrive.version").VERSION
    folder = assets_folder()
    real = folder.is_dir() and any(folder.iterdir()) and not (folder / PLACEHOLDER_MARK).exists()
    if not _is_current(folder, version):
        if real:
            raise SimulatorError(
                f"{folder} holds assets that are not those of MetaDrive {version}: run "
                f"`{PULL_COMMAND}`, or remove the folder."
            )
        _write_placeholder(folder, version)
    return real


def _write_placeholder(folder: Path, version: str) -> None:
    """Build the folder aside and move it into place, as several processes may start at once."""
    staging: Path | None = None
    try:
        staging = Path(tempfile.mkdtemp(prefix="rcdt_assets_", dir=folder.parent))
        staging.chmod(0o755)
        (staging / _CHECKED_TEXTURE).parent.mkdir(parents=True)
        (staging / _CHECKED_TEXTURE).touch()
        (staging / "version.txt").write_text(f"{version}\n")
        (staging / PLACEHOLDER_MARK).write_text(
            "Placeholder of rcdt_agent: enough for MetaDrive's physics, not for rendering.\n"
            f"Replace it by the real assets with: {PULL_COMMAND}\n"
        )
        if (folder / PLACEHOLDER_MARK).exists():  # left behind by another release
            shutil.rmtree(folder)
        staging.rename(folder)
    except OSError as error:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if not _is_current(folder, version):  # otherwise another process was faster
            raise SimulatorError(
                f"MetaDrive needs {folder}, which cannot be written ({error}). Run once as a user "
                "who may write there, or install MetaDrive in a virtual environment of your own."
            ) from error


def _is_current(folder: Path, version: str) -> bool:
    """Whether MetaDrive accepts the folder; otherwise it would start a download by itself."""
    try:
        found = (folder / "version.txt").read_text().split("\n")[0].replace(" ", "")
    except OSError:
        return False
    return found == version and (folder / _CHECKED_TEXTURE).exists()


def assets_folder() -> Path:
    """Where MetaDrive looks for its assets."""
    return Path(simulator_module("metadrive").__file__).parent / "assets"


def simulator_module(name: str) -> Any:
    """Import a module of MetaDrive.

    Raises:
        SimulatorError: It cannot be imported; the message says what to run.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SimulatorError(
            f"MetaDrive cannot be imported ({error}). Run `rcdt install-simulators metadrive`."
        ) from error
