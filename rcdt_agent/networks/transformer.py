"""The policy: a causal transformer over (RTG, CTG, state, action) tokens with a Gaussian head.

B windows, T steps, S tokens a step, D width. Tokens of a step stand in the order RTG, CTG, state,
action; the action distribution is read at the state token, which sees everything up to itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm attention and MLP; can answer at chosen positions only."""

    def __init__(self, width: int, n_heads: int, dropout: float, attention_dropout: float) -> None:
        """Standard sizes: the MLP is four times as wide."""
        super().__init__()
        self.n_heads = n_heads
        self.attention_dropout = attention_dropout
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *, first: int = 0, every: int = 1) -> Tensor:
        """Causal attention; answers at positions `first`, `first + every`, ... (default: all).

        Args:
            x: (B, L, D).
            first: First position that is needed.
            every: Distance of the needed positions.
        """
        size_b, length, width = x.shape
        normed = self.norm_attention(x)
        asked = normed[:, first::every]
        n_asked = asked.shape[1]
        head = width // self.n_heads
        # (B, L, D) -> (B, heads, L, head)
        q = self.query(asked).view(size_b, n_asked, self.n_heads, head).transpose(1, 2)
        kv = self.key_value(normed).view(size_b, length, 2, self.n_heads, head)
        k, v = kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)
        everywhere = n_asked == length
        mask = None if everywhere else _visible(length, first, every, x.device)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=everywhere,
        )
        mixed = mixed.transpose(1, 2).reshape(size_b, n_asked, width)
        x = x[:, first::every] + self.dropout(self.out(mixed))
        y: Tensor = x + self.dropout(self.mlp(self.norm_mlp(x)))
        return y


def _visible(length: int, first: int, every: int, device: torch.device) -> Tensor:
    """(asked, L) bool: which positions each asked position may look at."""
    positions = torch.arange(length, device=device)
    return positions[None, :] <= positions[first::every, None]


class PolicyTransformer(nn.Module):
    """Action distribution for every state of a window, given what is left to earn and to spend."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        n_timesteps: int,
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
        self.log_std_range = log_std_range
        self.embed_rtg = nn.Linear(1, width)
        self.embed_ctg = nn.Linear(1, width) if cost_token else None
        self.embed_obs = nn.Linear(observation_size, width)
        self.embed_action = nn.Linear(action_size, width)
        self.embed_time = nn.Embedding(n_timesteps, width)
        self.norm_in = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, n_heads, dropout, attention_dropout) for _ in range(n_layers)
        )
        self.norm_out = nn.LayerNorm(width)
        self.mean = nn.Linear(width, action_size)
        self.log_std = nn.Linear(width, action_size)
        self.cost_head = nn.Linear(width + action_size, 1) if cost_head else None
        self.apply(_initialise)

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
        self, obs: Tensor, actions: Tensor, rtg: Tensor, ctg: Tensor, timesteps: Tensor
    ) -> Tensor:
        """(B, T, D) what the state tokens know; arguments as `forward`."""
        size_b, size_t, _ = obs.shape
        per_step = self.tokens_per_step
        time = self.embed_time(timesteps.clamp(max=self.n_timesteps - 1))
        parts = [self.embed_rtg(rtg[..., None])]
        if self.embed_ctg is not None:
            parts.append(self.embed_ctg(ctg[..., None]))
        parts += [self.embed_obs(obs), self.embed_action(actions)]
        # S times (B, T, D) -> (B, T, S, D) -> (B, T * S, D)
        x = (torch.stack(parts, dim=2) + time[:, :, None]).view(size_b, size_t * per_step, -1)
        x = self.dropout(self.norm_in(x))
        for block in self.blocks[:-1]:
            x = block(x)
        # Only state tokens are read, so the last block answers for them alone.
        x = self.blocks[-1](x, first=per_step - 2, every=per_step)  # (B, T, D)
        normed: Tensor = self.norm_out(x)
        return normed


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
