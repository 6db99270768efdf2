"""The return-cost plane as a drawing whose parts a script can move."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rcdt_agent._types import Float32Array, Int64Array
from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.experiments.page import escape_text

MOST_POINTS = 1_500
"""Trajectories drawn; of more, these many are chosen evenly by cost."""

_WIDTH, _HEIGHT = 360.0, 270.0  # letters of 9 units stay legible on a phone's width
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 350.0, 10.0, 232.0


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Where returns and costs are in the picture.

    Attributes:
        costs: At the left and the right edge.
        returns: At the lower and the upper edge.
    """

    costs: tuple[float, float]
    returns: tuple[float, float]

    @classmethod
    def around(cls, outcomes: Outcomes, results: Sequence[dict[str, Any]], budget: float) -> Plane:
        """Every evaluation with its episodes, budgets up to `budget`, and the data that cost so.

        Args:
            outcomes: Training data with one cost.
            results: Evaluations.
            budget: The largest that is offered.
        """
        spent = [c for r in results for c in (*r["costs"], *r["cost_interval"])]
        right = 1.04 * max(budget, *spent)
        shown = outcomes.returns[outcomes.costs <= right]
        gained = [g for r in results for g in (*r["returns"], *r["return_interval"])]
        values = np.concatenate([shown, gained])
        low, high = float(values.min()), float(values.max())
        room = 0.06 * (high - low) or 1.0
        return cls(costs=(0.0, right), returns=(low - room, high + room))

    def x(self, cost: float) -> float:
        """Of a cost, in units of the drawing."""
        low, high = self.costs
        return round(float(_LEFT + (_RIGHT - _LEFT) * (cost - low) / (high - low)), 1)

    def y(self, gained: float) -> float:
        """Of a return, downwards."""
        low, high = self.returns
        return round(float(_BOTTOM - (_BOTTOM - _TOP) * (gained - low) / (high - low)), 1)


def thinned(costs: Float32Array, rows: Int64Array, most: int = MOST_POINTS) -> Int64Array:
    """At most so many of some trajectories, evenly chosen in the order of their costs.

    Args:
        costs: (M,) of all trajectories.
        rows: (N,) those to choose from.
        most: How many may remain.
    """
    if len(rows) <= most:
        return rows
    order = rows[np.argsort(costs[rows], kind="stable")]
    return order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]


def draw_plane(plane: Plane, outcomes: Outcomes, results: Sequence[dict[str, Any]]) -> str:
    """The figure: data, frontier, evaluations with intervals, episodes, marker and budget line."""
    inside = np.flatnonzero(outcomes.costs <= plane.costs[1])
    rows = thinned(outcomes.costs, inside)
    parts = [
        _axes(plane),
        _dots("explore-data-points", plane, outcomes.costs[rows], outcomes.returns[rows]),
        _frontier(plane, outcomes),
        *(
            f'<g class="explore-dots js" data-result="{i}">'
            f"{_dots('', plane, result['costs'], result['returns'])}</g>"
            for i, result in enumerate(results)
        ),
        _path_of_means(plane, results),
        *(_evaluation(plane, result) for result in results),
        f'<path class="explore-line js" d="M0 {_TOP}V{_BOTTOM}"/>',
        '<circle class="explore-marker js" r="6.5"/>',
    ]
    caption = f"Return over cost of the data's {_counted(len(rows), len(inside), len(outcomes))}"
    return (
        f'<figure>{_LEGEND}<svg role="img" aria-label="{html.escape(caption)}" '
        f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">{"".join(parts)}</svg>'
        f"<figcaption>{escape_text(caption)}</figcaption></figure>"
    )


_LEGEND = (
    '<ul class="explore-legend">'
    '<li class="key-data">data</li><li class="key-frontier">frontier of the data</li>'
    '<li class="key-kept">kept</li><li class="key-over">exceeded</li>'
    '<li class="key-episode js">episodes, nearest measured budget</li>'
    '<li class="key-marker js">chosen budget</li></ul>'
)


def _counted(drawn: int, inside: int, total: int) -> str:
    text = f"{total:,} trajectories" + (f", {drawn:,} of them drawn" if drawn < inside else "")
    beyond = f"; {total - inside:,} cost more than the picture shows" if inside < total else ""
    return f"{text}{beyond}. Bars: 95 % intervals of the means."


def _dots(name: str, plane: Plane, costs: Any, returns: Any) -> str:
    """One path of round caps, each place once: a fraction of the size of as many circles."""
    places = dict.fromkeys((plane.x(c), plane.y(g)) for c, g in zip(costs, returns, strict=True))
    label = f' class="{name}"' if name else ""
    return f'<path{label} d="{"".join(f"M{x:g} {y:g}h0" for x, y in places)}"/>'


def _frontier(plane: Plane, outcomes: Outcomes) -> str:
    """A step up at every cost from which on more can be had."""
    front = outcomes.frontier
    shown = front.costs <= plane.costs[1]
    if not shown.any():
        return ""
    points = list(zip(front.costs[shown], front.returns[shown], strict=True))
    steps = "".join(f"H{plane.x(c):g}V{plane.y(g):g}" for c, g in points[1:])
    start = f"M{plane.x(points[0][0]):g} {plane.y(points[0][1]):g}"
    return f'<path class="explore-frontier" d="{start}{steps}H{_RIGHT:g}"/>'


def _path_of_means(plane: Plane, results: Sequence[dict[str, Any]]) -> str:
    points = " ".join(f"{plane.x(r['mean_cost']):g},{plane.y(r['mean_return']):g}" for r in results)
    return f'<polyline class="explore-path" points="{points}"/>'


def _evaluation(plane: Plane, result: dict[str, Any]) -> str:
    """Means with both intervals: a dot where the budget was kept, a cross where it was not."""
    x, y = plane.x(result["mean_cost"]), plane.y(result["mean_return"])
    left, right = map(plane.x, result["cost_interval"])
    low, high = map(plane.y, result["return_interval"])
    kept = result["passed"]
    shape = (
        f'<circle cx="{x:g}" cy="{y:g}" r="3.6"/>'
        if kept
        else f'<circle cx="{x:g}" cy="{y:g}" r="3.9"/>'
        f'<path class="cross" d="M{x - 3.2:g} {y - 3.2:g}l6.4 6.4m0 -6.4l-6.4 6.4"/>'
    )
    words = (
        f"budget {result['budget']:g}: return {result['mean_return']:.2f}, cost "
        f"{result['mean_cost']:.2f}"
    )
    return (
        f'<g class="{"kept" if kept else "over"}"><title>{words}</title>'
        f'<path d="M{left:g} {y:g}H{right:g}M{x:g} {low:g}V{high:g}"/>{shape}</g>'
    )


def _axes(plane: Plane) -> str:
    """Frame, ticks at round figures, names."""
    parts = [
        f'<path class="explore-frame" stroke="currentColor" '
        f'd="M{_LEFT:g} {_TOP:g}V{_BOTTOM:g}H{_RIGHT:g}"/>'
    ]
    for value in round_ticks(*plane.costs):
        x = plane.x(value)
        parts.append(
            f'<path class="explore-grid-line" d="M{x:g} {_TOP:g}V{_BOTTOM:g}"/>'
            f'<text x="{x:g}" y="{_BOTTOM + 13:g}" text-anchor="middle">{value:g}</text>'
        )
    for value in round_ticks(*plane.returns):
        y = plane.y(value)
        parts.append(
            f'<path class="explore-grid-line" d="M{_LEFT:g} {y:g}H{_RIGHT:g}"/>'
            f'<text x="{_LEFT - 5:g}" y="{y + 3:g}" text-anchor="end">{value:g}</text>'
        )
    middle_x, middle_y = (_LEFT + _RIGHT) / 2, (_TOP + _BOTTOM) / 2
    parts.append(
        f'<text x="{middle_x:g}" y="{_HEIGHT - 8:g}" text-anchor="middle">cost of an episode</text>'
        f'<text transform="translate(9 {middle_y:g}) rotate(-90)" text-anchor="middle">'
        f"return of an episode</text>"
    )
    return f'<g fill="currentColor">{"".join(parts)}</g>'


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round figures within a range, at most `most` and evenly apart."""
    unit = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        step = unit * factor
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            return [float(f"{step * i:.10g}") for i in range(first, last + 1)]
    raise AssertionError("20 units are more than a sixth of the range")
