"""Deployment: what an agent carries through an episode, and how its tokens are set."""

from rcdt_agent.deploy.conditioning import Conditioning, TokenCalibration
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.vector_wrapper import VectorReturnCostTokens
from rcdt_agent.deploy.wrappers import ReturnCostTokens

__all__ = [
    "AgentState",
    "Conditioning",
    "ReturnCostTokens",
    "TokenCalibration",
    "VectorReturnCostTokens",
]
