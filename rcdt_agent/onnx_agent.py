"""`OnnxAgent`: acts from an exported file with numpy and onnxruntime, without torch.

What decides about tokens is the same code as the agent's: `deploy.state` and `deploy.conditioning`.
Only the network runs elsewhere, so actions agree with those of `predict` to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from rcdt_agent._types import Float32Array
from rcdt_agent.action_range import ActionRange
from rcdt_agent.arguments import check_path, check_whole
from rcdt_agent.config import Config
from rcdt_agent.deploy.checks import (
    check_budget,
    check_budgets,
    check_target_request,
    check_targets,
    observation_rows,
)
from rcdt_agent.deploy.conditioning import NO_RETURN_TOKEN, Conditioning, TargetReturn
from rcdt_agent.deploy.episodes import EpisodeRules
from rcdt_agent.deploy.onnx_file import (
    DISCRETE_OUTPUTS,
    INPUTS,
    METADATA_KEY,
    OUTPUTS,
    as_file_error,
    parse_metadata,
    read_sealed,
)
from rcdt_agent.deploy.state import AgentState
from rcdt_agent.errors import CheckpointError, InvalidArgumentError

__all__ = ["OnnxAgent"]


class OnnxAgent(EpisodeRules):
    """A trained policy from an ONNX file; budgets can change at any time.

    One episode on a robot: `reset`, then `act` at every step. Many, or one at a time in a loop of
    your own: `predict` and `state.observe`, as for `RCDT`.

    Attributes:
        conditioning: From budgets to tokens: margin, replanning, calibration.
        observation_shape: Of one observation.
        action_shape: Of one action.
        action_dtype: Of an action; whole numbers are discrete.
        action_range: Bounds of the action space.
        context_length: Steps the policy looks back on, the present one included.
        episode_length: Longest episode of the task and its training data.
        metadata: All that the file says of itself.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_threads: int = 1,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        """Read a file that `agent.export_onnx` or `rcdt export` wrote, and act once with it.

        Args:
            path: The file.
            n_threads: Of onnxruntime; networks of this size leave little to share.
            providers: Where onnxruntime computes, the preferred first.

        Raises:
            CheckpointError: Not there, not ours, damaged, or of another format.
        """
        path = check_path("path", path)
        check_whole("n_threads", n_threads)
        if isinstance(providers, str) or not isinstance(providers, Sequence):
            raise InvalidArgumentError(
                f"`providers` must be a list of onnxruntime's names, got {providers!r}."
            )
        content = read_sealed(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        options.log_severity_level = 3  # errors alone, and those are raised
        with as_file_error(path):
            self._session = onnxruntime.InferenceSession(
                content, sess_options=options, providers=list(providers)
            )
        text = self._session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        self.metadata: dict[str, Any] = parse_metadata(text, path)
        self._judged: set[tuple[float, float]] = set()
        with as_file_error(path):
            config = Config.from_dict(self.metadata["config"])
            self.context_length = config.context_length
            self.episode_length = int(self.metadata["episode_length"])
            self.observation_shape = tuple(map(int, self.metadata["observation_shape"]))
            self.action_shape = tuple(map(int, self.metadata["action_shape"]))
            self.action_dtype = np.dtype(self.metadata.get("action_dtype", "float32"))
            self.conditioning = Conditioning.from_dict(config, self.metadata["conditioning"])
            self._target = lru_cache(1024)(self.conditioning.target_return)
            settings = self.metadata["settings"]
            if settings.get("cost_window") is not None:  # not exported any more
                raise CheckpointError(
                    f"{path}: its budget is for every {settings['cost_window']} steps, which an "
                    f"`OnnxAgent` cannot keep: export it with an episode's budget."
                )
            self._cost_budget = check_budget(settings["cost_budget"])
            self._target_request: TargetReturn = settings["target_return"]
            self._check_ports()
            self.action_range = ActionRange.from_dict(
                self.metadata,
                size=math.prod(self.action_shape),
                whole=self.action_dtype.kind in "iu",
            )
            nothing = np.zeros(self.observation_shape, dtype=np.float32)
            action, _ = self.predict(nothing, self.begin())
            if action.shape != self.action_shape or not np.isfinite(action).all():
                raise CheckpointError(f"{path}: damaged, an action of it is {action}.")

    # ------------------------------------------------------------ budgets

    @property
    def cost_budget(self) -> float:
        """What an episode may cost."""
        return self._cost_budget

    @property
    def target_return(self) -> float:
        """What an episode is asked to return at the present budget."""
        return self._target(self._cost_budget, self._target_request)

    def set_cost_budget(self, k: float, target_return: TargetReturn = "auto") -> None:
        """Say what an episode may cost from now on; also acts on episodes under way.

        Args:
            k: The budget, >= 0.
            target_return: `auto`, `paper` or a number.

        Raises:
            InvalidArgumentError: A number is outside its rule.

        Warns:
            UserWarning: The training data do not cover the request; once, with the numbers.
        """
        budget = check_budget(k)
        check_target_request(target_return)
        target = self._target(budget, target_return)
        if self._is_new(budget, target):
            self.conditioning.warn_if_uncovered(budget, target)
        self._cost_budget, self._target_request = budget, target_return

    def _is_new(self, cost_budget: float, target_return: float) -> bool:
        """Whether this request was not judged before: a warning comes once."""
        request = cost_budget, target_return
        new = request not in self._judged
        self._judged.add(request)
        return new

    # ------------------------------------------------------------ many episodes, held by the caller

    def begin(
        self,
        n_envs: int = 1,
        cost_budget: npt.ArrayLike | None = None,
        target_return: npt.ArrayLike | None = None,
    ) -> AgentState:
        """A state for episodes about to start, with budgets of their own if given.

        Args:
            n_envs: Number of environments.
            cost_budget: A number or (N,); default: the agent's, also when it changes later.
            target_return: A number or (N,); default: what the data show at the budget.

        Warns:
            UserWarning: The training data do not cover a budget; once, with the numbers.
        """
        check_whole("n_envs", n_envs, 1)
        own = cost_budget is not None or target_return is not None
        budgets = check_budgets(self.cost_budget if cost_budget is None else cost_budget, n_envs)
        if target_return is not None:
            target_return = check_targets(target_return, n_envs)
            if not self.conditioning.return_token:
                raise InvalidArgumentError(NO_RETURN_TOKEN)
        elif cost_budget is not None:
            targets = np.array([self._target(float(budget), "auto") for budget in budgets])
            for budget, target in zip(budgets.tolist(), targets.tolist(), strict=True):
                if self._is_new(budget, target):
                    self.conditioning.warn_if_uncovered(budget, target)
            target_return = targets
        self._last_begun = None  # whoever states that episodes begin has not lost one
        return AgentState.begin(
            n_envs,
            context_length=self.context_length,
            observation_size=int(np.prod(self.observation_shape)),
            action_size=int(np.prod(self.action_shape)),
            target_return=self.target_return if target_return is None else target_return,
            cost_budget=budgets,
            follows_agent=not own,
            action_range=self.action_range,
        )

    def predict(
        self,
        observation: Any,
        state: AgentState | None = None,
        episode_start: npt.ArrayLike | None = None,
    ) -> tuple[Float32Array, AgentState]:
        """The most likely action for one environment or many, and the state to hand back.

        Args:
            observation: One, or a batch with a leading axis.
            state: What the last call returned, after `state.observe(reward, cost)`; None begins
                new episodes.
            episode_start: (N,) bool, which environments begin a new episode.

        Raises:
            InvalidArgumentError: The observation has the wrong shape or is not finite.
            StateError: The state of the last call was dropped, or has not seen the outcome of its
                last action.
        """
        if isinstance(observation, Mapping):
            raise InvalidArgumentError(
                "`observation` must be an array, got a dict. Give what the plain environment "
                "returns, and its reward and cost to `state.observe`."
            )
        rows, single = observation_rows(observation, self.observation_shape)
        current = self._state_in_use(state, len(rows), episode_start, wrapped=False)
        if episode_start is not None:
            current = current.restart(episode_start)
        if current.follows_agent:
            current = current.with_targets(self.target_return, self.cost_budget)
        current = current.push(rows)
        self._warn_if_too_long(current, self.episode_length, depth=1)
        actions = self._run(current)
        shaped = actions.reshape(-1, *self.action_shape).astype(self.action_dtype, copy=False)
        return (shaped[0] if single else shaped), current.with_action(actions)

    def _run(self, state: AgentState) -> Float32Array:
        """Actions (N, A) at the present step of each episode."""
        window = state.window_arrays(*self.conditioning.targets(state))
        inputs = {name: window[field] for name, field in INPUTS.items()}
        actions = self._session.run(OUTPUTS[:1], inputs)[0]
        return np.asarray(actions[np.arange(state.n_envs), state.position])

    def _check_ports(self) -> None:
        """Whether the graph takes and gives what the metadata say."""
        length = self.context_length
        sizes = {
            "observations": [length, int(np.prod(self.observation_shape))],
            "actions": [length, int(np.prod(self.action_shape))],
        }
        wanted = {name: sizes.get(name, [length]) for name in INPUTS}
        found = {port.name: port.shape[1:] for port in self._session.get_inputs()}
        given = tuple(port.name for port in self._session.get_outputs())
        if found != wanted or given not in (OUTPUTS, DISCRETE_OUTPUTS):
            raise InvalidArgumentError(f"its inputs must be {wanted}, got {found}")
