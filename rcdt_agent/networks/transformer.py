"""The policy: a causal transformer over (RTG, CTG, state, action) tokens with a Gaussian head.

B windows, T steps, S tokens a step, D width. Tokens of a step stand in the order RTG, CTG, state,
action; the action distribution is read at the state token, which sees everything up to itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rcdt_agent import kernels as compiled
from rcdt_agent.networks.block import Block
from rcdt_agent.networks.dropout import Masks, as_drop, draw_seed, kept_scale
from rcdt_agent.networks.inference import LastState


class PolicyTransformer(nn.Module):
    """Action distribution for every state of a window, given what is left to earn and to spend."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        n_timesteps: int,
        absolute_times: bool = True,
        n_layers: int = 3,
        n_heads: int = 8,
        width: int = 128,
        cost_token: bool = True,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        cost_head: bool = False,
    ) -> None:
        """Make the network.

        Args:
            observation_size: O.
            action_size: A.
            n_timesteps: Rows of the timestep embedding; later steps use the last row.
            absolute_times: Whether a step's row is its place in the episode; else in the window.
            n_layers: Blocks.
            n_heads: Attention heads.
            width: D.
            cost_token: Whether CTG is a token.
            dropout: On embeddings and residual branches.
            attention_dropout: On attention weights.
            log_std_range: Bounds of the log standard deviation.
            cost_head: Whether to predict, from state and action, if the step costs.
        """
        super().__init__()
        self.cost_token = cost_token
        self.n_timesteps = n_timesteps
        self.absolute_times = absolute_times
        self.log_std_range = log_std_range
        self.embed_rtg = nn.Linear(1, width)
        self.embed_ctg = nn.Linear(1, width) if cost_token else None
        self.embed_obs = nn.Linear(observation_size, width)
        self.embed_action = nn.Linear(action_size, width)
        self.embed_time = nn.Embedding(n_timesteps, width)
        self.norm_in = nn.LayerNorm(width)
        self.dropout = dropout
        self.drops = dropout > 0 or attention_dropout > 0
        self.blocks = nn.ModuleList(
            Block(width, n_heads, dropout, attention_dropout) for _ in range(n_layers)
        )
        self.norm_out = nn.LayerNorm(width)
        self.mean = nn.Linear(width, action_size)
        self.log_std = nn.Linear(width, action_size)
        self.cost_head = nn.Linear(width + action_size, 1) if cost_head else None
        self.apply(_initialise)
        self._last_state: LastState | None = None

    @property
    def tokens_per_step(self) -> int:
        """S: RTG, CTG (unless off), state, action."""
        return 4 if self.cost_token else 3

    def forward(
        self, obs: Tensor, actions: Tensor, rtg: Tensor, ctg: Tensor, timesteps: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the action at every step of the window.

        The result at step t depends on tokens up to the state of step t, never on `actions[:, t]`
        or anything later; so padding on the right cannot matter.

        Args:
            obs: (B, T, O) scaled observations.
            actions: (B, T, A) actions taken, scaled to [-1, 1].
            rtg: (B, T) scaled return-to-go.
            ctg: (B, T) scaled cost-to-go; not read if the cost token is off.
            timesteps: (B, T) int64.

        Returns:
            Mean and log standard deviation, each (B, T, A).
        """
        x = self.features(obs, actions, rtg, ctg, timesteps)
        return self.distribution(x)

    def distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation from `features`."""
        low, high = self.log_std_range
        return self.mean(features), self.log_std(features).clamp(low, high)

    def cost_logit(self, features: Tensor, actions: Tensor) -> Tensor:
        """(B, T) log odds that taking `actions` costs; only with `cost_head`."""
        assert self.cost_head is not None
        logit: Tensor = self.cost_head(torch.cat((features, actions), dim=-1))
        return logit[..., 0]

    def features(
        self,
        obs: Tensor,
        actions: Tensor,
        rtg: Tensor,
        ctg: Tensor,
        timesteps: Tensor,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """(B, T, D) what the state tokens know; arguments as `forward`.

        Args:
            obs: See `forward`.
            actions: See `forward`.
            rtg: See `forward`.
            ctg: See `forward`.
            timesteps: See `forward`.
            dropout_seed: Of the dropout masks in training; default: from torch's global state.
        """
        per_step = self.tokens_per_step
        masks = None
        if self.training and self.drops:
            masks = Masks(draw_seed() if dropout_seed is None else dropout_seed, obs.device)
        x = self._tokens(obs, actions, rtg, ctg, timesteps, masks)
        *body, final = self.blocks
        for block in body:
            x = block(x, masks=masks)
        # Only state tokens are read, so the last block answers for them alone.
        x = final(x, first=per_step - 2, every=per_step, masks=masks)  # (B, T, D)
        normed: Tensor = self.norm_out(x)
        return normed

    def last_features(
        self, obs: Tensor, actions: Tensor, rtg: Tensor, ctg: Tensor, timesteps: Tensor
    ) -> Tensor:
        """(B, D) what the last state token knows, without gradient; arguments as `forward`."""
        if self._last_state is None or not self._last_state.is_current():
            self._last_state = LastState(self)
        return self._last_state(obs, actions, rtg, ctg, timesteps)

    def train(self, mode: bool = True) -> PolicyTransformer:
        """As any module's; weights joined for acting are dropped, since training changes them.

        Fused optimisers change weights without counting a version, so this cannot be left to
        `LastState.is_current`.
        """
        if mode:
            self._last_state = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: not the weights joined for acting."""
        return {**self.__dict__, "_last_state": None}

    def rows_of_times(self, timesteps: Tensor) -> Tensor:
        """(B, T) rows of the timestep embedding."""
        if not self.absolute_times:
            timesteps = torch.arange(timesteps.shape[1], device=timesteps.device)[None].expand(
                timesteps.shape
            )
        return timesteps.clamp(max=self.n_timesteps - 1)

    def full_blocks(self) -> list[Block]:
        """The blocks, with their type."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def token_layers(self) -> list[nn.Linear]:
        """The embeddings of a step's tokens, in their order."""
        layers = (self.embed_rtg, self.embed_ctg, self.embed_obs, self.embed_action)
        return [layer for layer in layers if layer is not None]

    def _tokens(
        self,
        obs: Tensor,
        actions: Tensor,
        rtg: Tensor,
        ctg: Tensor,
        timesteps: Tensor,
        masks: Masks | None,
    ) -> Tensor:
        """(B, S T - 1, D) the tokens of all steps in their order, normalised.

        Without the last action: it comes after the last state, so no state looks at it.
        """
        parts = [rtg[..., None], ctg[..., None], obs, actions]
        if not self.cost_token:
            del parts[1]
        layers, table = self.token_layers(), self.embed_time.weight
        times = self.rows_of_times(timesteps)
        weights = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        if compiled.usable(obs, table):
            norm = [self.norm_in.weight, self.norm_in.bias]
            drop, words = as_drop(self.dropout) if masks else None, None
            if masks and drop:
                n_tokens = times.numel() * len(parts) - len(times)
                words = masks.words([n_tokens * table.shape[1]])
            return compiled.tokens(parts, times, table, [*weights, *norm], drop, words)
        rows = [part.flatten(0, 1) for part in parts]
        embed = _Embed.apply if torch.is_grad_enabled() else _embed
        x: Tensor = embed(rows, times.flatten(), table, *weights)
        x = self.norm_in(x.view(obs.shape[0], -1, table.shape[1])[:, :-1])
        if masks and self.dropout:
            mask = masks.draw(x.shape, self.dropout, x.dtype)
            x = x * mask.mul_(kept_scale(self.dropout))
        return x


def _embed(parts: list[Tensor], times: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """S linear layers into one tensor (N, S, D), plus the embedding of the time step."""
    tokens = table.new_empty(times.shape[0], len(parts), table.shape[1])
    pairs = zip(weights[::2], weights[1::2], strict=True)
    for i, (part, (weight, bias)) in enumerate(zip(parts, pairs, strict=True)):
        torch.addmm(bias, part, weight.t(), out=tokens[:, i])
    return tokens.add_(table.index_select(0, times)[:, None])


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, parts: list[Tensor], times: Tensor, table: Tensor, *weights: Tensor
    ) -> Tensor:
        ctx.save_for_backward(times, *parts)
        ctx.n_times = len(table)
        return _embed(parts, times, table, *weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        times, *parts = ctx.saved_tensors
        g_table = grad.new_zeros(ctx.n_times, grad.shape[-1]).index_add_(0, times, grad.sum(1))
        g_biases = grad.sum(0)
        grads = []
        for i, part in enumerate(parts):
            grads += [grad[:, i].t() @ part, g_biases[i]]
        return None, None, g_table, *grads


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
