"""stable-baselines3's callbacks and loggers: stop early, evaluate on the way, write a csv."""

from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.logger import configure

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.callbacks import BudgetEvalCallback
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers


class StopWhenKept(BaseCallback):
    """Ends training at the first evaluation that keeps every budget."""

    def __init__(self, evaluation: BudgetEvalCallback) -> None:
        super().__init__()
        self.evaluation = evaluation

    def _on_step(self) -> bool:
        reports = self.evaluation.reports
        return not (reports and list(reports.values())[-1].passed)


def main(total_steps: int = 1_000, folder: str | Path = "build/callbacks") -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(500))
    every = max(total_steps // 4, 1)
    evaluation = BudgetEvalCallback(ENV_ID, [5, 20], eval_freq=every, n_episodes=5)
    checkpoints = CheckpointCallback(every, str(folder), name_prefix="driver")

    agent = RCDT(preset="tiny", seed=0)
    agent.set_logger(configure(str(folder), ["csv"]))  # or "tensorboard", "json", "stdout"
    agent.learn(
        data,
        total_steps,
        callback=[evaluation, checkpoints, StopWhenKept(evaluation)],
        log_interval=every,
    )
    agent.logger.close()
    for step, report in evaluation.reports.items():
        costs = ", ".join(f"{r.mean_cost:.1f} of {r.budget:g}" for r in report.results)
        print(f"step {step}: cost {costs}")
    files = sorted(path.name for path in Path(folder).iterdir())
    print(f"stopped at {agent.num_timesteps}; written: {', '.join(files)}")


if __name__ == "__main__":
    main()
