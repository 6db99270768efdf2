"""`rcdt report`: one page that needs nothing but itself, opened in a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import chromium, needs_browser, screenshot
from commands import rcdt

from rcdt_agent import BC, TrajectoryDataset, make_config
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.evaluate import add_to_report, evaluate_run
from rcdt_agent.experiments.report import write_report
from rcdt_agent.experiments.runs import Run, RunOptions, start_run, train_run
from rcdt_agent.plots import plot_calibration
from rcdt_agent.tasks.speed_limit import optimal_return, record_drivers

SMALL = {"batch_size": 16, "embedding_size": 16, "total_steps": 120}


class Tags(HTMLParser):
    """Tags that never close, tables as rows of text, and everything that could be fetched."""

    def __init__(self, text):
        super().__init__()
        self.references, self.tables, self.ids, self.headings = [], [], [], []
        self._into = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "data", "poster", "background"):
                self.references.append(value)
            if name == "id":
                self.ids.append(value)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._into = "cell"
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")
            self._into = "heading"
        elif tag == "br" and self._into == "cell":
            self.tables[-1][-1][-1] += "|"

    def handle_endtag(self, tag):
        if tag in ("td", "th", "h1", "h2", "h3"):
            self._into = None

    def handle_data(self, data):
        if self._into == "cell":
            self.tables[-1][-1][-1] += data
        elif self._into == "heading":
            self.headings[-1] += data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    command = "rcdt train SpeedLimit --preset tiny --batch-size 16"
    config = make_config("tiny", "rcdt", **SMALL)
    options = RunOptions(data="SpeedLimit", config=config, preset="tiny", command=command)
    run, agent = start_run(options, folder)
    agent = train_run(run, agent, progress_bar=False)
    report = evaluate_run(agent, budgets=(2.0, 20.0), n_episodes=3)
    report.to_json(run.report)
    write_report(run)
    return run


def test_the_budget_table_is_the_evaluation(run):
    page = Tags((run.folder / "report.html").read_text())
    report = json.loads(run.report.read_text())
    head, *rows = page.tables[0]
    assert head == [
        "budget", "cost", "return", "kept", "episodes over", "target return", "normalised return",
        "of the optimum",
    ]  # fmt: skip
    for row, result in zip(rows, report["results"], strict=True):
        low, high = result["cost_interval"]
        assert row[0] == f"{result['budget']:g}"
        assert row[1] == f"{result['mean_cost']:.2f}|{low:.2f} to {high:.2f}"
        assert row[2].startswith(f"{result['mean_return']:.2f}|")
        assert row[3] == ("yes" if result["mean_cost"] <= result["budget"] else "no")
        assert row[7] == f"{result['mean_return'] / optimal_return(result['budget']):.0%}"


def test_trajectories_are_coloured_by_the_papers_weights(tmp_path):
    config = make_config("tiny", weighting="return_cost", **SMALL | {"total_steps": 5})
    run, agent = start_run(RunOptions(data="SpeedLimit", config=config), tmp_path / "run")
    train_run(run, agent, progress_bar=False)
    write_report(run)
    assert "weight W (mean 1)" in (run.folder / "report.html").read_text()


def test_all_parts_are_there(run):
    text = (run.folder / "report.html").read_text()
    page = Tags(text)
    assert page.headings == [
        "SpeedLimit", "Budgets", "Explore a budget", "Frontier", "Calibration", "Training data",
        "Learning curves", "Imitation", "Critics: loss", "Critics: held-out error",
        "Critics: value of the policy's actions", "Lambda", "Made by", "Configuration", "Versions",
    ]  # fmt: skip
    assert "<pre>rcdt train SpeedLimit --preset tiny --batch-size 16</pre>" in text
    assert "acts while this is below 1" in text and "cost_error" in text
    changed, same, versions = page.tables[-3:]
    assert changed[0] == ["setting", "value", "default of preset tiny and variant rcdt"]
    assert sorted(changed[1:]) == [  # against what `rcdt train --preset tiny --help` shows
        ["batch_size", "16", "256"], ["embedding_size", "16", "32"], ["total_steps", "120", "2000"],
    ]  # fmt: skip
    assert ["kappa", "10.0"] in same and ["learning_rate", "0.001"] in same
    assert {row[0] for row in versions[1:]} >= {"rcdt_agent", "torch", "numpy", "gymnasium"}
    for words in ("cost budget asked for", "frontier of the data", "trajectory", "q_loss"):
        assert words in text  # the pictures' letters are text, which can be searched and read out
    assert "weight W" not in text  # frontier weights are of steps: no trajectory has one
    drawings = re.findall(r"<svg role=.*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) == 9
    for drawing in drawings:  # axes and letters take the page's colour, by day and by night
        assert "currentColor" in drawing
        assert not re.search(r"#000000|#010203|#ffffff|: (black|white)", drawing)


def test_nothing_is_fetched(run):
    text = (run.folder / "report.html").read_text()
    page = Tags(text)
    assert page.references  # the pictures refer to parts of themselves
    assert all(ref.startswith(("#", "data:image/png;base64,")) for ref in page.references)
    assert not re.search(r"https?:|@import|url\((?!#)|<link|<iframe", text)
    assert not re.search(r"fetch\(|XMLHttp|WebSocket|import[ (]|\beval\b|innerHTML", text)
    assert "default-src 'none'" in text
    targets = {ref[1:] for ref in page.references if ref.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert targets <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))  # pictures do not share names


def test_same_run_same_page(run, tmp_path):
    again = write_report(run, tmp_path / "deep" / "page.html")
    assert again.read_bytes() == (run.folder / "report.html").read_bytes()


def test_an_unfinished_run_without_evaluation_says_so(tmp_path):
    data = tmp_path / "<b>log & co.hdf5"
    TrajectoryDataset.from_arrays(**record_drivers(20)).to_hdf5(data)
    config = make_config("tiny", "cdt", **SMALL)
    options = RunOptions(data=str(data), config=config, command="<script>alert(1)</script>")
    run, agent = start_run(options, tmp_path / "run")
    with pytest.raises(InvalidArgumentError, match="holds no agent yet"):
        write_report(run)
    agent = train_run(run, agent, progress_bar=False)
    agent.num_timesteps = 50
    agent.save(run.final)
    text = write_report(run).read_text()
    page = Tags(text)
    assert "Not evaluated yet" in text and f"rcdt evaluate {tmp_path}/run" in text
    assert "Unfinished: 120 steps were asked for" in text
    assert "Frontier" not in page.headings and "Training data" in page.headings
    assert not {"Lambda", "Critics: loss"} & set(page.headings)  # cdt has no critics
    assert page.tables[0][0][2] == "default of the class"  # no preset was recorded
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert page.headings[0] == "<b>log & co.hdf5" and "<b>" not in text


def test_an_algorithm_without_targets_and_weights(tmp_path):
    config = BC.make_config("tiny", width=16, batch_size=8, total_steps=100)
    run, agent = start_run(
        RunOptions(data="SpeedLimit", config=config, algorithm="bc"), tmp_path / "run"
    )
    agent = train_run(run, agent, progress_bar=False)
    evaluate_run(agent, budgets=(2.0, 20.0), n_episodes=2).to_json(run.report)
    text = write_report(run).read_text()
    page = Tags(text)
    assert "Algorithm bc, seed 0, 100 steps." in text
    assert [row[5] for row in page.tables[0]] == ["target return", "-", "-"]
    assert "Loss" in page.headings and "Training data" in page.headings
    assert "weight W" not in text and "frontier of the data" in text
    assert ["width", "16", "256"] in page.tables[-3]


def test_entries_that_were_measured_otherwise_say_so(run, tmp_path):
    """Budgets that were added with other episodes or seeds can be told from the first ones."""
    before = run.report.read_text()
    page = Tags((run.folder / "report.html").read_text())
    assert "reset seeds" not in page.tables[0][0]
    assert (
        "3 episodes a budget, reset with seeds 0 to 2." in (run.folder / "report.html").read_text()
    )
    try:
        report = evaluate_run(
            run.agent(), budgets=(5.0,), n_episodes=2, seed=40, progress_bar=False
        )
        add_to_report(run, run.agent(), report)
        text = write_report(run, tmp_path / "page.html").read_text()
    finally:
        run.report.write_text(before)
    head, *rows = Tags(text).tables[0]
    assert [(row[0], row[head.index("reset seeds")]) for row in rows] == [
        ("2", "0 to 2"), ("5", "40 to 41"), ("20", "0 to 2"),
    ]  # fmt: skip
    assert "budgets kept on average over 2 or 3 episodes each." in text
    assert "one episode for each of the reset seeds" in text


def test_a_lambda_of_zero_is_explained(run, tmp_path, monkeypatch):
    words = "so the penalty did not act"
    log = run.log()
    for value, said in ((0.0, True), (0.2, False)):
        rows = [{**row, "train/lambda": value} for row in log]
        monkeypatch.setattr(Run, "log", lambda _, rows=rows: rows)
        text = write_report(run, tmp_path / "page.html").read_text()
        assert "Lambda" in Tags(text).headings
        assert (words in text) == said


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="is not a run folder"):
        write_report(Run(tmp_path))
    result = rcdt("report", str(tmp_path))
    assert result.returncode == 2 and "is not a run folder" in result.stderr
    assert not list(tmp_path.iterdir())


def test_calibration_shows_budgets_against_costs():
    def result(budget, costs, passed):
        return {
            "budget": budget, "costs": costs, "mean_cost": float(np.mean(costs)),
            "cost_interval": (min(costs), max(costs)), "passed": passed,
        }  # fmt: skip

    report = {"results": [result(20.0, [22.0, 26.0], False), result(10.0, [7.0, 9.0], True)]}
    (axes,) = plot_calibration(report).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    diagonal = lines["cost = budget"]
    assert diagonal[0] == [0, 0] and diagonal[1][0] == diagonal[1][1] >= 20
    assert lines["one episode"] == [[10, 7], [10, 9], [20, 22], [20, 26]]
    bars = [(c.lines[0].get_xydata().tolist(), c.lines[0].get_marker()) for c in axes.containers]
    assert bars == [([[10, 8]], "o"), ([[20, 24]], "X")]
    spans = [c.lines[2][0].get_segments()[0].tolist() for c in axes.containers]
    assert spans == [[[10, 7], [10, 9]], [[20, 22], [20, 26]]]
    assert {"mean, kept (95 % interval)", "mean, exceeded (95 % interval)"} <= set(lines)


@needs_browser
@pytest.mark.slow
def test_in_a_browser(run, tmp_path):
    page = run.folder / "report.html"
    seen = Tags(chromium(page, tmp_path, "--dump-dom"))
    assert seen.tables == Tags(page.read_text()).tables  # nothing was mended while parsing
    assert seen.headings == Tags(page.read_text()).headings
    for dark in (False, True):
        for width in (500, 1100):
            picture = screenshot(page, tmp_path, size=(width, 1500), dark=dark)
            background = picture[2, 2]
            assert (background.mean() < 0.2) == dark
            ink = np.abs(picture - background).max(-1) > 0.3
            # Text and pictures all the way down, and a free margin at both sides.
            assert all(part.mean() > 0.01 for part in np.array_split(ink, 6))
            assert not ink[:, :10].any() and not ink[:, -10:].any()
            # Axes and letters take the page's colour: far from the background in both modes.
            assert np.abs(picture - background).max() > 0.75
    pdf = tmp_path / "page.pdf"
    chromium(page, tmp_path, f"--print-to-pdf={pdf}", dark=True)
    assert pdf.read_bytes().startswith(b"%PDF")
