"""stable-baselines3's own parts, unmodified, on our agent."""

from __future__ import annotations

import csv
import json

import gymnasium as gym
import numpy as np
import pytest
from conftest import QUICK
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    ProgressBarCallback,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from rcdt_agent import RCDT, ReturnCostTokens
from rcdt_agent.callbacks import BudgetEvalCallback
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import SeededEpisodes
from rcdt_agent.tasks.speed_limit import ENV_ID


def wrapped_vec_env(agent, n, seeds=None):
    """Environments with tokens; with `seeds`, environment i resets with the seeds of row i."""

    def make(i):
        env = gym.make(ENV_ID)
        if seeds is not None:
            env = SeededEpisodes(env, seeds[i])
        return Monitor(ReturnCostTokens(env, cost_budget=agent.cost_budget))

    return DummyVecEnv([lambda i=i: make(i) for i in range(n)])


def test_evaluate_policy_gives_the_returns_of_evaluate(agent):
    agent.set_cost_budget(10)
    seeds = [[0, 2, 4], [1, 3, 5]]
    env = wrapped_vec_env(agent, 2, seeds)
    returns, lengths = evaluate_policy(
        agent, env, n_eval_episodes=6, return_episode_rewards=True, deterministic=True
    )
    report = agent.evaluate(ENV_ID, [10], n_episodes=6, seed=0)
    assert lengths == [60] * 6
    np.testing.assert_allclose(sorted(returns), sorted(report.results[0].returns), atol=1e-2)


def test_eval_and_checkpoint_callbacks(drivers, tmp_path):
    agent = RCDT(gym.make(ENV_ID), cost_budget=10, **QUICK)
    agent.set_dataset(drivers)
    evaluation = EvalCallback(
        wrapped_vec_env(agent, 1), n_eval_episodes=2, eval_freq=20, verbose=0,
        log_path=str(tmp_path / "eval"), best_model_save_path=str(tmp_path / "best"),
    )  # fmt: skip
    checkpoints = CheckpointCallback(save_freq=15, save_path=str(tmp_path / "steps"))
    agent.learn(total_steps=40, callback=CallbackList([evaluation, checkpoints]))
    assert evaluation.n_calls == 40
    results = np.load(tmp_path / "eval" / "evaluations.npz")
    assert results["timesteps"].tolist() == [20, 40]
    assert results["results"].shape == (2, 2)
    names = sorted(path.name for path in (tmp_path / "steps").iterdir())
    assert names == ["rl_model_15_steps.zip", "rl_model_30_steps.zip"]
    assert RCDT.load(tmp_path / "steps" / "rl_model_30_steps.zip").num_timesteps == 30
    assert RCDT.load(tmp_path / "best" / "best_model.zip").num_timesteps in (20, 40)


def test_callbacks_in_every_form_and_stopping(drivers):
    seen = []

    class Stop(BaseCallback):
        def _on_training_start(self):
            seen.append(("start", self.locals["total_timesteps"]))

        def _on_step(self):
            seen.append(self.num_timesteps)
            return self.num_timesteps < 4

        def _on_training_end(self):
            seen.append("end")

    agent = RCDT(**QUICK)
    agent.learn(drivers, 10, callback=[Stop()])
    assert seen == [("start", 10), 1, 2, 3, 4, "end"]
    assert agent.num_timesteps == 4
    agent.learn(resume=True)  # to where it would have ended
    assert agent.num_timesteps == 10
    calls = []
    agent.learn(total_steps=2, callback=lambda _locals, _globals: calls.append(1) or True)
    assert len(calls) == 2


def test_loggers(drivers, tmp_path):
    agent = RCDT(**QUICK)
    agent.set_logger(configure(str(tmp_path), ["csv", "json", "tensorboard", "log"]))
    agent.learn(drivers, 30, log_interval=10)
    agent.logger.close()
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["time/total_timesteps"] for row in rows] == ["10", "20", "30"]
    assert float(rows[-1]["train/nll"]) < float(rows[0]["train/nll"])
    lines = (tmp_path / "progress.json").read_text().splitlines()
    assert 0.0 < json.loads(lines[-1])["train/lambda"] < 0.1  # it has begun to act
    assert any("tfevents" in path.name for path in tmp_path.iterdir())
    assert "steps_per_second" in (tmp_path / "log.txt").read_text()


def test_tensorboard_log_argument(drivers, tmp_path):
    agent = RCDT(tensorboard_log=str(tmp_path), **QUICK)
    agent.learn(drivers, 5, tb_log_name="mine")
    assert (tmp_path / "mine_1").is_dir()
    agent.logger.close()


def test_budget_evaluation_callback(drivers, tmp_path):
    agent = RCDT(**QUICK)
    agent.set_logger(configure(str(tmp_path), ["json"]))
    callback = BudgetEvalCallback(ENV_ID, [5, 20], eval_freq=10, n_episodes=2)
    agent.learn(drivers, 20, callback=callback)
    agent.logger.close()
    assert sorted(callback.reports) == [10, 20]
    logged = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    values = [row["eval/cost_20"] for row in logged if "eval/cost_20" in row]
    assert values == [report.results[1].mean_cost for report in callback.reports.values()]


def test_progress_bar(drivers, capsys):
    RCDT(**QUICK).learn(drivers, 30, log_interval=10, progress_bar=True)
    shown = capsys.readouterr().err
    assert "30/30" in shown and "loss=" in shown and "lambda=" in shown


def test_evaluate_policy_on_one_wrapped_environment(drivers):
    """A budget that acts: the same policy, the same episodes, less return at the smaller one."""
    agent = RCDT(preset="tiny", seed=0).learn(drivers, 400)
    means = {}
    for budget in (2.0, 40.0):
        agent.set_cost_budget(budget)
        env = Monitor(agent.wrap(SeededEpisodes(gym.make(ENV_ID), [3, 4])))
        means[budget], _ = evaluate_policy(agent, env, n_eval_episodes=2)
        report = agent.evaluate(ENV_ID, [budget], n_episodes=2, seed=3)
        assert means[budget] == pytest.approx(report.results[0].mean_return, rel=1e-4)
    assert means[2.0] < means[40.0] - 1


def no_env(drivers):
    agent = RCDT(cost_budget=10, **QUICK)
    return agent, drivers


def with_env(drivers):
    agent = RCDT(gym.make(ENV_ID), cost_budget=10, **QUICK)
    return agent, drivers


def from_dsrl(drivers):
    return RCDT.from_dsrl("SpeedLimit", dataset=drivers, cost_budget=10, **QUICK), None


@pytest.mark.parametrize("make", [no_env, with_env, from_dsrl])
def test_callbacks_made_before_the_first_learn(make, drivers, tmp_path):
    """As everybody uses them: the agent, the evaluation environment, the callbacks, `learn`."""
    agent, data = make(drivers)
    given = agent.get_env()
    env = Monitor(agent.wrap(SeededEpisodes(gym.make(ENV_ID), [0, 1] * 4)))
    best = StopTrainingOnRewardThreshold(reward_threshold=-1e9, verbose=0)
    evaluation = EvalCallback(
        env, callback_on_new_best=best, n_eval_episodes=2, eval_freq=3, verbose=0,
        log_path=str(tmp_path / "eval"), best_model_save_path=str(tmp_path / "best"),
    )  # fmt: skip
    checkpoints = CheckpointCallback(save_freq=2, save_path=str(tmp_path / "steps"))
    agent.learn(data, 8, callback=[evaluation, checkpoints])
    assert agent.num_timesteps == 3  # the first evaluation is above the threshold
    loaded = RCDT.load(tmp_path / "best" / "best_model.zip")
    assert loaded.num_timesteps == 3
    expected = loaded.evaluate(ENV_ID, [10], n_episodes=2, seed=0).results[0].mean_return
    assert evaluation.best_mean_reward == pytest.approx(expected, rel=1e-4)
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["rl_model_2_steps.zip"]
    assert agent.get_env() is given  # what callbacks were shown is gone


def test_stop_without_improvement_and_other_vector_environments(drivers):
    agent = RCDT(cost_budget=10, **QUICK)
    stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=1, min_evals=0)
    env = agent.wrap(SeededEpisodes(gym.make(ENV_ID), [0] * 20))
    evaluation = EvalCallback(
        VecMonitor(DummyVecEnv([lambda: env])), callback_after_eval=stop, n_eval_episodes=1,
        eval_freq=1, verbose=0,
    )  # fmt: skip
    agent.learn(drivers, 9, callback=evaluation)
    assert evaluation.n_calls == agent.num_timesteps >= 2


@pytest.mark.filterwarnings("ignore:rich is experimental:tqdm.TqdmExperimentalWarning")
def test_what_callbacks_see_without_an_environment(drivers):
    seen = []

    class Look(BaseCallback):
        def _on_step(self):
            seen.append(self.training_env)
            return True

    agent = RCDT(**QUICK)
    agent.learn(drivers, 2, callback=[Look(), ProgressBarCallback()])
    env = seen[0]
    assert (env.num_envs, env.action_space) == (1, agent.action_space)
    assert env.observation_space == agent.observation_space
    with pytest.raises(InvalidArgumentError, match="has no environment: give it one"):
        env.reset()
    with pytest.raises(InvalidArgumentError, match="has no environment"):
        env.step(np.zeros((1, 1)))
    assert agent.get_env() is None
