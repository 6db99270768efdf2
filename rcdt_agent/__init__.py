"""Offline safe reinforcement learning as an agent plugin for Gymnasium."""

from rcdt_agent.tasks import register_environments as _register_environments
from rcdt_agent.tasks.registry import get_task
from rcdt_agent.tasks.simulators import make_env
from rcdt_agent.version import __version__

__all__ = ["__version__", "get_task", "make_env"]

_register_environments()
