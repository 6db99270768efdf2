"""Rollouts at every cost budget, in parallel environments, and the report of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.targets import ReturnTargets
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.progress import progress
from rcdt_agent.steps import read_step
from rcdt_agent.tasks.registry import Task

Env = gym.Env[Any, Any]
EnvSource = str | Env | Callable[[], Env] | None
Floats = npt.NDArray[np.float64]

_BOOTSTRAP = 2000


class BudgetPolicy(Protocol):
    """What can be evaluated: an `RCDT`, or a policy that knows no budget in `BudgetBlind`."""

    task: Task | None
    targets: ReturnTargets | None

    @property
    def trained_on_published_data(self) -> bool:
        """Whether DSRL's published range normalises the returns."""

    def resolve_target(self, cost_budget: float, target_return: Any) -> float:
        """The return that an episode at this budget is asked for."""

    def begin(
        self, n_envs: int = 1, *, cost_budget: npt.ArrayLike, target_return: npt.ArrayLike
    ) -> AgentState:
        """A state for episodes about to start."""

    def predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[npt.NDArray[np.float32], AgentState]:
        """Actions for a batch, and the state to hand back."""


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """What happened at one budget.

    Attributes:
        budget: The cost budget.
        target_return: The return that was asked for.
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
    """

    budget: float
    target_return: float
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
        lines = [head]
        for r in self.results:
            half_return = (r.return_interval[1] - r.return_interval[0]) / 2
            half_cost = (r.cost_interval[1] - r.cost_interval[0]) / 2
            cost = "-" if r.normalized_cost is None else f"{r.normalized_cost:.2f}"
            lines.append(
                f"{r.budget:>8g} {r.mean_return:>10.2f} ± {half_return:<5.2f} "
                f"{r.mean_cost:>10.2f} ± {half_cost:<5.2f} {r.normalized_return:>13.3f} "
                f"{cost:>11} {'yes' if r.passed else 'no':>5} {r.over_budget:>14.0%}"
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
            target = Path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
        return text


def evaluate_budgets(
    agent: BudgetPolicy,
    env: EnvSource = None,
    budgets: Sequence[float] | None = None,
    *,
    n_episodes: int = 20,
    seed: int = 0,
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
        agent: A trained agent, or any other `BudgetPolicy`.
        env: A task or environment id, a function that makes one, one environment (used alone, in
            this process), or None for the agent's task.
        budgets: Cost budgets; default: those of the agent's task.
        n_episodes: Episodes a budget.
        seed: Episode e is reset with `seed + e`.
        n_envs: Environments side by side; default: 16 in this process (Safety-Gymnasium 4, they
            are slow to make; MetaDrive 1, it allows no more), or one a core in subprocesses.
        subprocesses: Run each environment in a process of its own. A script that asks for this
            needs the guard `if __name__ == "__main__":`, as always with multiprocessing.
        target_return: `auto`, `paper` or a number, for all budgets.
        deterministic: Take the mean action.
        progress_bar: Show finished episodes.
    """
    make, name, most = _env_maker(agent, env)
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
    makers: list[Callable[[], Env]] = [partial(_SeededEpisodes.around, make, s) for s in seeds]
    venv: VecEnv = SubprocVecEnv(makers) if apart else DummyVecEnv(makers)
    try:
        returns, costs, shielded = _run(
            agent, venv, queues, np.array(budgets), np.array(targets), n_episodes, deterministic,
            progress_bar,
        )  # fmt: skip
    finally:
        if not given:
            venv.close()
    low, high, source = _reference(agent)
    results = tuple(
        _summarize(budget, target, returns[i], costs[i], (low, high), seed, shielded[i])
        for i, (budget, target) in enumerate(zip(budgets, targets, strict=True))
    )
    return BudgetReport(
        env=name, seed=seed, return_range=(low, high), range_source=source, results=results
    )


def task_budgets(agent: BudgetPolicy, budgets: Sequence[float] | None) -> Sequence[float]:
    """The given budgets, or those of the agent's task."""
    if budgets is not None:
        return budgets
    if agent.task is None:
        raise InvalidArgumentError("`budgets` must be given for an agent without a DSRL task.")
    return agent.task.budgets


class _SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Resets with the next seed of a list, however the vector environment resets."""

    def __init__(self, env: Env, seeds: Sequence[int]) -> None:
        super().__init__(env)
        self._seeds = list(seeds)

    @classmethod
    def around(cls, make: Callable[[], Env], seeds: Sequence[int]) -> _SeededEpisodes:
        return cls(make(), seeds)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        own = self._seeds.pop(0) if self._seeds else None
        return self.env.reset(seed=own, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, _, terminated, truncated, info = read_step(self.env.step(action))
        return obs, reward, terminated, truncated, info


def _run(
    agent: BudgetPolicy,
    venv: VecEnv,
    queues: list[list[tuple[int, int]]],
    budgets: Floats,
    targets: Floats,
    n_episodes: int,
    deterministic: bool,
    progress_bar: bool,
) -> tuple[Floats, Floats, Floats]:
    """Returns and costs (budgets, episodes), and the shield's share of all steps (budgets,).

    Environment i works off queue i of the jobs.
    """
    n = len(queues)
    returns, costs, steps, shielded = np.zeros((4, len(budgets), n_episodes))
    place = np.zeros(n, dtype=int)
    current = np.array([queue[0][0] for queue in queues])
    active = np.ones(n, dtype=bool)
    state = agent.begin(n, cost_budget=budgets[current], target_return=targets[current])
    starts = np.zeros(n, dtype=bool)
    obs: Any = venv.reset()
    with progress(progress_bar, total=returns.size, unit="episode", leave=False) as bar:
        while active.any():
            actions, state = agent.predict(obs, state, starts, deterministic)
            obs, rewards, dones, infos = venv.step(actions)
            step_costs = np.array([float(info["cost"]) for info in infos])
            state = state.observe(rewards, step_costs)
            starts = dones.copy()
            for i in np.flatnonzero(dones & active):
                budget, episode = queues[i][place[i]]
                returns[budget, episode] = state.total_return[i]
                costs[budget, episode] = state.total_cost[i]
                steps[budget, episode] = state.steps[i]
                shielded[budget, episode] = state.interventions[i]
                bar.update()
                place[i] += 1
                active[i] = place[i] < len(queues[i])
                if active[i]:
                    current[i] = queues[i][place[i]][0]
            if dones.any():
                state = state.with_targets(targets[current], budgets[current])
    return returns, costs, shielded.sum(1) / steps.sum(1)


def _summarize(
    budget: float,
    target: float,
    returns: Floats,
    costs: Floats,
    return_range: tuple[float, float],
    seed: int,
    interventions: float,
) -> BudgetResult:
    low, high = return_range
    mean_return, mean_cost = float(returns.mean()), float(costs.mean())
    return BudgetResult(
        budget=float(budget),
        target_return=float(target),
        returns=tuple(map(float, returns)),
        costs=tuple(map(float, costs)),
        mean_return=mean_return,
        mean_cost=mean_cost,
        return_interval=bootstrap_interval(returns, seed),
        cost_interval=bootstrap_interval(costs, seed),
        normalized_return=(mean_return - low) / (high - low),
        normalized_cost=mean_cost / budget if budget > 0 else None,
        passed=bool(mean_cost <= budget),
        over_budget=float(np.mean(costs > budget)),
        interventions=float(interventions),
    )


def bootstrap_interval(values: Floats, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(values), (_BOOTSTRAP, len(values)))
    low, high = np.quantile(np.asarray(values)[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _reference(agent: BudgetPolicy) -> tuple[float, float, str]:
    """The range that normalises returns, and its name."""
    assert agent.targets is not None
    published = agent.trained_on_published_data
    if agent.task is not None and published:
        return *agent.task.return_range, f"DSRL's published range of {agent.task.name}"
    low, high = float(agent.targets.returns.min()), float(agent.targets.returns.max())
    return low, high if high > low else low + 1.0, "the training data's own range"


def _env_maker(agent: BudgetPolicy, env: EnvSource) -> tuple[Callable[[], Env], str, int]:
    """A function that makes the environment, its name, and how many to make in one process."""
    from rcdt_agent.errors import UnknownTaskError
    from rcdt_agent.tasks.registry import PARALLEL_ENVS, get_task
    from rcdt_agent.tasks.simulators import make_env

    if env is None:
        if agent.task is None:
            raise InvalidArgumentError("`env` must be given for an agent without a DSRL task.")
        env = agent.task.id
    if isinstance(env, str):
        try:
            task = get_task(env)
            return partial(make_env, task.id), task.id, PARALLEL_ENVS[task.suite]
        except UnknownTaskError:
            if env not in gym.registry:
                raise
            return partial(gym.make, env), env, 16
    if isinstance(env, gym.Env):
        return (lambda: env), str(env.spec.id if env.spec else type(env.unwrapped).__name__), 1
    return env, getattr(env, "__name__", "environment"), 16


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
