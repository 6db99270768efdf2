"""Baselines with the same learn / predict / save / load as `RCDT`."""

from rcdt_agent.baselines.bc import BC, BCSafe

__all__ = ["BC", "BCSafe"]
