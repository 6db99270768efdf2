"""The policy as an ONNX file: runs with numpy and `onnxruntime`, without torch.

The graph takes a window in the units of the task (observations as the environment gives them,
actions of its action space, returns and costs to go as plain sums) and answers in the same units;
all scaling is inside. What lies between two steps stays outside, because it is a few lines in any
language: the window of the last K steps, and what is left to earn and to spend. What those lines
need to know is in the file, as JSON under the metadata key `rcdt_agent`.
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

import numpy as np
import torch
from torch import Tensor, nn

from rcdt_agent._io import atomic_write, versions
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.networks.transformer import PolicyTransformer
from rcdt_agent.scaling import Scaling

if TYPE_CHECKING:
    from rcdt_agent.agent import RCDT

METADATA_KEY = "rcdt_agent"
INPUTS = ("observations", "actions", "returns_to_go", "costs_to_go", "timesteps")
OUTPUTS = ("action", "log_std")
_OPSET = 18


class WindowPolicy(nn.Module):
    """The policy with its scales: from windows in the task's units to actions of its space."""

    def __init__(self, policy: PolicyTransformer, scaling: Scaling) -> None:
        """Copy the policy to the CPU, ready to act."""
        super().__init__()
        self.policy = copy.deepcopy(policy).cpu().eval()
        self.scaling = scaling
        for name in ("obs_mean", "obs_std", "action_low", "action_high"):
            self.register_buffer(name, torch.tensor(getattr(scaling, name), dtype=torch.float32))

    obs_mean: Tensor
    obs_std: Tensor
    action_low: Tensor
    action_high: Tensor

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        returns_to_go: Tensor,
        costs_to_go: Tensor,
        timesteps: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The action at every step of each window, and the log deviation of its unit form.

        Args:
            observations: (B, K, O).
            actions: (B, K, A) taken so far; the present one and the padding are not looked at.
            returns_to_go: (B, K).
            costs_to_go: (B, K).
            timesteps: (B, K) int64, place of each step in its episode.
        """
        spread = self.action_high - self.action_low
        mean, log_std = self.policy(
            (observations - self.obs_mean) / self.obs_std,
            2 * (actions - self.action_low) / spread - 1,
            self.scaling.rtg_token(returns_to_go),
            self.scaling.ctg_token(costs_to_go),
            timesteps,
        )
        return self.action_low + (mean.clamp(-1.0, 1.0) + 1) / 2 * spread, log_std


def export_onnx(agent: RCDT, path: str | Path) -> None:
    """Write the agent's policy as one ONNX file; see `RCDT.export_onnx`."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(
            "Exporting needs the extra: `pip install rcdt_agent[onnx]`."
        ) from error
    agent._require_policy()
    assert agent.policy is not None
    assert agent.scaling is not None
    for name, used, remedy in (
        (
            "shield_candidates",
            agent.config.shield_candidates,
            "set_deployment(shield_candidates=0)",
        ),
        ("calibration", agent.calibration is not None, "calibration = None"),
    ):
        if used:
            raise InvalidArgumentError(
                f"`{name}` cannot be exported: the file would act otherwise than `predict`. "
                f"Switch it off first: `agent.{remedy}`."
            )
    module = WindowPolicy(agent.policy, agent.scaling).eval()
    length = agent.config.context_length
    size_o, size_a = len(agent.scaling.obs_mean), len(agent.scaling.action_low)
    batch = 2  # any but one, which would be taken for a constant
    example = (
        torch.zeros(batch, length, size_o),
        torch.zeros(batch, length, size_a),
        torch.zeros(batch, length),
        torch.zeros(batch, length),
        torch.zeros(batch, length, dtype=torch.int64),
    )
    with _quiet(), torch.no_grad():  # whose path has no hand-written backward pass
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},) * len(INPUTS),
            opset_version=_OPSET,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:  # where the exporter notes source lines of this machine
        del node.metadata_props[:]
    # An operation on Python's own numbers would fix the batch, without a word.
    assert all(i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input)
    onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(_metadata(agent))})
    onnx.checker.check_model(model)
    with atomic_write(Path(path), CheckpointError) as partial:
        partial.write_bytes(model.SerializeToString())


def _metadata(agent: RCDT) -> dict[str, Any]:
    """What the code around the graph has to know, as plain values."""
    assert agent.scaling is not None
    assert agent.targets is not None
    assert agent.observation_space is not None
    assert agent.action_space is not None
    budgets = np.linspace(0.0, float(agent.targets.costs.max()), 101)
    return {
        "context_length": agent.config.context_length,
        "observation_shape": list(agent.observation_space.shape or ()),
        "action_shape": list(agent.action_space.shape or ()),
        "action_low": list(agent.scaling.action_low),
        "action_high": list(agent.scaling.action_high),
        "cost_budget": agent.cost_budget,
        "target_return": agent.target_return,
        # The rules of `rcdt_agent.deploy.steering`.
        "steering": {
            "margin": agent.config.budget_margin,
            "ctg_floor": agent.config.ctg_floor,
            "replan": agent.config.replan,
            "exhausted_mode": agent.config.exhausted_mode,
            "return_to_go": agent.targets.to_go.to_dict() if agent.targets.to_go else None,
        },
        # What `target_return="auto"` asks for at these budgets; interpolate between them.
        "target_returns": {
            "cost_budgets": budgets.tolist(),
            "target_returns": [agent.resolve_target(float(budget)) for budget in budgets],
        },
        "task": agent.task.id if agent.task else None,
        "num_timesteps": agent.num_timesteps,
        "fingerprint": agent._fingerprint,
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
