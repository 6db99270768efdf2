"""A search of your own with Optuna, on your own data; `rcdt tune` does it for a known task."""

import optuna

from rcdt_agent import RCDT, TrajectoryDataset
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers

BUDGETS = (5.0, 10.0, 20.0)


def main(total_steps: int = 500, n_trials: int = 8, n_episodes: int = 10) -> optuna.Study:
    data = TrajectoryDataset.from_arrays(**record_drivers(500))

    def score(trial: optuna.Trial) -> float:
        agent = RCDT(
            preset="tiny",
            seed=0,
            eta=trial.suggest_float("eta", 0.0, 0.5),
            gamma=trial.suggest_float("gamma", 0.01, 0.3, log=True),
            learning_rate=trial.suggest_float("learning_rate", 3e-4, 3e-3, log=True),
        )
        agent.learn(data, total_steps=total_steps)
        report = agent.evaluate(ENV_ID, BUDGETS, n_episodes, seed=1000)  # not those of the report
        over = sum(max(0.0, r.mean_cost / r.budget - 1) for r in report.results)
        earned = sum(r.normalized_return for r in report.results)
        return (earned - 5 * over) / len(BUDGETS)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(score, n_trials=n_trials)
    settings = ", ".join(f"{name}={value:.3g}" for name, value in study.best_params.items())
    print(f"best of {n_trials}: score {study.best_value:.3f} with {settings}")
    return study


if __name__ == "__main__":
    main()
