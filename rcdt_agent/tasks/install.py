"""Installation of the simulators in their tested versions, for `rcdt install-simulators`.

`dsrl`, `bullet-safety-gym` and `safety-gymnasium` pin packages that cannot be built on current
Pythons and that they never import. So their real requirements (the extras of this package) are
installed first, and they themselves without their declared dependencies.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from rcdt_agent.errors import InvalidArgumentError, SimulatorError
from rcdt_agent.tasks.registry import SUITES, Suite

CONSTRAINTS = Path(__file__).with_name("constraints.txt")

WITHOUT_DEPENDENCIES: dict[Suite, tuple[str, ...]] = {
    "bullet": ("dsrl==0.1.0", "bullet-safety-gym==1.4.0"),
    "safety-gymnasium": ("dsrl==0.1.0", "safety-gymnasium==0.4.0"),
    "metadrive": ("dsrl==0.1.0",),
}


def install_commands(
    suites: Sequence[Suite] = SUITES, *, constraints: Path = CONSTRAINTS
) -> list[list[str]]:
    """The installer calls, in order, that make the given simulators run.

    Args:
        suites: Which simulators; all by default.
        constraints: A file of versions to keep to; the tested stack by default.
    """
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown or not suites:
        raise InvalidArgumentError(f"`suites` must be one or more of {SUITES}, got {suites}.")
    if not constraints.is_file():
        raise InvalidArgumentError(f"`constraints` must be a file, got {constraints}.")
    requirements = [text for suite in suites for text in _extra_requirements(suite)]
    bare = [text for suite in suites for text in WITHOUT_DEPENDENCIES[suite]]
    install = [*_installer(), "install"]
    return [
        [*install, "-c", str(constraints), *dict.fromkeys(requirements)],
        [*install, "--no-deps", *dict.fromkeys(bare)],
    ]


def install_simulators(
    suites: Sequence[Suite] = SUITES,
    *,
    constraints: Path = CONSTRAINTS,
    echo: Callable[[str], None] = lambda line: None,
) -> None:
    """Run `install_commands`, announcing each through `echo` before it runs.

    Raises:
        SimulatorError: A step failed; the message holds the command to run by hand.
    """
    if sys.version_info >= (3, 12):
        echo(
            "Note: on Python 3.12 pybullet has no ready-made wheel (it is compiled, which needs a "
            "C++ compiler and several minutes), and MetaDrive cannot be installed. Python 3.11 has "
            "both."
        )
    for command in install_commands(suites, constraints=constraints):
        echo(f"$ {shlex.join(command)}")
        if subprocess.run(command, check=False).returncode != 0:
            raise SimulatorError(
                f"The installation step failed. Its own output is above; to repeat it: "
                f"`{shlex.join(command)}`."
            )


def _extra_requirements(extra: str) -> list[str]:
    declared = importlib.metadata.requires("rcdt_agent") or []
    chosen = []
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            requirement.marker = None
            chosen.append(str(requirement))
    return chosen


def _installer() -> list[str]:
    # Looking for pip as a module would make setuptools give up its distutils in this process.
    if any(importlib.metadata.distributions(name="pip")):
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "--python", sys.executable]
    raise SimulatorError(
        f"Neither pip nor uv is available for {sys.executable}. "
        f"Run `{sys.executable} -m ensurepip` first."
    )
