"""Offline safe reinforcement learning as an agent plugin for Gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rcdt_agent.version import __version__

if TYPE_CHECKING:
    from rcdt_agent.algorithms import (
        BC,
        CAPS,
        CPQ,
        FISOR,
        RCDT,
        BCQLag,
        BCSafe,
        BEARLag,
        COptiDICE,
        OfflineAlgorithm,
        TraC,
        load_agent,
        load_agent_from_hub,
    )
    from rcdt_agent.budget_report import BudgetReport
    from rcdt_agent.config import Config
    from rcdt_agent.data import TrajectoryDataset
    from rcdt_agent.deploy import AgentState, ReturnCostTokens, VectorReturnCostTokens
    from rcdt_agent.evaluation import evaluate_budgets
    from rcdt_agent.tasks.registry import get_task
    from rcdt_agent.tasks.simulators import make_env
    from rcdt_agent.variants import make_config

__all__ = [
    "BC",
    "CPQ",
    "CAPS",
    "FISOR",
    "RCDT",
    "AgentState",
    "BCQLag",
    "BCSafe",
    "BEARLag",
    "BudgetReport",
    "COptiDICE",
    "Config",
    "OfflineAlgorithm",
    "ReturnCostTokens",
    "TraC",
    "TrajectoryDataset",
    "VectorReturnCostTokens",
    "__version__",
    "evaluate_budgets",
    "get_task",
    "load_agent",
    "load_agent_from_hub",
    "make_config",
    "make_env",
]

# Loaded when first used: simulators' processes and `rcdt tasks` should not wait for torch, and
# `rcdt_agent.onnx_agent` runs where only numpy and onnxruntime are installed.
_LAZY = {
    "BC": "algorithms",
    "BCQLag": "algorithms",
    "BCSafe": "algorithms",
    "BEARLag": "algorithms",
    "COptiDICE": "algorithms",
    "CPQ": "algorithms",
    "CAPS": "algorithms",
    "FISOR": "algorithms",
    "OfflineAlgorithm": "algorithms",
    "RCDT": "algorithms",
    "TraC": "algorithms",
    "load_agent": "algorithms",
    "load_agent_from_hub": "algorithms",
    "AgentState": "deploy",
    "BudgetReport": "budget_report",
    "Config": "config",
    "ReturnCostTokens": "deploy",
    "TrajectoryDataset": "data",
    "VectorReturnCostTokens": "deploy",
    "evaluate_budgets": "evaluation",
    "get_task": "tasks.registry",
    "make_config": "variants",
    "make_env": "tasks.simulators",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rcdt_agent.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register_environments() -> None:
    """So that `gym.make` knows our tasks; without Gymnasium there is nothing to tell."""
    try:
        import gymnasium  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        return
    from rcdt_agent.tasks import register_environments

    register_environments()


_register_environments()
