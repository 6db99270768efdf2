"""The policy laid out for acting: the last state's answer with few, large operations.

One small window is mostly overhead: of Python, of modules and of kernels. Here the weights are
joined once (all token embeddings into one matrix, queries, keys and values into another) and every
layer is a dozen calls. `tests/test_networks.py` holds it to the policy's own features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rcdt_agent.networks.block import EPSILON, Block

if TYPE_CHECKING:
    from rcdt_agent.networks.transformer import PolicyTransformer


class LastState:
    """A copy of a policy's weights, for one answer a window."""

    def __init__(self, policy: PolicyTransformer) -> None:
        """Join the weights; a policy that changes later needs a new one."""
        self._cost_token = policy.cost_token
        self._parameters = list(policy.parameters())
        self._versions = self._read_versions()
        with torch.inference_mode(False), torch.no_grad():
            layers = policy.token_layers()
            blocks = [layer.weight for layer in layers]
            self._embed = torch.block_diag(*blocks).t().contiguous()  # type: ignore[no-untyped-call]
            self._embed_bias = torch.cat([layer.bias for layer in layers])
            self._blocks = [_Full(block) for block in _only_blocks(policy)[:-1]]
            self._final = _Final(_only_blocks(policy)[-1])
            norms = (policy.norm_in, policy.norm_out)
            self._norm_in, self._norm_out = ((norm.weight, norm.bias) for norm in norms)
            self._times = policy.embed_time.weight

    def is_current(self) -> bool:
        """Whether the policy's weights are still those that were joined."""
        return self._versions == self._read_versions()

    def _read_versions(self) -> list[Any]:
        return [(p.data_ptr(), p._version) for p in self._parameters]

    def __call__(
        self, obs: Tensor, actions: Tensor, rtg: Tensor, ctg: Tensor, timesteps: Tensor
    ) -> Tensor:
        """(B, D) what the last state token knows; arguments as the policy's `forward`."""
        size_b, size_t, _ = obs.shape
        width = self._times.shape[1]
        tokens = [rtg[..., None], ctg[..., None]] if self._cost_token else [rtg[..., None]]
        inputs = torch.cat([*tokens, obs, actions], dim=-1).view(size_b * size_t, -1)
        x = torch.addmm(self._embed_bias, inputs, self._embed).view(size_b, size_t, -1, width)
        times = timesteps.clamp(max=len(self._times) - 1)
        x += F.embedding(times, self._times)[:, :, None]
        # The last action token comes after the last state and cannot matter.
        x = x.view(size_b, -1, width)[:, :-1]
        x = torch.layer_norm(x, (width,), *self._norm_in, EPSILON)
        for block in self._blocks:
            x = block(x)
        return torch.layer_norm(self._final(x), (width,), *self._norm_out, EPSILON)


class _Half:
    """What both kinds of block share: the output of attention and the MLP."""

    def __init__(self, block: Block) -> None:
        self.n_heads = block.n_heads
        self.norm = block.norm_attention.weight, block.norm_attention.bias
        self.out, self.out_bias = block.out.weight.t(), block.out.bias
        self.norm_mlp = block.norm_mlp.weight, block.norm_mlp.bias
        self.wide, self.wide_bias = block.widen.weight.t(), block.widen.bias
        self.narrow, self.narrow_bias = block.narrow.weight.t(), block.narrow.bias

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Residual, then the MLP; both (rows, D)."""
        x = torch.addmm(self.out_bias, mixed, self.out).add_(x)
        wide = torch.layer_norm(x, (x.shape[1],), *self.norm_mlp, EPSILON)
        wide = torch.ops.aten.gelu_(torch.addmm(self.wide_bias, wide, self.wide))
        return x.add_(torch.addmm(self.narrow_bias, wide, self.narrow))


class _Full(_Half):
    """A block that answers everywhere."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.qkv = torch.cat((block.query.weight, block.key_value.weight)).t()
        self.qkv_bias = torch.cat((block.query.bias, block.key_value.bias))

    def __call__(self, x: Tensor) -> Tensor:
        size_b, length, width = x.shape
        rows = x.view(-1, width)
        qkv = torch.addmm(
            self.qkv_bias, torch.layer_norm(rows, (width,), *self.norm, EPSILON), self.qkv
        )
        # (B, L, 3, h, d) -> three of (B, h, L, d)
        q, k, v = qkv.view(size_b, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(-1, width)
        return self.finish(rows, mixed).view(size_b, length, width)


class _Final(_Half):
    """A block that answers at the last position alone: (B, L, D) -> (B, D).

    One query needs no keys and values of its own: q . (W n) = (W^T q) . n, and a mean of W n is W
    of the mean. A bias of the keys shifts all scores alike, so it drops out.
    """

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        width = block.query.in_features
        head = width // self.n_heads
        self.query = block.query.weight.t() * head**-0.5
        self.query_bias = block.query.bias * head**-0.5
        keys, values = block.key_value.weight.view(2, self.n_heads, head, width)
        self.keys, self.values = keys, values.transpose(1, 2)
        self.value_bias = block.key_value.bias[width:]

    def __call__(self, x: Tensor) -> Tensor:
        size_b, _, width = x.shape
        normed = torch.layer_norm(x, (width,), *self.norm, EPSILON)
        q = torch.addmm(self.query_bias, normed[:, -1], self.query)
        asked = torch.bmm(q.view(size_b, self.n_heads, -1).transpose(0, 1), self.keys)
        p = torch.softmax(torch.bmm(asked.transpose(0, 1), normed.transpose(1, 2)), -1)
        seen = torch.bmm(p, normed).transpose(0, 1)  # (h, B, D)
        mixed = torch.bmm(seen, self.values).transpose(0, 1).reshape(size_b, width)
        return self.finish(x[:, -1], mixed.add_(self.value_bias))


def _only_blocks(policy: PolicyTransformer) -> list[Block]:
    return [block for block in policy.blocks if isinstance(block, Block)]
