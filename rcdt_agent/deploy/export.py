"""The policy as an ONNX file: runs with numpy and `onnxruntime`, without torch.

The graph takes a window in the units of the task (observations as the environment gives them,
actions of its action space, returns and costs to go as plain sums) and answers in the same units;
all scaling is inside. What lies between two steps stays outside: the window of the last K steps,
and the rules that turn a budget into tokens. `rcdt_agent.onnx_agent` runs them by the same code as
the agent; what it needs to know is in the file, see `deploy.onnx_file`.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rcdt_agent._io import atomic_write, versions
from rcdt_agent.action_spaces import action_range
from rcdt_agent.actions import Gaussian
from rcdt_agent.deploy.onnx_file import (
    CHECKSUM_KEY,
    DISCRETE_OUTPUTS,
    FORMAT_VERSION,
    INPUTS,
    METADATA_KEY,
    NO_CHECKSUM,
    OUTPUTS,
    seal,
)
from rcdt_agent.deploy.policy import ConditionedPolicy
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.model import Window

if TYPE_CHECKING:
    from rcdt_agent.algorithms.budgets import BudgetConditioned

_OPSET = 18


class WindowPolicy(nn.Module):
    """The policy with its scales as a function of plain tensors, in units of the task."""

    def __init__(self, policy: ConditionedPolicy) -> None:
        """Copy the networks to the CPU, ready to act."""
        super().__init__()
        self.transformer = copy.deepcopy(policy.transformer).cpu().eval()
        self.normalizer = copy.deepcopy(policy.normalizer).cpu()

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        returns_to_go: Tensor,
        costs_to_go: Tensor,
        timesteps: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The action at every step of each window, and the log-std of its scaled form.

        Of discrete actions the log probability of every option instead.

        Args:
            observations: (B, K, O).
            actions: (B, K, A) taken so far; the present one and the padding are not looked at.
            returns_to_go: (B, K).
            costs_to_go: (B, K).
            timesteps: (B, K) int64, step of the episode.
        """
        window = Window(
            obs=observations,
            actions=actions,
            rtg=returns_to_go,
            ctg=costs_to_go,
            timesteps=timesteps,
            mask=torch.ones_like(timesteps, dtype=torch.bool),
        )
        distribution = self.transformer(self.normalizer.window(window))
        spread = (
            distribution.log_std if isinstance(distribution, Gaussian) else distribution.log_probs
        )
        return self.normalizer.unscale_actions(distribution.mode()), spread


def export_onnx(agent: BudgetConditioned, path: str | Path) -> None:
    """Write the agent's policy as one ONNX file; see `BudgetConditioned.export_onnx`."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(
            "Exporting needs the extra: `pip install rcdt_agent[onnx]`."
        ) from error
    if agent.policy.layout and agent.policy.layout.image:
        raise InvalidArgumentError(
            f"An agent that sees images ({agent.policy.layout.image}) cannot be exported as ONNX: "
            f"the graph takes rows of numbers."
        )
    _refuse_a_shield(agent)
    if agent.cost_window is not None:
        raise InvalidArgumentError(
            f"An ONNX file knows budgets of episodes only, but the agent's is for every "
            f"{agent.cost_window} steps: `set_cost_budget` without `per` first."
        )
    model = _onnx_model(agent.policy, agent.config.context_length)
    for node in model.graph.node:  # where the exporter notes source lines of this machine
        del node.metadata_props[:]
    # An operation on Python's own numbers would fix the batch, without a word.
    assert all(i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input)
    onnx.checker.check_model(model)
    content = serialize(model, _metadata(agent))
    with atomic_write(Path(path), CheckpointError) as partial:
        partial.write_bytes(content)


def serialize(model: Any, metadata: dict[str, Any]) -> bytes:
    """A model with its metadata as the bytes of a file."""
    import onnx

    text = json.dumps(metadata, allow_nan=False)
    onnx.helper.set_model_props(model, {METADATA_KEY: text, CHECKSUM_KEY: NO_CHECKSUM})
    # Serialised messages one after the other are one message: so the checksum's value comes last.
    last = onnx.ModelProto(metadata_props=model.metadata_props)
    del model.metadata_props[:]
    return seal(model.SerializeToString() + last.SerializeToString())


def _refuse_a_shield(agent: BudgetConditioned) -> None:
    if agent.policy.shield_candidates:
        raise InvalidArgumentError(
            "`shield_candidates` cannot be exported: the file would act otherwise than `predict`. "
            "Switch the shield off first: `agent.set_deployment(shield_candidates=0)`, or "
            "`rcdt export --without-shield`."
        )


def _onnx_model(policy: ConditionedPolicy, context_length: int) -> Any:
    module = WindowPolicy(policy).eval()
    size_o, size_a = policy.normalizer.observation_size, policy.normalizer.action_width
    shape = 2, context_length  # a batch of one would be taken for a constant
    example = (
        torch.zeros(*shape, size_o),
        torch.zeros(*shape, size_a),
        torch.zeros(shape),
        torch.zeros(shape),
        torch.zeros(shape, dtype=torch.int64),
    )
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS if policy.normalizer.choices is None else DISCRETE_OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},) * len(INPUTS),
            opset_version=_OPSET,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _metadata(agent: BudgetConditioned) -> dict[str, Any]:
    """What the code around the graph has to know, as plain values."""
    policy = agent.policy
    return {
        "format_version": FORMAT_VERSION,
        "observation_shape": list(policy.observation_space.shape),
        "action_shape": list(policy.action_space.shape or ()),
        "action_dtype": str(policy.action_space.dtype),
        **action_range(policy.action_space).to_dict(),
        # `Conditioning.from_dict` takes these two, as it does from a checkpoint.
        "config": agent.config.to_dict(),
        "conditioning": policy.conditioning.to_dict(),
        "settings": agent.settings_to_save(),
        "episode_length": policy.episode_length,
        "task": agent.task.id if agent.task else None,
        "num_timesteps": agent.num_timesteps,
        "fingerprint": agent.provenance.fingerprint,
        "versions": versions(),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
