"""`BudgetConditioned`: algorithms whose one trained policy serves any cost budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.algorithms.base import OfflineAlgorithm
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.config import DEPLOYMENT, Config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.deploy.conditioning import TargetReturn, TokenCalibration, token_grid
from rcdt_agent.deploy.policy import ConditionedPolicy
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.wrappers import Facts, ReturnCostTokens, check_budget
from rcdt_agent.env_step import CostFunction
from rcdt_agent.errors import InvalidArgumentError, StateError
from rcdt_agent.evaluation import EnvSource, evaluate_budgets, task_budgets


class BudgetConditioned(OfflineAlgorithm[ConditionedPolicy, Config]):
    """Tells the policy what is left to earn and to spend; budgets can change at any time."""

    budgets = "any"
    config_class = Config

    def __init__(
        self,
        env: Env | None = None,
        config: Config | None = None,
        *,
        cost_budget: float | None = None,
        target_return: TargetReturn = "auto",
        **kwargs: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: Optional; gives the spaces, and serves evaluation callbacks.
            config: Settings; instead of `variant`, `preset` and its fields.
            cost_budget: What an episode may cost at deployment; default: the task's middle
                budget, or the median cost of the training trajectories.
            target_return: `auto` (from the data), `paper` (the published table) or a number.
            **kwargs: As for `Agent`, and any field of `Config`.
        """
        self._cost_budget = None if cost_budget is None else _one_budget(cost_budget)
        self._target_request: TargetReturn = target_return
        self._targets: dict[float, float] = {}  # target returns of budgets, as far as asked for
        super().__init__(env, config, **kwargs)

    # ------------------------------------------------------------ budgets

    @property
    def cost_budget(self) -> float:
        """What an episode may cost."""
        if self._cost_budget is None:
            raise InvalidArgumentError(
                "There is no cost budget yet: call `set_cost_budget`, or `learn` first, which "
                "sets a default."
            )
        return self._cost_budget

    @property
    def target_return(self) -> float:
        """What an episode is asked to return at the present budget."""
        if self._target_request == "auto":
            return self._auto_target(self.cost_budget)
        return self.resolve_target(self.cost_budget, self._target_request)

    def set_cost_budget(self, k: float, target_return: TargetReturn = "auto") -> None:
        """Say what an episode may cost from now on; also acts on episodes under way.

        Args:
            k: The budget, >= 0.
            target_return: `auto`, `paper` or a number.

        Warns:
            UserWarning: The training data do not cover the request; with the numbers.
        """
        budget = _one_budget(k)
        if self.has_policy:
            target = self.resolve_target(budget, target_return)
            self.policy.conditioning.warn_if_uncovered(budget, target)
        self._cost_budget, self._target_request = budget, target_return

    def resolve_target(self, cost_budget: float, target_return: TargetReturn = "auto") -> float:
        """The return that an episode at this budget is asked for: `auto`, `paper` or a number."""
        if not self.has_policy:
            raise InvalidArgumentError("There is no target return before `learn` has seen data.")
        return self.policy.conditioning.target_return(cost_budget, target_return)

    def set_dataset(self, dataset: TrajectoryDataset | str | Path) -> None:
        """Give the agent its training data; see `OfflineAlgorithm.set_dataset`."""
        super().set_dataset(dataset)
        if self._cost_budget is None:
            outcomes = self.policy.outcomes
            self._cost_budget = self.task.reference_budget if self.task else outcomes.typical_cost
        else:
            self.set_cost_budget(self._cost_budget, self._target_request)

    def _auto_target(self, cost_budget: float) -> float:
        """`resolve_target` of a budget, remembered until the conditioning changes."""
        if cost_budget not in self._targets:
            self._targets[cost_budget] = self.resolve_target(cost_budget)
        return self._targets[cost_budget]

    # ------------------------------------------------------------ acting

    def act(
        self,
        obs: Float32Array,
        state: Any,
        *,
        facts: Facts | None,
        episode_start: npt.ArrayLike | None,
        deterministic: bool,
    ) -> tuple[Float32Array, AgentState]:
        """Actions (N, A) for observations (N, O), and the state to hand back.

        Raises:
            StateError: The state has not seen the outcome of its last action, or is not that of
                the episode that a wrapper reports.
        """
        current: AgentState = self.begin(len(obs)) if state is None else state
        if current.n_envs != len(obs):
            raise InvalidArgumentError(
                f"`state` is of {current.n_envs} environments, but there are {len(obs)} "
                f"observations."
            )
        if episode_start is not None:
            current = current.restart(episode_start)
        if current.follows_agent:
            current = current.with_targets(self.target_return, self.cost_budget)
        if facts is not None:
            current = self._take_facts(current, facts, dropped=state is None)
        return self.policy.act(
            current.push(obs), deterministic=deterministic, generator=self.acting_generator
        )

    def _take_facts(self, state: AgentState, facts: Facts, *, dropped: bool) -> AgentState:
        """The state with what wrappers report: earned, spent, and budgets of their own.

        A budget that was stated to `begin` counts more than a wrapper's own: an evaluation at some
        budgets must not act at another one.
        """
        steps = facts.episode_step
        unlike = (steps != state.steps) & (state.steps > 0)
        wrong = (unlike | dropped) & (steps > 0)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise StateError(
                f"Environment {i} is at step {steps[i]:g} of its episode, but `state` has seen "
                f"{state.steps[i]}: hand back the state that the last `predict` returned. If the "
                f"agent takes over an episode under way, begin with `state=agent.begin()`."
            )
        state = state.restart(unlike)  # at step zero: a new episode has begun
        if state.follows_agent:
            own = np.isfinite(facts.cost_budget)
            budget = np.where(own, facts.cost_budget, state.cost_budget)
            target = state.target_return
            if own.any():
                target = np.where(own, [self._auto_target(float(b)) for b in budget], target)
            target = np.where(np.isfinite(facts.target_return), facts.target_return, target)
            state = state.with_targets(target, budget)
        return state.with_facts(facts.episode_return, facts.episode_cost)

    def begin(
        self,
        n_envs: int = 1,
        *,
        cost_budget: npt.ArrayLike | None = None,
        target_return: npt.ArrayLike | None = None,
    ) -> AgentState:
        """A state for episodes about to start, with budgets of their own if given.

        Args:
            n_envs: Number of environments.
            cost_budget: A number or (N,); default: the agent's, also when it changes later.
            target_return: A number or (N,); default: what the data show at the budget.
        """
        normalizer = self.policy.normalizer
        own = cost_budget is not None or target_return is not None
        budgets = check_budget(self.cost_budget if cost_budget is None else cost_budget)
        budgets = np.broadcast_to(budgets, (n_envs,))
        if target_return is None and cost_budget is not None:
            known = {budget: self.resolve_target(float(budget)) for budget in set(budgets)}
            target_return = [known[budget] for budget in budgets]
        return AgentState.begin(
            n_envs,
            context_length=self.config.context_length,
            observation_size=normalizer.obs_mean.numel(),
            action_size=normalizer.action_low.numel(),
            target_return=self.target_return if target_return is None else target_return,
            cost_budget=budgets,
            follows_agent=not own,
        )

    def wrap(
        self, env: Env, *, cost_key: str = "cost", cost_fn: CostFunction | None = None
    ) -> ReturnCostTokens:
        """Wrap an environment so that what it earned and spent travels in its observation.

        The budget stays with the agent: `set_cost_budget` acts at the next `predict`, in whatever
        process the environment runs.

        Args:
            env: Any Gymnasium environment, with five- or six-value steps.
            cost_key: Where in `info` the cost is.
            cost_fn: Computes the cost instead.
        """
        if not isinstance(env, gym.Env):
            raise InvalidArgumentError(
                f"`env` must be one Gymnasium environment, got {type(env).__name__}. "
                f"`VectorReturnCostTokens(env)` wraps Gymnasium's vector environments; wrap each "
                f"environment of a stable-baselines3 `VecEnv` before it is made."
            )
        return ReturnCostTokens(env, cost_key=cost_key, cost_fn=cost_fn)

    # ------------------------------------------------------------ deployment

    @property
    def calibration(self) -> TokenCalibration | None:
        """The calibration in force; assign None to take it back."""
        return self.policy.conditioning.calibration

    @calibration.setter
    def calibration(self, calibration: TokenCalibration | None) -> None:
        self.policy.calibrate(calibration)
        self._targets.clear()

    def calibrate(
        self,
        env: EnvSource = None,
        budgets: Sequence[float] | None = None,
        n_episodes: int = 20,
        seed: int = 1_000_000,
        *,
        n_tokens: int = 10,
        confidence: float = 0.95,
        **kwargs: Any,
    ) -> TokenCalibration:
        """Measure what episodes cost at each token, and from then on give the token that keeps.

        The policy is rolled out at a range of budgets; afterwards a budget is translated to the
        largest token whose mean cost is within it with the given confidence. This needs an
        environment, and seeds that are not those of the evaluation. The result is saved with the
        agent; `agent.calibration = None` takes it back.

        Args:
            env: As for `evaluate`.
            budgets: Budgets that will be asked for; default: those of the agent's task.
            n_episodes: Episodes per token.
            seed: Episode e is reset with `seed + e`.
            n_tokens: Tokens to measure, from zero to 1.5 times the largest budget.
            confidence: Of the upper bound of the mean cost, one-sided.
            **kwargs: As for `evaluate_budgets`.
        """
        self.calibration = None
        largest_cost = float(self.policy.outcomes.costs.max())
        tokens = token_grid(task_budgets(self, budgets), largest_cost, n_tokens)
        report = evaluate_budgets(
            self, env, tokens.tolist(), n_episodes=n_episodes, seed=seed, **kwargs
        )
        costs = np.array([result.costs for result in report.results])
        calibration = TokenCalibration.fit(tokens, costs, confidence=confidence, seed=seed)
        self.calibration = calibration
        return calibration

    def set_deployment(self, **fields: Any) -> None:
        """Change how the trained policy is steered; takes effect at the next `predict`.

        Args:
            **fields: Fields of `Config`: `budget_margin`, `ctg_floor`, `replan`,
                `exhausted_mode`, `shield_candidates`.
        """
        unknown = sorted(set(fields) - set(DEPLOYMENT))
        if unknown:
            raise InvalidArgumentError(
                f"`set_deployment` changes {', '.join(DEPLOYMENT)}, got {', '.join(unknown)}."
            )
        self.config = replace(self.config, **fields)
        if self.has_policy:
            self.policy.configure(self.config)
            self._targets.clear()

    def export_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX file for deployment without torch; `OnnxAgent` runs it.

        Raises:
            InvalidArgumentError: The agent is untrained, has a shield (which the file would lack),
                or the extra `onnx` is not installed.
            CheckpointError: The file cannot be written.
        """
        from rcdt_agent.deploy.export import export_onnx

        export_onnx(self, path)

    # ------------------------------------------------------------ files

    def restore_policy(
        self, values: dict[str, Any], observation: gym.spaces.Box, action: gym.spaces.Box
    ) -> ConditionedPolicy:
        """The policy of a checkpoint; weights follow."""
        return ConditionedPolicy.from_dict(self.config, values, observation, action)

    def settings_to_save(self) -> dict[str, Any]:
        """The budget in force and the request for a target return."""
        return {"cost_budget": self._cost_budget, "target_return": self._target_request}

    def load_settings(self, values: dict[str, Any]) -> None:
        """Take over the budget of a checkpoint."""
        self._cost_budget = _one_budget(values["cost_budget"])
        self._target_request = values["target_return"]


def _one_budget(cost_budget: Any) -> float:
    budgets = check_budget(cost_budget)
    if budgets.size != 1:
        raise InvalidArgumentError(
            f"`cost_budget` must be one number, got {cost_budget!r}; `agent.begin` takes several."
        )
    return float(budgets.item())
