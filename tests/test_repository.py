"""Files about the project itself: workflows, citation, policies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from rcdt_agent import __version__

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_run_commands_that_exist():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] and workflow[True]  # YAML reads `on` as true
        for job in workflow["jobs"].values():
            assert job["runs-on"] == "ubuntu-latest"
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step)
                command = step.get("run", "")
                if command.startswith("make ") and "${{" not in command:
                    assert set(command.split()[1:]) <= targets


def test_every_supported_python_is_tested():
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    versions = matrix["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == ["3.10", "3.11", "3.12"]
    assert 'requires-python = ">=3.10,<3.13"' in (ROOT / "pyproject.toml").read_text()


def test_supported_versions_are_stated():
    page = (ROOT / "docs/installation.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    for package, oldest in re.findall(
        r'^  "(torch|numpy|gymnasium|stable-baselines3)>=([\d.]+)', project, flags=re.MULTILINE
    ):
        assert re.search(rf"^\| {package} \| {re.escape(oldest)} \|", page, re.MULTILINE), package


def test_pre_commit_hooks_are_valid():
    path = ROOT / ".pre-commit-config.yaml"
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (repo,) = yaml.safe_load(path.read_text())["repos"]
    assert [hook["id"] for hook in repo["hooks"]] == ["ruff-format", "ruff", "mypy"]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == "MIT"


def test_links_of_the_policies_lead_somewhere():
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), target
