"""What a method's name means: a variant or baseline, plus switches, as `rcdt+relabel+shield`.

A switch changes how a policy is trained (`config`), how it is deployed (`deploy`), or both. What
only concerns deployment reuses the trained policy of the method without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rcdt_agent.agent import RCDT
from rcdt_agent.config import DEPLOYMENT, VARIANTS, Config, make_config
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import EnvSource

BASELINES = ("bc", "bc-safe", "bc-safe-each")
"""bc imitates everything. bc-safe imitates what keeps the smallest budget: one policy, as the paper
has it. bc-safe-each trains one policy for every budget."""

DEPLOYMENT_FIELDS = frozenset(DEPLOYMENT)
"""Fields of `Config` that act at deployment only: changing one does not retrain."""

EVALUATION_ARGUMENTS = frozenset({"target_return", "deterministic"})
"""Arguments of `evaluate_budgets` that a switch may set."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """What one name after a `+` does.

    Attributes:
        about: One line for the documentation.
        config: Fields of `Config` for training.
        deploy: Fields in `DEPLOYMENT_FIELDS`, or `EVALUATION_ARGUMENTS`.
        prepare: Called once before evaluation with the loaded agent, the environment (None: the
            agent's task) and the budgets; for what has to be measured first. It must not use
            the reset seeds of the test.
    """

    about: str
    config: Mapping[str, Any] = field(default_factory=dict)
    deploy: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[RCDT, EnvSource, Sequence[float]], None] | None = None


def _calibrate(agent: RCDT, env: EnvSource, budgets: Sequence[float]) -> None:
    agent.calibrate(env, budgets, n_episodes=10, n_tokens=7)


SWITCHES: dict[str, Switch] = {
    "target=paper": Switch(
        about="target returns published with CDT instead of the data's own",
        deploy={"target_return": "paper"},
    ),
    "floor": Switch(about="cost-to-go token never below zero", deploy={"ctg_floor": 0.0}),
    "relabel": Switch(
        about="half of the windows with a random slack in the cost token, so that it means at most",
        config={"relabel_fraction": 0.5},
    ),
    "window": Switch(
        about="tokens placed by their step of the window instead of the episode",
        config={"positions": "window"},
    ),
    "transition": Switch(
        about="windows drawn uniformly over all steps instead of over trajectories",
        config={"sampling": "transition"},
    ),
    "margin": Switch(
        about="a fifth of the budget held back, so that the tokens ask for the rest",
        deploy={"budget_margin": 0.2},
    ),
    "replan": Switch(
        about="never asks for more than the data show with what is left of the budget",
        deploy={"replan": True},
    ),
    "exhausted": Switch(
        about="the least-cost mode once the budget is spent", deploy={"exhausted_mode": True}
    ),
    "shield": Switch(
        about="critic shield with 32 candidate actions", deploy={"shield_candidates": 32}
    ),
    "calibrate": Switch(
        about="the token that keeps each budget, measured in the simulator with seeds of its own",
        prepare=_calibrate,
    ),
    "pareto": Switch(
        about="a fifth of the windows relabelled towards the frontier, as CDT's code does",
        config={"pareto_fraction": 0.2},
    ),
    "tilted": Switch(
        about="trajectories drawn with probability falling with cost, as CDT's code does",
        config={"sampling": "cost_tilted"},
    ),
    "kappa-episode": Switch(
        about="kappa compared with an episode's cost", config={"kappa_mode": "episode"}
    ),
    "kappa-token": Switch(
        about="each step's cost-to-go token in place of kappa", config={"kappa_mode": "token"}
    ),
}
"""Every switch by name. Besides these, `FIELD=VALUE` sets any field of `Config`."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A parsed method name.

    Attributes:
        name: As it stands in tables.
        base: A variant or a baseline.
        config: Fields changed for training.
        deploy: What is changed at deployment.
        prepare: Names of switches whose `prepare` is called before evaluation.
    """

    name: str
    base: str
    config: dict[str, Any]
    deploy: dict[str, Any]
    prepare: tuple[str, ...] = ()

    @property
    def training_id(self) -> str:
        """The same for all methods that share trained policies."""
        return "+".join((self.base, *_words(self.config)))

    @property
    def deployment_id(self) -> str:
        """The same for all methods that deploy a policy alike."""
        return "+".join((*_words(self.deploy), *sorted(self.prepare))) or "plain"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "base": self.base,
            "config": self.config,
            "deploy": self.deploy,
            "prepare": list(self.prepare),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Method:
        """The inverse of `to_dict`."""
        return cls(**{**values, "prepare": tuple(values["prepare"])})

    def make_config(self, preset: str, steps: int | None) -> Config:
        """The settings to train with; of the baselines only the number of steps counts."""
        sizes = {"total_steps": steps} if steps else {}
        base = "rcdt" if self.base in BASELINES else self.base
        try:
            return make_config(preset, base, **sizes, **self.config)
        except TypeError as error:
            raise InvalidArgumentError(f"{self.name}: {error}.") from error


def parse_method(text: str, overrides: Sequence[str] = ()) -> Method:
    """Read a name such as `cdt`, `rcdt+pareto+target=paper` or `rcdt+eta=0.1`.

    Args:
        text: Variant or baseline, then switches.
        overrides: `FIELD=VALUE` texts added to every method but the baselines.

    Raises:
        InvalidArgumentError: Unknown base, switch or field, a field set twice, or a switch on a
            baseline.
    """
    base, *words = (word.strip() for word in text.strip().split("+"))
    base = base.lower()
    if base not in BASELINES and base not in VARIANTS:
        raise InvalidArgumentError(
            f"A method must begin with one of {(*BASELINES, *VARIANTS)}, got {text!r}."
        )
    if base in BASELINES:
        if words:
            raise InvalidArgumentError(f"{base} takes no switches, got {text!r}.")
        return Method(name=base, base=base, config={}, deploy={})
    words = list(dict.fromkeys([*words, *overrides]))
    config: dict[str, Any] = {}
    deploy: dict[str, Any] = {}
    prepare: list[str] = []
    for word in words:
        switch = SWITCHES.get(word) or _assignment(word, text)
        for target, values in ((config, switch.config), (deploy, switch.deploy)):
            twice = [name for name in values if name in target and target[name] != values[name]]
            if twice:
                raise InvalidArgumentError(f"{text!r} sets {twice[0]!r} twice.")
            target.update(values)
        if switch.prepare is not None:
            prepare.append(word)
    method = Method(
        name="+".join((base, *words)), base=base, config=config, deploy=deploy,
        prepare=tuple(prepare),
    )  # fmt: skip
    method.make_config("tiny", None)  # refuse bad values now
    return method


def deploy_agent(
    agent: RCDT, method: Method, env: EnvSource, budgets: Sequence[float]
) -> dict[str, Any]:
    """Apply a method's deployment switches to a loaded agent.

    Returns:
        The arguments for `evaluate_budgets`.
    """
    changed = {name: value for name, value in method.deploy.items() if name in DEPLOYMENT_FIELDS}
    agent.set_deployment(**changed)
    for name in method.prepare:
        prepare = SWITCHES[name].prepare
        assert prepare is not None
        prepare(agent, env, budgets)
    return {name: value for name, value in method.deploy.items() if name in EVALUATION_ARGUMENTS}


def _assignment(word: str, text: str) -> Switch:
    """`FIELD=VALUE` as a switch."""
    name, equals, value = word.partition("=")
    name = name.strip().replace("-", "_")
    known = {item.name for item in fields(Config)} - {"variant"}
    if not equals or name not in known:
        raise InvalidArgumentError(
            f"{text!r}: {word!r} is neither a switch ({', '.join(SWITCHES)}) nor FIELD=VALUE with "
            f"a field of `rcdt_agent.config.Config`."
        )
    parsed = {name: _value(value.strip())}
    if name in DEPLOYMENT_FIELDS:
        return Switch(about="", deploy=parsed)
    return Switch(about="", config=parsed)


def _value(text: str) -> Any:
    """A number, true, false, none, or the text itself."""
    try:
        value = json.loads({"none": "null"}.get(text.lower(), text.lower()))
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(values[name])}".replace('"', "") for name in sorted(values)]
