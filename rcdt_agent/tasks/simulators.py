"""The simulator behind a task, as a five-value Gymnasium environment with `info["cost"]`.

The three families disagree on almost everything: Safety-Gymnasium's `step` returns six values and
its import fails on Python 3.11, Bullet-Safety-Gym ignores `reset(seed=...)`, MetaDrive runs one
engine per process. `make_env` hides that. Nothing here is imported by `import rcdt_agent`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from rcdt_agent.env_step import read_step
from rcdt_agent.errors import InvalidArgumentError, SimulatorError
from rcdt_agent.tasks.registry import SUITES, Suite, Task, get_task

Env = gym.Env[Any, Any]

MODULES: dict[Suite, str] = {
    "bullet": "bullet_safety_gym",
    "safety-gymnasium": "safety_gymnasium",
    "metadrive": "metadrive",
}


def make_env(task: str | Task, *, render_mode: str | None = None, **kwargs: Any) -> Env:
    """Make the environment of a task.

    Args:
        task: Any spelling that `get_task` accepts. Both spellings of a Safety-Gymnasium task give
            the same five-value environment.
        render_mode: Passed to the simulator; None runs headless.
        **kwargs: Passed to the simulator's own constructor.

    Returns:
        An environment whose `step` returns five values, whose `info["cost"]` is a float >= 0, and
        whose `reset(seed=...)` determines the episode.

    Raises:
        UnknownTaskError: The id is not in the registry.
        SimulatorError: The simulator is not installed or does not start.
    """
    task = get_task(task)
    if task.suite == "embedded":
        from rcdt_agent.tasks.speed_limit import SpeedLimitEnv

        return CheckedStep(SpeedLimitEnv(render_mode=render_mode, **kwargs))
    if task.suite == "metadrive":
        from rcdt_agent.tasks.metadrive import make_metadrive

        return CheckedStep(make_metadrive(task.name, render_mode=render_mode, **kwargs))
    module = import_simulator(task.suite)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    kwargs = {"max_episode_steps": task.episode_length, "disable_env_checker": True, **kwargs}
    if task.suite == "bullet":
        with _original_streams(), _global_randomness_kept(), warnings.catch_warnings():
            # Its bounds are float64 where float32 is declared; numpy 2 says so at every make.
            warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning)
            env: Env = RepeatableReset(gym.make(task.env_id, **kwargs))
    else:
        env = module.make(task.env_id, **kwargs)
    return CheckedStep(env)


def is_installed(suite: Suite) -> bool:
    """Whether the simulator's package can be found; it is not imported."""
    if suite == "embedded":
        return True
    try:
        return importlib.util.find_spec(MODULES[suite]) is not None
    except ValueError:  # a placeholder in sys.modules without a spec
        return False


def import_simulator(suite: Suite) -> ModuleType:
    """Import a simulator's package, repairing what its release needs.

    Raises:
        SimulatorError: Not installed, or its import fails; the message says what to run.
    """
    if suite not in SUITES:
        raise InvalidArgumentError(f"`suite` must be one of {SUITES}, got {suite!r}.")
    command = f"rcdt install-simulators {suite}"
    if not is_installed(suite):
        raise SimulatorError(
            f"The simulator {MODULES[suite]!r} is not installed. Run `{command}` to install it."
        )
    try:
        if suite == "safety-gymnasium":
            return _import_safety_gymnasium()
        with _original_streams():
            return importlib.import_module(MODULES[suite])
    except Exception as error:
        raise SimulatorError(
            f"The simulator {MODULES[suite]!r} is installed but its import fails: {error!r}. "
            f"Run `{command}` to install the tested versions"
            + (
                f" (it needs gymnasium < 1.0, found {gym.__version__})."
                if suite == "safety-gymnasium" and int(gym.__version__.split(".")[0]) >= 1
                else "."
            )
        ) from error


@contextmanager
def _original_streams() -> Iterator[None]:
    """The process's own stdout and stderr: Bullet-Safety-Gym looks up C streams by their names.

    It fails where these are replaced, as notebooks and test runners do.
    """
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):
        yield


def _import_safety_gymnasium() -> ModuleType:
    with array_defaults_allowed("safety_gymnasium"):
        module = importlib.import_module("safety_gymnasium")
        # These define every dataclass of the package; tasks would load them at the first `make`.
        importlib.import_module("safety_gymnasium.builder")
        importlib.import_module("safety_gymnasium.tasks")
    return module


@contextmanager
def array_defaults_allowed(package: str) -> Iterator[None]:
    """Let one package declare dataclass fields whose default is a numpy array.

    Python 3.11 refuses such defaults as mutable. Within this context `dataclasses.dataclass` turns
    them into factories that copy, for classes of `package` only; afterwards it is what it was.
    """
    original = dataclasses.dataclass

    def tolerant(cls: Any = None, /, **options: Any) -> Any:
        def decorate(cls: Any) -> Any:
            if cls.__module__.split(".")[0] == package:
                for name in vars(cls).get("__annotations__", {}):
                    default = vars(cls).get(name)
                    if isinstance(default, np.ndarray):
                        setattr(cls, name, dataclasses.field(default_factory=default.copy))
            return original(cls, **options)

        return decorate if cls is None else decorate(cls)

    dataclasses.dataclass = tolerant
    try:
        yield
    finally:
        dataclasses.dataclass = original


class CheckedStep(gym.Wrapper[Any, Any, Any, Any]):
    """Five values from `step`, a float cost in `info`, and a clear error for a bad action."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Check the action, step, and return five values with `info["cost"]` >= 0."""
        action = np.asarray(action)
        expected = self.action_space.shape
        if action.shape != expected:
            raise InvalidArgumentError(
                f"`action` must have shape {expected}, got shape {action.shape}."
            )
        if not np.all(np.isfinite(action)):
            raise InvalidArgumentError(f"`action` must be finite, got {action}.")
        obs, reward, _, terminated, truncated, info = read_step(self.env.step(action))
        return obs, reward, terminated, truncated, info


class RepeatableReset(gym.Wrapper[Any, Any, Any, Any]):
    """Make `reset(seed=...)` of a Bullet environment mean the same episode every time.

    Bullet-Safety-Gym ignores the seed, draws from the global generators of numpy and Python, and
    lets the motor commands of the last episode act on the first step of the next one. Here a
    private random state is swapped in while it resets (nobody else's numbers are disturbed), and
    each reset is done twice with a zero command between, so that no trace of the past is left.
    """

    def __init__(self, env: Env) -> None:
        """Start from a stream that depends on nothing but the operating system."""
        super().__init__(env)
        self._seed_streams(None)
        self.reset()  # the simulator's very first reset takes another path than all later ones

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset within the private stream; a seed restarts it."""
        if seed is not None:
            self._seed_streams(seed)
        agent: Any = self.env.unwrapped.agent  # type: ignore[attr-defined]
        with self._private_streams():
            self.env.reset(seed=seed, options=options)
            agent.apply_action(np.zeros(self.action_space.shape or ()))
            return self.env.reset(options=options)

    def _seed_streams(self, seed: int | None) -> None:
        self._numpy_state = np.random.RandomState(
            np.random.MT19937(np.random.SeedSequence(seed))
        ).get_state()
        self._python_state = random.Random(seed).getstate()

    @contextmanager
    def _private_streams(self) -> Iterator[None]:
        with _global_randomness_kept():
            np.random.set_state(self._numpy_state)  # noqa: NPY002
            random.setstate(self._python_state)
            yield
            self._numpy_state = np.random.get_state()  # noqa: NPY002
            self._python_state = random.getstate()


@contextmanager
def _global_randomness_kept() -> Iterator[None]:
    """Put the global generators back to where they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
