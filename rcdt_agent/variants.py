"""Presets, which are sizes, and variants, which are components: named settings of `Config`."""

from __future__ import annotations

import warnings
from typing import Any

from rcdt_agent.arguments import check_texts
from rcdt_agent.base_config import AUTO_PRESET, preset_config
from rcdt_agent.config import Config
from rcdt_agent.errors import InvalidArgumentError

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "n_layers": 1,
        "n_heads": 4,
        "embedding_size": 64,
        "context_length": 8,
        "batch_size": 512,
        "total_steps": 3_000,
        "learning_rate": 2e-3,
        "final_learning_rate": 0.02,
        "critic_learning_rate": 1e-3,
        "critic_layers": 3,
        "critic_width": 64,
        "warmup_steps": 200,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "tiny": {
        "n_layers": 1,
        "n_heads": 2,
        "embedding_size": 32,
        "head_width": 128,
        "context_length": 2,
        "batch_size": 256,
        "total_steps": 2_000,
        "learning_rate": 1e-3,
        "final_learning_rate": 0.02,
        "critic_learning_rate": 1e-3,
        "critic_width": 64,
        "warmup_steps": 100,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
}
"""Sizes: `paper` as published, `cpu` trains in minutes on two cores, `tiny` is for tests."""

_RETURN = {"cost_token": False, "return_token": True, "cost_penalty": False}
_PLAIN = {"weighting": "none", "return_token": True}
_Q = {"q_guidance": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "dt": {**_RETURN, "weighting": "none"},
    "qt": {**_RETURN, "weighting": "none", **_Q},
    "rdt": {**_RETURN, "weighting": "expert"},
    "rvdt": {**_RETURN, "weighting": "expert", **_Q},
    "cdt": {**_PLAIN, "cost_penalty": False},
    "wdt": {"cost_penalty": False},
    "wqdt": {"cost_penalty": False, **_Q},
    "tvcdt": {"cost_penalty": False, **_Q},
    "wcdt": {},
    "qcdt": {**_PLAIN, **_Q},
    "rcdt": _Q,
}
"""The paper's variants as components of the one class, and `wdt`, the weights alone (`tvcdt` is
another name of `wqdt`)."""

PAPER: dict[str, Any] = {
    "sampled_actions": True,
    "weighting": "return_cost",
    "return_token": True,
    "action_token": True,
    "head_width": 0,
    "state_dependent_std": True,
    "entropy_bonus": True,
    "critic_targets": "td",
    "discount": 0.99,
    "cost_discount": 0.99,
    "lambda_step": 3e-4,
    "time_embedding": "learned",
    "token_rates": False,
    "sampling": "trajectory",
    "relabel_fraction": 0.0,
    "weight_floor": 0.0,
    "ema_decay": 0.0,
    "critic_inputs": "state",
    "target_rate": 0.01,
    "target_pessimism": 0.5,
    "held_out_fraction": 0.0,
    "eta": 0.3,
    "kappa_mode": "critic",
    "target_quantile": 0.9,
    "cautious_quantile": None,
    "replan": False,
    "exhausted_mode": False,
    "budget_margin": 0.0,
}
"""What turns a variant into the paper's literal reading, as in `rcdt-paper`."""


def is_variant(name: str) -> bool:
    """Whether a name is that of a variant, with or without `-paper` after it."""
    return name.removesuffix("-paper") in VARIANTS


DEFAULT_VARIANT = "wcdt"
"""Of every preset, in Python and on the command line."""

_LARGE_GAMMA = 0.5
"""A discount is above, a sensible sensitivity to cost far below."""


def make_config(preset: str = AUTO_PRESET, variant: str | None = None, **overrides: Any) -> Config:
    """A preset's sizes, a variant's components, then the given fields on top.

    Args:
        preset: A key of `PRESETS`, or `auto`: `paper` with CUDA, `cpu` without.
        variant: A key of `VARIANTS`, also with `-paper` after it; default: `DEFAULT_VARIANT`.
        **overrides: Fields of `Config`.

    Raises:
        InvalidArgumentError: Unknown preset, variant or field, or a value outside its rule.

    Warns:
        UserWarning: `gamma` looks like a discount.
    """
    check_texts(variant=variant)
    name = (variant or DEFAULT_VARIANT).lower()
    gamma = overrides.get("gamma")
    if isinstance(gamma, float) and gamma > _LARGE_GAMMA:
        warnings.warn(
            f"`gamma={gamma:g}` makes the trajectory weights very sensitive to cost (default: "
            f"{Config.gamma:g}). stable-baselines3's `gamma` is called `discount` here, and "
            f"`cost_discount` for the cost critic.",
            stacklevel=2,
        )
    components = name.removesuffix("-paper")
    if not is_variant(name):
        raise InvalidArgumentError(
            f"`variant` must be one of {tuple(VARIANTS)}, or one of them with '-paper' after it, "
            f"got {variant!r}."
        )
    literal = PAPER if name != components else {}
    return preset_config(
        Config, PRESETS, preset, literal, VARIANTS[components], {"variant": name}, overrides
    )
