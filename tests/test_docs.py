"""Code in the documentation runs, what it names exists, its links lead somewhere."""

from __future__ import annotations

import functools
import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from operator import attrgetter
from urllib.parse import unquote, urlsplit

import pytest
from browser import chromium, needs_browser
from conftest import QUICK
from stable_baselines3.common.logger import KVWriter, Logger
from test_examples import ROOT, python_blocks

from rcdt_agent import RCDT, algorithms, cli, losses, make_config
from rcdt_agent.callbacks import BudgetEvalCallback
from rcdt_agent.cli import COMMANDS, run_command
from rcdt_agent.experiments.runs import RunOptions, start_run
from rcdt_agent.tasks.speed_limit import ENV_ID
from rcdt_agent.variants import VARIANTS

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ALL_PAGES = [*PAGES, ROOT / "README.md"]
WITH_CODE = [str(page.relative_to(DOCS)) for page in PAGES if "```python\n" in page.read_text()]
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
    monkeypatch.setattr(algorithms, "ALGORITHMS", dict(algorithms.ALGORITHMS))  # one is added
    names: dict[str, object] = {"__name__": "docs"}
    for block in python_blocks(f"docs/{page}"):
        exec(compile(in_small(block), page, "exec"), names)


def is_test(file, name):
    path = ROOT / "tests" / file
    return path.is_file() and f"def {name}(" in path.read_text()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    text = page.read_text()
    for file, name in re.findall(r"(?:tests/)?(test_\w+\.py)::(test_\w+)", text):
        assert is_test(file, name), f"{file}::{name}"
    for path in re.findall(r"`((?:examples|tests|benchmarks|rcdt_agent)/[\w/]+\.\w+)", text):
        assert (ROOT / path).is_file(), path
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, flags=re.MULTILINE):
        assert target in targets, f"make {target}"


def commands_of(text):
    """`rcdt` command lines of a page, as lists of words; continuation lines are joined."""
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines() + re.findall(r"`(rcdt .*?)`", text)
    return [line.split(" #")[0].split()[1:] for line in lines if line.startswith("rcdt ")]


@pytest.fixture(scope="module")
def options():
    """Options of a command line's command, as its help lists them."""
    known = {}

    def find(words, capsys):
        command, algorithm = words[0], "rcdt"
        if "--algorithm" in words:
            algorithm = words[words.index("--algorithm") + 1]
        if algorithm not in algorithms.ALGORITHMS:  # the page adds it
            algorithm = "bc"
        if (command, algorithm) not in known:
            chosen = ["--algorithm", algorithm] if command == "train" else []
            with pytest.raises(SystemExit):
                run_command([command, *chosen, "--help"])
            known[command, algorithm] = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        return known[command, algorithm]

    return find


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page, options, capsys):
    for words in commands_of(page.read_text()):
        if words == ["--version"]:
            continue
        assert words[0] in {"train", *COMMANDS}, words
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        missing = used - options(words, capsys) - {"--help"}
        assert not missing, f"rcdt {' '.join(words)}: no {missing}"


def only_parsed(command):
    """The command with its arguments, but without what it does."""

    @functools.wraps(command)
    def parsed(*args, **kwargs):
        return 0

    return parsed


def test_the_command_line_page_has_an_example_of_every_command_that_parses(monkeypatch):
    text = (ROOT / "docs" / "command_line.md").read_text()
    make_train = cli.train_command
    monkeypatch.setattr(cli, "train_command", lambda words: only_parsed(make_train(words)))
    monkeypatch.setattr(
        cli, "COMMANDS", {name: only_parsed(command) for name, command in COMMANDS.items()}
    )
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in "".join(blocks).splitlines()]
    assert all(words[0] == "rcdt" for words in lines)
    for words in lines:
        assert run_command(words[1:]) == 0, words
    assert {words[1] for words in lines} == {"train", *COMMANDS}
    table = text.split("\n## ")[0]
    assert set(re.findall(r"`rcdt (\w[\w-]*)`", table)) == {"train", *COMMANDS}


def test_attributes_of_an_agent_exist(drivers):
    agent = RCDT(**QUICK).learn(drivers)
    agent.reset()  # an episode is running

    def has(path):
        try:
            attrgetter(path)(agent)
        except AttributeError:
            return False
        return True

    for page in ALL_PAGES:
        text, gone = page.read_text(), []
        for sentence in re.findall(r"\*\*(.*?) are gone\.\*\*", text):
            gone += re.findall(r"`agent\.([\w.]+)", sentence)
            text = text.replace(sentence, "")
        for path in re.findall(r"`agent\.((?!zip)[\w.]+)", text):
            assert has(path), f"{page.name}: agent.{path}"
        assert not any(map(has, gone)), f"{page.name}: {gone}"


def test_every_command_is_listed():
    table = (ROOT / "docs" / "agent.md").read_text()
    assert set(re.findall(r"^\| `rcdt ([\w-]+)", table, flags=re.MULTILINE)) == {"train", *COMMANDS}


def test_equations_are_mapped_to_functions_and_tests():
    text = (ROOT / "docs" / "equations.md").read_text()
    rows = re.findall(
        r"^\| (?!equation)(\w.*?|-.*?) \| (`.*?) \| (`.*?) \| (`.*?) \|$", text, re.MULTILINE
    )
    listed = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    assert len(rows) == listed.count("\n")  # all but the head were understood
    for _, functions, by_hand, acts in rows:
        for name in re.findall(r"`(\w+)`", functions):
            assert callable(getattr(losses, name, None)), name
        for name in re.findall(r"`(test_\w+)`", by_hand):
            assert is_test("test_losses.py", name), name
        for name in re.findall(r"`(test_\w+)`", acts):
            assert is_test("test_rcdt.py", name), name
        assert "`test_" in by_hand and "`test_" in acts


def test_every_numbered_trouble_has_an_answer_and_a_proof():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    parts = re.split(r"^### (\d+)\. ", text.split("## Other questions")[0], flags=re.MULTILINE)[1:]
    numbers, answers = [int(number) for number in parts[::2]], parts[1::2]
    assert numbers == list(range(1, len(numbers) + 1))
    for answer in answers:
        proofs = re.findall(r"`tests/(test_\w+\.py)::(test_\w+)`", answer.split("Shown by")[1])
        assert proofs and all(is_test(*proof) for proof in proofs), answer


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
    runs.append({"variant": "rcdt-paper"})  # whose critics act from the first step on
    runs.append({"held_out_fraction": 0.0})  # so do ours, unchecked
    for i, options in enumerate(runs):
        agent = RCDT(**{**settings, **options})
        agent.set_logger(Logger(None, [names]))
        once = BudgetEvalCallback(ENV_ID, [20.0], eval_freq=1, n_episodes=1) if i == 0 else None
        agent.learn(drivers, callback=once, log_interval=1)
    return names.seen


def test_every_logged_metric_is_explained(logged):
    text = (ROOT / "docs" / "algorithm.md").read_text()
    section = text.split("## What is logged")[1]
    rows = "\n".join(re.findall(r"^\| (`.*?`) \|", section, flags=re.MULTILINE))
    explained = set(re.findall(r"`([\w/]+)`", rows))
    assert "train/loss" in logged
    assert logged == explained


def test_formats_page_names_every_key(trained, tmp_path):
    text = (ROOT / "docs" / "formats.md").read_text()
    words = set(re.findall(r"`([\w.]+)`", text))
    with zipfile.ZipFile(io.BytesIO(trained)) as archive:
        assert set(archive.namelist()) <= words
        meta = json.loads(archive.read("meta.json"))
    agent = RCDT.load(io.BytesIO(trained))
    report = json.loads(agent.evaluate(ENV_ID, [5.0], n_episodes=1).to_json())
    settings = RunOptions(data="SpeedLimit", config=make_config("tiny"))
    run, _ = start_run(settings, tmp_path / "run")
    stored = json.loads(run.options_file.read_text())
    policy = meta["policy"]
    parts = (meta, policy, policy["conditioning"], meta["settings"], report, stored)
    for part in (*parts, report["results"][0]):
        assert set(part) <= words, set(part) - words
    assert f"`rcdt_agent`, {meta['format_version']};" in text


@pytest.mark.slow
def test_formats_page_names_every_key_of_an_exported_policy(agent, tmp_path):
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    words = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "formats.md").read_text()))
    agent.export_onnx(tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    entries = {entry.key: entry.value for entry in model.metadata_props}
    facts = json.loads(entries["rcdt_agent"])
    ports = {port.name for port in (*model.graph.input, *model.graph.output)}
    for part in (entries, ports, facts, facts["conditioning"], facts["settings"]):
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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that the documentation was built into."""
    pytest.importorskip("mkdocs", reason="the documentation's tools are not installed")
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_its_links_lead_somewhere(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are those of the site's root
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            # A browser that reads a folder shows its listing, not its index.html.
            assert target.is_file(), f"{path.relative_to(site)} -> {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path} -> {link}"
    home = site / "index.html"
    reached = {(home.parent / urlsplit(link).path).resolve() for link in pages[home].links}
    for source in PAGES:  # every page was built, and the navigation leads to it
        built = site / source.relative_to(DOCS).with_suffix(".html")
        assert built in pages and built in reached, source.name


@pytest.mark.slow
def test_the_site_fetches_nothing(site):
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//", text
        )


@needs_browser
@pytest.mark.slow
def test_the_site_can_be_searched_from_its_folder(site, tmp_path):
    """Opened as a file, without a server: the search finds the page and links to it."""
    page = site / "quickstart.html"
    dom = chromium(page, tmp_path, "--virtual-time-budget=20000", "--dump-dom", query="calibrate")
    found = Page(dom.split('class="md-search-result__list"')[1].split("</ol>")[0]).links
    assert any("command_line.html" in link for link in found), found


def test_readme_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if not urlsplit(link).scheme:
            assert (ROOT / link.split("#")[0]).exists(), link
