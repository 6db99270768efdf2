"""CAPS: several policies in one network, and critics that switch between them at every step.

Chemingui et al., Constraint-Adaptive Policy Switching for Offline Safe Reinforcement Learning,
AAAI 2025, with implicit Q-learning. Trained once, it serves any cost budget.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rcdt_agent import losses, weighted_losses
from rcdt_agent._types import Float32Array
from rcdt_agent.algorithms.any_budget import AnyBudget
from rcdt_agent.algorithms.markov import (
    MARKOV_RULES,
    MarkovAlgorithm,
    MarkovConfig,
    MarkovPolicy,
)
from rcdt_agent.algorithms.training import Metrics
from rcdt_agent.base_config import Rule, check_fields
from rcdt_agent.critics import TWINS, target_network, update_target
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.deploy.checks import check_budget
from rcdt_agent.deploy.conditioning import beyond_all_costs, too_few_within
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.networks import CriticEnsemble, mlp, twin_values

LOG_STD_RANGE = (-5.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class CAPSConfig(MarkovConfig):
    """Settings of CAPS with implicit Q-learning (S: its paper's supplement and code; I: ours)."""

    learning_rate: float = 3e-4
    """Of the heads' Adam (S)."""
    width: int = 512
    """Hidden units (S)."""
    n_heads: int = 4
    """Policies, from the most rewarding to the most careful (S)."""
    critic_learning_rate: float = 3e-4
    """Of the critics' Adam (S)."""
    discount: float = 0.99
    """Of rewards and costs (S)."""
    target_rate: float = 0.005
    """Share of the new weights in a soft update of target networks (S)."""
    reward_scale: float = 0.1
    """Rewards are multiplied by it (S)."""
    expectile: float = 0.7
    """Of the reward's value; MetaDrive 0.5 (S)."""
    cost_expectile: float = 0.7
    """Of the negated cost's value; MetaDrive 0.5 (S)."""
    temperature: float = 3.0
    """Of the advantages in the weights (S)."""
    weight_cap: float = 100.0
    """Largest weight (S)."""
    as_published: bool = False
    """A time-out ends an episode like a terminal for the critics, as in the code (S)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, _RULES)


_RULES: dict[str, Rule] = {
    **MARKOV_RULES,
    "n_heads": (lambda v, _: v >= 2, ">= 2"),
    "critic_learning_rate reward_scale temperature weight_cap": (lambda v, _: v > 0, "> 0"),
    "discount": (lambda v, _: 0 <= v < 1, "in [0, 1)"),
    "target_rate": (lambda v, _: 0 < v <= 1, "in (0, 1]"),
    "expectile cost_expectile": (lambda v, _: 0.5 <= v < 1, "in [0.5, 1)"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "total_steps": 8_000,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "final_learning_rate": 0.05,
        "critic_learning_rate": 1e-3,
        "target_rate": 0.01,
        "width": 128,
        "normalize_observations": True,
    },
    "tiny": {
        "total_steps": 2_000,
        "batch_size": 256,
        "learning_rate": 2e-3,
        "final_learning_rate": 0.05,
        "critic_learning_rate": 2e-3,
        "target_rate": 0.02,
        "width": 64,
        "normalize_observations": True,
    },
}
"""Sizes: as published, for one CPU core in about a minute, and for tests."""


class CAPSPolicy(MarkovPolicy):
    """Heads on one trunk, and the critics that choose between their actions.

    Attributes:
        critics: Target networks: twins of reward, then twins of cost.
    """

    def __init__(self, config: CAPSConfig, *args: Any, **kwargs: Any) -> None:
        """Make the networks; arguments as for `MarkovPolicy`."""
        super().__init__(config, *args, **kwargs)
        size_o, size_a = self.sizes
        self.n_heads, self.discount = config.n_heads, config.discount
        self.network = mlp(size_o, config.width, config.n_layers, config.n_heads * size_a)
        self.log_std = nn.Parameter(torch.zeros(config.n_heads, size_a))
        self.critics = CriticEnsemble(2 * TWINS, sum(self.sizes), config.width, config.n_layers)
        self.critics.requires_grad_(False)  # a copy of what is trained

    def forward(self, obs: Tensor) -> Tensor:
        """(K, B, A) mean action of each head for normalised observations (B, O)."""
        means: Tensor = self.network(obs).float().view(len(obs), self.n_heads, -1)
        return torch.tanh(means).transpose(0, 1)

    def allowance(self, left: Tensor, steps_left: Tensor) -> Tensor:
        """(N,) what the cost critic may say, given what is left of budget and episode (N,)."""
        return losses.cost_allowance(left, steps_left, self.discount)

    def act(self, obs: Tensor, *, generator: torch.Generator, deterministic: bool) -> Tensor:
        """The least costly head's actions: without an episode nothing is left of any budget."""
        nothing = torch.full((len(obs),), -torch.inf, device=obs.device)
        return self.switch(obs, nothing, generator=generator, deterministic=deterministic)

    def switch(
        self, obs: Tensor, allowance: Tensor, *, generator: torch.Generator, deterministic: bool
    ) -> Tensor:
        """Actions (N, A) in [-1, 1] of the head chosen in each of N episodes.

        Args:
            obs: (N, O) in units of the task.
            allowance: (N,) of `allowance`.
            generator: For draws; on the CPU.
            deterministic: Each head's mean, otherwise a draw.
        """
        rows = self.normalizer.obs(obs)
        actions = self(rows)  # (K, N, A)
        if not deterministic:
            noise = torch.randn(actions.shape, generator=generator).to(actions.device)
            spread = self.log_std.clamp(*LOG_STD_RANGE).exp()[:, None]
            actions = (actions + spread * noise).clamp(-1.0, 1.0)
        reward, cost = twin_values(self.critics(rows.expand(self.n_heads, -1, -1), actions))
        head = weighted_losses.choose_head(reward, cost, allowance)
        chosen: Tensor = actions[head, torch.arange(len(obs), device=obs.device)]
        return chosen


class CAPS(AnyBudget[CAPSPolicy, CAPSConfig], MarkovAlgorithm[CAPSPolicy, CAPSConfig]):
    """Takes, at every step, the most rewarding head that what is left of the budget allows."""

    config_class = CAPSConfig
    policy_class = CAPSPolicy
    presets = PRESETS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make an untrained agent; arguments as for `AnyBudget`, fields those of `CAPSConfig`."""
        self._judged: set[float] = set()  # budgets held against the data
        super().__init__(*args, **kwargs)

    # ------------------------------------------------------------ budgets

    @property
    def target_return(self) -> float:
        """Zero: CAPS is asked for a budget, never for a return."""
        return 0.0

    def target_of(self, budget_row: npt.ArrayLike) -> float:
        """Zero; warns if the data do not cover the budget."""
        self._judge(float(np.asarray(budget_row)))
        return 0.0

    def set_cost_budget(self, k: float, target_return: Any = "auto") -> None:
        """Say what an episode may cost from now on; also acts on episodes under way.

        Args:
            k: The budget, >= 0.
            target_return: `auto` only: CAPS cannot be asked for a return.

        Warns:
            UserWarning: The training data do not cover the budget.
        """
        if target_return != "auto":
            raise InvalidArgumentError(
                f"`target_return` must be 'auto': CAPS takes what the budget allows, got "
                f"{target_return!r}."
            )
        budget = check_budget(k)
        if self.has_policy:
            self._judge(budget)
        self._cost_budget = budget

    def judge_budget(self) -> None:
        """Warn if the training data do not cover the budget in force."""
        self._judge(self.cost_budget)

    def _judge(self, cost_budget: float) -> None:
        if cost_budget in self._judged:
            return
        self._judged.add(cost_budget)
        for say in (too_few_within, beyond_all_costs):
            if text := say(self.policy.outcomes, cost_budget):
                warnings.warn(text, stacklevel=4)

    # ------------------------------------------------------------ acting

    @property
    def context_length(self) -> int:
        """One: the present observation is all that a head sees."""
        return 1

    @property
    def episode_length(self) -> int:
        """Steps of the longest episode of the task and its training data."""
        return self.policy.episode_length

    @torch.inference_mode()
    def act_on(self, state: AgentState, *, deterministic: bool) -> tuple[Float32Array, AgentState]:
        """Actions (N, A) of the space at the present step of each episode, noted in the state."""
        policy = self.policy
        left = torch.from_numpy(state.cost_to_go).to(self.device)
        passed = torch.from_numpy(state.episode_steps - 1).to(self.device)
        chosen = policy.switch(
            torch.from_numpy(state.obs[:, 0]).to(self.device),
            policy.allowance(left, policy.episode_length - passed),
            generator=self.acting_generator,
            deterministic=deterministic,
        )
        actions = policy.normalizer.unscale_actions(chosen).cpu().numpy()
        return actions, state.with_action(actions)

    # ------------------------------------------------------------ training

    def setup(self, dataset: TrajectoryDataset) -> None:
        """Make sampler, critics, values and optimisers."""
        config, policy = self.config, self.policy
        self.make_sampler(dataset)
        self.critics = target_network(policy.critics).requires_grad_(True)
        self.values = CriticEnsemble(2, policy.sizes[0], config.width, config.n_layers)
        self.values.to(self.device)  # of reward and of cost
        self.training.modules = {"critics": self.critics, "values": self.values}
        heads = [*policy.network.parameters(), policy.log_std]
        self.make_optimizer("policy", iter(heads), config.learning_rate)
        self.make_optimizer("values", self.values.parameters(), config.critic_learning_rate)
        self.make_optimizer("critics", self.critics.parameters(), config.critic_learning_rate)
        self._forward = self.compiled(policy)

    def step(self) -> Metrics:
        """Values, heads and critics, once each, on one batch."""
        config, policy = self.config, self.policy
        batch = self.sampler.sample_transitions()
        obs, next_obs = policy.normalizer.obs(batch.obs), policy.normalizer.obs(batch.next_obs)
        actions = policy.normalizer.actions(batch.actions)
        ends = batch.ends if config.as_published else batch.terminals
        with self.autocast():
            with torch.no_grad():
                q, q_c = twin_values(policy.critics(obs, actions))
            v, v_c = self.values(obs)
            value_loss = losses.expectile_loss(q - v, config.expectile)
            least = 1 - config.cost_expectile  # of the cost itself, not negated
            value_loss = value_loss + losses.expectile_loss(q_c - v_c, least)
        self.minimize("values", value_loss)
        policy_loss, metrics = self._imitation(obs, actions, (q - v).detach(), (v_c - q_c).detach())
        self.minimize("policy", policy_loss)
        with self.autocast():
            with torch.no_grad():
                next_v, next_v_c = self.values(next_obs)
                rewards = batch.rewards * config.reward_scale
                target = losses.td_target(rewards, next_v, ends, config.discount)
                target_c = losses.td_target(batch.costs, next_v_c, ends, config.discount)
            found, every = self.critics(obs, actions), torch.ones_like(ends)
            critic_loss = losses.td_loss(found[:TWINS], target, every)
            critic_loss = critic_loss + losses.td_loss(found[TWINS:], target_c, every)
        self.minimize("critics", critic_loss)
        self.training.scaler.update()
        update_target(policy.critics, self.critics, config.target_rate)
        terms = {"policy": policy_loss, "value": value_loss, "critic": critic_loss}
        metrics |= {f"{name}_loss": term.detach() for name, term in terms.items()}
        return {"loss": torch.stack([term.detach() for term in terms.values()]).sum(), **metrics}

    def _imitation(
        self, obs: Tensor, actions: Tensor, advantages: Tensor, savings: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Negative log-likelihood of recorded actions, weighted for each head; their mean."""
        config = self.config
        w_r, w_c = (
            weighted_losses.advantage_weights(a, config.temperature, config.weight_cap)
            for a in (advantages, savings)
        )
        weights = weighted_losses.head_weights(w_r, w_c, config.n_heads)  # (K, B)
        with self.autocast():
            means = self._forward(obs)
            log_std = self.policy.log_std.clamp(*LOG_STD_RANGE)[:, None].expand_as(means)
            log_prob = losses.gaussian_log_prob(actions.expand_as(means), means, log_std)
            loss = -(weights * log_prob).mean()
        return loss, {"reward_weight": w_r.mean(), "cost_weight": w_c.mean()}
