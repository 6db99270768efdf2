"""One gradient step of Algorithm 1: critics, policy, dual ascent, targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rcdt_agent import losses
from rcdt_agent.config import Config
from rcdt_agent.critic_learner import CriticPair
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.sampler import Batch, WindowSampler, normalize_weights
from rcdt_agent.errors import TrainingError
from rcdt_agent.gradients import Gradients, Terms
from rcdt_agent.networks.dropout import draw_seed
from rcdt_agent.networks.transformer import PolicyTransformer
from rcdt_agent.scaling import Scaling
from rcdt_agent.threads import in_lanes, keep_freed_memory, lanes

PART_VALUES = 122_880
"""Values of one activation (tokens times width) that a core takes at a time: 960 tokens of the
paper's width. Memory does not grow with the batch; larger parts would take more of it, smaller ones
spend more of the time in Python."""

KEPT_VALUES = 1_310_720
"""Values whose graph may be kept between the two stages of a gradient; beyond, it is made again."""


@dataclass(frozen=True)
class PolicyInputs:
    """A window as the networks see it: scaled, (B, T, ...)."""

    obs: Tensor
    actions: Tensor
    rtg: Tensor
    ctg: Tensor
    timesteps: Tensor


@dataclass(frozen=True)
class Noise:
    """What is drawn for the critics' terms: (B, T, A) of the actions, () which twin guides."""

    actions: Tensor
    swap: Tensor

    def split(self, size: int) -> list[Noise]:
        """What belongs to parts of `size` windows."""
        return [Noise(actions, self.swap) for actions in torch.split(self.actions, size)]


Part = tuple[Batch, int | None]
"""Some windows of a batch, and the seed of their dropout masks."""


class Learner:
    """Holds the networks and their optimisers and applies Algorithm 1 of the paper.

    All randomness comes from the sampler's generator, the learner's own, and (for dropout) torch's
    global state, which whoever drives the learner seeds and stores.
    """

    def __init__(
        self,
        dataset: TrajectoryDataset,
        config: Config,
        scaling: Scaling,
        *,
        episode_length: int,
        cost_limit: float,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Make networks and sampler.

        Args:
            dataset: Training data, read where it is.
            config: Settings.
            scaling: How observations, actions and tokens are scaled.
            episode_length: Longest episode, for the timestep embedding.
            cost_limit: c_lim of the trajectory weights.
            device: Where everything lives.
            seed: Of weights, batches and noise.
        """
        torch.manual_seed(seed)
        keep_freed_memory()
        self.config = config
        self.scaling = scaling
        self.device = torch.device(device)
        self.step_count = 0
        self.total_steps = config.total_steps  # where the learning rate ends its way down
        self.critic_start_step = round(config.critic_start * config.total_steps)
        self.policy = make_policy(
            dataset.observation_size, dataset.action_size, config, episode_length
        ).to(self.device)
        self._weights = list(self.policy.parameters())
        self.policy_optimizer = torch.optim.AdamW(
            self._weights,
            lr=config.learning_rate,
            betas=config.adam_betas,
            weight_decay=config.weight_decay,
            fused=True,
        )
        initial = torch.tensor(config.initial_temperature, device=self.device)
        self.log_temperature = initial.log().requires_grad_()
        self.temperature_optimizer = torch.optim.Adam(
            [self.log_temperature], lr=config.learning_rate, betas=config.adam_betas, fused=True
        )
        self.target_entropy = -float(dataset.action_size)
        self.lmbda = torch.zeros((), device=self.device)
        self.episode_length = episode_length
        self.episode_factor = losses.episode_cost_factor(config.cost_discount, episode_length)
        self.critics = CriticPair(dataset, config, self.device)
        self.sampler = WindowSampler(
            dataset,
            context_length=config.context_length,
            batch_size=config.batch_size,
            sampling=config.sampling,
            cost_ceiling=config.cost_ceiling,
            pareto_fraction=config.pareto_fraction,
            pareto_increase=config.pareto_increase,
            relabel_fraction=config.relabel_fraction,
            relabel_slack=cost_limit,
            scaling=scaling,
            device=self.device,
            seed=seed,
        )
        weights = dataset_weights(dataset.outcomes, config, cost_limit)
        probabilities = torch.from_numpy(self.sampler.probabilities)
        self.sampler.set_weights(normalize_weights(weights, probabilities, config.max_weight))
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(seed + 1)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    @property
    def critics_active(self) -> bool:
        """Whether critics, their terms and lambda have begun."""
        return self.config.uses_critics and self.step_count >= self.critic_start_step

    def step(self) -> None:
        """Draw a batch and apply one iteration of Algorithm 1."""
        batch = self.sampler.sample()
        active = self.critics_active
        if active:
            self.critic_step(batch)
        self.policy_step(batch, with_critics=active)
        if active:
            self.critics.follow()
        self.step_count += 1

    def critic_step(self, batch: Batch) -> None:
        """Fit the critics to their TD targets once."""
        for name, value in self.critics.fit(batch, self.next_actions(batch)).items():
            self._record(name, value)

    def policy_step(self, batch: Batch, *, with_critics: bool) -> None:
        """Minimise the policy's objective once, then move lambda."""
        config = self.config
        if not self.policy.training:
            self.policy.train()
        self.policy_optimizer.zero_grad(set_to_none=True)
        noise = self._noise(batch) if with_critics else None
        terms = self._differentiate(batch, noise)
        norm = nn.utils.clip_grad_norm_(self._weights, config.max_grad_norm)
        self.policy_optimizer.param_groups[0]["lr"] = losses.learning_rate(
            self.step_count,
            peak=config.learning_rate,
            warmup_steps=config.warmup_steps,
            total_steps=self.total_steps,
            final_share=config.final_learning_rate,
        )
        self.policy_optimizer.step()
        if config.entropy_bonus:
            self._temperature_step(terms["entropy"])
        if "cost_estimate" in terms:
            terms["cost_estimate"] = self._dual_step(terms["cost_estimate"])
        for name, value in terms.items():
            self._record(name, value)
        self._record("grad_norm", norm)
        self._record(
            "weight_ess",
            batch.weights.sum() ** 2 / batch.weights.square().sum() / len(batch.weights),
        )

    def _differentiate(self, batch: Batch, noise: Noise | None) -> dict[str, Tensor]:
        """Add the objective's gradient to the policy's; its terms.

        Large batches are taken in parts, side by side on the processor's cores. Every term is a
        mean over real steps, so parts add up, but Q guidance is a quotient of two means: there the
        gradient at the features is found from the whole batch first. If the batch is too large to
        keep all graphs until then, that takes one more forward pass.
        """
        parts = [
            (part, draw_seed() if self.policy.drops else None)
            for part in batch.split(self._part_size(batch))
        ]
        if noise is not None and self.config.q_guidance:
            return self._through_features(batch, noise, parts)
        n_steps = batch.mask.sum()
        draws = [None] * len(parts) if noise is None else noise.split(len(parts[0][0].mask))

        def together(own: Sequence[tuple[Part, Noise | None]]) -> tuple[Gradients, Terms]:
            grads, sums = Gradients(self._weights), Terms()
            for (part, seed), draw in own:
                loss, terms = self._objective(self._features(part, seed), part, draw)
                share = part.mask.sum() / n_steps
                grads.add(share * loss)
                sums.add(terms, share)
            return grads, sums

        total = Terms()
        for grads, sums in in_lanes(together, list(zip(parts, draws, strict=True))):
            grads.give()
            total.add(sums)
        return total

    def _through_features(self, batch: Batch, noise: Noise, parts: list[Part]) -> dict[str, Tensor]:
        """`_differentiate` in two stages: the whole batch to features, features to weights."""
        keep = self.device.type != "cpu" or self._values(batch) <= KEPT_VALUES

        def forward(own: Sequence[Part]) -> list[Tensor]:
            with torch.set_grad_enabled(keep):
                return [self._features(*part) for part in own]

        known = [features for lane in in_lanes(forward, parts) for features in lane]
        whole = torch.cat([features.detach() for features in known]).requires_grad_()
        loss, terms = self._objective(whole, batch, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        assert whole.grad is not None
        slopes = torch.split(whole.grad, [len(features) for features in known])

        def backward(own: Sequence[tuple[Part, Tensor, Tensor]]) -> Gradients:
            grads = Gradients(self._weights)
            for part, features, slope in own:
                grads.add(features if keep else self._features(*part), slope)
            return grads

        for grads in in_lanes(backward, list(zip(parts, known, slopes, strict=True))):
            grads.give()
        return terms

    def _part_size(self, batch: Batch) -> int:
        """Windows of a part: all on devices other than the CPU, else as many for each core."""
        n_windows = len(batch.mask)
        if self.device.type != "cpu" or self._values(batch) <= PART_VALUES:
            return n_windows
        rounds = math.ceil(self._values(batch) / PART_VALUES / lanes())
        return math.ceil(n_windows / rounds / lanes())

    def _values(self, batch: Batch) -> int:
        """Values of one activation of the whole batch."""
        return batch.mask.numel() * self.policy.tokens_per_step * self.config.embedding_size

    def _features(self, batch: Batch, dropout_seed: int | None) -> Tensor:
        inputs = self.inputs(batch)
        return self.policy.features(
            inputs.obs, inputs.actions, inputs.rtg, inputs.ctg, inputs.timesteps, dropout_seed
        )

    def _noise(self, batch: Batch) -> Noise:
        actions = torch.randn(batch.actions.shape, generator=self.generator, device=self.device)
        swap = torch.rand((), generator=self.generator, device=self.device) < 0.5
        return Noise(actions, swap)

    def _objective(
        self, features: Tensor, batch: Batch, noise: Noise | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy's loss and its terms, detached; `noise` brings in the critics' terms."""
        config = self.config
        mean, log_std = self.policy.distribution(features)
        log_prob = losses.gaussian_log_prob(batch.actions, mean, log_std)
        loss = nll = losses.weighted_nll(log_prob, batch.weights, batch.mask)
        entropy = losses.masked_mean(losses.gaussian_entropy(log_std), batch.mask)
        terms = {
            "nll": -losses.masked_mean(log_prob.detach(), batch.mask),
            "weighted_nll": nll.detach(),
            "entropy": entropy.detach(),
        }
        if config.entropy_bonus:
            loss = loss - self.log_temperature.detach().exp() * entropy
        if config.cost_head_weight:
            logit = self.policy.cost_logit(features, batch.actions)
            guess = losses.cost_head_loss(logit, batch.costs, batch.mask)
            loss = loss + config.cost_head_weight * guess
            terms["cost_head_loss"] = guess.detach()
        if noise is not None:
            actions = (mean + log_std.exp() * noise.actions).clamp(-1.0, 1.0)
            judged = self.critics.values(batch.obs, actions)
            if config.q_guidance:
                first, second = judged["q"]
                q_a = torch.where(noise.swap, second, first)
                q_b = torch.where(noise.swap, first, second)
                loss = loss - config.eta * losses.q_guidance(q_a, q_b, batch.mask)
                terms["q_policy"] = losses.masked_mean(q_a.detach(), batch.mask)
            if config.cost_penalty:
                costs = self.critics.worse_cost(judged["cost"])
                penalty = cost = losses.cost_penalty(costs, batch.mask)
                terms["cost_estimate"] = terms["cost_policy"] = cost.detach()
                if config.kappa_mode == "token":
                    steps_left = self.episode_length - batch.timesteps
                    allowed = losses.cost_allowance(batch.ctg, steps_left, config.cost_discount)
                    penalty = losses.cost_excess(costs, allowed, batch.mask)
                    terms["cost_estimate"] = losses.masked_mean(
                        costs.detach() - allowed, batch.mask
                    )
                loss = loss + self.lmbda * penalty
        return loss, {"loss": loss.detach(), **terms}

    def inputs(self, batch: Batch) -> PolicyInputs:
        """The batch as the policy sees it; observations and actions are scaled already."""
        return PolicyInputs(
            obs=batch.obs,
            actions=batch.actions,
            rtg=self.scaling.rtg_token(batch.rtg),
            ctg=self.scaling.ctg_token(batch.ctg),
            timesteps=batch.timesteps,
        )

    @torch.no_grad()
    def next_actions(self, batch: Batch) -> Tensor:
        """(B, T, A) the policy's own sampled action after each step of the windows.

        The window moves on by one step: its states are the next observations, its tokens what is
        left after the step. The last action token is not known and, by causality, not looked at.
        """
        if self.policy.drops:
            self.policy.eval()
        moved_on = (
            batch.next_obs,
            torch.cat((batch.actions[:, 1:], torch.zeros_like(batch.actions[:, :1])), dim=1),
            self.scaling.rtg_token(batch.rtg - batch.rewards),
            self.scaling.ctg_token(batch.ctg - batch.costs),
            batch.timesteps + 1,
        )
        parts = zip(
            *(torch.split(values, self._part_size(batch)) for values in moved_on), strict=True
        )

        def forward(own: Sequence[Any]) -> Tensor:
            with torch.no_grad():
                return torch.cat([self.policy.features(*part) for part in own])

        features = torch.cat(in_lanes(forward, list(parts)))
        mean, log_std = self.policy.distribution(features)
        noise = torch.randn(mean.shape, generator=self.generator, device=self.device)
        sampled: Tensor = (mean + log_std.exp() * noise).clamp(-1.0, 1.0)
        return sampled

    def metrics(self) -> dict[str, float]:
        """Means since the last call, fetched from the device at once.

        Raises:
            TrainingError: One of them is not finite; the message names the first.
        """
        if not self._sums:
            return {}
        names = list(self._sums)
        values = torch.stack([self._sums[name] / self._counts[name] for name in names]).tolist()
        means = dict(zip(names, values, strict=True))
        means["lambda"] = float(self.lmbda)
        means["temperature"] = float(self.log_temperature.detach().exp())
        self._sums, self._counts = {}, {}
        bad = [name for name, value in means.items() if not np.isfinite(value)]
        bad.sort(key=lambda name: name in ("loss", "grad_norm"))  # they are sums
        if bad:
            raise TrainingError(
                f"Training stopped at step {self.step_count}: `{bad[0]}` is {means[bad[0]]} "
                f"(not finite: {', '.join(bad)}). A smaller learning rate may help."
            )
        return means

    def state(self) -> dict[str, Any]:
        """Tensors and numbers from which training continues bit for bit."""
        return {
            "modules": {name: module.state_dict() for name, module in self.modules().items()},
            "optimizers": {name: opt.state_dict() for name, opt in self._optimizers().items()},
            "lmbda": self.lmbda,
            "log_temperature": self.log_temperature.detach(),
            "sampler": self.sampler.state_dict()["generator"],
            "generator": self.generator.get_state(),
            "step_count": self.step_count,
            "critic_start_step": self.critic_start_step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for name, module in self.modules().items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.lmbda = state["lmbda"].to(self.device)
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        self.sampler.load_state_dict({"generator": state["sampler"]})
        self.generator.set_state(state["generator"])
        self.step_count = int(state["step_count"])
        self.critic_start_step = int(state["critic_start_step"])

    def modules(self) -> dict[str, nn.Module]:
        """The networks by name."""
        return {
            "policy": self.policy,
            "reward_critic": self.critics.reward,
            "cost_critic": self.critics.cost,
            "reward_target": self.critics.reward_target,
            "cost_target": self.critics.cost_target,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "policy": self.policy_optimizer,
            "temperature": self.temperature_optimizer,
            "critics": self.critics.optimizer,
        }

    def _temperature_step(self, entropy: Tensor) -> None:
        """Minimise exp(log temperature) (entropy - target), whose gradient is itself."""
        temperature = self.log_temperature.detach().exp()
        self.log_temperature.grad = temperature * (entropy.detach() - self.target_entropy)
        self.temperature_optimizer.step()

    def _dual_step(self, cost_estimate: Tensor) -> Tensor:
        """Move lambda; what was compared with kappa."""
        config = self.config
        if config.kappa_mode == "episode":
            cost_estimate = cost_estimate * self.episode_factor
        self.lmbda = losses.dual_ascent(
            self.lmbda,
            cost_estimate,
            # With `token`, each step's own was taken off already.
            kappa=0.0 if config.kappa_mode == "token" else config.kappa,
            step_size=config.lambda_step,
            maximum=config.lambda_max,
        )
        return cost_estimate

    def _record(self, name: str, value: Tensor) -> None:
        """Add to a running sum on the device; nothing is fetched until `metrics`."""
        value = value.detach()
        self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._counts[name] = self._counts.get(name, 0) + 1


def make_policy(
    observation_size: int, action_size: int, config: Config, episode_length: int
) -> PolicyTransformer:
    """The policy network of a configuration."""
    return PolicyTransformer(
        observation_size,
        action_size,
        n_timesteps=config.context_length
        if config.positions == "window"
        else episode_length + config.context_length,
        absolute_times=config.positions == "episode",
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        width=config.embedding_size,
        cost_token=config.cost_token,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        log_std_range=config.log_std_range,
        cost_head=config.cost_head_weight > 0,
    )


class Outcomes(Protocol):
    """Returns and costs of M trajectories: a dataset, or what an agent remembers of it."""

    @property
    def returns(self) -> npt.NDArray[np.float32]: ...  # noqa: D102

    @property
    def costs(self) -> npt.NDArray[np.float32]: ...  # noqa: D102


def dataset_weights(outcomes: Outcomes, config: Config, cost_limit: float) -> Tensor:
    """(M,) raw trajectory weights of the configuration."""
    returns, costs = torch.from_numpy(outcomes.returns), torch.from_numpy(outcomes.costs)
    if config.weighting == "return_cost":
        return losses.trajectory_weights(
            returns, costs, alpha=config.alpha, gamma=config.gamma, cost_limit=cost_limit
        )
    if config.weighting == "expert":
        threshold = torch.quantile(returns, 1 - config.expert_fraction)
        return losses.expert_weights(returns >= threshold, config.alpha)
    return torch.ones(len(returns))
