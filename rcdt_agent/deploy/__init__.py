"""Deployment: what an agent carries through an episode, and the tokens it is steered by."""

from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.targets import ReturnTargets
from rcdt_agent.deploy.tokens import ReturnCostTokens, VectorReturnCostTokens

__all__ = ["AgentState", "ReturnCostTokens", "ReturnTargets", "VectorReturnCostTokens"]
