"""`RCDT`: the agent a user holds. It delegates; the mathematics is in `losses` and `learner`."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from rcdt_agent.agent_file import agent_contents, fill_agent
from rcdt_agent.checkpoint import contents_of, read_checkpoint, to_path, write_checkpoint
from rcdt_agent.config import DEPLOYMENT, Config, make_config
from rcdt_agent.data.dataset import TrajectoryDataset
from rcdt_agent.data.frontier import ReturnToGoTable
from rcdt_agent.deploy.acting import act, observation_rows
from rcdt_agent.deploy.calibration import TokenCalibration, token_grid
from rcdt_agent.deploy.shield import CriticShield
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.deploy.steering import Steering
from rcdt_agent.deploy.targets import ReturnTargets, TargetReturn
from rcdt_agent.deploy.tokens import ReturnCostTokens, split_tokens
from rcdt_agent.errors import InvalidArgumentError, TrainingError
from rcdt_agent.evaluation import BudgetReport, evaluate_budgets, task_budgets
from rcdt_agent.learner import Learner, make_policy
from rcdt_agent.networks.critics import TwinCritic
from rcdt_agent.networks.transformer import PolicyTransformer
from rcdt_agent.sb3 import StableBaselinesFace
from rcdt_agent.scaling import Scaling
from rcdt_agent.steps import CostFunction
from rcdt_agent.tasks.registry import Task, get_task
from rcdt_agent.training import train

Env = gym.Env[Any, Any]
Data = TrajectoryDataset | str | Path


class RCDT(StableBaselinesFace):
    """Return-Cost Regularized Constrained Decision Transformer, with a stable-baselines3 face.

    Train once on recorded trajectories, then choose the cost budget at deployment:

        agent = RCDT.from_dsrl("OfflineHopperVelocity-v1")
        agent.learn(total_steps=200_000)
        agent.set_cost_budget(20)
        action, state = agent.predict(obs, state)
    """

    def __init__(
        self,
        env: Env | VecEnv | None = None,
        config: Config | None = None,
        *,
        variant: str | None = None,
        preset: str = "paper",
        cost_budget: float | None = None,
        target_return: TargetReturn = "auto",
        seed: int | None = None,
        device: str = "auto",
        verbose: int = 0,
        tensorboard_log: str | None = None,
        **overrides: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: Optional; gives the spaces, and serves evaluation callbacks.
            config: Settings; instead of `variant`, `preset` and `overrides`.
            variant: One of the paper's variants (rcdt, cdt, wqdt, wcdt, qcdt, dt, qt, rdt, rvdt),
                or rcdt-plus, the recommended one; default: rcdt with preset `paper`, else
                rcdt-plus.
            preset: `paper`, `cpu` (minutes on two cores) or `tiny` (tests).
            cost_budget: What an episode may cost at deployment; default: the task's middle
                budget, or the median cost of the training trajectories.
            target_return: `auto` (from the data), `paper` (the published table) or a number.
            seed: Of weights, batches and noise; None draws one.
            device: `auto`, `cpu`, `cuda`.
            verbose: 1 prints the log.
            tensorboard_log: Folder for tensorboard.
            **overrides: Any field of `Config`.
        """
        if config is not None and (overrides or variant is not None or preset != "paper"):
            raise InvalidArgumentError(
                "Give either `config` or `variant`, `preset` and its fields, not both."
            )
        self.config = config or make_config(preset, variant, **overrides)
        self.seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) if seed is None else seed
        self.device = _device(device)
        self.verbose = verbose
        self.tensorboard_log = tensorboard_log
        self.task: Task | None = None
        self.dataset: TrajectoryDataset | None = None
        self.observation_space: gym.Space[Any] | None = None
        self.action_space: gym.Space[Any] | None = None
        self.policy: PolicyTransformer | None = None
        self.scaling: Scaling | None = None
        self.targets: ReturnTargets | None = None
        self.episode_length = 0
        self.cost_limit = 0.0
        self.num_timesteps = 0
        self.learner: Learner | None = None
        self._pending: dict[str, Any] | None = None  # training state of a loaded checkpoint
        self._fingerprint: str | None = None
        self._asked: tuple[float | None, TargetReturn] = (cost_budget, target_return)
        self._cost_budget: float | None = cost_budget
        self._target_return: float | None = None
        self.calibration: TokenCalibration | None = None
        self._guard: CriticShield | None = None
        self._wrapped: weakref.WeakSet[ReturnCostTokens] = weakref.WeakSet()
        if env is not None:
            self.set_env(env)

    # ---------------------------------------------------------------- making

    @classmethod
    def from_dsrl(
        cls, task: str, *, dataset: Data | None = None, progress_bar: bool = True, **kwargs: Any
    ) -> RCDT:
        """An agent for a DSRL task, with the task's dataset, spaces, scores and budgets.

        Args:
            task: DSRL id in any spelling.
            dataset: Use this file or dataset instead of DSRL's own.
            progress_bar: Show the download, if one is needed.
            **kwargs: As for `RCDT`.

        Raises:
            UnknownTaskError: The id is not one of the 38.
            DownloadError: The file is not in the cache and cannot be fetched.
        """
        from rcdt_agent.tasks.datasets import load_task_dataset

        found = get_task(task)
        agent = cls(**kwargs)
        agent.task = found
        if dataset is None:
            dataset = load_task_dataset(found, progress_bar=progress_bar)
            agent._published_data = found.suite != "embedded"
        agent._take_dataset(_as_dataset(dataset))
        return agent

    # ---------------------------------------------------------------- training

    def learn(
        self,
        dataset: Data | None = None,
        total_steps: int | None = None,
        callback: Any = None,
        log_interval: int = 100,
        tb_log_name: str = "RCDT",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        *,
        total_timesteps: int | None = None,
    ) -> RCDT:
        """Train, or continue training.

        A run that was interrupted, or loaded from a checkpoint, goes on to `total_steps` in all.
        Once that many were made, a further call makes as many again; with
        `reset_num_timesteps=False` the steps are always added.

        Args:
            dataset: Trajectories or a path; not needed again once given.
            total_steps: Gradient steps; default: the configuration's.
            callback: stable-baselines3 callback, list of callbacks, or function.
            log_interval: Steps between log entries.
            tb_log_name: Name of the tensorboard run.
            reset_num_timesteps: See above.
            progress_bar: Show speed, loss and lambda.
            total_timesteps: Another name of `total_steps`.

        Returns:
            The agent.
        """
        steps = total_steps or total_timesteps or self.config.total_steps
        if steps < 1:
            raise InvalidArgumentError(f"`total_steps` must be >= 1, got {steps}.")
        if dataset is not None:
            self._take_dataset(_as_dataset(dataset))
        elif self.dataset is None and self.task is not None and self._pending is not None:
            from rcdt_agent.tasks.datasets import load_task_dataset

            self._take_dataset(load_task_dataset(self.task, progress_bar=progress_bar))
        if self.dataset is None:
            raise InvalidArgumentError(
                "There is nothing to learn from: `learn` needs `dataset`, a TrajectoryDataset or "
                "the path of an HDF5 file."
            )
        goal = steps
        if not reset_num_timesteps or self.num_timesteps >= steps:
            goal = self.num_timesteps + steps
        learner = self._ready_learner(goal)
        return train(
            self,
            learner,
            goal,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            progress_bar=progress_bar,
            new_log=reset_num_timesteps,
        )

    # ---------------------------------------------------------------- acting

    def predict(
        self,
        observation: Any,
        state: AgentState | None = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.float32], AgentState]:
        """The action for one environment or many, and the state to hand back next time.

        Args:
            observation: Plain, or with tokens from an environment wrapped by `wrap`; one, or a
                batch with a leading axis.
            state: What the last call returned; None begins new episodes. With plain observations
                it must have been told the outcome: `state = state.observe(reward, cost)`.
            episode_start: (N,) bool, which environments begin a new episode.
            deterministic: The mean action; otherwise one sampled from the policy.

        Raises:
            StateError: The state has not seen the outcome of its last action.
            InvalidArgumentError: The observation has the wrong shape or is not finite.
        """
        self._require_policy()
        obs, rtg, ctg = split_tokens(observation)
        assert self.policy is not None
        assert self.scaling is not None
        assert self.observation_space is not None
        assert self.action_space is not None
        rows, single = observation_rows(obs, self.observation_space, self.scaling)
        if state is None:
            state = self.begin(len(rows))
        elif state.n_envs != len(rows):
            raise InvalidArgumentError(
                f"`state` is of {state.n_envs} environments, but there are {len(rows)} "
                f"observations."
            )
        if episode_start is not None:
            state = state.restart(episode_start)
        if state.follows_agent:
            state = state.with_targets(self.target_return, self.cost_budget)
        if rtg is not None and ctg is not None:
            state = state.with_tokens(rtg, ctg)
        actions, state = act(
            self.policy,
            self.scaling,
            state.push(rows),
            self._steering(),
            deterministic=deterministic,
            shield=self._shield(),
        )
        actions = actions.reshape(-1, *(self.action_space.shape or actions.shape[1:]))
        return (actions[0] if single else actions), state

    def begin(
        self,
        n_envs: int = 1,
        *,
        cost_budget: npt.ArrayLike | None = None,
        target_return: npt.ArrayLike | None = None,
    ) -> AgentState:
        """A state for episodes about to start, with budgets of their own if given.

        Args:
            n_envs: Number of environments.
            cost_budget: A number or (N,); default: the agent's, also when it changes later.
            target_return: A number or (N,); default: what the data show at the budget.
        """
        self._require_policy()
        assert self.scaling is not None
        own = cost_budget is not None or target_return is not None
        budgets = np.broadcast_to(
            np.asarray(self.cost_budget if cost_budget is None else cost_budget, dtype=float),
            (n_envs,),
        )
        if target_return is None and cost_budget is not None:
            known = {budget: self.resolve_target(float(budget), "auto") for budget in set(budgets)}
            target_return = [known[budget] for budget in budgets]
        return AgentState.begin(
            n_envs,
            context_length=self.config.context_length,
            observation_size=len(self.scaling.obs_mean),
            action_size=len(self.scaling.action_low),
            target_return=self.target_return if target_return is None else target_return,
            cost_budget=budgets,
            follows_agent=not own,
        )

    def set_cost_budget(self, k: float, target_return: TargetReturn = "auto") -> None:
        """Say what an episode may cost from now on; also acts on episodes under way.

        Args:
            k: The budget, >= 0.
            target_return: `auto`, `paper` or a number.

        Warns:
            UserWarning: The training data do not cover the request; with the numbers.
        """
        if not (np.isfinite(k) and k >= 0):
            raise InvalidArgumentError(f"`cost_budget` must be >= 0, got {k}.")
        self._asked = (float(k), target_return)
        self._cost_budget = float(k)
        if self.targets is not None:
            self._target_return = self.resolve_target(float(k), target_return)
            self.targets.warn_if_uncovered(
                max(float(k), self._token(float(k))), self._target_return
            )
            if self.calibration is not None:
                self.calibration.warn_if_uncovered(float(k))
            for env in self._wrapped:
                env.set_targets(self._target_return, self._cost_budget)

    def resolve_target(self, cost_budget: float, target_return: TargetReturn = "auto") -> float:
        """The return that an episode at this budget is asked for: `auto`, `paper` or a number."""
        if self.targets is None:
            raise InvalidArgumentError("There is no target return before `learn` has seen data.")
        budget = self._token(cost_budget) if target_return == "auto" else cost_budget
        return self.targets.resolve(budget, target_return)

    @property
    def cost_budget(self) -> float:
        """What an episode may cost."""
        if self._cost_budget is None:
            raise InvalidArgumentError(
                "There is no cost budget yet: call `set_cost_budget`, or `learn` first, which "
                "sets a default."
            )
        return self._cost_budget

    @property
    def target_return(self) -> float:
        """What an episode is asked to return at the present budget."""
        if self._target_return is None:
            raise InvalidArgumentError("There is no target return before `learn` has seen data.")
        return self._target_return

    def wrap(
        self, env: Env, *, cost_key: str = "cost", cost_fn: CostFunction | None = None
    ) -> ReturnCostTokens:
        """Wrap an environment so that the tokens travel in its observation.

        The wrapper follows `set_cost_budget` of this agent.

        Args:
            env: Any Gymnasium environment, with five- or six-value steps.
            cost_key: Where in `info` the cost is.
            cost_fn: Computes the cost instead.
        """
        wrapped = ReturnCostTokens(
            env, self.target_return, self.cost_budget, cost_key=cost_key, cost_fn=cost_fn
        )
        self._wrapped.add(wrapped)
        return wrapped

    @property
    def trained_on_published_data(self) -> bool:
        """Whether the training data are DSRL's own file of the task."""
        return self._published_data

    def evaluate(
        self,
        env: str | Env | Callable[[], Env] | None = None,
        budgets: Sequence[float] | None = None,
        n_episodes: int = 20,
        seed: int = 0,
        **kwargs: Any,
    ) -> BudgetReport:
        """Roll out at every budget; see `evaluate_budgets`."""
        return evaluate_budgets(self, env, budgets, n_episodes=n_episodes, seed=seed, **kwargs)

    def calibrate(
        self,
        env: str | Env | Callable[[], Env] | None = None,
        budgets: Sequence[float] | None = None,
        n_episodes: int = 20,
        seed: int = 1_000_000,
        *,
        n_tokens: int = 10,
        confidence: float = 0.95,
        **kwargs: Any,
    ) -> TokenCalibration:
        """Measure what episodes cost at each token, and from then on give the token that keeps.

        The policy is rolled out at a range of budgets; afterwards a budget is translated to the
        largest token whose mean cost is within it with the given confidence. This needs an
        environment, and seeds that are not those of the evaluation. The result is saved with the
        agent; `agent.calibration = None` takes it back.

        Args:
            env: As for `evaluate`.
            budgets: Budgets that will be asked for; default: those of the agent's task.
            n_episodes: Episodes a token.
            seed: Episode e is reset with `seed + e`.
            n_tokens: Tokens to measure, from zero to 1.5 times the largest budget.
            confidence: Of the upper bound of the mean cost, one-sided.
            **kwargs: As for `evaluate_budgets`.
        """
        self._require_policy()
        assert self.targets is not None
        self.calibration = None
        asked = task_budgets(self, budgets)
        tokens = token_grid(asked, float(self.targets.costs.max()), n_tokens)
        report = evaluate_budgets(
            self, env, tokens.tolist(), n_episodes=n_episodes, seed=seed, **kwargs
        )
        costs = np.array([result.costs for result in report.results])
        self.calibration = TokenCalibration.fit(tokens, costs, confidence=confidence, seed=seed)
        self._retarget()
        return self.calibration

    def set_deployment(self, **fields: Any) -> None:
        """Change how the trained policy is steered; takes effect at the next `predict`.

        Args:
            **fields: Fields of `Config`: `budget_margin`, `ctg_floor`, `replan`,
                `exhausted_mode`, `shield_candidates`.
        """
        unknown = sorted(set(fields) - set(DEPLOYMENT))
        if unknown:
            raise InvalidArgumentError(
                f"`set_deployment` changes {', '.join(DEPLOYMENT)}, got {', '.join(unknown)}."
            )
        self.config, self._guard = replace(self.config, **fields), None
        if self.policy is not None:
            self._retarget()

    def _retarget(self) -> None:
        """Find the target return again after a change of what a budget is translated to."""
        self._target_return = self.resolve_target(self.cost_budget, self._asked[1])
        for env in self._wrapped:
            env.set_targets(self._target_return, self.cost_budget)

    # ---------------------------------------------------------------- files

    def save(self, path: Any) -> None:
        """Write one zip of safetensors and JSON, from which training can continue bit for bit."""
        self._require_policy()
        meta, tensors = agent_contents(self)
        write_checkpoint(to_path(path), type(self).__name__, meta, tensors)

    def export_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX file for deployment without torch; see `rcdt_agent.export`.

        Raises:
            InvalidArgumentError: The agent is untrained, has a shield or a calibration (which the
                file would lack), or the extra `onnx` is not installed.
            CheckpointError: The file cannot be written.
        """
        from rcdt_agent.export import export_onnx

        export_onnx(self, path)

    @classmethod
    def load(
        cls,
        path: Any,
        env: Env | VecEnv | None = None,
        device: str = "auto",
        *,
        verbose: int = 0,
        tensorboard_log: str | None = None,
    ) -> RCDT:
        """Read an agent; nothing in the file is executed.

        Raises:
            CheckpointError: Damaged, of a newer version, or not a checkpoint.
            DatasetError: `env` has other spaces than the agent.
        """
        meta, tensors = read_checkpoint(to_path(path), cls.__name__)
        with contents_of(path):
            agent = cls(
                config=Config.from_dict(meta["config"]),
                seed=int(meta["seed"]),
                device=device,
                verbose=verbose,
                tensorboard_log=tensorboard_log,
            )
            fill_agent(agent, meta, tensors)
        if env is not None:
            agent.set_env(env)
        return agent

    # ---------------------------------------------------------------- internal

    _published_data: bool = False

    def _take_dataset(self, dataset: TrajectoryDataset) -> None:
        """Adopt training data: the first fixes the scales, later ones must fit."""
        if dataset is self.dataset:
            return
        if self.observation_space is not None and self.action_space is not None:
            dataset.check_spaces(self.observation_space, self.action_space)
        if self.learner is not None:
            if dataset.fingerprint == self._fingerprint:  # read again: the same data
                return
            raise TrainingError(
                "This agent has been trained on another dataset. Save it and load it to fine-tune "
                "on new data with the old scales, or make a new agent."
            )
        self.dataset = dataset
        if self.scaling is not None:  # loaded: scales and targets stay what they were
            return
        task_length = self.task.episode_length if self.task else 0
        self.episode_length = max(int(dataset.lengths.max()), task_length)
        reference = self.task.reference_budget if self.task else dataset.outcomes.typical_cost
        limit = self.config.cost_limit
        self.cost_limit = limit if limit is not None else max(reference, 1e-3)
        self.scaling = Scaling.fit(
            dataset, self.config, cost_limit=self.cost_limit, action_space=self.action_space
        )
        self.targets = ReturnTargets(
            returns=dataset.episode_returns,
            costs=dataset.episode_costs,
            quantile=self.config.target_quantile,
            published=(
                tuple(zip(self.task.budgets, self.task.published_targets, strict=True))
                if self.task and self.task.published_targets
                else ()
            ),
            to_go=ReturnToGoTable.fit(
                dataset, quantile=self.config.target_quantile, cost_unit=self.cost_limit
            ),
        )
        self.observation_space = self.observation_space or gym.spaces.Box(
            -np.inf, np.inf, (dataset.observation_size,), dtype=np.float32
        )
        self.action_space = self.action_space or gym.spaces.Box(
            -1.0, 1.0, (dataset.action_size,), dtype=np.float32
        )
        self._fingerprint = dataset.fingerprint
        budget, target = self._asked
        if budget is None:
            self._cost_budget = reference
            self._target_return = self.resolve_target(reference, target)
        else:
            self.set_cost_budget(budget, target)

    def _ready_learner(self, goal: int) -> Learner:
        """The learner of this agent, made or restored on first use."""
        if self.learner is None:
            assert self.dataset is not None
            assert self.scaling is not None
            if self._fingerprint not in (None, self.dataset.fingerprint):
                warnings.warn(
                    f"{self.dataset.name} is not the data this agent was trained on: training "
                    f"continues with the old scales and targets.",
                    stacklevel=3,
                )
                self._fingerprint = self.dataset.fingerprint
            self.config = replace(self.config, total_steps=goal)
            with torch.random.fork_rng():
                learner = Learner(
                    self.dataset,
                    self.config,
                    self.scaling,
                    episode_length=self.episode_length,
                    cost_limit=self.cost_limit,
                    device=self.device,
                    seed=self.seed,
                )
                if self._rng is None:
                    self._rng = torch.get_rng_state()
            if self._pending is not None:
                with contents_of("The checkpoint's training state"):
                    learner.load_state(self._pending)
                self._pending = None
            self.learner = learner
            self.policy = learner.policy
        self.learner.total_steps = goal  # training that goes on spreads its learning rate anew
        return self.learner

    def _make_policy(self) -> PolicyTransformer:
        assert self.scaling is not None
        sizes = len(self.scaling.obs_mean), len(self.scaling.action_low)
        return make_policy(*sizes, self.config, self.episode_length)

    def _modules(self) -> dict[str, nn.Module]:
        self._require_policy()
        assert self.policy is not None
        return self.learner.modules() if self.learner else {"policy": self.policy}

    def _require_policy(self) -> None:
        if self.policy is None:
            raise InvalidArgumentError("The agent has not been trained: call `learn` first.")

    def _token(self, budget: float) -> float:
        """The budget that the policy is given for a budget."""
        return float(self._steering().token(np.array([budget], np.float32))[0])

    def _steering(self) -> Steering:
        """How the tokens are set, from the configuration and what was measured."""
        assert self.targets is not None
        return Steering(
            margin=self.config.budget_margin,
            ctg_floor=self.config.ctg_floor,
            replan=self.config.replan,
            exhausted_mode=self.config.exhausted_mode,
            return_to_go=self.targets.to_go,
            calibration=self.calibration,
        )

    def _shield(self) -> CriticShield | None:
        """The critic shield if it is on; made once from the trained critics."""
        if not self.config.shield_candidates:
            return None
        if self._guard is None:
            cost_critic = self._critic("cost_critic")
            self._guard = CriticShield(
                cost_critic=cost_critic,
                reward_critic=self._critic("reward_critic") if self.config.q_guidance else None,
                cost_discount=self.config.cost_discount,
                episode_length=self.episode_length,
                n_candidates=self.config.shield_candidates,
            )
        return self._guard

    def _critic(self, name: str) -> TwinCritic:
        """A trained critic: the learner's, or from the file the agent was loaded from."""
        if self.learner is not None:
            critic = self.learner.modules()[name]
            assert isinstance(critic, TwinCritic)
            return critic
        assert self.scaling is not None
        if self._pending is None:
            raise InvalidArgumentError(
                "`shield_candidates` needs the critics, which this file does not hold."
            )
        critic = TwinCritic(
            len(self.scaling.obs_mean),
            len(self.scaling.action_low),
            width=self.config.critic_width,
            n_layers=self.config.critic_layers,
        )
        critic.load_state_dict(self._pending["modules"][name])
        return critic.to(self.device).requires_grad_(False)

    def _check_spaces(self, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        if self.dataset is not None:
            self.dataset.check_spaces(observation, action)
        elif self.scaling is not None:
            for name, space, values in (
                ("observation", observation, self.scaling.obs_mean),
                ("action", action, self.scaling.action_low),
            ):
                if gym.spaces.flatdim(space) != len(values):
                    raise InvalidArgumentError(
                        f"The environment's {name} has size {gym.spaces.flatdim(space)}, the "
                        f"agent's has size {len(values)}."
                    )


def _as_dataset(data: Data) -> TrajectoryDataset:
    return data if isinstance(data, TrajectoryDataset) else TrajectoryDataset.from_hdf5(data)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
