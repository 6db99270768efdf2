"""The paper's own numbers, as data: normalised return and cost per task and method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class PublishedScore:
    """One pair of numbers of the paper.

    Attributes:
        table: The table's label in the paper.
        task: Short name of the task.
        data: `bottom:RHO` or `extremes:RHO`; None: DSRL's whole dataset.
        method: Name as `parse_method` knows it; others (bcq-lag, cpq, ...) are not implemented.
        normalized_return: Mean over budgets and seeds.
        normalized_cost: Likewise, in units of the budget.
    """

    table: str
    task: str
    data: str | None
    method: str
    normalized_return: float
    normalized_cost: float

    @property
    def safe(self) -> bool:
        """The paper's rule."""
        return self.normalized_cost < 1


@cache
def published_scores() -> tuple[PublishedScore, ...]:
    """The paper's main table, its ablation, and its two tables on degraded data."""
    text = (files("rcdt_agent.experiments.benchmark") / "published.json").read_text()
    return tuple(PublishedScore(**entry) for entry in json.loads(text))


def find_published(task: str, data: str | None = None) -> dict[str, PublishedScore]:
    """The paper's scores on a task by method; the first table that holds one counts."""
    found: dict[str, PublishedScore] = {}
    for score in published_scores():
        if score.task == task and score.data == data:
            found.setdefault(score.method, score)
    return found
