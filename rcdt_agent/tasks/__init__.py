"""Tasks: the registry of DSRL's 38, their simulators and files, and the embedded SpeedLimit."""

from __future__ import annotations

import gymnasium as gym

from rcdt_agent.tasks.registry import TASKS


def register_environments() -> None:
    """Register SpeedLimit and `rcdt_agent/<task id>` with Gymnasium; imports no simulator."""
    from rcdt_agent.tasks.speed_limit import ENV_ID

    if ENV_ID in gym.registry:
        return
    gym.register(ENV_ID, entry_point="rcdt_agent.tasks.speed_limit:SpeedLimitEnv")
    for task in TASKS.values():
        gym.register(
            f"rcdt_agent/{task.id}",
            entry_point="rcdt_agent.tasks.simulators:make_env",
            kwargs={"task": task.id},
            disable_env_checker=True,
        )
