"""The policy network: a causal transformer over (RTG, CTG, state, action) tokens.

B windows, T steps, S tokens per step, D width, O observation size, A action size. The tokens of a
step are ordered RTG, CTG, state, action; all but the state can be left out. The action distribution
is read at the state token, which attends to everything up to itself. The same module trains, acts
and is exported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from rcdt_agent.actions import ActionDistribution, Gaussian, GaussianHead, make_head
from rcdt_agent.config import TimeEmbedding
from rcdt_agent.encoders import ImageEncoder

__all__ = ["Block", "FourierTime", "Gaussian", "GaussianHead", "PolicyTransformer", "Window"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """What the network sees of B episodes: T consecutive steps, padded on the right.

    The sampler yields windows in units of the task, the deployment state builds them, and
    `Normalizer.window` scales them for the network.

    Attributes:
        obs: (B, T, O).
        actions: (B, T, A) actions taken; the last one is never looked at.
        rtg: (B, T) return-to-go; scaled, (B, T, F) features of its token.
        ctg: (B, T) cost-to-go; scaled, (B, T, F) features of its token. Of m costs (B, T, m) and
            (B, T, m F).
        timesteps: (B, T) int64, step of the episode.
        mask: (B, T) bool, True for real steps.
    """

    obs: Tensor
    actions: Tensor
    rtg: Tensor
    ctg: Tensor
    timesteps: Tensor
    mask: Tensor

    def split(self, size: int) -> list[Self]:
        """Micro-batches of at most `size` windows."""
        if size >= len(self.mask):
            return [self]
        names = [field.name for field in fields(self)]
        parts = zip(*(getattr(self, name).split(size) for name in names), strict=True)
        return [type(self)(**dict(zip(names, part, strict=True))) for part in parts]


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then an MLP four times as wide."""

    def __init__(self, width: int, n_heads: int, dropout: float, attention_dropout: float) -> None:
        """Make the layers."""
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

    def forward(self, x: Tensor, queries: slice = slice(None)) -> Tensor:
        """Hidden states at the positions `queries` (default: all); each attends up to itself.

        Args:
            x: (B, L, D).
            queries: Positions to compute; the others serve as keys and values only.
        """
        size_b, length, width = x.shape
        normed = self.norm_attention(x)
        q = self.query(normed[:, queries])
        k, v = self.key_value(normed).chunk(2, dim=-1)
        # (B, L, D) -> (B, heads, L, head)
        q, k, v = (part.unflatten(2, (self.n_heads, -1)).transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_causal_mask(length, queries, x.device),
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=queries == slice(None),
        )
        attended = attended.transpose(1, 2).reshape(size_b, -1, width)
        x = x[:, queries] + self.dropout(self.out(attended))
        y: Tensor = x + self.dropout(self.mlp(self.norm_mlp(x)))
        return y


def _causal_mask(length: int, queries: slice, device: torch.device) -> Tensor | None:
    """(queries, L) bool, which positions each query attends to; None where no mask is needed."""
    if queries in (slice(None), slice(length - 1, None)):
        return None  # all positions: `is_causal` says it; the last position attends to all
    positions = torch.arange(length, device=device)
    return positions[None, :] <= positions[queries, None]


class FourierTime(nn.Module):
    """Sines and cosines of the share of the episode that has passed, to an embedding.

    Neighbouring steps have nearly the same embedding, whatever was trained on how many of them.
    """

    frequencies: Tensor

    def __init__(self, episode_length: int, width: int, n_frequencies: int = 6) -> None:
        """Make the layer; the slowest wave is half a period long over an episode."""
        super().__init__()
        self.episode_length = episode_length
        frequencies = math.pi * 2.0 ** torch.arange(n_frequencies)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.linear = nn.Linear(2 * n_frequencies, width)

    def forward(self, timesteps: Tensor) -> Tensor:
        """(..., D) embeddings of steps (...,)."""
        phase = (timesteps / self.episode_length)[..., None] * self.frequencies
        embedded: Tensor = self.linear(torch.cat((phase.sin(), phase.cos()), dim=-1))
        return embedded


class PolicyTransformer(nn.Module):
    """Action distribution at every state of a window, given what is left to earn and to spend."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        episode_length: int,
        time_embedding: TimeEmbedding = "learned",
        context_length: int = 1,
        token_features: int = 1,
        n_layers: int = 3,
        n_heads: int = 8,
        width: int = 128,
        return_token: bool = True,
        cost_token: bool = True,
        action_token: bool = True,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        head_width: int = 0,
        state_dependent_std: bool = True,
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        cost_head: bool = False,
        n_costs: int = 1,
        choices: Sequence[int] = (),
        encoder: ImageEncoder | None = None,
    ) -> None:
        """Make the network.

        Args:
            observation_size: O.
            action_size: A; of discrete actions, the length of their one-hot form.
            episode_length: Steps of the longest episode; later steps are taken for its last.
            time_embedding: `position`: a row for each place in the window; `learned`: one for each
                step of the episode; `fourier`: `FourierTime` of that step.
            context_length: K, places in a window, for `position`.
            token_features: F, numbers that an RTG or CTG token holds.
            n_layers: Blocks.
            n_heads: Attention heads.
            width: D.
            return_token: Whether RTG is a token.
            cost_token: Whether CTG is a token.
            action_token: Whether past actions are tokens.
            dropout: On embeddings and residual branches.
            attention_dropout: On attention weights.
            head_width: Hidden units of the action head, which then also reads the present state,
                RTG and CTG as they are; 0: a linear head on the hidden state alone.
            state_dependent_std: Whether the deviation depends on what the head reads.
            log_std_range: Bounds of the log standard deviation.
            cost_head: Whether to predict, from state and action, if the step costs.
            n_costs: m, CTG tokens of a step: one for each cost.
            choices: Options of each discrete choice, A together; none: actions are continuous.
            encoder: Of images; its features are read wherever else the observation would be.
        """
        super().__init__()
        observation_size = encoder.n_features if encoder else observation_size
        self.width = width
        self.episode_length = episode_length
        self.skip_to_head = head_width > 0
        self.embed_rtg = nn.Linear(token_features, width) if return_token else None
        self.embed_ctg = nn.Linear(token_features, width) if cost_token else None
        self.embed_more_ctg = nn.ModuleList(  # of the costs after the first
            nn.Linear(token_features, width) for _ in range(n_costs - 1 if cost_token else 0)
        )
        self.token_features = token_features
        self.embed_obs = nn.Linear(observation_size, width)
        self.embed_action = nn.Linear(action_size, width) if action_token else None
        self.embed_time: nn.Module | None = None
        self.by_position = time_embedding == "position"
        if time_embedding == "fourier":
            self.embed_time = FourierTime(episode_length, width)
        elif time_embedding != "none":
            n_rows = context_length if self.by_position else episode_length
            self.embed_time = nn.Embedding(n_rows, width)
        self.norm_in = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, n_heads, dropout, attention_dropout) for _ in range(n_layers)
        )
        self.norm_out = nn.LayerNorm(width)
        self.apply(_initialise)
        n_tokens = int(return_token) + n_costs * int(cost_token)
        skipped = observation_size + n_tokens * token_features if self.skip_to_head else 0
        self.encoder = encoder
        self.head = make_head(
            width + skipped,
            action_size,
            choices,
            width=head_width,
            log_std_range=log_std_range,
            state_dependent_std=state_dependent_std,
        )
        if not self.skip_to_head:
            self.head.apply(_initialise)
        self.cost_head = nn.Linear(width + skipped + action_size, 1) if cost_head else None

    @property
    def state_place(self) -> int:
        """Where among the tokens of a step the state is."""
        tokens = (self.embed_rtg, self.embed_ctg, *self.embed_more_ctg)
        return sum(embed is not None for embed in tokens)

    @property
    def tokens_per_step(self) -> int:
        """S: RTG, CTG, state, action, as far as they are tokens."""
        return self.state_place + 1 + (self.embed_action is not None)

    def forward(self, window: Window, *, last_only: bool = False) -> ActionDistribution:
        """Action distribution at every step (B, T), or at the last one (B, 1)."""
        distribution: ActionDistribution = self.head(self.features(window, last_only=last_only))
        return distribution

    def features(self, window: Window, *, last_only: bool = False) -> Tensor:
        """What the head reads at every step (B, T, ...), or at the last one (B, 1, ...).

        The hidden state; with `head_width` also the step's state, RTG and CTG: the embedding and
        its normalisation blur them, and two centimetres can be the difference between safe and
        unsafe.
        """
        window = self.encoded(window)
        hidden = self.hidden(window, last_only=last_only)
        if not self.skip_to_head:
            return hidden
        parts = [window.obs]
        if self.embed_rtg is not None:
            parts.append(window.rtg)
        if self.embed_ctg is not None:
            parts.append(window.ctg)
        steps = slice(-1, None) if last_only else slice(None)
        return torch.cat([hidden, *(part[:, steps] for part in parts)], dim=-1)

    def hidden(self, window: Window, *, last_only: bool = False) -> Tensor:
        """Hidden states of the state tokens: (B, T, D), or (B, 1, D) of the last one alone.

        The result at step t depends on tokens up to the state of step t, never on `actions[:, t]`
        or anything later; so padding on the right cannot matter.

        Args:
            window: Scaled by `Normalizer.window`, and of images by `encoded`.
            last_only: Only the last step of the window, which must be a real one.
        """
        x, per_step = self._tokens(window), self.tokens_per_step
        for block in self.blocks[:-1]:
            x = block(x)
        # Only state tokens are read, so the last block computes no others.
        first = x.shape[1] - 1 if last_only else self.state_place
        x = self.blocks[-1](x, slice(first, None, None if last_only else per_step))
        normed: Tensor = self.norm_out(x)
        return normed

    def encoded(self, window: Window) -> Window:
        """The window with features (B, T, F) of its images; others stay as they are."""
        if self.encoder is None:
            return window
        return replace(window, obs=self.encoder(window.obs))

    def windows_within(self, n_values: int, n_steps: int) -> int:
        """Windows of `n_steps` whose activations hold at most `n_values` values; at least one."""
        return max(1, n_values // (n_steps * self.tokens_per_step * self.width))

    def cost_logits(self, features: Tensor, actions: Tensor) -> Tensor:
        """(B, T) log odds that taking `actions` costs; only with `cost_head`."""
        assert self.cost_head is not None
        logits: Tensor = self.cost_head(torch.cat((features, actions), dim=-1))
        return logits[..., 0].float()

    def _tokens(self, window: Window) -> Tensor:
        """(B, L, D) token embeddings; the last action is left out, nobody attends to it."""
        tokens = []
        if self.embed_rtg is not None:
            tokens.append(self.embed_rtg(window.rtg))
        if self.embed_ctg is not None:
            costs = torch.split(window.ctg, self.token_features, dim=-1)
            embeds = (self.embed_ctg, *self.embed_more_ctg)
            tokens += [embed(part) for embed, part in zip(embeds, costs, strict=True)]
        tokens.append(self.embed_obs(window.obs))
        if self.embed_action is not None:
            tokens.append(self.embed_action(window.actions))
        x = torch.stack(tokens, dim=2)  # S times (B, T, D) -> (B, T, S, D)
        if self.embed_time is not None:
            x = x + self.embed_time(self._times(window))[:, :, None]
        x = x.flatten(1, 2)  # (B, T * S, D)
        if self.embed_action is not None:
            x = x[:, :-1]
        embedded: Tensor = self.dropout(self.norm_in(x))
        return embedded

    def _times(self, window: Window) -> Tensor:
        """(1, T) places in the window, or (B, T) steps of the episode, to embed."""
        if self.by_position:
            return torch.arange(window.timesteps.shape[1], device=window.timesteps.device)[None]
        return window.timesteps.clamp(max=self.episode_length - 1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
