"""`rcdt record`: frames, bars and files of an agent at several budgets."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from rcdt_agent import RCDT
from rcdt_agent.cli import run_command
from rcdt_agent.demo import BALL_CIRCLE
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.animation import write_gif
from rcdt_agent.experiments.panels import OVERHEAD, TRACK, Panel, PanelLayout, Spent, draw_frame
from rcdt_agent.experiments.record import record_episodes
from rcdt_agent.tasks.cameras import COSTLY, SAFE


@pytest.fixture(scope="module")
def driver():
    return RCDT.from_dsrl("SpeedLimit", preset="tiny", seed=0).learn(total_steps=5)


def _panel(cost: float, budget: float) -> Panel:
    return Panel(
        title="budget",
        picture=Image.new("RGB", (200, 100), (9, 9, 9)),
        spent=(Spent(name="cost", cost=cost, budget=budget),),
        episode_return=1.0,
        step=3,
    )


def _bar(frame, layout):
    """Colours of the row in the middle of the first panel's bar."""
    left, top, right, bottom = layout.bar()
    shift = layout.margin
    row = (top + bottom) // 2 + shift
    pixels = np.asarray(frame.convert("RGB"))
    return pixels[row, shift + left : shift + right]


@pytest.mark.parametrize(("cost", "budget"), [(2.5, 10.0), (10.0, 20.0), (0.0, 5.0)])
def test_the_bar_is_filled_by_the_share_that_is_spent(cost, budget):
    layout = PanelLayout(200, 100)
    row = _bar(draw_frame([_panel(cost, budget)], layout), layout)
    filled = (row == SAFE).all(-1).sum()
    assert filled == pytest.approx(200 / OVERHEAD * cost / budget, abs=2)
    assert (row == TRACK).all(-1).any()


def test_what_is_over_the_budget_is_marked():
    layout = PanelLayout(200, 100)
    row = _bar(draw_frame([_panel(11.0, 10.0)], layout), layout)
    assert (row == COSTLY).all(-1).sum() > 5


def test_spent_of_a_budget_of_zero():
    assert Spent(name="c", cost=0.0, budget=0.0).share == 0.0
    assert Spent(name="c", cost=1.0, budget=0.0).share == float("inf")
    assert Spent(name="c", cost=1.0, budget=0.0).over


def test_a_gif_of_speed_limit(driver, tmp_path):
    recording = record_episodes(driver, tmp_path / "a.gif", [5, 20], every=20, width=120)
    assert recording.steps == (60, 60) and recording.n_frames == 4  # start, 20, 40, 60
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 4 and gif.size == recording.size
    again = record_episodes(driver, tmp_path / "b.gif", [5, 20], every=20, width=120)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    assert again.returns == recording.returns
    # What the panels count is what `evaluate` counts with the same reset.
    report = driver.evaluate(budgets=[5], n_episodes=1, seed=0)
    assert recording.returns[0] == pytest.approx(report.results[0].returns[0], rel=1e-5)
    assert recording.costs[0] == pytest.approx(report.results[0].costs[0], rel=1e-5)


def test_an_mp4_can_be_read(driver, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    recording = record_episodes(driver, tmp_path / "a.mp4", [5], every=6, width=120)
    frames, _ = ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))
    assert frames == recording.n_frames == 11


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "a.avi"}, "must end in .gif or .mp4"),
        ({"fps": 0}, "`fps` must be > 0"),
        ({"fps": 60}, "`fps` must be <= 50 for a GIF"),
        ({"every": 0}, "`every` must be a whole number >= 1"),
        ({"width": 10}, "`width` must be from 80"),
        ({"seed": -1}, "`seed` must be a whole number >= 0"),
        ({"budgets": []}, "`budgets` must not be empty"),
        ({"budgets": [-1]}, "budget"),
        ({"env": lambda: gym.make("CartPole-v1")}, "."),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(driver, tmp_path, arguments, words):
    given = {"path": "a.gif", "budgets": [5], **arguments}
    path = tmp_path / given.pop("path")
    with pytest.raises(InvalidArgumentError, match=words):
        record_episodes(driver, path, **given)
    assert not list(tmp_path.iterdir())


def test_a_gif_keeps_the_colours_of_the_bars(tmp_path):
    layout = PanelLayout(200, 100)
    write_gif(tmp_path / "a.gif", [draw_frame([_panel(5, 10)], layout)] * 2, fps=10)
    with Image.open(tmp_path / "a.gif") as gif:
        row = _bar(gif, layout)
    assert (row == SAFE).all(-1).sum() == pytest.approx(200 / OVERHEAD / 2, abs=2)


def test_the_command(driver, tmp_path, capsys):
    driver.save(tmp_path / "agent.zip")
    code = run_command(
        ["record", str(tmp_path / "agent.zip"), "--budgets", "5", "--every", "30", "--width", "100"]
    )
    out = capsys.readouterr().out
    assert code == 0 and "budget 5: return" in out and (tmp_path / "agent.gif").is_file()


@pytest.mark.simulator
def test_an_episode_in_bullet(tmp_path):
    agent = RCDT.from_dsrl("OfflineBallCircle-v0", dataset=BALL_CIRCLE, preset="tiny", seed=0)
    agent.learn(total_steps=5)
    recording = record_episodes(agent, tmp_path / "a.gif", [10, 40], every=100, width=120)
    assert recording.n_frames == 3 and recording.steps == (200, 200)
    with Image.open(tmp_path / "a.gif") as gif:
        gif.seek(1)
        assert len(gif.convert("RGB").getcolors(100_000)) > 10  # a picture, not a blank
