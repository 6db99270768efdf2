"""Tasks: the registry of DSRL's 38 and SpeedLimit, their simulators and datasets."""

from __future__ import annotations

from rcdt_agent.tasks.registry import DSRL_TASKS, SPEED_LIMIT


def register_environments() -> None:
    """Register SpeedLimit and `rcdt_agent/<task id>` with Gymnasium; imports no simulator."""
    import gymnasium as gym

    if SPEED_LIMIT.id in gym.registry:
        return
    gym.register(SPEED_LIMIT.id, entry_point="rcdt_agent.tasks.speed_limit:SpeedLimitEnv")
    for task in DSRL_TASKS.values():
        gym.register(
            f"rcdt_agent/{task.id}",
            entry_point="rcdt_agent.tasks.simulators:make_env",
            kwargs={"task": task.id},
            disable_env_checker=True,
        )
