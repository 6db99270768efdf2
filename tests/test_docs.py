"""Code in the documentation runs, what it names exists, its links lead somewhere."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from conftest import QUICK
from stable_baselines3.common.logger import KVWriter, Logger
from test_examples import ROOT, python_blocks

from rcdt_agent import RCDT, make_config
from rcdt_agent.callbacks import BudgetEvalCallback
from rcdt_agent.config import VARIANTS
from rcdt_agent.runs import start_run
from rcdt_agent.tasks.speed_limit import ENV_ID

PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_CODE = [page.name for page in PAGES if "```python\n" in page.read_text()]
NEEDS_SIMULATOR = {"tasks.md"}


def in_small(code):
    """The code with few training steps and episodes."""
    code = re.sub(r"total_steps=[\d_]+", "total_steps=8", code)
    return re.sub(r"n_episodes=[\d_]+", "n_episodes=2", code)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.simulator, pytest.mark.safety_gymnasium]
            if page in NEEDS_SIMULATOR
            else [],
        )
        for page in WITH_CODE
    ],
)
# An agent that was made to train for a moment keeps no budget, and calibration says so.
@pytest.mark.filterwarnings("ignore:No token kept the cost budget:UserWarning")
def test_code_blocks_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks(f"docs/{page}"):
        exec(compile(in_small(block), page, "exec"), names)


def test_named_tests_exist():
    named = set()
    for page in [*PAGES, ROOT / "README.md"]:
        text = page.read_text()
        named |= set(re.findall(r"(?:tests/)?(test_\w+\.py)::(test_\w+)", text))
    assert len(named) > 35
    for file, test in sorted(named):
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"
    for page in PAGES:
        for path in re.findall(r"`((?:examples|tests|rcdt_agent)/[\w/]+\.\w+)", page.read_text()):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"


def test_twenty_pains_have_an_answer_and_a_proof():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    parts = re.split(r"^### ", text.split("## Other questions")[0], flags=re.MULTILINE)[1:]
    assert [int(part.split(".")[0]) for part in parts] == list(range(1, 21))
    for part in parts:
        assert re.search(r"Shown by `tests/test_\w+\.py::test_\w+`", part), part


def test_every_example_is_listed():
    table = (ROOT / "docs" / "quickstart.md").read_text()
    for example in (ROOT / "examples").glob("*.py"):
        assert f"| `{example.name}` |" in table


class Names(KVWriter):
    """Keeps the names of everything that is logged."""

    def __init__(self):
        self.seen = set()

    def write(self, key_values, key_excluded, step=0):
        self.seen |= set(key_values)

    def close(self):
        pass


# Metrics that appear only with an option on: the option.
OPTIONS = {"train/cost_head_loss": {"cost_head_weight": 0.02}}


@pytest.fixture(scope="module")
def logged(drivers):
    names = Names()
    settings = {**QUICK, "critic_start": 0.0, "total_steps": 1}
    runs = [{"variant": variant} for variant in VARIANTS] + list(OPTIONS.values())
    for i, options in enumerate(runs):
        agent = RCDT(**settings, **options)
        agent.set_logger(Logger(None, [names]))
        once = BudgetEvalCallback(ENV_ID, [20.0], eval_freq=1, n_episodes=1) if i == 0 else None
        agent.learn(drivers, callback=once, log_interval=1)
    return names.seen


def test_every_logged_metric_is_explained(logged):
    text = (ROOT / "docs" / "algorithm.md").read_text()
    section = text.split("## What is logged")[1]
    rows = "\n".join(re.findall(r"^\| (`.*?`) \|", section, flags=re.MULTILINE))
    explained = set(re.findall(r"`([\w/]+)`", rows))
    assert len(logged) > 20
    assert logged == explained


def test_formats_page_names_every_key(trained, tmp_path):
    text = (ROOT / "docs" / "formats.md").read_text()
    words = set(re.findall(r"`([\w.]+)`", text))
    with zipfile.ZipFile(io.BytesIO(trained)) as archive:
        assert set(archive.namelist()) <= words
        meta = json.loads(archive.read("meta.json"))
    agent = RCDT.load(io.BytesIO(trained))
    report = json.loads(agent.evaluate(ENV_ID, [5.0], n_episodes=1).to_json())
    run = start_run("SpeedLimit", make_config("tiny"), tmp_path / "run")
    for part in (meta, report, report["results"][0], run.options()):
        assert set(part) <= words, set(part) - words


class Page(HTMLParser):
    """Links and anchors of a built page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.mark.slow
def test_the_site_builds_and_its_links_lead_somewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="the documentation's tools are not installed")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    pages = {path: Page(path.read_text()) for path in tmp_path.rglob("*.html")}
    checked = 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are those of the site's root
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(tmp_path)} -> {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path} -> {link}"
            checked += 1
    assert len(pages) > 18 and checked > 500


def test_readme_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if not urlsplit(link).scheme:
            assert (ROOT / link.split("#")[0]).exists(), link
