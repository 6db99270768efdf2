"""What the configurations of all algorithms share: common fields, rules, presets.

Sources of defaults: P the paper says so; C the CDT code that the paper builds on; Q the
Q-regularised transformer (QT); I our inference.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np

from rcdt_agent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

AUTO_PRESET = "auto"
"""The preset that goes by the device: `paper` with CUDA, `cpu` without."""

Precision = Literal["float32", "bf16", "fp16"]
Rule = tuple[Callable[[Any, Any], bool], str]
"""Whether a value holds, given the whole configuration too; and the rule in words."""


def one_of(kind: Any) -> Rule:
    """The rule of a `Literal` field."""
    values = get_args(kind)
    return (lambda value, _: value in values), f"one of {values}"


def is_whole(value: Any) -> bool:
    """Whether it is a whole number; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _are_numbers(n: int) -> Rule:
    """The rule of a field of n numbers."""
    return (
        lambda value, _: (
            isinstance(value, tuple | list) and len(value) == n and all(map(is_number, value))
        ),
        f"{n} numbers",
    )


# By annotation. Others, such as a Literal or `float | None`, have rules of their own.
_TYPES: dict[str, Rule] = {
    "int": (lambda value, _: is_whole(value), "a whole number"),
    "float": (lambda value, _: is_number(value), "a number"),
    "bool": (lambda value, _: isinstance(value, bool), "True or False"),
    "int | None": (lambda value, _: value is None or is_whole(value), "a whole number or None"),
    "tuple[float, float]": _are_numbers(2),
    "tuple[float, float, float]": _are_numbers(3),
    "float | None": (lambda value, _: value is None or is_number(value), "a number or None"),
}


def check_fields(config: Any, rules: Mapping[str, Rule]) -> None:
    """Refuse a configuration, naming the field, its rule and its value.

    Args:
        config: A configuration.
        rules: By names of fields, several separated by blanks.
    """
    for field in fields(config):
        value, kind = getattr(config, field.name), getattr(field.type, "__name__", field.type)
        holds, rule = _TYPES.get(str(kind), (lambda *_: True, ""))
        if not holds(value, config):
            raise InvalidArgumentError(f"`{field.name}` must be {rule}, got {value!r}.")
    for names, (holds, rule) in rules.items():
        for name in names.split():
            value = getattr(config, name)
            if not holds(value, config):
                raise InvalidArgumentError(f"`{name}` must be {rule}, got {value!r}.")


BASE_RULES: dict[str, Rule] = {
    "total_steps batch_size": (lambda v, _: v >= 1, ">= 1"),
    "learning_rate": (lambda v, _: v > 0, "> 0"),
    "warmup_steps": (lambda v, _: v >= 0, ">= 0"),
    "final_learning_rate": (lambda v, _: 0 <= v <= 1, "in [0, 1]"),
    "precision": one_of(Precision),
}


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """What every algorithm has: length of training, batches, and how a step is computed."""

    total_steps: int = 200_000
    """Gradient steps (P)."""
    batch_size: int = 2048
    """Windows or transitions of a batch (P)."""
    learning_rate: float = 1e-4
    """Of the policy's optimiser (P)."""
    warmup_steps: int = 0
    """Linear warm-up of the learning rate (I)."""
    final_learning_rate: float = 1.0
    """Share of the learning rate left after a cosine decay; 1 keeps it constant (P)."""
    precision: Precision = "float32"
    """Of forward passes in training: autocast to bf16, or to fp16 with a loss scaler (CUDA) (I)."""
    compile: bool = False
    """Compile the policy network with `torch.compile` for training (I)."""

    def __post_init__(self) -> None:
        """Refuse values outside their rules before anything is trained."""
        check_fields(self, BASE_RULES)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict` after a trip through JSON."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise InvalidArgumentError(f"Unknown config fields: {unknown}.")
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**plain)


CHANGEABLE = (
    "total_steps", "batch_size", "learning_rate", "warmup_steps", "final_learning_rate",
    "precision", "compile",
)  # fmt: skip
"""Fields of every algorithm that can be changed when a trained agent is loaded."""

AnyConfig = TypeVar("AnyConfig", bound=BaseConfig)


def resolve_preset(preset: str, device: str = "auto") -> str:
    """The preset itself, or the one that `auto` stands for on a device.

    Args:
        preset: Any name.
        device: As for an agent; `auto` is CUDA where there is one.
    """
    if preset != AUTO_PRESET:
        return preset
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return "paper" if device.startswith("cuda") else "cpu"


def preset_config(
    kind: type[AnyConfig],
    presets: Mapping[str, Mapping[str, Any]],
    preset: str,
    *changes: Mapping[str, Any],
) -> AnyConfig:
    """A configuration of a preset's sizes and what is changed on top.

    Raises:
        InvalidArgumentError: Unknown preset or field, or a value outside its rule.
    """
    name = resolve_preset(preset)
    if not isinstance(name, str) or name not in presets:
        names = (AUTO_PRESET, *presets)
        raise InvalidArgumentError(f"`preset` must be one of {names}, got {preset!r}.")
    values = dict(presets[name])
    for change in changes:
        values.update(change)
    unknown = sorted(set(values) - {field.name for field in fields(kind)})
    if unknown:
        known = [field.name for field in fields(kind)]
        near = [n for name in unknown for n in difflib.get_close_matches(str(name), known, n=1)]
        hint = f" Did you mean {', '.join(f'`{name}`' for name in near)}?" if near else ""
        raise InvalidArgumentError(
            f"Unknown config fields: {unknown}.{hint} `{kind.__module__}.{kind.__name__}` lists "
            f"them."
        )
    # A numpy scalar would do for training, but a checkpoint's JSON does not take it.
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()}
    return kind(**plain)
