"""The networks: the return-cost conditioned policy and the critics."""

from rcdt_agent.networks.critics import TwinCritic
from rcdt_agent.networks.transformer import PolicyTransformer

__all__ = ["PolicyTransformer", "TwinCritic"]
