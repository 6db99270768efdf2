"""Pictures: the return-cost plane of a dataset, its frontier, agents on it, and their training."""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rcdt_agent.data.frontier import non_dominated

Floats = npt.NDArray[np.float32]
Size = tuple[float, float]
_SIZE: Size = (7.0, 4.6)
# Neither end vanishes on a white or on a black page.
_WEIGHT_COLOURS = ListedColormap(mpl.colormaps["viridis_r"](np.linspace(0.05, 0.82, 256)))
_INK = "#010203"  # stands for the page's own text colour until the picture is on a page


@contextmanager
def page_style() -> Iterator[None]:
    """Draw for a web page: text and lines in the page's colour, no background of their own."""
    ink = (
        "text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
        "legend.labelcolor", "patch.edgecolor",
    )  # fmt: skip
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    settings: Any = {**dict.fromkeys(ink, _INK), **dict.fromkeys(clear, "none")}
    settings |= {"svg.fonttype": "none", "svg.hashsalt": "rcdt_agent", "font.size": 9.0}
    settings["text.parse_math"] = False  # names may hold dollars
    with mpl.rc_context(settings):
        yield


def to_svg(figure: Figure, name: str) -> str:
    """A figure drawn within `page_style` as an SVG element for an HTML page.

    `name` may be any text: what would mean something in HTML or in a reference is encoded. It
    refers to nothing outside itself, its ids begin with `name`, and the same figure gives the
    same text.
    """
    name = re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", name)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href").replace(_INK, "currentColor")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    # The page decides the size; `viewBox` keeps the proportions.
    return re.sub(r'^<svg width="[^"]*" height="[^"]*"', "<svg", text)


def plot_return_cost(
    returns: Floats,
    costs: Floats,
    weights: npt.ArrayLike | None = None,
    *,
    cost_limit: float | None = None,
    budgets: Sequence[float] = (),
    title: str = "",
    size: Size = _SIZE,
) -> Figure:
    """Return over cost of every trajectory, coloured by its weight, with the frontier.

    Args:
        returns: (M,) returns of the trajectories.
        costs: (M,) their costs.
        weights: (M,) weight of each trajectory in training; None: all points alike.
        cost_limit: c_lim of the weights, drawn as a line.
        budgets: Cost budgets, drawn as ticks on the cost axis.
        title: Above the picture.
        size: Width and height in inches.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    points: dict[str, Any] = {"s": 14, "linewidths": 0, "label": "trajectory", "rasterized": True}
    if weights is None:
        axes.scatter(costs, returns, color="silver", **points)
    else:
        weight = np.asarray(weights)
        order = np.argsort(weight)  # heavy trajectories on top
        drawn = axes.scatter(
            costs[order], returns[order], c=weight[order], cmap=_WEIGHT_COLOURS, **points
        )
        figure.colorbar(drawn, label="weight W (mean 1)")
    frontier = non_dominated(returns, costs)
    axes.step(
        [*frontier.costs, max(float(costs.max()), *budgets, float(frontier.costs[-1]))],
        [*frontier.returns, frontier.returns[-1]],
        where="post",
        color="crimson",
        linewidth=1.2,
        label="frontier of the data",
    )
    if cost_limit is not None:
        axes.axvline(cost_limit, color="grey", linestyle="--", linewidth=1, label="$c_{lim}$ of W")
    _mark_budgets(axes, budgets)
    axes.set_xlabel("cost of the trajectory")
    axes.set_ylabel("return of the trajectory")
    axes.set_title(title, fontsize=10)
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the folder is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _mark_budgets(axes: Any, budgets: Sequence[float]) -> None:
    for budget in budgets:
        axes.plot(
            budget, 0, marker="^", color=mpl.rcParams["text.color"], markersize=6, clip_on=False,
            linestyle="none", transform=axes.get_xaxis_transform(), zorder=5,
            label="evaluation budgets" if budget == budgets[0] else None,
        )  # fmt: skip


def plot_frontier(
    returns: Floats,
    costs: Floats,
    report: dict[str, Any],
    *,
    title: str | None = None,
    size: Size = _SIZE,
) -> Figure:
    """The data's return-cost plane with one policy's outcome at each budget on it.

    Args:
        returns: (M,) returns of the training trajectories.
        costs: (M,) their costs.
        report: A `BudgetReport` as a dict (`json.loads(report.to_json())`).
        title: By default the number of budgets and the environment.
        size: Width and height in inches.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    results = report["results"]
    budgets = [result["budget"] for result in results]
    right = 1.6 * max(*budgets, *(result["mean_cost"] for result in results))
    shown = costs <= right
    axes.scatter(
        costs[shown], returns[shown], s=9, color="silver", linewidths=0, label="training data",
        rasterized=True,
    )  # fmt: skip
    frontier = non_dominated(returns, costs)
    axes.step(
        [*frontier.costs, right],
        [*frontier.returns, frontier.best_return(right)],
        where="post",
        color="grey",
        linewidth=1,
        label="frontier of the data",
    )
    colours = _colours(len(results))
    for result, colour in zip(results, colours, strict=True):
        x, y = result["mean_cost"], result["mean_return"]
        axes.axvline(result["budget"], color=colour, linestyle=":", linewidth=1.2)
        axes.errorbar(
            x,
            y,
            xerr=[[x - result["cost_interval"][0]], [result["cost_interval"][1] - x]],
            yerr=[[y - result["return_interval"][0]], [result["return_interval"][1] - y]],
            fmt="o" if result["passed"] else "X",
            color=colour,
            markersize=8,
            capsize=3,
            label=f"budget {result['budget']:g}: {'kept' if result['passed'] else 'exceeded'}",
        )
    axes.set_xlim(-0.03 * right, right)
    low = min(float(returns[shown].min()), *(result["mean_return"] for result in results))
    high = max(frontier.best_return(right), *(result["mean_return"] for result in results))
    axes.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))
    axes.set_xlabel("cost of an episode (dotted: the budgets asked for)")
    axes.set_ylabel("return of an episode")
    default = f"One policy at {len(results)} cost budgets: {report['env']}"
    axes.set_title(default if title is None else title, fontsize=10)
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)
    return figure


def plot_calibration(report: dict[str, Any], *, size: Size = _SIZE) -> Figure:
    """What episodes cost over what they were allowed: below the diagonal a budget is kept.

    Args:
        report: A `BudgetReport` as a dict (`json.loads(report.to_json())`).
        size: Width and height in inches.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    results = sorted(report["results"], key=lambda result: float(result["budget"]))
    budgets = np.array([result["budget"] for result in results])
    means = np.array([result["mean_cost"] for result in results])
    low, high = np.array([result["cost_interval"] for result in results]).T
    ink = mpl.rcParams["text.color"]
    right = 1.08 * max(float(budgets.max()), 1e-9)
    axes.plot([0, right], [0, right], color=ink, linewidth=1, label="cost = budget")
    axes.plot(budgets, means, color="grey", linewidth=1)
    episodes = np.concatenate([result["costs"] for result in results])
    axes.plot(
        np.repeat(budgets, [len(result["costs"]) for result in results]), episodes, "_",
        color="silver", markersize=9, label="one episode", rasterized=True,
    )  # fmt: skip
    for result, low_i, high_i, colour in zip(
        results, low, high, _colours(len(results)), strict=True
    ):
        x, y = result["budget"], result["mean_cost"]
        axes.errorbar(
            x, y, yerr=[[y - low_i], [high_i - y]], fmt="o" if result["passed"] else "X",
            color=colour, markersize=8, capsize=3,
        )  # fmt: skip
    for marker, words, present in (
        ("o", "mean, kept", any(result["passed"] for result in results)),
        ("X", "mean, exceeded", not all(result["passed"] for result in results)),
    ):
        if present:
            axes.plot([], [], marker, color="grey", markersize=8, label=f"{words} (95 % interval)")
    top = 1.08 * max(right, float(high.max()), float(np.quantile(episodes, 0.95)))
    axes.set_xlim(0, right)
    axes.set_ylim(-0.02 * top, top)
    axes.set_xlabel("cost budget asked for")
    axes.set_ylabel("cost of an episode")
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9)
    return figure


def _colours(n: int) -> Any:
    """(n, 4) one colour a budget, the same in every picture."""
    return mpl.colormaps["viridis"](np.linspace(0.25, 0.9, n))


_CURVES = (
    ("imitation", ("nll", "weighted_nll", "entropy")),
    ("critics: loss", ("q_loss", "cost_loss", "cost_*_loss")),
    ("critics: held-out error", ("q_error", "cost_error", "cost_*_error")),
    ("critics: value of the policy's actions", ("q_policy", "cost_policy", "cost_*_policy")),
    ("lambda", ("lambda", "lambda_*")),
)
"""With a star: of each of several costs."""
_NOT_A_COST = "cost_head_loss"


def learning_curves(log: Sequence[dict[str, float]]) -> dict[str, tuple[str, ...]]:
    """Title -> names of the metrics to draw together, of those that the log holds."""
    logged = sorted({key.removeprefix("train/") for row in log for key in row} - {_NOT_A_COST})
    found = {
        title: tuple(name for pattern in names for name in fnmatch.filter(logged, pattern))
        for title, names in _CURVES
    }
    shown = {title: names for title, names in found.items() if names}
    if "imitation" not in shown and any("train/loss" in row for row in log):
        return {"loss": ("loss",), **shown}
    return shown


def plot_learning_curve(
    log: Sequence[dict[str, float]], names: Sequence[str], *, size: Size = (4.5, 2.6)
) -> Figure:
    """Some metrics over training steps in one panel; arguments as `plot_learning_curves`."""
    figure = Figure(figsize=size, layout="constrained")
    _draw_curves(figure.subplots(), log, names)
    return figure


def plot_learning_curves(log: Sequence[dict[str, float]]) -> Figure:
    """Losses, critic estimates and lambda over training steps.

    Args:
        log: Rows as the csv log holds them, with `time/total_timesteps`.
    """
    present = learning_curves(log)
    figure = Figure(figsize=(9.0, 2.6 * ((len(present) + 1) // 2)), layout="constrained")
    grid = figure.subplots((len(present) + 1) // 2, 2, squeeze=False).ravel()
    for axes, (title, names) in zip(grid, present.items(), strict=False):
        _draw_curves(axes, log, names)
        axes.set_title(title, fontsize=10)
    for axes in grid[len(present) :]:
        axes.set_visible(False)
    return figure


def _draw_curves(axes: Any, log: Sequence[dict[str, float]], names: Sequence[str]) -> None:
    for name in names:
        key = f"train/{name}"
        rows = [row for row in log if key in row]
        steps = [row["time/total_timesteps"] for row in rows]
        axes.plot(steps, [row[key] for row in rows], label=name, linewidth=1.2)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8)
