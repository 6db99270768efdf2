"""Model cards: what a saved agent is, what it was measured to do and what it does not promise.

Markdown with YAML front matter, as model hubs read it. Every figure is the agent's own: from its
settings, its training data's outcomes and its last evaluation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcdt_agent._io import atomic_write, read_json
from rcdt_agent.data.frontier import MIN_TRAJECTORIES, Outcomes
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.version import __version__

if TYPE_CHECKING:
    from rcdt_agent.algorithms.agent import Agent

PRESETS = ("paper", "cpu", "tiny")
"""Of every algorithm; settings are told by how they differ from one of them."""
LIBRARY = "rcdt_agent"


def write_card(agent: Agent[Any, Any], path: Path, load: str | None = None) -> None:
    """Write the card of an agent, whole or not at all.

    Args:
        agent: A trained agent.
        path: The Markdown file.
        load: The expression that loads the agent; default: from a file of the card's name.

    Raises:
        CheckpointError: It cannot be written.
    """
    text = model_card(agent, load or f'load_agent("{path.with_suffix(".zip").name}")')
    with atomic_write(path, CheckpointError) as partial:
        partial.write_text(text, encoding="utf-8")


def model_card(agent: Agent[Any, Any], load: str) -> str:
    """The card as Markdown.

    Args:
        agent: A trained agent.
        load: The expression that loads it, as in `load_agent("agent.zip")`.

    Raises:
        InvalidArgumentError: The agent has not been trained.
    """
    report = last_report(agent)
    name = type(agent).__name__
    task = agent.task.id if agent.task else None
    sections = (
        ("Task", _task(agent)),
        ("Training data", _data(agent)),
        ("Algorithm", _algorithm(agent)),
        ("Budgets measured", _measured(report)),
        ("Limits", _limits(agent)),
        ("How to load it", _loading(agent, load)),
    )
    title = f"# {name}" + (f" on {plain(task)}" if task else "")
    body = "\n\n".join(f"## {head}\n\n{text}" for head, text in sections)
    return f"{_front_matter(agent, report)}\n{title}\n\n{body}\n"


def last_report(agent: Agent[Any, Any]) -> dict[str, Any] | None:
    """What was measured of the agent as it is: by `evaluate`, or in the run it was loaded from.

    A report of another agent, or one that cannot be read, is none.
    """
    if agent.last_evaluation is not None:
        values: dict[str, Any] = json.loads(agent.last_evaluation.to_json())
        return values
    source = agent.loaded_from
    if source is None or not source.is_file():
        return None
    try:
        found = read_json(source.with_name("report.json"))
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        if not isinstance(found, dict) or found.get("agent_sha256") != digest:
            return None
        _measured(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not ours, or damaged
        return None
    return found


def plain(text: Any) -> str:
    """Text on one line that means nothing to Markdown or HTML."""
    marks = {"|": "/", "<": "(", ">": ")", "`": "'", "[": "(", "]": ")"}
    kept = "".join(marks.get(char, char) if char.isprintable() else " " for char in str(text))
    kept = re.sub(r"(?i)\b(?:https?|ftp)(?=:)|\bwww(?=\.)|\bmailto(?=:)", r"\g<0> ", kept)
    return " ".join(kept.split())[:200]


# ------------------------------------------------------------ sections


def _front_matter(agent: Agent[Any, Any], report: dict[str, Any] | None) -> str:
    """YAML of JSON scalars, which need no quoting rules of their own."""
    name = type(agent).__name__
    tags = [
        "reinforcement-learning", "offline-reinforcement-learning", "safe-reinforcement-learning",
        "gymnasium", name.lower(),
    ]  # fmt: skip
    if agent.task:
        tags.append(plain(agent.task.id))
    lines = [
        "---",
        f"library_name: {LIBRARY}",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {_quoted(tag)}" for tag in tags),
    ]
    if report is not None:
        lines += _model_index(name, report)
    return "\n".join([*lines, "---", ""])


def _model_index(name: str, report: dict[str, Any]) -> list[str]:
    env = _quoted(plain(report["env"]))
    lines = ["model-index:", f"- name: {_quoted(name)}", "  results:"]
    lines += ["  - task:", "      type: reinforcement-learning", "    dataset:"]
    lines += [f"      name: {env}", f"      type: {env}", "    metrics:"]
    for entry in report["results"]:
        budget = plain(_text(entry["budget"]))
        figures = {"return": entry["mean_return"], **_costs(entry["mean_cost"])}
        for kind, value in figures.items():
            metric = _quoted(f"mean {plain(kind)}, cost budget {budget}")
            lines += [f"    - type: {_quoted('mean_' + plain(kind))}", f"      name: {metric}"]
            lines += [f"      value: {json.dumps(round(float(value), 4))}", "      verified: false"]
    return lines


def _quoted(text: str) -> str:
    """Text as a YAML scalar; an escaped surrogate pair would be two characters to YAML."""
    return json.dumps(text, ensure_ascii=False)


def _task(agent: Agent[Any, Any]) -> str:
    policy = agent.policy
    task = plain(agent.task.id) if agent.task else "none of the registry: data of one's own"
    costs = ", ".join(plain(name) for name in agent.cost_names)
    return _rows(
        ("task", task),
        ("observation", _space(agent.observation_space)),
        ("action", _space(policy.action_space)),
        ("costs", costs),
    )


def _data(agent: Agent[Any, Any]) -> str:
    outcomes, data = agent.policy.outcomes, agent.dataset
    known = data is not None and data.fingerprint == agent.provenance.fingerprint
    rows = [
        ("name", plain(agent.provenance.name) or "not known"),
        ("fingerprint", f"`{plain(agent.provenance.fingerprint)}`"),
        ("DSRL's own file of the task", "yes" if agent.provenance.published else "no"),
        ("trajectories", f"{len(outcomes):,}"),
    ]
    if known and data is not None:
        rows.append(("steps", f"{data.n_transitions:,}"))
    rows.append(("returns", f"{outcomes.returns.min():g} to {outcomes.returns.max():g}"))
    rows += [(name, f"{low:g} to {high:g}") for name, low, high in _cost_ranges(outcomes)]
    return _rows(*rows)


def _algorithm(agent: Agent[Any, Any]) -> str:
    preset, changed = settings_that_differ(agent)
    variant = getattr(agent.config, "variant", None)
    rows = [("algorithm", type(agent).__name__)]
    if variant:
        rows.append(("variant", plain(variant)))
    rows += [
        ("preset", f"`{preset}`"),
        ("gradient steps", f"{agent.num_timesteps:,}"),
        ("seed", str(agent.seed)),
        ("written by", f"{LIBRARY} {__version__}"),
    ]
    if not changed:
        return _rows(*rows) + "\n\nNo setting differs from those of the preset."
    table = ["| setting | here | preset |", "|---|---|---|"]
    table += [f"| `{n}` | {plain(here)} | {plain(usual)} |" for n, (here, usual) in changed.items()]
    return (
        _rows(*rows) + "\n\nSettings that differ from those of the preset:\n\n" + "\n".join(table)
    )


def settings_that_differ(agent: Agent[Any, Any]) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The preset that is nearest (or the agent's own), and each other setting: here, and there."""
    own = agent.config.to_dict()
    variant = own.get("variant")
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for preset in (agent.preset,) if agent.preset else PRESETS:
        try:
            usual = type(agent).make_config(preset, variant).to_dict()
        except InvalidArgumentError:  # a configuration made by hand, or an algorithm of one's own
            usual = type(agent.config)().to_dict()
        found[preset] = {
            name: (value, usual[name]) for name, value in own.items() if value != usual[name]
        }
    nearest = min(found, key=lambda preset: len(found[preset]))
    return nearest, found[nearest]


def _measured(report: dict[str, Any] | None) -> str:
    if report is None:
        return (
            "Not measured. `agent.evaluate(env, budgets)` measures them where there is a simulator."
        )
    lines = [
        "| cost budget | return | cost | kept on average | episodes over budget | episodes |",
        "|---|---|---|---|---|---|",
    ]
    for entry in report["results"]:
        low, high = entry["return_interval"]
        costs = "; ".join(
            f"{float(value):.2f}" if kind == "cost" else f"{plain(kind)} {float(value):.2f}"
            for kind, value in _costs(entry["mean_cost"]).items()
        )
        lines.append(
            f"| {plain(_text(entry['budget']))} | {float(entry['mean_return']):.2f} "
            f"({float(low):.2f} to {float(high):.2f}) | {costs} "
            f"| {'yes' if entry['passed'] else 'no'} | {float(entry['over_budget']):.0%} "
            f"| {len(entry['returns'])} |"
        )
    where = f"In {plain(report['env'])}, seed {plain(report['seed'])}"
    return "\n".join([*lines, "", f"{where}; means, of returns with 95 % bootstrap intervals."])


def _limits(agent: Agent[Any, Any]) -> str:
    outcomes = agent.policy.outcomes
    points = [
        *_budget_limits(agent, outcomes),
        "A budget is kept on average at best, and as far as the data cover it. Nothing here is a "
        "guarantee for an episode, or for an environment other than the one measured.",
        "The weights are those after the last gradient step; none were selected by an evaluation.",
        "Observations unlike those of the data are not noticed.",
    ]
    return "\n".join(f"- {point}" for point in points)


def _budget_limits(agent: Agent[Any, Any], outcomes: Outcomes) -> list[str]:
    if agent.budgets == "none":
        return ["It is told no cost budget, and acts the same at each."]
    if agent.budgets == "one":
        own = getattr(agent.config, "cost_budget", None)
        return [f"It was trained for the cost budget {_text(own)}, and serves no other."]
    least = min(MIN_TRAJECTORIES, len(outcomes))
    points = []
    several = outcomes.costs.ndim > 1
    for i, name in enumerate(outcomes.cost_names):
        costs = sorted((outcomes.costs[:, i] if several else outcomes.costs).tolist())
        of = f" of {plain(name)}" if several else ""
        low, high = costs[least - 1], costs[-1]
        below = (
            f"below {low:g}, which fewer than {least} trajectories kept, and " if low > 0 else ""
        )
        points.append(
            f"The data do not cover budgets{of} {below}above {high:g}, the largest cost in them."
        )
    return points


def _loading(agent: Agent[Any, Any], load: str) -> str:
    names = ["load_agent"] if load.startswith("load_agent(") else [load.split("(")[0].split(".")[0]]
    lines = ["```python", f"from {LIBRARY} import {', '.join(names)}", "", f"agent = {load}"]
    if agent.budgets == "any":
        budget = getattr(agent, "cost_budget", 0)
        window = getattr(agent, "cost_window", None)
        per = "" if window is None else f", per={window}"
        lines.append(f"agent.set_cost_budget({budget!r}{per})  # any time, no retraining")
    lines += ["action, state = agent.predict(obs)", "```"]
    return "\n".join([*lines, "", "The file holds safetensors and JSON; loading it runs no code."])


# ------------------------------------------------------------ words


def _rows(*rows: tuple[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)])


def _space(space: Any) -> str:
    return plain(space)[:160]


def _text(budget: Any) -> str:
    if isinstance(budget, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in budget.items())
    return f"{budget:g}" if isinstance(budget, int | float) else str(budget)


def _costs(mean_cost: Any) -> dict[str, float]:
    return dict(mean_cost) if isinstance(mean_cost, Mapping) else {"cost": mean_cost}


def _cost_ranges(outcomes: Outcomes) -> list[tuple[str, float, float]]:
    if outcomes.costs.ndim == 1:
        return [("costs", float(outcomes.costs.min()), float(outcomes.costs.max()))]
    return [
        (f"costs, {plain(name)}", float(costs.min()), float(costs.max()))
        for name, costs in zip(outcomes.cost_names, outcomes.costs.T, strict=True)
    ]
