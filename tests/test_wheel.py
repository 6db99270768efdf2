"""The wheel and the source archive: what is in them, and that the wheel works away from here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from test_examples import ROOT, python_blocks

from rcdt_agent import __version__

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command, **kwargs):
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **kwargs
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Both archives, from a copy of what git knows: leftovers of this folder cannot get in."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    source.mkdir()
    names = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    # Without isolation: setuptools is here, and nothing is fetched.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source)
    (wheel,) = folder.glob("*.whl")
    (archive,) = folder.glob("*.tar.gz")
    return wheel, archive


def test_the_wheel_holds_the_package_and_nothing_else(built):
    wheel, _ = built
    assert wheel.name == f"rcdt_agent-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"rcdt_agent-{__version__}.dist-info/METADATA").decode()
        tags = archive.read(f"rcdt_agent-{__version__}.dist-info/WHEEL").decode()
    package = {name for name in names if name.startswith("rcdt_agent/")}
    assert {name.split("/")[0] for name in names} == {
        "rcdt_agent", f"rcdt_agent-{__version__}.dist-info",
    }  # fmt: skip
    # Every source file of the package is inside, and the data that code reads.
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "rcdt_agent").rglob("*.py")}
    assert sources <= package
    assert {
        "rcdt_agent/py.typed",
        "rcdt_agent/tasks/constraints.txt",
        "rcdt_agent/experiments/report.html",
        "rcdt_agent/experiments/dashboard.css",
        "rcdt_agent/experiments/dashboard.js",
        "rcdt_agent/experiments/benchmark/published.json",
        "rcdt_agent/demo_data/OfflineBallCircle-v0-demo.hdf5",
        "rcdt_agent/demo_data/OfflineBallCircle-v0-demo.hdf5.json",
    } <= package
    assert "Root-Is-Purelib: true" in tags and "Tag: py3-none-any" in tags
    assert not [name for name in package if name.endswith((".so", ".c", ".h", ".pyd"))]
    assert not [name for name in package if name.endswith((".pyc", ".partial", ".zip"))]
    for extra in ("onnx", "minari", "tensorboard", "tune"):
        assert f"Provides-Extra: {extra}" in metadata


def test_the_source_archive_can_be_built_from(built):
    _, archive = built
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "rcdt_agent/py.typed"} <= names
    assert "rcdt_agent/demo_data/OfflineBallCircle-v0-demo.hdf5" in names
    assert {f"rcdt_agent/experiments/{n}" for n in ("report.html", "dashboard.js")} <= names


def test_the_source_archive_holds_what_its_tests_need(built):
    _, archive = built
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    tracked = run(
        "git", "-C", ROOT, "ls-files", "tests", "docs", "examples", ":(glob)*.md", "Makefile"
    )
    assert set(tracked.split()) <= names
    assert {"CITATION.cff", "mkdocs.yml", ".github/workflows/tests.yml"} <= names
    assert not [name for name in names if name.endswith((".pyc", ".so", ".zip"))]


def test_both_archives_are_small(built):
    """Most of it is the demo's data, 3.9 MB, and in the source archive the pictures of the docs."""
    wheel, archive = built
    assert wheel.stat().st_size < 5_000_000
    assert archive.stat().st_size < 7_000_000


def test_twine_finds_nothing_wrong(built):
    said = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built)
    assert said.count("PASSED") == 2 and "warning" not in said.lower()


def test_metadata_state_licence_and_versions(built):
    wheel, _ = built
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"rcdt_agent-{__version__}.dist-info/METADATA").decode()
    lines = metadata.splitlines()
    assert "License-Expression: MIT" in lines
    assert "Requires-Python: <3.13,>=3.10" in lines
    for minor in (10, 11, 12):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in lines
    assert not re.findall(r"^Requires-Dist: [^;]*@", metadata, flags=re.MULTILINE)  # no addresses


def test_installed_away_from_the_repository(built, tmp_path):
    """A new environment that shares only the dependencies: the package comes from the wheel."""
    wheel, _ = built
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "venv" / "lib" / version / "site-packages"
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environ["COLUMNS"] = "200"  # of the tables
    run(
        sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install",
        "--quiet", "--no-deps", "--no-index", wheel, env=environ,
    )  # fmt: skip
    # Only the folder itself: the .pth files in it (our editable install) are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(
        python, "-c", "import rcdt_agent; print(rcdt_agent.__file__)", cwd=tmp_path, env=environ
    )
    assert Path(where.strip()) == site / "rcdt_agent" / "__init__.py"
    rcdt = tmp_path / "venv" / "bin" / "rcdt"
    assert "numpy" in run(rcdt, "doctor", cwd=tmp_path, env=environ)
    assert "OfflineHopperVelocityGymnasium-v1" in run(rcdt, "tasks", cwd=tmp_path, env=environ)
    # The README's first page, with fewer steps.
    code = next(block for block in python_blocks("README.md") if "record_drivers" in block)
    assert "1_000" in code
    said = run(python, "-c", code.replace("1_000", "60"), cwd=tmp_path, env=environ)
    assert re.findall(r"budget (\d+): return", said) == ["5", "10", "20"]
    assert (tmp_path / "build" / "driver.zip").is_file()
