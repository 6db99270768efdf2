"""Evaluations of runs: where an agent is rolled out, and the report that they add up to."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcdt_agent._io import write_text
from rcdt_agent.budget_report import BudgetReport
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.errors import InvalidArgumentError, UnknownTaskError
from rcdt_agent.experiments.runs import Run
from rcdt_agent.experiments.sources import AnyAlgorithm
from rcdt_agent.experiments.stored import read_estimates, read_evaluation
from rcdt_agent.offline_report import OfflineReport
from rcdt_agent.tasks.registry import get_task


def predict_latency(agent: AnyAlgorithm, n_steps: int = 300) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds, of `predict` for one environment.

    The observation is that of no task: zeros. The first tenth of the calls is not counted.
    """
    space = agent.observation_space
    assert space is not None
    policy = agent.policy
    shape = (policy.normalizer.observation_size,) if policy.layout else space.shape or ()
    obs = np.zeros(shape, dtype=policy.observation_dtype)
    state, times = None, []
    for _ in range(n_steps):
        started = time.perf_counter()
        _, state = agent.predict(obs, state)
        times.append(time.perf_counter() - started)
        if isinstance(state, AgentState):
            cost: Any = np.zeros_like(state.total_cost)
            state = state.observe(0.0, cost).restart([state.episode_steps[0] >= 50])
    median, slowest = np.percentile(times[n_steps // 10 :], [50, 99])
    return 1e3 * float(median), 1e3 * float(slowest)


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """Where an agent is rolled out.

    Attributes:
        env: Task or environment id.
        budgets: Its usual cost budgets; None: not known.
        subprocesses: Whether environments run in processes of their own.
    """

    env: str
    budgets: tuple[float, ...] | None
    subprocesses: bool


def find_simulator(agent: AnyAlgorithm, env: str | None = None) -> Simulator:
    """Where an agent can be evaluated.

    Args:
        agent: A trained agent.
        env: A task or environment id; default: the agent's task.

    Raises:
        InvalidArgumentError: None is named, and none is known for the agent's data.
    """
    if env is None:
        if agent.task is None:
            raise InvalidArgumentError(
                "No simulator is known for this data: name one (`--env`), or evaluate in an "
                "environment of your own with `agent.evaluate`."
            )
        env = agent.task.id
    try:
        task = get_task(env)
    except UnknownTaskError:  # perhaps one of Gymnasium's; `evaluate` says if not
        return Simulator(
            env=env, budgets=agent.task.budgets if agent.task else None, subprocesses=False
        )
    return Simulator(env=task.id, budgets=task.budgets, subprocesses=task.suite != "embedded")


def evaluate_run(
    agent: AnyAlgorithm,
    env: str | None = None,
    *,
    budgets: tuple[Any, ...] | None = None,
    n_episodes: int = 20,
    seed: int = 0,
    progress_bar: bool = True,
) -> BudgetReport:
    """Evaluate an agent where `find_simulator` finds that it can be.

    Args:
        agent: A trained agent.
        env: A task or environment id; default: the agent's task.
        budgets: Cost budgets, dicts of several costs; default: the simulator's usual ones.
        n_episodes: Episodes a budget.
        seed: Episode e is reset with `seed + e`.
        progress_bar: Show finished episodes.

    Raises:
        InvalidArgumentError: No simulator is known, or an argument breaks its rule.
        SimulatorError: It is not installed, or does not start.
    """
    simulator = find_simulator(agent, env)
    return agent.evaluate(
        simulator.env,
        budgets or (simulator.budgets if len(agent.cost_names) == 1 else None),
        n_episodes,
        seed,
        progress_bar=progress_bar,
        subprocesses=simulator.subprocesses,
    )


def add_to_report(run: Run, agent: AnyAlgorithm, report: BudgetReport) -> Path:
    """Add an evaluation to the report of a run.

    A budget that was measured before is replaced, the others stay, each with its own seed and
    number of episodes. Results of another agent (trained further or calibrated since) are dropped.
    An environment that is not the task's has a file of its own.

    Args:
        run: A run folder with a checkpoint.
        agent: The agent of it that was evaluated.
        report: What was measured.

    Returns:
        The file written.
    """
    path = run.report
    old = read_evaluation(path)
    home = agent.task.id if agent.task else old["env"] if old else report.env
    if report.env != home:
        path = path.with_name(f"report-{re.sub(r'[^A-Za-z0-9.]+', '-', report.env)}.json")
        old = read_evaluation(path)
    digest = agent_digest(run)
    new: dict[str, Any] = {**json.loads(report.to_json()), "agent_sha256": digest}
    results = {_key(entry): {**entry, "seed": report.seed} for entry in new["results"]}
    if old is not None and old.get("agent_sha256", digest) == digest:
        for entry in old["results"]:
            results.setdefault(_key(entry), {"seed": old["seed"], **entry})
    new["results"] = [results[budget] for budget in sorted(results)]
    new["passed"] = all(entry["passed"] for entry in new["results"])
    write_text(path, json.dumps(new, indent=2) + "\n")
    return path


def agent_digest(run: Run) -> str:
    """SHA-256 of the checkpoint of a run that has one."""
    assert run.checkpoint is not None
    return hashlib.sha256(run.checkpoint.read_bytes()).hexdigest()


def write_offline(run: Run, report: OfflineReport) -> Path:
    """Keep the estimates from logged data in the run folder; they replace earlier ones.

    Args:
        run: A run folder with a checkpoint.
        report: Estimates of its agent.
    """
    values = {**json.loads(report.to_json()), "agent_sha256": agent_digest(run)}
    write_text(run.offline, json.dumps(values, indent=2) + "\n")
    return run.offline


def read_offline(run: Run) -> dict[str, Any] | None:
    """What `write_offline` kept, if the agent is still the one that was estimated.

    Raises:
        InvalidArgumentError: The file is damaged.
    """
    return read_estimates(run.offline, agent_digest(run))


def _key(entry: dict[str, Any]) -> tuple[float, ...]:
    """The budget of a result, of every cost, to tell and to sort them by."""
    budget = entry["budget"]
    return tuple(budget.values()) if isinstance(budget, dict) else (budget,)
