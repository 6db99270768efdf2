"""Markdown tables of a benchmark's results, in the paper's layout and budget by budget.

Every table is a pure function of the results' JSON: a page that shows one can be checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.benchmark.markdown import method_name, span, table
from rcdt_agent.experiments.benchmark.overall import overall_table
from rcdt_agent.experiments.benchmark.published import find_published
from rcdt_agent.experiments.benchmark.results import (
    MethodSummary,
    Results,
    best_of,
    score_range,
    summarize,
)

STAR = "★"
_MARKER = re.compile(r"<!-- table:(?P<name>[^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def results_tables(results: Results) -> str:
    """All tables as one Markdown text."""
    headings = {
        "main": "All tasks, in the paper's layout",
        "returns": "All tasks, return and cost at each budget",
        "overall": "Over all tasks",
        "published": "The paper's own numbers",
        "training": "Training",
        "commands": "Commands",
    }
    parts = []
    for name, text in make_tables(results).items():
        kind, _, task = name.partition(":")
        heading = headings.get(name) or {
            "summary": f"{task}: methods",
            "budgets": f"{task}: budget by budget",
        }.get(kind, name)
        parts.append(f"## {heading}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def make_tables(results: Results) -> dict[str, str]:
    """Every table by the name that stands in a page's markers.

    `main` (the paper's layout), `returns` (the same in units of the tasks), `overall` (statistics
    over tasks), `summary:TASK` (the stricter rule: every budget kept), `budgets:TASK`, `published`,
    `training` and `commands`; blanks in TASK become `-`.
    """
    found = _summaries(results)
    tables = {
        "main": main_table(results, found),
        "returns": returns_table(results, found),
        "overall": overall_table(results, found),
    }
    for task, rows in found.items():
        tables[f"summary:{_slug(task)}"] = summary_table(results, task, rows)
        tables[f"budgets:{_slug(task)}"] = budgets_table(results, task, rows)
    tables["published"] = published_table(results)
    tables["training"] = training_table(results)
    tables["commands"] = commands_table(results)
    return tables


def fill_page(page: str, results: Results, *, prefix: str = "") -> str:
    """Put tables between a page's markers.

    A marker is a line `<!-- table:NAME -->`; what follows up to a line `<!-- end -->` is replaced.

    Args:
        page: Markdown.
        results: As `collect_results` returns them.
        prefix: Only names that begin with it are filled, by the table of the rest of the name: a
            page can show several results.

    Raises:
        InvalidArgumentError: The page asks for a table that there is not.
    """
    tables = make_tables(results)

    def fill(match: re.Match[str]) -> str:
        name = match["name"].strip()
        if not name.startswith(prefix) or (not prefix and "/" in name):
            return match[0]
        key = name.removeprefix(prefix)
        if key not in tables:
            raise InvalidArgumentError(
                f"The page asks for the table {name!r}; there are {', '.join(tables)}."
            )
        return f"<!-- table:{name} -->\n{tables[key]}\n<!-- end -->"

    return _MARKER.sub(fill, page)


# -------------------------------------------------------------------- the tables


def main_table(results: Results, found: dict[str, dict[str, MethodSummary]]) -> str:
    """Rows tasks, columns methods: normalised return / normalised cost."""
    methods = list(results["methods"])
    rows = []
    for task, by_method in found.items():
        best = best_of(list(by_method.values()), strict=False)
        cells = [
            _pair(f.normalized_return, f.normalized_cost, f.safe, f.method == best)
            if (f := by_method.get(method))
            else "-"
            for method in methods
        ]
        rows.append([task, *cells])
    if len(rows) > 1:
        rows.append(["Average", *(_average(found, method) for method in methods)])
    note = (
        f"Normalised return / normalised cost, mean over budgets, seeds and "
        f"{results['protocol']['episodes']} episodes a budget. **Bold**: safe by the paper's rule, "
        f"normalised cost averaged over the budgets below 1. {STAR}: highest return among the safe."
    )
    note += _one_a_budget(results, methods)
    return table(["task", *map(method_name, methods)], rows) + f"\n\n{note}\n\n{_sources(results)}"


def returns_table(results: Results, found: dict[str, dict[str, MethodSummary]]) -> str:
    """Rows tasks, columns methods: mean return and mean cost at each budget, in one line."""
    methods = list(results["methods"])
    rows = []
    for label, by_method in found.items():
        task = results["tasks"][label]
        asked = " / ".join(f"{budget:g}" for budget in task["budgets"])
        best = [
            f"{value:.0f}" if value is not None else "-" for value in task.get("best_each") or ()
        ]
        cells = [_at_each(f) if (f := by_method.get(method)) else "-" for method in methods]
        rows.append([f"{label} ({asked})", *cells, " / ".join(best) or "-"])
    counts = sorted({len(f.seeds) for by_method in found.values() for f in by_method.values()})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    note = (
        f"Mean return (mean cost) at the budgets behind the task's name, over {seeds} training "
        f"seed{'s' * (counts[-1] > 1)} with {results['protocol']['episodes']} episodes each; one "
        f"value where a policy does the same at every budget. !: costs more than the budget (one "
        f"value: than the smallest). Best in the data: return of the best recorded trajectory "
        f"within each budget."
    )
    return (
        table(["task (budgets)", *map(method_name, methods), "best in the data"], rows)
        + f"\n\n{note}"
    )


def _at_each(f: MethodSummary) -> str:
    same = len({(budget.mean_return, budget.mean_cost) for budget in f.budgets}) == 1
    returns = [f"{budget.mean_return:.0f}" for budget in f.budgets]
    costs = [f"{budget.mean_cost:.1f}{'' if budget.passed else '!'}" for budget in f.budgets]
    if same:  # the smallest budget is the hardest to keep
        returns, costs = returns[:1], costs[:1]
    return f"{' / '.join(returns)} ({' / '.join(costs)})"


def summary_table(results: Results, task: str, by_method: dict[str, MethodSummary]) -> str:
    """Rows methods, with intervals, budgets kept and episodes over budget."""
    best = best_of(list(by_method.values()), strict=True)
    rows = []
    for f in by_method.values():
        name = f"**{method_name(f.method)}**" if f.keeps_all else method_name(f.method)
        rows.append(
            [
                name + (f" {STAR}" if f.method == best else ""),
                f"{f.normalized_return:.3f} {span(f.return_interval, 3)}",
                f"{f.normalized_cost:.2f} {span(_from_zero(f.cost_interval), 2)}",
                f"{f.kept} of {len(f.budgets)}",
                f"{f.over_budget:.0%}",
                str(len(f.seeds)),
            ]
        )
    head = [
        "method", "norm. return", "norm. cost", "budgets kept", "episodes over budget", "seeds",
    ]  # fmt: skip
    note = (
        f"95 % t intervals, seeds as the unit. **Bold**: the mean cost is within the budget at "
        f"every budget. {STAR}: highest return among those, of more than one seed."
    )
    note += _one_a_budget(results, list(by_method))
    return table(head, rows) + f"\n\n{note}"


def budgets_table(results: Results, task: str, by_method: dict[str, MethodSummary]) -> str:
    """Rows methods and budgets: return, cost, episodes over budget."""
    rows = []
    shielded = any(b.interventions for f in by_method.values() for b in f.budgets)
    for f in by_method.values():
        for b in f.budgets:
            cost = f"{b.mean_cost:.1f} {span(_from_zero(b.cost_interval), 1)}"
            rows.append(
                [
                    method_name(f.method),
                    f"{b.budget:g}",
                    f"{b.mean_return:.1f} {span(b.return_interval, 1)}",
                    f"**{cost}**" if b.passed else cost,
                    f"{b.over_budget:.0%}",
                    f"{b.seeds_passed} of {len(f.seeds)}",
                    "yes" if b.upper_limit_kept else "-" if len(f.seeds) < 2 else "no",
                    *([f"{b.interventions:.0%}"] if shielded else []),
                ]
            )
    head = [
        "method", "budget", "return", "cost", "episodes over budget", "seeds that keep it",
        "upper limit kept",
    ]  # fmt: skip
    head += ["steps shielded"] if shielded else []
    return table(head, rows) + (
        "\n\nMeans over seeds and episodes with 95 % t intervals, seeds as the unit. **Bold**: "
        "within the budget. Upper limit: the one-sided 95 % t limit of the mean cost over seeds, "
        "which is lower than the end of the two-sided interval shown."
    )


def published_table(results: Results) -> str:
    """The paper's scores of the tasks shown, apart from ours."""
    scores = {
        label: find_published(_short(label), task["variant"])
        for label, task in results["tasks"].items()
    }
    scores = {label: found for label, found in scores.items() if found}
    if not scores:
        return "The paper reports none of these tasks."
    methods = list(dict.fromkeys(method for found in scores.values() for method in found))
    rows = []
    for label, found in scores.items():
        safe = [score for score in found.values() if score.safe]
        best = max((score.normalized_return for score in safe), default=None)
        cells = [
            _pair(s.normalized_return, s.normalized_cost, s.safe, s.safe and
                  s.normalized_return == best)
            if (s := found.get(method)) else "-"
            for method in methods
        ]  # fmt: skip
        rows.append([label, *cells])
    own = [label for label in scores if not results["tasks"][label]["published"]]
    note = (
        "From the paper, on DSRL's datasets with five seeds: normalised return / normalised cost."
    )
    if own:
        files = ", ".join(f"{label}: {results['tasks'][label]['file']}" for label in own)
        note += (
            f" **Not comparable with our numbers** for {', '.join(own)}: ours are on other data "
            f"({files}) and normalised by its range."
        )
    return table(["task (paper)", *methods], rows) + f"\n\n{note}"


def training_table(results: Results) -> str:
    """How trainings ended: time, lambda, J_c, effective sample size of W, critics' error."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for training in results["trainings"].values():
        groups.setdefault((training["task"], training["method"]), []).append(training)
    rows = []
    for (task, method), trainings in groups.items():

        def mean(values: Iterable[float | None], digits: int = 2) -> str:
            known = [value for value in values if value is not None]
            return f"{sum(known) / len(known):.{digits}f}" if known else "-"

        errors = [
            [training.get("critic_error", {}).get(kind) for training in trainings]
            for kind in ("reward", "cost")
        ]
        rows.append(
            [
                task,
                method_name(method),
                str(trainings[0]["steps"]),
                mean((training["seconds"] / 60 for training in trainings), 1),
                mean(_lambda(training["metrics"]) for training in trainings),
                *(
                    mean(training["metrics"].get(name) for training in trainings)
                    for name in ("cost_estimate", "weight_ess")
                ),
                *(
                    mean(e and e["rmse"] / e["deviation"] if e and e["deviation"] else None
                         for e in kind)
                    for kind in errors
                ),
            ]
        )  # fmt: skip
    head = [
        "task", "policy", "steps", "minutes", "lambda", "J_c", "sample size of W",
        "error of Q", "error of C",
    ]  # fmt: skip
    kinds = {t["critic_error_on"] for t in results["trainings"].values() if t.get("critic_error")}
    note = (
        "Means over seeds at the end of training. J_c: the critic's mean cost under the policy, as "
        "dual ascent compares it. Sample size of W: effective, as a share of the batch. Error of a "
        "critic: rmse against the discounted sums along recorded trajectories "
        f"({', '.join(sorted(kinds)) or 'none'}), in units of their standard deviation; a proxy, "
        "because the data continue differently from the policy."
    )
    return table(head, rows) + f"\n\n{note}"


def commands_table(results: Results) -> str:
    """The command for the whole, and the one that makes any one cell again."""
    lines = ["```bash", "# everything", *results["commands"], "# any one cell"]
    return "\n".join([*lines, *(cell["command"] for cell in results["cells"]), "```"])


# -------------------------------------------------------------------- small things


def _from_zero(interval: tuple[float, float]) -> tuple[float, float]:
    """An interval of costs, which are never negative; NaN stays NaN."""
    return float(np.maximum(interval[0], 0.0)), interval[1]


def _summaries(results: Results) -> dict[str, dict[str, MethodSummary]]:
    found = {
        task: {
            method: f
            for method in results["methods"]
            if (f := summarize(results, task, method)) is not None
        }
        for task in results["tasks"]
    }
    return {task: by_method for task, by_method in found.items() if by_method}


def _average(found: dict[str, dict[str, MethodSummary]], method: str) -> str:
    rows = [by_method.get(method) for by_method in found.values()]
    if None in rows:
        return "-"
    known = [row for row in rows if row is not None]
    cost = sum(row.normalized_cost for row in known) / len(known)
    score = sum(row.normalized_return for row in known) / len(known)
    return _pair(score, cost, cost < 1, False)


def _lambda(metrics: dict[str, float]) -> float | None:
    """Lambda, where there is a cost penalty."""
    return metrics.get("lambda") if "cost_estimate" in metrics else None


def _sources(results: Results) -> str:
    lines = []
    for label, task in results["tasks"].items():
        kind = "DSRL's own file" if task["published"] else "not the published dataset"
        lines.append(
            f"- {label}: {task['file']} ({kind}), {task['trajectories']} trajectories trained on; "
            f"{_scale(task)}; budgets {', '.join(f'{b:g}' for b in task['budgets'])}"
        )
    return "\n".join(lines)


def _scale(task: dict[str, Any]) -> str:
    low, high = score_range(task)
    if high == task.get("best_within"):
        return (
            f"score 0 at its lowest return, {low:.4g}, and 1 at the best within the largest "
            f"budget, {high:.4g} (its range ends at {task['return_range'][1]:.4g})"
        )
    return f"returns normalised by {task['range_source']}, {low:.4g} .. {high:.4g}"


def _one_a_budget(results: Results, methods: Sequence[str]) -> str:
    """Which methods train a policy for every budget, as the end of a note."""
    found = {
        cell["method"]
        for cell in results["cells"]
        if results["trainings"].get(cell["training"], {}).get("policies", 1) > 1
    }
    names = ", ".join(method_name(method) for method in methods if method in found)
    return f" One policy for each budget, the others one for all: {names}." if names else ""


def _pair(score: float, cost: float, safe: bool, best: bool) -> str:
    text = f"{score:.2f} / {cost:.2f}"
    return (f"**{text}**" if safe else text) + (f" {STAR}" if best else "")


def _short(label: str) -> str:
    return label.split(" ")[0]


def _slug(label: str) -> str:
    return label.replace(" ", "-").replace(":", "-")
