"""Batches of windows of trajectories; `data.transitions` has those of single transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rcdt_agent import losses
from rcdt_agent._types import BoolArray, Float32Array
from rcdt_agent.config import Sampling
from rcdt_agent.costs import refuse_several
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.mapped import as_tensor
from rcdt_agent.data.weights import FrontierWeights, trajectory_probabilities
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.model import Window


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(Window):
    """Windows of trajectories in units of the task, with what training needs besides.

    Padding holds zeros, and what belongs to it in the other fields is False or zero.

    Attributes:
        rewards: (B, T).
        costs: (B, T); (B, T, m) of several costs, and so `ctg` and `cost_sums`.
        next_obs: (B, T, O) observation after the step.
        terminals: (B, T) bool, the task ended with this step.
        ends: (B, T) bool, the trajectory ended with this step, in whichever way.
        next_known: (B, T) bool, real steps whose `next_obs` was recorded or is not needed.
        reward_sums: (B, T) discounted rewards from the step to the end of the trajectory; zeros
            unless the sampler was given them.
        cost_sums: (B, T) the same of costs.
        weights: (B,) weight of the window in the loss.
        held_out: (B,) bool, critics are not trained on the window's trajectory.
    """

    rewards: Tensor
    costs: Tensor
    next_obs: Tensor
    terminals: Tensor
    ends: Tensor
    next_known: Tensor
    reward_sums: Tensor
    cost_sums: Tensor
    weights: Tensor
    held_out: Tensor

    def next_window(self) -> Window:
        """The windows one step on: next observations, and what is to go after the step.

        The last action is not known; no state attends to it.
        """
        last = torch.zeros_like(self.actions[:, :1])
        return Window(
            obs=self.next_obs,
            actions=torch.cat((self.actions[:, 1:], last), dim=1),
            rtg=self.rtg - self.rewards,
            ctg=self.ctg - self.costs,
            timesteps=self.timesteps + 1,
            mask=self.mask,
        )


@dataclass(frozen=True, kw_only=True)
class Relabelling:
    """How the tokens of some windows are changed; rewards and costs stay real.

    Attributes:
        slack_fraction: Share of windows whose CTG gains a slack: a trajectory that cost C is shown
            as an answer to a budget of C and more, so that the token comes to mean "at most".
        slack: Mean of that slack, which is exponentially distributed, in units of cost; one for
            each of several costs, which gain slack independently.
        pareto_fraction: Share of windows taken from the frontier: a cost is drawn, the best
            trajectory within it is taken, and its tokens ask for that cost and a larger return.
        pareto_increase: Largest increase of that return, as a share of the range of returns.
    """

    slack_fraction: float = 0.0
    slack: float | Sequence[float] = 1.0
    pareto_fraction: float = 0.0
    pareto_increase: float = 0.1


CANDIDATES = 4
"""Windows drawn for each one that is kept, where weights decide which are."""


class WindowSampler:
    """Draws batches of windows of `context_length` steps.

    On the CPU the dataset's arrays are read where they are; to another device they are copied
    once. Random numbers come from a CPU generator on every device, so that a run can move.

    Attributes:
        weight_ess: Effective sample size of the last candidates' frontier weights, a share.
    """

    def __init__(
        self,
        dataset: TrajectoryDataset,
        *,
        context_length: int,
        batch_size: int,
        generator: torch.Generator,
        sampling: Sampling = "trajectory",
        cost_ceiling: float = 70.0,
        weights: Tensor | None = None,
        held_out: BoolArray | None = None,
        relabelling: Relabelling | None = None,
        frontier: FrontierWeights | None = None,
        sums: Float32Array | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Bring the data to the device.

        Args:
            dataset: Trajectories.
            context_length: K, steps of a window, >= 1.
            batch_size: Windows of a batch, >= 1.
            generator: On the CPU; two samplers in the same state draw the same batches.
            sampling: See `trajectory_probabilities`.
            cost_ceiling: Only for `cost_tilted`.
            weights: (M,) weight of each trajectory; ones by default.
            held_out: (M,) bool, trajectories that critics are not trained on; none by default.
            relabelling: Of tokens; none by default.
            frontier: Draw windows by these weights, instead of weighing them in the loss: few are
                near the frontier, and a batch should be full of those.
            sums: (N, 1 + m) discounted rewards and costs from each step on, for `Batch`.
            device: Where batches are made.
        """
        for name, value in (("context_length", context_length), ("batch_size", batch_size)):
            if value < 1:
                raise InvalidArgumentError(f"`{name}` must be >= 1, got {value}.")
        if weights is not None and len(weights) != len(dataset):
            raise InvalidArgumentError(
                f"`weights` must have shape ({len(dataset)},), got {tuple(weights.shape)}."
            )
        self.context_length = context_length
        self.batch_size = batch_size
        self.generator = generator
        self.relabelling = relabelling or Relabelling()
        self.device = torch.device(device)
        self._obs = self._to_device(dataset.observations)
        self._actions = self._to_device(dataset.actions)
        self._frontier = frontier
        self.weight_ess = torch.ones((), device=torch.device(device))  # of the last candidates
        self._n_costs = dataset.n_costs
        # Of each step: reward, costs, return-to-go, costs-to-go, sums; gathered together.
        numbers = (dataset.rewards, dataset.costs, dataset.returns_to_go, dataset.costs_to_go)
        columns = np.column_stack(numbers)
        if sums is not None:
            columns = np.concatenate((columns, sums), axis=1)
        self._numbers = self._to_device(columns)
        self._final_obs = self._to_device(dataset.final_observations)
        self._first = self._to_device(dataset.offsets[:-1])
        self._lengths = self._to_device(dataset.lengths)
        self._terminated = self._to_device(dataset.terminated)
        self._final_known = self._to_device(dataset.terminated | dataset.final_known)
        self._weights = torch.ones(len(dataset)) if weights is None else weights.float()
        self._weights = self._weights.to(self.device)
        self._held_out = self._to_device(
            np.zeros(len(dataset), dtype=np.bool_) if held_out is None else held_out
        )
        probabilities = trajectory_probabilities(dataset, sampling, cost_ceiling)
        self._cdf = torch.from_numpy(np.cumsum(probabilities)).to(self.device)
        if self.relabelling.pareto_fraction:
            refuse_several(dataset.cost_names, "`pareto_fraction`")
            pareto = dataset.frontier()
            self._frontier_rows = self._to_device(pareto.rows)
            self._frontier_costs = self._to_device(pareto.costs.astype(np.float64))
        self._return_span = float(np.ptp(dataset.episode_returns))

    def sample(self) -> Batch:
        """Draw the next batch."""
        relabelling = self.relabelling
        n = self.batch_size if self._frontier is None else CANDIDATES * self.batch_size
        uniform = self._uniform(2, n)
        rows = self._trajectories(uniform[0])
        more_return = more_cost = torch.zeros(n, dtype=torch.float64, device=self.device)
        if relabelling.pareto_fraction:
            rows, more_return, more_cost = self._towards_frontier(rows)
        if self._n_costs > 1:
            more_cost = torch.zeros((n, self._n_costs), dtype=torch.float64, device=self.device)
        if relabelling.slack_fraction:
            more_cost = more_cost + self._slack(n)
        starts = (uniform[1] * self._lengths[rows]).long()
        if self._frontier is not None:
            kept = self._near_frontier(rows, starts, more_return, more_cost)
            rows, starts = rows[kept], starts[kept]
            more_return, more_cost = more_return[kept], more_cost[kept]
        batch = self._windows(rows, starts)
        if not (relabelling.pareto_fraction or relabelling.slack_fraction):
            return batch
        return replace(
            batch,
            rtg=batch.rtg + more_return.float()[..., None] * batch.mask,
            ctg=batch.ctg + (more_cost.float()[:, None] * _like(batch.mask, batch.ctg)),
        )

    def sample_plain(self) -> Batch:
        """Draw a batch that no weight and no relabelling acts on."""
        uniform = self._uniform(2, self.batch_size)
        rows = self._trajectories(uniform[0])
        return self._windows(rows, (uniform[1] * self._lengths[rows]).long())

    def _trajectories(self, uniform: Tensor) -> Tensor:
        """(B,) trajectories that uniform numbers stand for."""
        rows = torch.searchsorted(self._cdf, uniform * self._cdf[-1], right=True)
        return rows.clamp(max=len(self._lengths) - 1)

    def _near_frontier(
        self, rows: Tensor, starts: Tensor, more_return: Tensor, more_cost: Tensor
    ) -> Tensor:
        """(B,) which candidates to keep, drawn in proportion to their weights."""
        assert self._frontier is not None
        numbers = self._numbers[self._first[rows] + starts]
        _, _, rtg, ctg, _, _ = self._split(numbers)
        rtg, ctg = rtg + more_return.float(), ctg + more_cost.float()
        weights = self._frontier(starts, rtg, ctg)
        self.weight_ess = losses.effective_sample_size(weights)
        total = weights.double().clamp(min=1e-30).cumsum(0)
        kept = torch.searchsorted(total, self._uniform(1, self.batch_size)[0] * total[-1])
        return kept.clamp(max=len(total) - 1)

    def windows(self, trajectories: Tensor, starts: Tensor) -> Batch:
        """The windows that begin at step `starts` of `trajectories`, both (B,) int64.

        Raises:
            InvalidArgumentError: There is no such step.
        """
        if ((starts < 0) | (starts >= self._lengths[trajectories])).any():
            raise InvalidArgumentError("`starts` must be steps of their trajectories.")
        return self._windows(trajectories, starts)

    def _windows(self, trajectories: Tensor, starts: Tensor) -> Batch:
        length = self._lengths[trajectories][:, None]
        step = starts[:, None] + torch.arange(self.context_length + 1, device=self.device)
        # Rows beyond the end repeat the last one, and are cleared below.
        rows = self._first[trajectories][:, None] + torch.minimum(step, length - 1)
        after_end = (step == length)[..., None]
        obs = torch.where(
            after_end, self._final_obs[trajectories][:, None], _gather(self._obs, rows)
        )
        step, rows = step[:, :-1], rows[:, :-1]
        mask, last = step < length, step == length - 1
        numbers = _gather(self._numbers, rows) * mask[..., None]
        rewards, costs, rtg, ctg, reward_sums, cost_sums = self._split(numbers)
        return Batch(
            obs=obs[:, :-1] * mask[..., None],
            actions=_gather(self._actions, rows) * mask[..., None],
            rtg=rtg,
            ctg=ctg,
            timesteps=step * mask,
            mask=mask,
            rewards=rewards,
            costs=costs,
            next_obs=obs[:, 1:] * mask[..., None],
            terminals=last & self._terminated[trajectories][:, None],
            ends=last,
            next_known=mask & (~last | self._final_known[trajectories][:, None]),
            reward_sums=reward_sums,
            cost_sums=cost_sums,
            weights=self._weights[trajectories],
            held_out=self._held_out[trajectories],
        )

    def _split(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Reward, cost, RTG, CTG and both sums (...,), costs (..., m) where there are several."""
        m = self._n_costs
        sizes = [1, m, 1, m, *([1, m] if numbers.shape[-1] > 2 + 2 * m else [])]
        rewards, costs, rtg, ctg, *sums = torch.split(numbers, sizes, dim=-1)
        reward_sums, cost_sums = sums or (torch.zeros_like(rewards), torch.zeros_like(costs))
        found = rewards, costs, rtg, ctg, reward_sums, cost_sums
        return tuple(part[..., 0] if part.shape[-1] == 1 else part for part in found)

    def _slack(self, n: int) -> Tensor:
        """(n,) or (n, m) what CTG gains: zero, or exponentially distributed."""
        means = np.ravel(self.relabelling.slack).tolist()
        slacks = []
        for mean in means:
            draw = self._uniform(2, n)
            relabelled = draw[0] < self.relabelling.slack_fraction
            slacks.append(-mean * torch.log1p(-draw[1]) * relabelled)
        return slacks[0] if self._n_costs == 1 else torch.stack(slacks, dim=1)

    def _towards_frontier(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Swap some trajectories for frontier ones, with what their RTG and CTG gain."""
        draw, costs = self._uniform(3, len(rows)), self._frontier_costs
        cost = costs[0] + draw[1] * (costs[-1] - costs[0])
        place = torch.searchsorted(costs, cost, right=True) - 1
        swapped = draw[0] < self.relabelling.pareto_fraction
        more_return = draw[2] * self.relabelling.pareto_increase * self._return_span * swapped
        more_cost = (cost - costs[place]) * swapped
        return torch.where(swapped, self._frontier_rows[place], rows), more_return, more_cost

    def _uniform(self, n: int, size_b: int) -> Tensor:
        """(n, B) uniform numbers in float64, so that long trajectories are reached evenly."""
        size = (n, size_b)
        return torch.rand(size, dtype=torch.float64, generator=self.generator).to(self.device)

    def _to_device(self, values: np.ndarray[Any, Any]) -> Tensor:
        return as_tensor(np.ascontiguousarray(values), self.device)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    """(B, T) with as many axes as the values (B, T, ...)."""
    return mask.view(*mask.shape, *[1] * (values.ndim - mask.ndim))


def _gather(values: Tensor, rows: Tensor) -> Tensor:
    """(N, ...) values at rows (B, T): (B, T, ...)."""
    found = values.index_select(0, rows.flatten().to(values.device)).to(rows.device)
    return found.view(*rows.shape, *values.shape[1:])
