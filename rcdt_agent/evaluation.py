"""Rollouts at every cost budget, in parallel environments, and the report of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from rcdt_agent._io import write_text
from rcdt_agent._types import Float64Array
from rcdt_agent.deploy.checks import check_budgets
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.env_step import CostFunction
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.eval_envs import Env, SeededEpisodes, env_maker
from rcdt_agent.eval_envs import EnvSource as EnvSource
from rcdt_agent.progress import progress
from rcdt_agent.stats import bootstrap_interval, normalized_score

if TYPE_CHECKING:
    from rcdt_agent.algorithms.agent import Agent


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """What happened at one budget.

    Attributes:
        budget: The cost budget.
        target_return: The return that was asked for; None of an algorithm that is not asked.
        returns: Return of each episode.
        costs: Cost of each episode.
        mean_return: Mean of `returns`.
        mean_cost: Mean of `costs`.
        return_interval: 95 % bootstrap interval of the mean return.
        cost_interval: 95 % bootstrap interval of the mean cost.
        normalized_return: Mean return scaled by the reference range.
        normalized_cost: Mean cost / budget; None for a budget of zero.
        passed: Mean cost <= budget.
        over_budget: Share of episodes that cost more than the budget.
        interventions: Share of steps at which the critic shield replaced the policy's action.
        ended_early: Share of episodes that the task ended, by a fall or a crash (or a goal that was
            reached), before the time limit did.
    """

    budget: float
    target_return: float | None
    returns: tuple[float, ...]
    costs: tuple[float, ...]
    mean_return: float
    mean_cost: float
    return_interval: tuple[float, float]
    cost_interval: tuple[float, float]
    normalized_return: float
    normalized_cost: float | None
    passed: bool
    over_budget: float
    interventions: float = 0.0
    ended_early: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """An agent's results at every budget.

    Attributes:
        env: What was evaluated on.
        seed: Episode e of every budget was reset with `seed + e`.
        return_range: The returns that normalise to 0 and 1.
        range_source: Where that range is from, always named.
        results: One entry a budget, in the order asked for.
    """

    env: str
    seed: int
    return_range: tuple[float, float]
    range_source: str
    results: tuple[BudgetResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every budget was kept on average."""
        return all(result.passed for result in self.results)

    def as_table(self) -> str:
        """A plain-text table."""
        head = (
            f"{'budget':>8} {'return':>18} {'cost':>18} {'norm. return':>13} {'norm. cost':>11} "
            f"{'kept':>5} {'episodes over':>14}"
        )
        early = any(r.ended_early for r in self.results)
        lines = [head + (f" {'ended early':>12}" if early else "")]
        for r in self.results:
            half_return = (r.return_interval[1] - r.return_interval[0]) / 2
            half_cost = (r.cost_interval[1] - r.cost_interval[0]) / 2
            cost = "-" if r.normalized_cost is None else f"{r.normalized_cost:.2f}"
            lines.append(
                f"{r.budget:>8g} {r.mean_return:>10.2f} ± {half_return:<5.2f} "
                f"{r.mean_cost:>10.2f} ± {half_cost:<5.2f} {r.normalized_return:>13.3f} "
                f"{cost:>11} {'yes' if r.passed else 'no':>5} {r.over_budget:>14.0%}"
                + (f" {r.ended_early:>12.0%}" if early else "")
            )
        episodes = len(self.results[0].returns)
        lines.append(
            f"{self.env}: {episodes} episodes a budget, seed {self.seed}, 95 % bootstrap "
            f"intervals; returns normalised by {self.range_source}."
        )
        return "\n".join(lines)

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole report as JSON, also written to `path` if given."""
        text = json.dumps({**asdict(self), "passed": self.passed}, indent=2)
        if path is not None:
            write_text(Path(path), text + "\n")
        return text


def evaluate_budgets(
    agent: Agent[Any, Any],
    env: EnvSource = None,
    budgets: Sequence[float] | float | None = None,
    *,
    n_episodes: int = 20,
    seed: int = 0,
    cost_key: str = "cost",
    cost_fn: CostFunction | None = None,
    n_envs: int | None = None,
    subprocesses: bool = False,
    target_return: Any = "auto",
    deterministic: bool = True,
    progress_bar: bool = False,
) -> BudgetReport:
    """Roll a policy out at every budget.

    Every episode has its own seed, the same at every budget, whatever the number of environments:
    the report does not depend on how it was computed.

    Args:
        agent: Any trained algorithm; one that knows no budget acts the same at each.
        env: A task or environment id, a function that makes one, one environment (used alone, in
            this process), or None for the agent's task.
        budgets: Cost budgets, or one; default: those of the agent's task.
        n_episodes: Episodes a budget.
        seed: Episode e is reset with `seed + e`.
        cost_key: Where in `info` the cost is (five-value steps).
        cost_fn: Computes the cost instead: (observation, action, next observation, info).
        n_envs: Environments side by side; default: 16 in this process (Safety-Gymnasium 4, they
            are slow to make; MetaDrive 1, it allows no more), or one a core in subprocesses.
        subprocesses: Run each environment in a process of its own. A script that asks for this
            needs the guard `if __name__ == "__main__":`, as always with multiprocessing.
        target_return: `auto`, `paper` or a number, for all budgets.
        deterministic: Take the mean action.
        progress_bar: Show finished episodes.
    """
    make, name, most = env_maker(agent, env)
    budgets = task_budgets(agent, budgets)
    if n_episodes < 1 or not len(budgets):
        raise InvalidArgumentError("`n_episodes` must be >= 1 and `budgets` must not be empty.")
    targets = [agent.resolve_target(budget, target_return) for budget in budgets]
    jobs = [(b, e) for b in range(len(budgets)) for e in range(n_episodes)]
    given = isinstance(env, gym.Env)
    apart = subprocesses and not given
    n = 1 if given else min(n_envs or (_cores() if apart else most), len(jobs))
    queues = [jobs[i::n] for i in range(n)]
    seeds = [[seed + episode for _, episode in queue] for queue in queues]
    makers: list[Callable[[], Env]] = [
        partial(SeededEpisodes.around, make, s, cost_key, cost_fn) for s in seeds
    ]
    venv: VecEnv = SubprocVecEnv(makers) if apart else DummyVecEnv(makers)
    try:
        returns, costs, shielded, early = _roll_out(
            agent, venv, queues, budgets, targets, n_episodes, deterministic, progress_bar
        )
    finally:
        if not given:
            venv.close()
    score_range, source = _reference(agent)
    results = tuple(
        _summarize(budget, target, returns[i], costs[i], score_range, seed, shielded[i], early[i])
        for i, (budget, target) in enumerate(zip(budgets, targets, strict=True))
    )
    return BudgetReport(
        env=name, seed=seed, return_range=score_range, range_source=source, results=results
    )


def task_budgets(
    agent: Agent[Any, Any], budgets: Sequence[float] | float | None
) -> Sequence[float]:
    """The given budgets, one number or several, or those of the agent's task."""
    if budgets is not None:
        return [float(budget) for budget in check_budgets(budgets)]
    if agent.task is None:
        raise InvalidArgumentError("`budgets` must be given for an agent without a task.")
    return agent.task.budgets


def _roll_out(
    agent: Agent[Any, Any],
    venv: VecEnv,
    queues: list[list[tuple[int, int]]],
    budgets: Sequence[float],
    targets: Sequence[float | None],
    n_episodes: int,
    deterministic: bool,
    progress_bar: bool,
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Returns and costs (budgets, episodes).

    Then the shield's share of all steps, and the share of episodes that ended early (budgets,).

    Environment i works off queue i of (budget, episode). Rewards and costs are summed here, from
    the steps.
    """
    n = len(queues)
    returns, costs, steps, shielded, early = np.zeros((5, len(budgets), n_episodes))
    place = np.zeros(n, dtype=int)
    current = np.array([queue[0][0] for queue in queues])
    active = np.ones(n, dtype=bool)
    asked, allowed = np.array([t or 0.0 for t in targets]), np.array(budgets, dtype=float)
    state = None  # others act the same at every budget
    if agent.budgets == "any":
        state = agent.begin(n).with_own_targets(asked[current], allowed[current])
    starts = np.zeros(n, dtype=bool)
    obs: Any = venv.reset()
    with progress(progress_bar, total=returns.size, unit="episode", leave=False) as bar:
        while active.any():
            actions, state = agent.predict(obs, state, starts, deterministic)
            obs, rewards, dones, infos = venv.step(actions)
            step_costs = np.array([float(info["cost"]) for info in infos])
            replaced = np.zeros(n, dtype=bool)
            if isinstance(state, AgentState):
                replaced = state.shielded
                state = state.observe(rewards, step_costs)
            for i in np.flatnonzero(active):
                job = queues[i][place[i]]
                returns[job] += rewards[i]
                costs[job] += step_costs[i]
                steps[job] += 1
                shielded[job] += replaced[i]
            for i in np.flatnonzero(dones & active):
                bar.update()
                early[queues[i][place[i]]] = not infos[i].get("TimeLimit.truncated", False)
                place[i] += 1
                active[i] = place[i] < len(queues[i])
                if active[i]:
                    current[i] = queues[i][place[i]][0]
            starts = dones.copy()
            if dones.any() and isinstance(state, AgentState):
                state = state.with_targets(asked[current], allowed[current])
    return returns, costs, shielded.sum(1) / steps.sum(1), early.mean(1)


def _summarize(
    budget: float,
    target: float | None,
    returns: Float64Array,
    costs: Float64Array,
    return_range: tuple[float, float],
    seed: int,
    interventions: float,
    ended_early: float,
) -> BudgetResult:
    mean_return, mean_cost = float(returns.mean()), float(costs.mean())
    return BudgetResult(
        budget=float(budget),
        target_return=target,
        returns=tuple(map(float, returns)),
        costs=tuple(map(float, costs)),
        mean_return=mean_return,
        mean_cost=mean_cost,
        return_interval=bootstrap_interval(returns, seed),
        cost_interval=bootstrap_interval(costs, seed),
        normalized_return=float(normalized_score(mean_return, return_range)),
        normalized_cost=mean_cost / budget if budget > 0 else None,
        passed=bool(mean_cost <= budget),
        over_budget=float(np.mean(costs > budget)),
        interventions=float(interventions),
        ended_early=float(ended_early),
    )


def _reference(agent: Agent[Any, Any]) -> tuple[tuple[float, float], str]:
    """The range that normalises returns, and its name."""
    if agent.task is not None and agent.provenance.published:
        return agent.task.return_range, f"DSRL's published range of {agent.task.name}"
    return agent.policy.outcomes.return_range, "the training data's own range"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
