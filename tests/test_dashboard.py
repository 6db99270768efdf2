"""The slider over cost budgets in a run's page: its figures, its picture, and a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, needs_browser
from commands import rcdt_process

from rcdt_agent import BC
from rcdt_agent.cli import run_command
from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.dashboard import dashboard, expect_at, slider_stops
from rcdt_agent.experiments.plane import Plane, draw_plane, round_ticks, thinned
from rcdt_agent.experiments.report import current_dashboard
from rcdt_agent.experiments.runs import RunOptions, start_run, train_run


def result(budget, returns, costs, half=1.0):
    """An evaluation with intervals of a known half width."""
    gained, spent = float(np.mean(returns)), float(np.mean(costs))
    return {
        "budget": budget, "returns": returns, "costs": costs, "mean_return": gained,
        "mean_cost": spent, "return_interval": [gained - half, gained + half],
        "cost_interval": [spent - half / 2, spent + half / 2], "passed": spent <= budget,
        "over_budget": float(np.mean(np.array(costs) > budget)), "target_return": None,
        "normalized_return": 0.5, "normalized_cost": spent / budget,
    }  # fmt: skip


RESULTS = [  # not in order of budgets
    result(20.0, [60.0, 80.0], [15.0, 27.0], half=4.0),
    result(5.0, [30.0, 34.0], [3.0, 5.0], half=2.0),
    result(10.0, [50.0, 50.0], [8.0, 8.0]),
]
REPORT = {
    "env": "rcdt_agent/SpeedLimit-v0", "seed": 7, "results": RESULTS, "return_range": [0, 100],
    "range_source": "hand", "passed": False,
}  # fmt: skip
OUTCOMES = Outcomes(
    returns=np.array([20, 45, 40, 75, 90], dtype=np.float32),
    costs=np.array([0, 6, 9, 24, 400], dtype=np.float32),
)


class Scripts(HTMLParser):
    """Elements of a page as a browser sees them: the texts of scripts, and names of all tags."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self._inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def test_between_measured_budgets_figures_lie_on_a_line():
    found = expect_at(RESULTS, 16.0)  # 3/5 of the way from 10 to 20
    assert found is not None and not found.measured and found.between == (10.0, 20.0)
    assert found.mean_return == pytest.approx(0.4 * 50 + 0.6 * 70)
    assert found.return_interval == pytest.approx((0.4 * 49 + 0.6 * 66, 0.4 * 51 + 0.6 * 74))
    assert found.mean_cost == pytest.approx(0.4 * 8 + 0.6 * 21)
    assert found.cost_interval == pytest.approx((0.4 * 7.5 + 0.6 * 19, 0.4 * 8.5 + 0.6 * 23))
    assert found.over_budget == pytest.approx(0.6 * 0.5)


def test_measured_budgets_are_the_measurements_and_nothing_is_extrapolated():
    for entry in RESULTS:
        found = expect_at(RESULTS, entry["budget"])
        assert found is not None and found.measured
        assert (found.mean_return, found.mean_cost) == (entry["mean_return"], entry["mean_cost"])
        assert list(found.cost_interval) == entry["cost_interval"]
    assert expect_at(RESULTS, 4.999) is None and expect_at(RESULTS, 20.001) is None
    again = expect_at([*RESULTS, result(10.0, [55.0], [9.0])], 10.0)  # measured twice
    assert again is not None and again.mean_return == 55
    assert expect_at(RESULTS[:1], 20.0) is not None and expect_at(RESULTS[:1], 19.0) is None


@pytest.mark.parametrize("budget", [-1.0, float("nan"), float("inf")])
def test_bad_budgets_are_refused(budget):
    with pytest.raises(InvalidArgumentError, match="`budget` must be finite and >= 0, got"):
        expect_at(RESULTS, budget)
    with pytest.raises(InvalidArgumentError, match="`results` must not be empty"):
        expect_at([], 1.0)


@pytest.mark.parametrize(
    ("budgets", "step", "top"),
    [([5, 10, 20], 0.25, 25), ([2, 40], 0.5, 50), ([0.01], 0.0002, 0.0126), ([0], 0.01, 1)],
)
def test_the_slider_stops_at_round_and_at_measured_budgets(budgets, step, top):
    stops = slider_stops(budgets)
    assert stops == sorted(set(stops)) and len(stops) <= 101 + len(budgets)
    assert stops[:3] == pytest.approx([0, step, 2 * step]) and stops[-1] == pytest.approx(top)
    assert set(budgets) <= set(stops)
    odd = slider_stops([*budgets, 0.123456789 * max(*budgets, 1)])
    assert 0.123456789 * max(*budgets, 1) in odd


def test_the_plane_holds_every_episode_and_says_what_it_leaves_out():
    plane = Plane.around(OUTCOMES, RESULTS, 25.0)
    assert plane.costs == (0, pytest.approx(1.04 * 27))
    assert plane.returns == pytest.approx((20 - 3.6, 80 + 3.6))  # 90 lies beyond, at cost 400
    assert plane.x(0) == 40 and plane.x(plane.costs[1]) == 350
    assert plane.y(plane.returns[0]) == 232 and plane.y(plane.returns[1]) == 10
    drawing = draw_plane(plane, OUTCOMES, RESULTS)
    assert "5 trajectories; 1 cost more than the picture shows" in drawing
    points = re.search(r'explore-data-points" d="([^"]*)"', drawing).group(1)
    assert points.count("M") == 4 and f"M{plane.x(24):g} {plane.y(75):g}h0" in points
    frontier = re.search(r'explore-frontier" d="([^"]*)"', drawing).group(1)
    assert frontier == (
        f"M{plane.x(0):g} {plane.y(20):g}H{plane.x(6):g}V{plane.y(45):g}"
        f"H{plane.x(24):g}V{plane.y(75):g}H350"
    )
    assert drawing.count('class="kept"') == 2 and drawing.count('class="over"') == 1


def test_many_trajectories_are_thinned_evenly_by_cost():
    costs = np.arange(10_000, dtype=np.float32)[::-1]
    rows = thinned(costs, np.arange(9_000), 100)
    assert len(rows) == 100 and costs[rows[0]] == 1_000 and costs[rows[-1]] == 9_999
    assert np.ptp(np.diff(costs[rows])) <= 1
    assert thinned(costs, np.arange(50), 100).tolist() == list(range(50))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 60, [0, 20, 40, 60]),
        (0, 59, [0, 10, 20, 30, 40, 50]),
        (-0.35, 0.31, [-0.2, 0, 0.2]),
        (16.4, 83.6, [20, 40, 60, 80]),
        (1e6, 1e6 + 1, [1e6, 1e6 + 0.2, 1e6 + 0.4, 1e6 + 0.6, 1e6 + 0.8, 1e6 + 1]),
    ],
)
def test_ticks_are_round(low, high, ticks):
    assert round_ticks(low, high) == pytest.approx(ticks, rel=1e-9)


def test_texts_of_files_cannot_break_out():
    folder = Path("a</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>'\"&`")
    section, style, policy = dashboard(OUTCOMES, REPORT, folder)
    plain = Scripts(dashboard(OUTCOMES, REPORT, Path("a"))[0])
    page = Scripts(section)
    assert page.tags == plain.tags and len(page.scripts) == 2
    stops = json.loads(page.scripts[0])
    assert "</script><script>alert(1)" in stops[0]["state"]  # as text, which the page shows
    assert not set("<>&") & set(page.scripts[0])
    assert page.scripts[1] == plain.scripts[1]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy == f"; script-src 'sha256-{digest}'"  # this script and no other
    assert "</" not in style and "</" not in page.scripts[1]


def test_stops_say_measured_interpolated_or_unknown():
    stops = json.loads(Scripts(dashboard(OUTCOMES, REPORT, Path("my run"))[0]).scripts[0])
    found = {float(stop["budget"]): stop for stop in stops}
    assert found[10]["badge"] == "Measured" and found[10]["state"] == "at budget 10 in 2 episodes."
    assert (found[10]["return"], found[10]["cost"], found[10]["over"]) == ("50.00", "8.00", "0%")
    assert found[16]["badge"] == "Interpolated" and found[16]["over"] == "30%"
    assert found[16]["return_interval"] == "59.20 to 64.80"
    assert found[16]["kept"] == "kept on average"
    assert found[20]["kept"] == "not kept on average"
    for budget in (0, 4.75, 20.25, 25):
        assert found[budget]["kind"] == "outside" and "marker" not in found[budget]
        assert (found[budget]["return"], found[budget]["over"]) == ("-", "-")
        assert "only 5 to 20 was measured" in found[budget]["state"]
        assert f"`rcdt evaluate 'my run' --budgets {budget:g}`" in found[budget]["state"]
    assert [found[b]["result"] for b in (0, 7.25, 7.75, 14.75, 15.25, 25)] == [0, 0, 1, 1, 2, 2]


def test_several_costs_have_no_slider_and_say_why():
    outcomes = Outcomes(
        returns=OUTCOMES.returns, costs=np.ones((5, 2), np.float32), cost_names=("<b>", "fuel")
    )
    section, _, policy = dashboard(outcomes, REPORT, Path("run"))
    assert "for runs with one cost" in section and "&lt;b&gt;, fuel" in section
    assert "<input" not in section and "<script" not in section and policy == ""
    assert dashboard(OUTCOMES, None, Path("run")) == ("", "", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboard<") / "script><b>run"  # together: `</script>`
    config = BC.make_config("tiny", width=16, batch_size=8, total_steps=20)
    run, agent = start_run(RunOptions(data="SpeedLimit", config=config, algorithm="bc"), folder)
    train_run(run, agent, progress_bar=False)
    with pytest.raises(InvalidArgumentError, match="has not been evaluated yet"):
        current_dashboard(run)
    run.report.write_text(json.dumps(REPORT))
    return run


def test_the_page_is_written_only_if_need_be(run):
    page = current_dashboard(run)
    assert page == run.folder / "report.html"
    before = page.stat().st_mtime_ns
    assert current_dashboard(run) == page and page.stat().st_mtime_ns == before
    os.utime(run.report, ns=(before + 10, before + 10))  # evaluated since
    assert current_dashboard(run) == page and page.stat().st_mtime_ns != before
    run.offline.write_text(json.dumps({"results": []}))
    later = page.stat().st_mtime_ns + 10
    os.utime(run.offline, ns=(later, later))  # estimated since
    assert current_dashboard(run) == page and page.stat().st_mtime_ns != later - 10
    run.offline.unlink()
    page.write_text("<p>of an older version")
    current_dashboard(run)
    assert '<section id="explore"' in page.read_text()


@pytest.mark.slow
def test_the_command_prints_the_path_and_opens_the_page(run, tmp_path, capsys):
    seen, opener = tmp_path / "seen", tmp_path / "opener"
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    opener.chmod(0o755)
    page = run.folder / "report.html"
    assert run_command(["dashboard", str(run.folder)]) == 0
    assert f"Dashboard: {page}" in capsys.readouterr().out.replace("\n", "") and not seen.exists()
    said = rcdt_process("dashboard", str(run.folder), "--open", BROWSER=f"{opener} %s")
    assert said.returncode == 0 and seen.read_text() == page.as_uri()
    with pytest.raises(InvalidArgumentError, match="is not a run folder"):
        run_command(["dashboard", str(tmp_path)])


FIGURES = "[...document.querySelectorAll('[data-show]')].map(p => [p.dataset.show, p.textContent])"
FOCUS = "document.activeElement.id || document.activeElement.textContent"
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
SHOWN = "[...document.querySelectorAll('#explore details')].filter(d => d.checkVisibility()).length"


@needs_browser
@pytest.mark.slow
def test_the_slider_in_a_browser(run, tmp_path):
    page = current_dashboard(run)
    with Browser(tmp_path) as browser:
        browser.open(page)
        slider = "document.getElementById('explore-budget')"

        def figures():
            return dict(browser.value(FIGURES))

        def marker():
            circle = "document.querySelector('.explore-marker')"
            return [float(browser.value(f"{circle}.getAttribute('{a}')")) for a in ("cx", "cy")]

        plane = Plane.around(run.agent().policy.outcomes, RESULTS, 25.0)
        assert figures()["budget"] == "10" and figures()["badge"] == "Measured"
        assert marker() == [plane.x(8), plane.y(50)]
        browser.press("Tab")
        assert browser.value(FOCUS) == "explore-budget"
        assert browser.value(f"{slider}.labels[0].textContent").startswith("Cost budget")
        browser.press("ArrowRight", 24)  # of 0.25 each
        assert figures() == {
            "budget": "16", "badge": "Interpolated",
            "state": "at budget 16, between the measured 10 and 20.", "return": "62.00",
            "return_interval": "59.20 to 64.80", "cost": "15.80", "cost_interval": "14.40 to 17.20",
            "over": "30%", "kept": "kept on average",
        }  # fmt: skip
        assert marker() == [plane.x(15.8), plane.y(62)]
        assert browser.value(f"{slider}.ariaValueText") == "16, interpolated"
        live = browser.value("document.querySelector('output[aria-live=polite]').innerText")
        assert "Interpolated" in live and "62.00" in live and "30%" in live
        episodes = "document.querySelector('.explore-episodes.shown table').innerText.split(/\\s+/)"
        assert browser.value(episodes)[-8:] == [
            "7", "60.00", "15.00", "no", "8", "80.00", "27.00", "yes",
        ]  # fmt: skip
        browser.press("End")
        assert figures()["badge"] == "Unknown" and figures()["return"] == "-"
        assert f"{run.folder}' --budgets 25 measures it." in figures()["state"]  # as text
        assert not browser.value("document.querySelector('.explore-marker').checkVisibility()")
        browser.press("Tab", 2)
        assert browser.value(FOCUS) == "10"
        browser.press("Enter")
        assert figures()["budget"] == "10" and figures()["badge"] == "Measured"
        assert browser.value("document.querySelectorAll('[aria-pressed=true]').length") == 1
        assert browser.value(SHOWN) == 1

        for width, dark in ((1100, False), (1100, True), (375, False), (375, True)):
            browser.open(page, width=width, dark=dark)
            assert browser.value(OVERFLOW) <= 0
            picture = browser.picture(tmp_path / f"{width}-{dark}.png", "#explore")
            background = picture[2, 2]
            assert picture.shape[1] == width and (background.mean() < 0.2) == dark
            far = np.abs(picture - background).max(-1)
            assert far.max() > 0.75 and not (far[:, :8] > 0.1).any()
            assert not (far[:, -8:] > 0.1).any()

        browser.open(page, scripts=False)  # the tables and the picture are there without it
        assert browser.value(SHOWN) == 3 and not browser.value(f"{slider}.checkVisibility()")
        assert browser.value("document.querySelector('#explore svg').checkVisibility()")
        assert "needs JavaScript" in browser.value("document.querySelector('#explore').innerText")
        assert browser.problems == []
        assert all(address.startswith(("file:", "data:")) for address in browser.requests)
