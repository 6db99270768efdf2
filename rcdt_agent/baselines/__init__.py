"""Baselines with the same learn / predict / save / load as `RCDT`."""

from rcdt_agent.baselines.bc import BC, BCSafe
from rcdt_agent.baselines.blind import BudgetBlind

__all__ = ["BC", "BCSafe", "BudgetBlind"]
