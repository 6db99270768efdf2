"""Rollouts at every cost budget, in parallel environments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from rcdt_agent._types import Float64Array
from rcdt_agent.arguments import check_flags, check_whole
from rcdt_agent.budget_report import BudgetReport as BudgetReport
from rcdt_agent.budget_report import BudgetResult as BudgetResult
from rcdt_agent.budget_report import budget_result
from rcdt_agent.deploy.checks import check_budgets, check_cost_budget
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.env_step import CostFunction, CostKey, check_cost_source, step_cost
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.eval_envs import Env, SeededEpisodes, check_space, env_maker
from rcdt_agent.eval_envs import EnvSource as EnvSource
from rcdt_agent.progress import progress

if TYPE_CHECKING:
    from rcdt_agent.algorithms.agent import Agent

Budgets = Sequence[float] | Sequence[Mapping[str, float]] | Mapping[str, float] | float | None
"""Cost budgets, or one; by name of several costs."""


def evaluate_budgets(
    agent: Agent[Any, Any],
    env: EnvSource = None,
    budgets: Budgets = None,
    *,
    n_episodes: int = 20,
    seed: int = 0,
    cost_key: CostKey = "cost",
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
        budgets: Cost budgets, or one; default: those of the agent's task. Of an agent with several
            costs, dicts by name.
        n_episodes: Episodes a budget.
        seed: Episode e is reset with `seed + e`.
        cost_key: Where in `info` the cost is (five-value steps); several costs as for `wrap`.
        cost_fn: Computes the cost instead: (observation, action, next observation, info).
        n_envs: Environments side by side; default: 16 in this process (Safety-Gymnasium 4, they
            are slow to make; MetaDrive 1, it allows no more), or one a core in subprocesses.
        subprocesses: Run each environment in a process of its own. A script that asks for this
            needs the guard `if __name__ == "__main__":`, as always with multiprocessing.
        target_return: `auto`, `paper` or a number, for all budgets.
        deterministic: Take the mean action.
        progress_bar: Show finished episodes.
    """
    check_agent(agent)
    check_rollouts(n_episodes, seed)
    check_cost_source(cost_key, cost_fn)
    if n_envs is not None:
        check_whole("n_envs", n_envs, 1)
    check_flags(subprocesses=subprocesses, deterministic=deterministic, progress_bar=progress_bar)
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
        partial(SeededEpisodes.around, make, s, cost_key, cost_fn, agent.cost_names) for s in seeds
    ]
    venv: VecEnv = SubprocVecEnv(makers) if apart else DummyVecEnv(makers)
    try:
        check_space(agent, venv.observation_space, name)
        returns, costs, shielded, early = _roll_out(
            agent, venv, queues, budgets, targets, n_episodes, deterministic, progress_bar
        )
    finally:
        if not given:
            venv.close()
    score_range, source = _reference(agent)
    results = tuple(
        budget_result(
            budget,
            target,
            returns[i],
            columns_by_name(costs[i], agent.cost_names),
            score_range,
            seed,
            shielded[i],
            early[i],
        )
        for i, (budget, target) in enumerate(zip(budgets, targets, strict=True))
    )
    return BudgetReport(
        env=name, seed=seed, return_range=score_range, range_source=source, results=results
    )


def check_agent(agent: Any) -> None:
    """Refuse what is no agent."""
    from rcdt_agent.algorithms.agent import Agent

    if not isinstance(agent, Agent):
        raise InvalidArgumentError(f"`agent` must be an agent, got {agent!r}.")


def check_rollouts(n_episodes: Any, seed: Any) -> None:
    """Refuse a number of episodes, or a seed, that is none."""
    check_whole("n_episodes", n_episodes, 1)
    check_whole("seed", seed)


def task_budgets(agent: Agent[Any, Any], budgets: Budgets) -> Sequence[Any]:
    """The given budgets, one or several, or those of the agent's task."""
    names = agent.cost_names
    named = isinstance(budgets, Mapping) or (
        isinstance(budgets, Sequence) and any(isinstance(b, Mapping) for b in budgets)
    )
    if len(names) > 1 or named:
        if budgets is None:
            raise InvalidArgumentError(
                f"`budgets` must be given for an agent with several costs: "
                f"[{{{', '.join(f'{name!r}: ...' for name in names)}}}]."
            )
        given = [budgets] if isinstance(budgets, Mapping | float | int) else list(budgets)
        return [check_cost_budget(budget, names) for budget in given]
    if budgets is not None:
        return [float(budget) for budget in check_budgets(budgets)]
    if agent.task is None:
        raise InvalidArgumentError(
            "`budgets` must be given for an agent without a task: `budgets=(5, 10, 20)`, on the "
            "command line `--budgets 5 10 20`. `rcdt inspect` shows what the data cover."
        )
    return agent.task.budgets


def _roll_out(
    agent: Agent[Any, Any],
    venv: VecEnv,
    queues: list[list[tuple[int, int]]],
    budgets: Sequence[Any],
    targets: Sequence[float | None],
    n_episodes: int,
    deterministic: bool,
    progress_bar: bool,
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Returns (budgets, episodes), and costs (budgets, episodes, m), m left out of one cost.

    Then the shield's share of all steps, and the share of episodes that ended early (budgets,).

    Environment i works off queue i of (budget, episode). Rewards and costs are summed here, from
    the steps.
    """
    n = len(queues)
    names = agent.cost_names
    returns, steps, shielded, early = np.zeros((4, len(budgets), n_episodes))
    costs = np.zeros((len(budgets), n_episodes, *((len(names),) if len(names) > 1 else ())))
    place = np.zeros(n, dtype=int)
    current = np.array([queue[0][0] for queue in queues])
    active = np.ones(n, dtype=bool)
    asked = np.array([t or 0.0 for t in targets])
    allowed = np.concatenate([check_budgets(budget, 1, names) for budget in budgets])
    state = None  # others act the same at every budget
    if agent.budgets == "any":
        state = agent.begin(n).with_own_targets(asked[current], allowed[current])
    starts = np.zeros(n, dtype=bool)
    obs: Any = venv.reset()
    with progress(progress_bar, total=returns.size, unit="episode", leave=False) as bar:
        while active.any():
            actions, state = agent.predict(obs, state, starts, deterministic)
            obs, rewards, dones, infos = venv.step(actions)
            step_costs = np.array([step_cost(info["cost"], names) for info in infos])
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


def columns_by_name(costs: Float64Array, names: Sequence[str]) -> Any:
    """(E,) costs of episodes; several (E, m) as a dict of them."""
    return costs if len(names) == 1 else dict(zip(names, costs.T, strict=True))


def _reference(agent: Agent[Any, Any]) -> tuple[tuple[float, float], str]:
    """The range that normalises returns, and its name."""
    if agent.task is not None and agent.provenance.published:
        return agent.task.return_range, f"DSRL's published range of {agent.task.name}"
    return agent.policy.outcomes.return_range, "the training data's own range"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
