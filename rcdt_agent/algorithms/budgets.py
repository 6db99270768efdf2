"""`BudgetConditioned`: algorithms that are told the budget, and a target return, by tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rcdt_agent._types import Float32Array
from rcdt_agent.action_spaces import ActionSpace
from rcdt_agent.algorithms.any_budget import AnyBudget as AnyBudget
from rcdt_agent.algorithms.sb3 import Env
from rcdt_agent.arguments import check_number, check_path, check_whole
from rcdt_agent.base_config import CHANGEABLE
from rcdt_agent.config import DEPLOYMENT, TRAINING, Config
from rcdt_agent.costs import ONE_COST, CostBudget, budget_label, refuse_several
from rcdt_agent.data.readers import AnyData, as_dataset
from rcdt_agent.deploy.checks import check_budgets, check_cost_budget, check_target_request
from rcdt_agent.deploy.conditioning import TargetReturn
from rcdt_agent.deploy.policy import ConditionedPolicy
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.token_calibration import TokenCalibration
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import EnvSource, check_rollouts
from rcdt_agent.fitted_q import FQEConfig

LONGEST_WINDOW = 1_000_000
"""Steps of a rolling window: a state keeps a number for each of them."""


class BudgetConditioned(AnyBudget[ConditionedPolicy, Config]):
    """Tells the policy what is left to earn and to spend; budgets can change at any time."""

    config_class = Config
    several_costs = True
    changeable = (*CHANGEABLE, *TRAINING, *DEPLOYMENT)

    def __init__(
        self,
        env: Env | None = None,
        config: Config | None = None,
        *,
        cost_budget: CostBudget | None = None,
        target_return: TargetReturn = "auto",
        **kwargs: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: Optional; gives the spaces, and serves evaluation callbacks.
            config: Settings; instead of `variant`, `preset` and its fields.
            cost_budget: What an episode may cost at deployment, by name where the data have
                several costs; default: the task's middle budget, or the median cost of the
                training trajectories.
            target_return: `auto` (from the data), `paper` (the published table) or a number.
            **kwargs: As for `Agent`, and any field of `Config`.
        """
        check_target_request(target_return)
        self._target_request: TargetReturn = target_return
        # Target returns of budgets (m,), as far as asked for; then those held against the data.
        self._targets: dict[tuple[float, ...], float] = {}
        self._judged: set[tuple[tuple[float, ...], float]] = set()
        super().__init__(env, config, cost_budget=cost_budget, **kwargs)

    # ------------------------------------------------------------ budgets

    @property
    def target_return(self) -> float:
        """What an episode is asked to return at the present budget."""
        if self._target_request == "auto":
            return self._auto_target(self.budget_row)
        return self.resolve_target(self.cost_budget, self._target_request)

    def set_cost_budget(
        self, k: CostBudget, target_return: TargetReturn = "auto", *, per: int | None = None
    ) -> None:
        """Say what an episode may cost from now on; also acts on episodes under way.

        Only episodes whose budget was stated to `begin` keep that one.

        Args:
            k: The budget, >= 0; of several costs, one by name for each:
                `{"collision": 5, "speeding": 20}`.
            target_return: `auto`, `paper` or a number.
            per: The budget is one for every `per` steps in a row, for plants that never reset,
                instead of one for an episode.

        Raises:
            InvalidArgumentError: A number is outside its rule, a cost is unknown or missing, or
                `per` does not go with a target return or a calibration; the budget in force stays.

        Warns:
            UserWarning: The training data do not cover the request; once, with the numbers.
        """
        budget = check_cost_budget(k, self.cost_names if self.has_policy else None)
        self._check_cost_window(per, target_return)
        if self.has_policy:
            row = check_budgets(budget, 1, self.cost_names)[0]
            if per is None:
                self._judge(row, self.resolve_target(budget, target_return))
            else:  # what an episode of the data would cost at that pace
                row = row * self.episode_length / per
                asked = f"{budget_label(budget)} per {per} steps"
                meaning = f"{asked}, in an episode of {self.episode_length}: "
                self._judge(row, self._auto_target(row), meaning)
        self._cost_budget, self._target_request = budget, target_return
        self.cost_window = None if per is None else int(per)

    def _check_cost_window(self, per: Any, target_return: TargetReturn) -> None:
        """Refuse a rolling window that is none, or what does not go with one."""
        if per is None:
            return
        whole = isinstance(per, int | np.integer) and not isinstance(per, bool)
        if not whole or not 1 <= per <= LONGEST_WINDOW:
            raise InvalidArgumentError(
                f"`per` must be a whole number of steps from 1 to {LONGEST_WINDOW:,}, got {per!r}."
            )
        if target_return != "auto":
            raise InvalidArgumentError(
                "`target_return` cannot be stated with `per`: it would be that of an episode."
            )
        if self.has_policy and self.calibration is not None:
            raise InvalidArgumentError(
                "`per` cannot be used with a calibration, which was measured for whole episodes."
            )

    def resolve_target(
        self, cost_budget: CostBudget, target_return: TargetReturn = "auto"
    ) -> float:
        """The return that an episode at this budget is asked for: `auto`, `paper` or a number."""
        if not self.has_policy:
            raise InvalidArgumentError("The agent has not been trained: call `learn` first.")
        row = check_budgets(cost_budget, 1, self.cost_names)[0]
        return self.policy.conditioning.target_return(row, target_return)

    def judge_budget(self) -> None:
        """Warn if the training data do not cover the budget and target return in force."""
        self.set_cost_budget(self.cost_budget, self._target_request, per=self.cost_window)

    @property
    def cost_names(self) -> tuple[str, ...]:
        """Of the costs of the training data; one cost, and that of no data yet, is `cost`."""
        return self.policy.conditioning.cost_names if self.has_policy else ONE_COST

    def _auto_target(self, budget_row: npt.ArrayLike) -> float:
        """The target of a budget () or (m,), remembered until the conditioning changes."""
        key = tuple(np.ravel(budget_row).tolist())
        if key not in self._targets:
            self._targets[key] = self.policy.conditioning.target_return(budget_row)
        return self._targets[key]

    def _forget_targets(self) -> None:
        """The conditioning has changed: budgets are looked up and judged anew."""
        self._targets.clear()
        self._judged.clear()

    @property
    def has_return_token(self) -> bool:
        """Whether the policy is told a return."""
        return self.config.return_token

    def target_of(self, budget_row: npt.ArrayLike) -> float:
        """What the data show at a budget that was stated; warns once if they do not cover it."""
        target = self._auto_target(budget_row)
        self._judge(budget_row, target)
        return target

    def _judge(self, budget_row: npt.ArrayLike, target_return: float, meaning: str = "") -> None:
        key = tuple(np.ravel(budget_row).tolist()), target_return
        if key not in self._judged:
            self._judged.add(key)
            self.policy.conditioning.warn_if_uncovered(budget_row, target_return, meaning)

    # ------------------------------------------------------------ deployment

    @property
    def context_length(self) -> int:
        """Steps of the policy's window."""
        return self.config.context_length

    @property
    def episode_length(self) -> int:
        """Steps of the longest episode of the task and its training data."""
        return self.policy.episode_length

    def act_on(self, state: AgentState, *, deterministic: bool) -> tuple[Float32Array, AgentState]:
        """Actions (N, A) of the space at the present step of each episode, noted in the state."""
        return self.policy.act(state, deterministic=deterministic, generator=self.acting_generator)

    @property
    def calibration(self) -> TokenCalibration | None:
        """The calibration in force; assign None to take it back."""
        return self.policy.conditioning.calibration

    @calibration.setter
    def calibration(self, calibration: TokenCalibration | None) -> None:
        if calibration is not None:
            self._refuse_window()
        self.forget_evaluation()
        self.policy.calibrate(calibration)
        self._forget_targets()

    def _refuse_window(self) -> None:
        if self.cost_window is not None:
            raise InvalidArgumentError(
                "A calibration is for whole episodes, but the budget is for every "
                f"{self.cost_window} steps: `set_cost_budget` without `per` first."
            )

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
        from rcdt_agent.calibration import measure_tokens

        check_whole("n_tokens", n_tokens, 1)
        check_number("confidence", confidence, 0, 1)
        check_rollouts(n_episodes, seed)
        with self._recalibrating("`calibrate`"):
            found = self.calibration = measure_tokens(
                self, env, budgets, n_episodes=n_episodes, seed=seed, n_tokens=n_tokens,
                confidence=confidence, **kwargs,
            )  # fmt: skip
        return found

    def calibrate_offline(
        self,
        dataset: AnyData,
        budgets: Sequence[float] | None = None,
        *,
        n_tokens: int = 10,
        seed: int = 0,
        config: FQEConfig | None = None,
    ) -> TokenCalibration:
        """`calibrate` from logged data alone, where they cover the budgets.

        Each token is valued by `evaluate_offline`; a budget is then translated to the largest token
        whose `cost_interval` ends within it, and never to more than itself. It is as good as those
        estimates, which is no guarantee.

        Args:
            dataset: Trajectories, as `learn` takes them.
            budgets: Budgets that will be asked for; default: those of the agent's task.
            n_tokens: Tokens to value, from zero to 1.5 times the largest budget.
            seed: Of the estimates.
            config: Settings of fitted Q evaluation.

        Raises:
            DatasetError: The data do not cover a budget, or do not show a token that keeps it. The
                calibration in force stays.
        """
        from rcdt_agent.calibration import measure_tokens_offline

        check_whole("n_tokens", n_tokens, 1)
        check_whole("seed", seed)
        with self._recalibrating("`calibrate_offline`"):
            found = self.calibration = measure_tokens_offline(
                self, as_dataset(dataset), budgets, n_tokens=n_tokens, seed=seed, config=config
            )
        return found

    @contextmanager
    def _recalibrating(self, caller: str) -> Iterator[None]:
        """Without the calibration in force, which comes back if measuring a new one fails."""
        refuse_several(self.cost_names, caller)
        self._refuse_window()
        before, measured = self.calibration, (self.last_evaluation, self.loaded_from)
        self.calibration = None
        try:
            yield
        except BaseException:
            self.calibration = before
            self.last_evaluation, self.loaded_from = measured
            raise

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
        changed = sorted(n for n, v in fields.items() if getattr(self.config, n) != v)
        if changed and self.has_policy and self.calibration is not None:
            raise InvalidArgumentError(
                f"`{'`, `'.join(changed)}` cannot be changed: the agent was calibrated without the "
                f"change. Take the calibration back first (`agent.calibration = None`), and "
                f"calibrate again afterwards."
            )
        config = replace(self.config, **fields)
        if changed:
            self.forget_evaluation()
        if self.has_policy:
            self.policy.configure(config)
            self._forget_targets()
        self.config = config

    def export_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX file for deployment without torch; `OnnxAgent` runs it.

        Raises:
            InvalidArgumentError: The agent is untrained, has a shield (which the file would lack),
                or the extra `onnx` is not installed.
            CheckpointError: The file cannot be written.
        """
        from rcdt_agent.deploy.export import export_onnx

        path = check_path("path", path)
        if self.has_policy:
            refuse_several(self.cost_names, "An ONNX file")
        export_onnx(self, path)

    # ------------------------------------------------------------ files

    def restore_policy(
        self, values: dict[str, Any], observation: gym.spaces.Box, action: ActionSpace
    ) -> ConditionedPolicy:
        """The policy of a checkpoint; weights follow."""
        return ConditionedPolicy.from_dict(self.config, values, observation, action)

    def settings_to_save(self) -> dict[str, Any]:
        """The budget in force and the request for a target return."""
        return {
            **super().settings_to_save(),
            "target_return": self._target_request,
            "cost_window": self.cost_window,
        }

    def load_settings(self, values: dict[str, Any]) -> None:
        """Take over the budget of a checkpoint."""
        super().load_settings(values)
        self._target_request = values["target_return"]
        window = values.get("cost_window")  # files of earlier versions have none
        self._check_cost_window(window, self._target_request)
        self.cost_window = window
