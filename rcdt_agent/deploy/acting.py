"""From observations and a state to actions: one forward pass of the policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rcdt_agent.deploy.shield import CriticShield
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.steering import Steering
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.networks.transformer import PolicyTransformer
from rcdt_agent.scaling import Scaling

Floats = npt.NDArray[np.float32]


def observation_rows(obs: Any, space: gym.Space[Any], scaling: Scaling) -> tuple[Floats, bool]:
    """Scaled observations (N, O), and whether a single one was given.

    Raises:
        InvalidArgumentError: Wrong shape, or not finite.
    """
    size = len(scaling.obs_mean)
    shape = space.shape or (size,)
    array = np.asarray(obs, dtype=np.float32)
    single = array.shape == shape
    if not single and array.shape[1:] != shape:
        raise InvalidArgumentError(
            f"`observation` must have shape {shape}, or (N, {', '.join(map(str, shape))}) for N "
            f"environments, got {array.shape}."
        )
    rows = array.reshape(-1, size)
    if not np.isfinite(rows).all():
        raise InvalidArgumentError(f"`observation` must be finite, got {obs}.")
    return scaling.scale_obs(rows), single


@torch.inference_mode()
def act(
    policy: PolicyTransformer,
    scaling: Scaling,
    state: AgentState,
    steering: Steering,
    *,
    deterministic: bool,
    shield: CriticShield | None = None,
) -> tuple[Floats, AgentState]:
    """Actions (N, A) of the space for the present step of each window, and the state with them."""
    device = policy.embed_rtg.weight.device
    if policy.training:
        policy.eval()
    last = state.last
    used = int(last.max()) + 1  # columns of the window that hold anything
    target_return, cost_budget = steering.aim(state)
    rtg, ctg = state.tokens(target_return, cost_budget)

    def tensor(values: Any) -> Tensor:
        return torch.as_tensor(values, device=device)

    window = (
        tensor(state.obs[:, :used]),
        tensor(state.actions[:, :used]),
        scaling.rtg_token(tensor(rtg[:, :used])),
        scaling.ctg_token(tensor(ctg[:, :used])),
        tensor(state.timesteps[:, :used]),
    )
    if (last == used - 1).all():
        features = policy.last_features(*window)
    else:
        features = policy.features(*window)[torch.arange(state.n_envs, device=device), tensor(last)]
    if deterministic and shield is None:
        chosen = policy.mean(features)
    else:
        mean, log_std = policy.distribution(features)
        std = log_std.exp()
        chosen = mean if deterministic else mean + std * torch.randn_like(mean)
    chosen, replaced = chosen.clamp(-1.0, 1.0), None
    if shield is not None:
        obs = tensor(state.obs[np.arange(state.n_envs), last])
        left = cost_budget - state.total_cost
        chosen, replaced = shield.choose(obs, mean, std, chosen, left, state.steps - 1)
    unit = chosen.cpu().numpy()
    return scaling.unscale_actions(unit), state.with_action(unit, replaced)
