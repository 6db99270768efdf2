"""One policy at twelve budgets: what each brings, as a table and as two pictures."""

import json
from pathlib import Path

import numpy as np

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.plots import plot_calibration, plot_frontier, save_figure
from rcdt_agent.tasks.speed_limit import ENV_ID, optimal_return, record_drivers


def main(
    total_steps: int = 1_000, n_episodes: int = 20, folder: str | Path = "build/sweep"
) -> None:
    data = TrajectoryDataset.from_arrays(**record_drivers(1000))
    agent = RCDT(preset="tiny", seed=0).learn(data, total_steps=total_steps)

    budgets = np.linspace(2, 46, 12)
    report = agent.evaluate(ENV_ID, list(budgets), n_episodes)
    for result in report.results:
        best = optimal_return(result.budget)
        print(
            f"budget {result.budget:>4g}: cost {result.mean_cost:>5.1f}, "
            f"return {result.mean_return:>5.1f} of at most {best:.1f}"
        )

    content = json.loads(report.to_json())
    save_figure(plot_calibration(content), Path(folder) / "calibration.png")
    save_figure(
        plot_frontier(data.episode_returns, data.episode_costs, content),
        Path(folder) / "frontier.png",
    )


if __name__ == "__main__":
    main()
