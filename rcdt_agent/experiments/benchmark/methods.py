"""What a method's name means: a variant of RCDT or another algorithm, then what is changed.

`rcdt+relabel+shield`, `cdt+eta=0.1`, `bc+width=64`. A switch changes how a policy is trained
(`config`), how it is deployed (`deploy`), or both. What only concerns deployment reuses the trained
policy of the method without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rcdt_agent.algorithms import ALGORITHMS, RCDT, OfflineAlgorithm, get_algorithm
from rcdt_agent.base_config import BaseConfig
from rcdt_agent.config import DEPLOYMENT
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import EnvSource
from rcdt_agent.variants import VARIANTS, is_variant

SMALLEST_BUDGET = ("bc-safe",)
"""Algorithms of one budget whose plain name means one policy for the smallest budget, as the paper
has BC-Safe. The plain name of every other one means one policy a budget."""

EACH = "-each"
"""After one of `SMALLEST_BUDGET`: one policy for every budget."""

OTHER_ALGORITHMS = tuple(name for name in ALGORITHMS if name not in VARIANTS) + tuple(
    f"{name}{EACH}" for name in SMALLEST_BUDGET
)
"""What a method can begin with besides a variant of RCDT."""

DEPLOYMENT_FIELDS = frozenset(DEPLOYMENT)
"""Fields of RCDT's `Config` that act at deployment only: changing one does not retrain."""

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
    "rates": Switch(
        about="tokens that also hold what is to go per step left",
        config={"token_rates": True},
    ),
    "smooth-time": Switch(
        about="Fourier features of time instead of a learned row for each step",
        config={"time_embedding": "fourier"},
    ),
    "ema": Switch(
        about="acting with a moving average of the policy's weights",
        config={"ema_decay": 0.998},
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
"""Every switch of RCDT by name. Besides these, `FIELD=VALUE` sets any field of an algorithm's
configuration."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A parsed method name.

    Attributes:
        name: As it stands in tables.
        base: A variant of RCDT, or one of `OTHER_ALGORITHMS`.
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
    def variant(self) -> str | None:
        """The variant of RCDT, if it is one."""
        return self.base if is_variant(self.base) else None

    @property
    def algorithm(self) -> str:
        """A key of `ALGORITHMS`."""
        return "rcdt" if self.variant else self.base.removesuffix(EACH)

    @property
    def kind(self) -> type[OfflineAlgorithm[Any, Any]]:
        """The algorithm's class."""
        return get_algorithm(self.algorithm)

    @property
    def one_policy_per_budget(self) -> bool:
        """Whether there is a policy for every budget instead of one for all."""
        if self.base in SMALLEST_BUDGET or "cost_budget" in self.config:
            return self.base.endswith(EACH)
        return self.kind.budgets == "one"

    @property
    def training_id(self) -> str:
        """The same for all methods that share trained policies."""
        return "+".join((self.base, *_assignments(self.config)))

    @property
    def deployment_id(self) -> str:
        """The same for all methods that deploy a policy alike."""
        return "+".join((*_assignments(self.deploy), *sorted(self.prepare))) or "plain"

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

    def make_config(
        self, preset: str, steps: int | None = None, cost_budget: float | None = None
    ) -> BaseConfig:
        """The settings to train with.

        Args:
            preset: Sizes.
            steps: Gradient steps; None: the preset's.
            cost_budget: Of an algorithm that serves one budget, unless the method names it.
        """
        fixed: dict[str, Any] = {"total_steps": steps} if steps else {}
        if cost_budget is not None and self.kind.budgets == "one":
            fixed |= {"cost_budget": cost_budget} if "cost_budget" not in self.config else {}
        try:
            config: BaseConfig = self.kind.make_config(preset, self.variant, **fixed, **self.config)
        except TypeError as error:
            raise InvalidArgumentError(f"{self.name}: {error}.") from error
        return config


def parse_method(text: str, overrides: Sequence[str] = ()) -> Method:
    """Read a name such as `cdt`, `rcdt+pareto+target=paper`, `rcdt+eta=0.1` or `bc+width=64`.

    Args:
        text: Variant of RCDT or other algorithm, then switches and fields.
        overrides: `FIELD=VALUE` texts added to every variant of RCDT.

    Raises:
        InvalidArgumentError: Unknown base, switch or field, a field set twice, or a switch of
            RCDT on another algorithm.
    """
    base, *switches = (name.strip() for name in text.strip().split("+"))
    base = base.lower()
    if not is_variant(base) and base not in OTHER_ALGORITHMS:
        raise InvalidArgumentError(
            f"A method must begin with one of {(*OTHER_ALGORITHMS, *VARIANTS)}, or a variant with "
            f"'-paper' after it, got {text!r}."
        )
    if is_variant(base):
        switches = list(dict.fromkeys([*switches, *overrides]))
    config: dict[str, Any] = {}
    deploy: dict[str, Any] = {}
    prepare: list[str] = []
    for name in switches:
        switch = _find_switch(name, base, text)
        for target, values in ((config, switch.config), (deploy, switch.deploy)):
            twice = [key for key in values if key in target and target[key] != values[key]]
            if twice:
                raise InvalidArgumentError(f"{text!r} sets {twice[0]!r} twice.")
            target.update(values)
        if switch.prepare is not None:
            prepare.append(name)
    method = Method(
        name="+".join((base, *switches)), base=base, config=config, deploy=deploy,
        prepare=tuple(prepare),
    )  # fmt: skip
    if method.one_policy_per_budget and "cost_budget" in config:
        raise InvalidArgumentError(f"{text!r}: {base} takes `cost_budget` from the protocol.")
    method.make_config("tiny")  # refuse bad values now
    return method


def deploy_agent(
    agent: OfflineAlgorithm[Any, Any], method: Method, env: EnvSource, budgets: Sequence[float]
) -> dict[str, Any]:
    """Apply a method's deployment switches to a loaded agent.

    Returns:
        The arguments for `evaluate_budgets`.
    """
    if isinstance(agent, RCDT):
        agent.set_deployment(
            **{name: value for name, value in method.deploy.items() if name in DEPLOYMENT_FIELDS}
        )
        for name in method.prepare:
            prepare = SWITCHES[name].prepare
            assert prepare is not None
            prepare(agent, env, budgets)
    return {name: value for name, value in method.deploy.items() if name in EVALUATION_ARGUMENTS}


def _find_switch(name: str, base: str, text: str) -> Switch:
    """A switch by its name, or `FIELD=VALUE` as one."""
    of_rcdt = is_variant(base)
    if name in SWITCHES:
        if of_rcdt:
            return SWITCHES[name]
        raise InvalidArgumentError(
            f"{text!r}: {name!r} is a switch of RCDT's variants, {base} takes FIELD=VALUE only."
        )
    key, equals, value = name.partition("=")
    key = key.strip().replace("-", "_")
    kind = get_algorithm("rcdt" if of_rcdt else base.removesuffix(EACH)).config_class
    if not equals or key not in {item.name for item in fields(kind)} - {"variant"}:
        switches = f"a switch ({', '.join(SWITCHES)}) nor " if of_rcdt else ""
        raise InvalidArgumentError(
            f"{text!r}: {name!r} is {'neither' if of_rcdt else 'not'} {switches}FIELD=VALUE "
            f"with a field of `{kind.__module__}.{kind.__name__}`."
        )
    parsed = {key: _value(value.strip())}
    if of_rcdt and key in DEPLOYMENT_FIELDS:
        return Switch(about="", deploy=parsed)
    return Switch(about="", config=parsed)


def _value(text: str) -> Any:
    """A number, true, false, none, or the text itself."""
    try:
        value = json.loads({"none": "null"}.get(text.lower(), text.lower()))
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(values[name])}".replace('"', "") for name in sorted(values)]
