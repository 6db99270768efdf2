"""The interactive section of a run's page: what to expect of any cost budget.

Everything is computed and formatted here, for each stop of the slider; the script in the page
(`dashboard.js`) only shows the entry of the stop that was chosen.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent.data.frontier import Outcomes
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.page import escape_text, html_table
from rcdt_agent.experiments.plane import Plane, draw_plane

SECTION = '<section id="explore"'
"""How the section begins, to be found in a page."""

_MOST_STOPS = 100  # of the slider, besides the measured budgets
_BEYOND = 1.25  # the slider ends here, in units of the largest measured budget
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Return and cost of an episode at a budget, measured or between two measured budgets.

    Attributes:
        budget: The cost budget.
        between: The measured budgets on both sides; twice the same where it was measured itself.
        mean_return: Mean return.
        return_interval: Its 95 % interval.
        mean_cost: Mean cost.
        cost_interval: Its 95 % interval.
        over_budget: Share of episodes over the budget.
    """

    budget: float
    between: tuple[float, float]
    mean_return: float
    return_interval: Interval
    mean_cost: float
    cost_interval: Interval
    over_budget: float

    @property
    def measured(self) -> bool:
        """Whether the budget itself was evaluated."""
        return self.between[0] == self.between[1]


def expect_at(results: Sequence[dict[str, Any]], budget: float) -> Expected | None:
    """What to expect at a budget: the evaluation, or a straight line between the two nearest.

    Args:
        results: Evaluations of one cost, as in `report.json`, in any order.
        budget: The cost budget.

    Returns:
        None beyond the measured budgets: nothing is extrapolated.

    Raises:
        InvalidArgumentError: `results` is empty, or the budget is not a number >= 0.
    """
    if not len(results):
        raise InvalidArgumentError("`results` must not be empty.")
    if not (math.isfinite(budget) and budget >= 0):
        raise InvalidArgumentError(f"`budget` must be finite and >= 0, got {budget}.")
    ordered = _by_budget(results)
    budgets = [result["budget"] for result in ordered]
    if not budgets[0] <= budget <= budgets[-1]:
        return None
    right = int(np.searchsorted(budgets, budget))
    left = right if budgets[right] == budget else right - 1
    low, high = ordered[left], ordered[right]
    share = 0.0 if left == right else (budget - budgets[left]) / (budgets[right] - budgets[left])

    def line(start: float, end: float) -> float:
        return float((1 - share) * start + share * end)

    def interval(key: str) -> Interval:
        return line(low[key][0], high[key][0]), line(low[key][1], high[key][1])

    return Expected(
        budget=float(budget),
        between=(budgets[left], budgets[right]),
        mean_return=line(low["mean_return"], high["mean_return"]),
        return_interval=interval("return_interval"),
        mean_cost=line(low["mean_cost"], high["mean_cost"]),
        cost_interval=interval("cost_interval"),
        over_budget=line(low["over_budget"], high["over_budget"]),
    )


def slider_stops(budgets: Sequence[float]) -> list[float]:
    """The budgets that a slider offers: round figures from 0, and every measured one.

    Args:
        budgets: Measured budgets, at least one.
    """
    top = _BEYOND * max(budgets) or 1.0
    unit = 10.0 ** math.floor(math.log10(top / _MOST_STOPS))
    step = next(unit * s for s in _STEPS if top / (unit * s) <= _MOST_STOPS)
    count = math.ceil(top / step - 1e-9)
    return sorted({*(float(f"{step * i:.10g}") for i in range(count + 1)), *map(float, budgets)})


def dashboard(
    outcomes: Outcomes, report: dict[str, Any] | None, folder: Path
) -> tuple[str, str, str]:
    """The section, its style sheet, and what the page's security policy has to allow for it.

    Args:
        outcomes: Returns and costs of the training data.
        report: The run's evaluations as a dict; None or without results: no section.
        folder: The run folder, for the command that measures another budget.

    Returns:
        Three texts for the page, all empty where there is no section. A run with several costs has
        a section without a slider, which says why.
    """
    if not report or not report["results"]:
        return "", "", ""
    style = _file("dashboard.css")
    if len(outcomes.cost_names) > 1:
        names = ", ".join(outcomes.cost_names)
        return _section(f"<p>{escape_text(_SEVERAL.format(names=names))}</p>"), style, ""
    results = _by_budget(report["results"])
    stops = slider_stops([result["budget"] for result in results])
    plane = Plane.around(outcomes, results, stops[-1])
    script = _file("dashboard.js")
    return (
        _section(
            _controls(results, stops)
            + "<div class=explore-grid>"
            + _FIGURES
            + draw_plane(plane, outcomes, results)
            + f"<div class=explore-tables>{_episodes(report, results)}</div></div>"
            + f"<p class=note>{escape_text(_NOTE)}</p>"
            + _data_block([_entry(results, stop, plane, folder) for stop in stops])
            + f"<script>{script}</script>"
        ),
        style,
        f"; script-src 'sha256-{_digest(script)}'",
    )


_NOTE = (
    "Dots and crosses are measured. Between two measured budgets every figure, the ends of the "
    "intervals included, lies on the straight line between its neighbours: a reading aid, not a "
    "measurement."
)
_SEVERAL = (
    "The slider is for runs with one cost. This run has several ({names}), and its evaluations are "
    "single points among all combinations of budgets, which leave nothing to interpolate between: "
    "the table above lists them."
)
_FIGURES = """<output id="explore-output" for="explore-budget" class="js" aria-live="polite"
 aria-atomic="true"><p class="explore-state"><b data-show="badge"></b>
<span data-show="state"></span></p><div class="explore-figures">
<div><span>Return</span> <strong data-show="return"></strong>
<small data-show="return_interval"></small></div>
<div><span>Cost</span> <strong data-show="cost"></strong>
<small data-show="cost_interval"></small></div>
<div><span>Episodes over budget</span> <strong data-show="over"></strong>
<small data-show="kept"></small></div></div></output>"""


def _section(body: str) -> str:
    return f"{SECTION}><h2>Explore a budget</h2>{body}</section>"


def _controls(results: Sequence[dict[str, Any]], stops: Sequence[float]) -> str:
    """The slider, and a button for every measured budget."""
    positions = [stops.index(result["budget"]) for result in results]
    buttons = "".join(
        f'<button type="button" data-stop="{position}">{result["budget"]:g}</button>'
        for position, result in zip(positions, results, strict=True)
    )
    return (
        f'<div class="explore-controls js"><label for="explore-budget">Cost budget of an episode: '
        f'<b data-show="budget"></b></label>'
        f'<input type="range" id="explore-budget" min="0" max="{len(stops) - 1}" step="1" '
        f'value="{positions[len(positions) // 2]}" autocomplete="off">'
        f'<div class="explore-measured" role="group" aria-label="Measured budgets">'
        f"<span>Measured:</span>{buttons}</div></div>"
        f"<noscript><p class=note>The slider needs JavaScript; the table above and the picture and "
        f"tables below hold all that was measured.</p></noscript>"
    )


def _episodes(report: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """A folded table of episodes for every measured budget; the script shows the nearest one's."""
    found = []
    for i, result in enumerate(results):
        first = result.get("seed", report["seed"])
        rows = [
            (f"{first + e}", f"{gained:.2f}", f"{spent:.2f}", "yes" if over else "no")
            for e, (gained, spent, over) in enumerate(_outcomes(result))
        ]
        summary = f"{len(rows)} episodes measured at budget {result['budget']:g}"
        table = html_table(("reset seed", "return", "cost", "over budget"), rows)
        found.append(
            f'<details class="explore-episodes" data-result="{i}">'
            f"<summary>{escape_text(summary)}</summary>{table}</details>"
        )
    return "".join(found)


def _outcomes(result: dict[str, Any]) -> list[tuple[float, float, bool]]:
    """Return and cost of each episode, and whether it was over the budget."""
    pairs = zip(result["returns"], result["costs"], strict=True)
    return [(gained, spent, spent > result["budget"]) for gained, spent in pairs]


def _entry(
    results: Sequence[dict[str, Any]], budget: float, plane: Plane, folder: Path
) -> dict[str, Any]:
    """What the page shows at one stop of the slider: texts, and places in the picture."""
    nearest = np.argmin([abs(result["budget"] - budget) for result in results])
    entry: dict[str, Any] = {
        "budget": f"{budget:g}",
        "line": plane.x(budget),
        "result": int(nearest),
    }
    found = expect_at(results, budget)
    if found is None:
        low, high = results[0]["budget"], results[-1]["budget"]
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        command = f"rcdt evaluate {shlex.quote(str(folder))} --budgets {budget:g}"
        dash = dict.fromkeys(("return", "cost", "over"), "-")
        blank = dict.fromkeys(("return_interval", "cost_interval", "kept"), "not predicted")
        state = (
            f"at budget {budget:g}: only {span} was measured, and nothing is extrapolated. "
            f"`{command}` measures it."
        )
        return {**entry, **dash, **blank, "kind": "outside", "badge": "Unknown", "state": state}
    low, high = found.between
    episodes = len(results[entry["result"]]["returns"])
    return {
        **entry,
        "kind": "measured" if found.measured else "interpolated",
        "badge": "Measured" if found.measured else "Interpolated",
        "state": f"at budget {budget:g} in {episodes} episodes."
        if found.measured
        else f"at budget {budget:g}, between the measured {low:g} and {high:g}.",
        "return": f"{found.mean_return:.2f}",
        "return_interval": "{:.2f} to {:.2f}".format(*found.return_interval),
        "cost": f"{found.mean_cost:.2f}",
        "cost_interval": "{:.2f} to {:.2f}".format(*found.cost_interval),
        "over": f"{found.over_budget:.0%}",
        "kept": "kept on average" if found.mean_cost <= budget else "not kept on average",
        "marker": [plane.x(found.mean_cost), plane.y(found.mean_return)],
    }


def _by_budget(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """In order of their budgets; of two at one budget, the later."""
    found = {float(result["budget"]): result for result in results}
    return [found[budget] for budget in sorted(found)]


def _data_block(values: Any) -> str:
    """JSON in a page; no text in it can end the element."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="explore-data">{text}</script>'


def _file(name: str) -> str:
    path = files("rcdt_agent.experiments") / name
    return path.read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
