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
from rcdt_agent.deploy.policy import ConditionedPolicy
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.model import Window

if TYPE_CHECKING:
    from rcdt_agent.algorithms.budgets import BudgetConditioned

METADATA_KEY = "rcdt_agent"
INPUTS = ("observations", "actions", "returns_to_go", "costs_to_go", "timesteps")
OUTPUTS = ("action", "log_std")
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
        return self.normalizer.unscale_actions(distribution.mode()), distribution.log_std


def export_onnx(agent: BudgetConditioned, path: str | Path) -> None:
    """Write the agent's policy as one ONNX file; see `BudgetConditioned.export_onnx`."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(
            "Exporting needs the extra: `pip install rcdt_agent[onnx]`."
        ) from error
    _refuse_what_the_file_would_lack(agent)
    model = _onnx_model(agent.policy, agent.config.context_length)
    for node in model.graph.node:  # where the exporter notes source lines of this machine
        del node.metadata_props[:]
    # An operation on Python's own numbers would fix the batch, without a word.
    assert all(i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input)
    onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(_metadata(agent))})
    onnx.checker.check_model(model)
    with atomic_write(Path(path), CheckpointError) as partial:
        partial.write_bytes(model.SerializeToString())


def _refuse_what_the_file_would_lack(agent: BudgetConditioned) -> None:
    shielded = bool(agent.policy.shield_candidates)
    calibrated = agent.calibration is not None
    for name, used, remedy in (
        ("shield_candidates", shielded, "set_deployment(shield_candidates=0)"),
        ("calibration", calibrated, "calibration = None"),
    ):
        if used:
            raise InvalidArgumentError(
                f"`{name}` cannot be exported: the file would act otherwise than `predict`. "
                f"Switch it off first: `agent.{remedy}`."
            )


def _onnx_model(policy: ConditionedPolicy, context_length: int) -> Any:
    module = WindowPolicy(policy).eval()
    size_o, size_a = policy.normalizer.obs_mean.numel(), policy.normalizer.action_low.numel()
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
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},) * len(INPUTS),
            opset_version=_OPSET,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _metadata(agent: BudgetConditioned) -> dict[str, Any]:
    """What the code around the graph has to know, as plain values."""
    policy, conditioning = agent.policy, agent.policy.conditioning
    budgets = np.linspace(0.0, float(policy.outcomes.costs.max()), 101)
    return {
        "context_length": agent.config.context_length,
        "observation_shape": list(policy.observation_space.shape),
        "action_shape": list(policy.action_space.shape),
        "action_low": policy.normalizer.action_low.tolist(),
        "action_high": policy.normalizer.action_high.tolist(),
        "cost_budget": agent.cost_budget,
        "target_return": agent.target_return,
        # The rules of `rcdt_agent.deploy.conditioning`.
        "conditioning": {
            "margin": conditioning.margin,
            "ctg_floor": conditioning.ctg_floor,
            "replan": conditioning.replan,
            "exhausted_mode": conditioning.exhausted_mode,
            "return_to_go": conditioning.table.to_dict(),
        },
        # What `target_return="auto"` asks for at these budgets; interpolate between them.
        "target_returns": {
            "cost_budgets": budgets.tolist(),
            "target_returns": [agent.resolve_target(float(budget)) for budget in budgets],
        },
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
