"""Callbacks of ours, on top of stable-baselines3's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from rcdt_agent.budget_report import BudgetReport
from rcdt_agent.costs import budget_label
from rcdt_agent.eval_envs import env_maker
from rcdt_agent.evaluation import Budgets, EnvSource, evaluate_budgets, task_budgets


class BudgetEvalCallback(BaseCallback):
    """Evaluate at every budget now and then, and log `eval/return_20`, `eval/cost_20`, ...

    Of several costs: `eval/cost_speeding_speeding=5 fuel=40`, and so on.

    It observes; the final weights stay what they are, and nothing is selected by its results.
    """

    def __init__(
        self,
        env: EnvSource = None,
        budgets: Budgets = None,
        *,
        eval_freq: int = 5_000,
        n_episodes: int = 5,
        seed: int = 0,
        verbose: int = 0,
        **kwargs: Any,
    ) -> None:
        """Set up; arguments as for `evaluate_budgets`, every `eval_freq` steps."""
        super().__init__(verbose)
        self.eval_freq = eval_freq
        self.arguments: dict[str, Any] = {
            "env": env, "budgets": budgets, "n_episodes": n_episodes, "seed": seed, **kwargs
        }  # fmt: skip
        self.reports: dict[int, BudgetReport] = {}

    def _on_training_start(self) -> None:
        """Refuse what no evaluation could use before training, not after hours of it."""
        agent: Any = self.model
        env_maker(agent, self.arguments["env"])
        task_budgets(agent, self.arguments["budgets"])

    def _on_step(self) -> bool:
        agent: Any = self.model
        if self.n_calls % self.eval_freq == 0:
            report = evaluate_budgets(agent, **self.arguments)
            self.reports[self.num_timesteps] = report
            for result in report.results:
                at = budget_label(result.budget)
                self.logger.record(f"eval/return_{at}", result.mean_return)
                several = isinstance(result.mean_cost, dict)
                costs = result.mean_cost if several else {"cost": result.mean_cost}
                for name, cost in costs.items():
                    self.logger.record(f"eval/{f'cost_{name}' if several else name}_{at}", cost)
            self.logger.dump(self.num_timesteps)
        return True


class LatestCheckpoint(BaseCallback):
    """Keep one file up to date, from which a killed run continues."""

    def __init__(self, path: Path, every: int) -> None:
        """Save to `path` every `every` steps; the old file is replaced only by a whole new one."""
        super().__init__()
        self.path = path
        self.every = every

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.model.save(self.path)
        return True
