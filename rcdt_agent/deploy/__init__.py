"""Deployment: what an agent carries through an episode, and how its tokens are set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rcdt_agent.deploy.conditioning import Conditioning
    from rcdt_agent.deploy.state import AgentState
    from rcdt_agent.deploy.token_calibration import TokenCalibration
    from rcdt_agent.deploy.vector_wrapper import VectorReturnCostTokens
    from rcdt_agent.deploy.wrappers import ReturnCostTokens

__all__ = [
    "AgentState",
    "Conditioning",
    "ReturnCostTokens",
    "TokenCalibration",
    "VectorReturnCostTokens",
]

# Loaded when first used: the wrappers need Gymnasium, the others numpy alone.
_LAZY = {
    "AgentState": "state",
    "Conditioning": "conditioning",
    "ReturnCostTokens": "wrappers",
    "TokenCalibration": "token_calibration",
    "VectorReturnCostTokens": "vector_wrapper",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rcdt_agent.deploy.{_LAZY[name]}"), name)
