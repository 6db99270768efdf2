"""What the configurations of all algorithms share: common fields, rules, presets.

Sources of defaults: P the paper says so; C the CDT code that the paper builds on; Q the
Q-regularised transformer (QT); I our inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from rcdt_agent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

Precision = Literal["float32", "bf16", "fp16"]
Rule = tuple[Callable[[Any, Any], bool], str]
"""Whether a value holds, given the whole configuration too; and the rule in words."""


def one_of(kind: Any) -> Rule:
    """The rule of a `Literal` field."""
    values = get_args(kind)
    return (lambda value, _: value in values), f"one of {values}"


def check_fields(config: Any, rules: Mapping[str, Rule]) -> None:
    """Refuse a configuration, naming the field, its rule and its value.

    Args:
        config: A configuration.
        rules: By names of fields, several separated by blanks.
    """
    for names, (holds, rule) in rules.items():
        for name in names.split():
            value = getattr(config, name)
            if not holds(value, config):
                raise InvalidArgumentError(f"`{name}` must be {rule}, got {value!r}.")


BASE_RULES: dict[str, Rule] = {
    "total_steps batch_size": (lambda v, _: v >= 1, ">= 1"),
    "learning_rate": (lambda v, _: v > 0, "> 0"),
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


AnyConfig = TypeVar("AnyConfig", bound=BaseConfig)


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
    if preset not in presets:
        raise InvalidArgumentError(f"`preset` must be one of {tuple(presets)}, got {preset!r}.")
    values = dict(presets[preset])
    for change in changes:
        values.update(change)
    unknown = sorted(set(values) - {field.name for field in fields(kind)})
    if unknown:
        raise InvalidArgumentError(
            f"Unknown config fields: {unknown}. `{kind.__module__}.{kind.__name__}` lists them."
        )
    return kind(**values)
