"""Estimates of an agent's return and costs at every budget from logged data, without a simulator.

Two estimates that fail in different ways: fitted Q evaluation, which falls back on the mean of the
data where it cannot tell actions apart, and the mean of the nearest recorded trajectories, which
cannot say what happens away from them. The intervals span both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rcdt_agent._types import Float32Array, Float64Array, Int64Array
from rcdt_agent.arguments import check_flags, check_whole
from rcdt_agent.choices import Choices
from rcdt_agent.costs import by_name
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.readers import AnyData, as_dataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.evaluation import Budgets, check_agent, task_budgets
from rcdt_agent.fitted_q import FQEConfig, LoggedSteps, fitted_q_values
from rcdt_agent.offline_report import HeldOutCheck as HeldOutCheck
from rcdt_agent.offline_report import OfflineReport as OfflineReport
from rcdt_agent.offline_report import OfflineResult as OfflineResult
from rcdt_agent.stats import N_RESAMPLES, bootstrap_means, interval

if TYPE_CHECKING:
    from rcdt_agent.algorithms.agent import Agent

FEWEST = 10
"""Trajectories that an estimate needs."""
NEAREST = 10
"""Trajectories whose mean is the second estimate."""


def evaluate_offline(
    agent: Agent[Any, Any],
    dataset: AnyData,
    budgets: Budgets = None,
    *,
    seed: int = 0,
    target_return: Any = "auto",
    deterministic: bool = True,
    config: FQEConfig | None = None,
) -> OfflineReport:
    """Estimate return and costs of an agent at every budget from logged trajectories.

    The agent is led along every recorded trajectory, with what was recorded so far, and asked for
    its action. Fitted Q evaluation values these actions (see `rcdt_agent.fitted_q`), and the
    trajectories whose own actions they are closest to give a second estimate.

    Args:
        agent: Any trained algorithm; one that knows no budget is valued once for all.
        dataset: Trajectories, as `learn` takes them; best such as the agent was not trained on.
        budgets: Cost budgets, or one; default: those of the agent's task. Of several costs, dicts
            by name.
        seed: Of the split, the resamples and the random features.
        target_return: `auto`, `paper` or a number, for all budgets.
        deterministic: Value the most likely action; otherwise one sampled at each step.
        config: Settings of the fit.

    Raises:
        DatasetError: The data are not the agent's, or too few.
        InvalidArgumentError: A budget is outside its rule, or names an unknown cost.
    """
    from rcdt_agent.algorithms.held_out import held_out_trajectories

    check_agent(agent)
    check_whole("seed", seed)
    check_flags(deterministic=deterministic)
    if config is not None and not isinstance(config, FQEConfig):
        raise InvalidArgumentError(f"`config` must be an FQEConfig, got {config!r}.")
    config = config or FQEConfig()
    data = _known_data(agent, dataset)
    asked = task_budgets(agent, budgets)
    if not len(asked):
        raise InvalidArgumentError("`budgets` must not be empty.")
    targets = [agent.resolve_target(budget, target_return) for budget in asked]
    served = list(zip(asked, targets, strict=True))
    if agent.budgets != "any":
        served = served[:1]
    walks = [_walk(agent, data, budget, target, deterministic, seed) for budget, target in served]
    choices = Choices.of(agent.policy.action_space)
    if choices is not None:  # values and distances are of the one-hot form
        walks = [(_one_hot(choices, steps), _one_hot(choices, last)) for steps, last in walks]
        data = replace(data, actions=_one_hot(choices, data.actions))
    held_out = held_out_trajectories(len(data), config.holdout, seed)
    steps, begin, begin_actions = _logged(data, walks, tells_spent=agent.budgets == "any")
    fitted = torch.from_numpy(~held_out)
    fit_steps = steps.select((fitted[steps.trajectories] & _usable(data)).nonzero()[:, 0])
    valued = fitted.logical_not()
    values = fitted_q_values(
        fit_steps, begin[valued], begin_actions[:, valued], config, seed
    ).numpy()
    sums = np.column_stack((data.episode_returns, data.episode_costs))[held_out]
    names = data.cost_names
    results = tuple(
        _result(budget, target, values[:, p], nearest_outcomes(walks[p][0], data), names, seed, gap)
        for i, (budget, target) in enumerate(zip(asked, targets, strict=True))
        for p in [min(i, len(walks) - 1)]
        for gap in [float(np.sqrt(_squared_gaps(walks[p][0], data.actions).mean()))]
    )
    return OfflineReport(
        dataset=data.name,
        seed=seed,
        trajectories=int(fitted.sum()),
        held_out=int(held_out.sum()),
        horizon=int(data.lengths.max()),
        results=results,
        check={
            name: _check(values[:, -1, :, j].mean(0), sums[:, j].astype(np.float64))
            for j, name in enumerate(("return", *names))
        },
    )


def _known_data(agent: Agent[Any, Any], dataset: AnyData) -> TrajectoryDataset:
    """Trajectories that an estimate can be made from.

    Raises:
        DatasetError: They are not of the agent's sizes and costs, or too few.
        InvalidArgumentError: They are of images.
    """
    data = as_dataset(dataset)
    if data.image_shape is not None:
        raise InvalidArgumentError(
            f"`evaluate_offline` has no encoder of images, got observations {data.image_shape}. "
            f"`evaluate` rolls the agent out."
        )
    data.check_sizes(
        agent.policy.normalizer.observation_size,
        agent.policy.normalizer.action_width,
        "the agent's",
    )
    agent.check_costs(data)
    if len(data) < FEWEST:
        raise DatasetError(
            f"{data.name}: an estimate needs at least {FEWEST} trajectories, got {len(data)}."
        )
    return data


def _walk(
    agent: Agent[Any, Any],
    data: TrajectoryDataset,
    budget: Any,
    target: float | None,
    deterministic: bool,
    seed: int,
) -> tuple[Float32Array, Float32Array]:
    """`actions_along`, with noise that repeats; the agent's own noise goes on as if unused."""
    from rcdt_agent.algorithms.recorded import actions_along

    before = agent.acting_generator.get_state()
    agent.acting_generator.manual_seed(seed)
    try:
        return actions_along(agent, data, budget, target, deterministic=deterministic)
    finally:
        agent.acting_generator.set_state(before)


def _one_hot(choices: Choices, actions: npt.NDArray[Any]) -> Float32Array:
    return np.asarray(choices.cpu().encode(torch.from_numpy(actions)).numpy(), dtype=np.float32)


def _usable(data: TrajectoryDataset) -> Tensor:
    """(N,) all steps but those that were cut off without an observation of what followed."""
    usable = np.ones(data.n_transitions, dtype=np.bool_)
    cut = ~data.terminated & ~data.final_known & (data.lengths < data.lengths.max())
    usable[data.offsets[1:][cut] - 1] = False
    return torch.from_numpy(usable)


def _logged(
    data: TrajectoryDataset,
    walks: Sequence[tuple[Float32Array, Float32Array]],
    *,
    tells_spent: bool,
) -> tuple[LoggedSteps, Tensor, Tensor]:
    """The steps, with the actions of each walk and last the recorded ones; start states, actions.

    Args:
        data: Trajectories.
        walks: Actions of each policy, from `actions_along`.
        tells_spent: Whether policies act on what was earned and spent, so that values depend on it.
    """
    first, lengths = data.offsets[:-1], data.lengths
    times = np.arange(data.n_transitions) - np.repeat(first, lengths)
    signals = np.column_stack((data.rewards, data.costs)).astype(np.float32)
    to_go = np.column_stack((data.returns_to_go, data.costs_to_go)).astype(np.float32)
    total = np.repeat(to_go[first], lengths, axis=0)
    last = data.offsets[1:] - 1

    def states(obs: Float32Array, time: Int64Array, so_far: Float32Array) -> Float32Array:
        parts = (obs, time[:, None], so_far) if tells_spent else (obs, time[:, None])
        return np.asarray(np.concatenate(parts, axis=1), dtype=np.float32)

    def ahead(values: Float32Array, final: Float32Array) -> Float32Array:
        shifted: Float32Array = np.concatenate((values[1:], values[:1]))
        shifted[last] = final
        return shifted

    so_far = total - to_go
    present = states(data.observations, times, so_far)
    next_obs = ahead(data.observations, data.final_observations)
    recorded = (data.actions, data.actions[last])  # the last action again, where one is needed
    longest = lengths == lengths.max()
    follows = np.ones(data.n_transitions, dtype=np.bool_)
    follows[last] = ~data.terminated & ~longest
    everyone = [*walks, recorded]
    steps = LoggedSteps(
        states=torch.from_numpy(present),
        actions=torch.from_numpy(np.array(data.actions)),
        signals=torch.from_numpy(signals),
        next_states=torch.from_numpy(states(next_obs, times + 1, so_far + signals)),
        next_actions=torch.from_numpy(np.stack([ahead(a, final) for a, final in everyone])),
        follows=torch.from_numpy(follows),
        times=torch.from_numpy(times),
        trajectories=torch.from_numpy(np.repeat(np.arange(len(data)), lengths)),
        to_go=torch.from_numpy(to_go),
    )
    begin_actions = torch.from_numpy(np.stack([actions[first] for actions, _ in everyone]))
    return steps, torch.from_numpy(present[first]), begin_actions


def nearest_outcomes(actions: Float32Array, data: TrajectoryDataset) -> Float64Array:
    """(NEAREST, S) return and costs of the trajectories whose actions are closest to `actions`.

    Args:
        actions: (N, A) of an agent along the trajectories, from `actions_along`.
        data: Trajectories.
    """
    sums = np.add.reduceat(_squared_gaps(actions, data.actions), data.offsets[:-1])
    closest = np.argsort(sums / data.lengths, kind="stable")[:NEAREST]
    outcomes = np.column_stack((data.episode_returns, data.episode_costs))[closest]
    return np.asarray(outcomes, dtype=np.float64)


def _squared_gaps(actions: Float32Array, recorded: Float32Array) -> Float64Array:
    """(N,) mean squared distance of each action from the recorded one, in deviations.

    In units of the action where it never varies: a deviation of nothing would outweigh the others.
    """
    deviation = recorded.std(0)
    deviation = np.where(deviation < 1e-6, 1.0, deviation)
    return np.asarray(np.square((actions - recorded) / deviation).mean(1), dtype=np.float64)


def _result(
    budget: Any,
    target: float | None,
    values: Float64Array,
    nearest: Float64Array,
    names: Sequence[str],
    seed: int,
    gap: float,
) -> OfflineResult:
    """Of values (members, M, S): each resample draws a member and M trajectories."""
    n_members, n, _ = values.shape
    rng = np.random.default_rng(seed)
    members = rng.integers(0, n_members, N_RESAMPLES)
    drawn = rng.integers(0, n, (N_RESAMPLES, n))
    resampled = values.astype(np.float64)[members[:, None], drawn].mean(1)
    means = values.astype(np.float64).mean((0, 1))
    near = nearest.mean(0)
    near_means = bootstrap_means(nearest.T, rng)  # (resamples, S)
    ranges = []
    for j in range(len(means)):
        ends = (interval(resampled[:, j]), interval(near_means[:, j]))
        ranges.append((min(low for low, _ in ends), max(high for _, high in ends)))
    several = len(names) > 1
    costs, near_costs = (by_name(m[1:] if several else m[1], names) for m in (means, near))
    higher = np.maximum(means, near)[1:]
    allowed = [budget[name] for name in names] if several else [budget]
    return OfflineResult(
        budget=budget,
        target_return=target,
        mean_return=float(means[0]),
        mean_cost=costs,
        nearest_return=float(near[0]),
        nearest_cost=near_costs,
        return_interval=ranges[0],
        cost_interval=dict(zip(names, ranges[1:], strict=True)) if several else ranges[1],
        passed=bool(np.all(higher <= allowed)),
        action_gap=gap,
    )


def _check(estimates: Float64Array, recorded: Float64Array) -> HeldOutCheck:
    deviation = float(recorded.std())
    error = float(estimates.mean() - recorded.mean())
    return HeldOutCheck(
        recorded=float(recorded.mean()),
        estimate=float(estimates.mean()),
        error=error / deviation if deviation > 0 else error,
        rmse=float(np.sqrt(np.mean((estimates - recorded) ** 2))),
        deviation=deviation,
    )
