"""Settings: presets, variants, and values outside their rules."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from rcdt_agent.base_config import resolve_preset
from rcdt_agent.config import DEPLOYMENT, TRAINING, Config
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.variants import DEFAULT_VARIANT, PAPER, PRESETS, VARIANTS, make_config


def test_paper_preset_is_the_papers():
    config = make_config("paper", "rcdt-paper")
    assert (config.n_layers, config.n_heads, config.embedding_size) == (3, 8, 128)
    assert (config.context_length, config.batch_size, config.total_steps) == (10, 2048, 200_000)
    assert (config.learning_rate, config.critic_learning_rate) == (1e-4, 5e-5)
    assert (config.target_rate, config.lambda_step, config.kappa) == (0.01, 3e-4, 10)
    assert (config.critic_layers, config.critic_width, config.dropout) == (4, 128, 0.1)
    assert config.critic_start * config.total_steps == 50_000


@pytest.mark.parametrize(
    ("variant", "components"),
    [  # cost token, weighting, Q guidance, cost penalty: Tables 1 and 5 of the paper
        ("dt", (False, "none", False, False)),
        ("qt", (False, "none", True, False)),
        ("rdt", (False, "expert", False, False)),
        ("rvdt", (False, "expert", True, False)),
        ("cdt", (True, "none", False, False)),
        ("wqdt", (True, "frontier", True, False)),
        ("tvcdt", (True, "frontier", True, False)),
        ("wcdt", (True, "frontier", False, True)),
        ("qcdt", (True, "none", True, True)),
        ("wdt", (True, "frontier", False, False)),
        ("rcdt", (True, "frontier", True, True)),
    ],
)
def test_variants_are_the_papers(variant, components):
    config = make_config("tiny", variant.upper())
    found = config.cost_token, config.weighting, config.q_guidance, config.cost_penalty
    assert found == components
    assert config.variant == variant
    assert variant in VARIANTS
    literal = make_config("tiny", f"{variant}-paper")
    assert literal.variant == f"{variant}-paper"
    weighting = {"frontier": "return_cost"}.get(components[1], components[1])
    assert (literal.cost_token, literal.weighting) == (components[0], weighting)
    others = {name for name in PAPER if name != "weighting"}
    assert {name: getattr(literal, name) for name in others} == {n: PAPER[n] for n in others}


def test_only_weights_that_ask_for_return_do_without_the_return_token():
    for variant in VARIANTS:
        config = make_config("tiny", variant)
        assert config.return_token == (config.weighting != "frontier")
        assert make_config("tiny", f"{variant}-paper").return_token


def test_the_default_is_one_variant_whatever_the_preset():
    sizes = {name for preset in PRESETS.values() for name in preset}
    found = []
    for preset in PRESETS:
        values = make_config(preset).to_dict()
        assert values["variant"] == DEFAULT_VARIANT
        found.append({name: value for name, value in values.items() if name not in sizes})
    assert found[0] == found[1] == found[2]


def test_overrides_win_and_json_round_trips():
    config = make_config("cpu", "cdt", eta=0.5, q_guidance=True)
    assert (config.eta, config.q_guidance, config.batch_size) == (
        0.5,
        True,
        PRESETS["cpu"]["batch_size"],
    )
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("n_layers", 0, ">= 1"),
        ("batch_size", -1, ">= 1"),
        ("dropout", 1.0, r"in \[0, 1\)"),
        ("discount", 1.0, r"in \[0, 1\)"),
        ("critic_start", 1.5, r"in \[0, 1\]"),
        ("learning_rate", 0.0, "> 0"),
        ("eta", -0.1, ">= 0"),
        ("kappa_mode", "month", "one of"),
        ("weighting", "heavy", "one of"),
        ("embedding_size", 30, "a multiple of n_heads"),
        ("log_std_range", (2.0, -5.0), "low < high"),
        ("ctg_scale", 0.0, "> 0 or None"),
    ],
)
def test_values_outside_their_rule_are_named(field, value, rule):
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be {rule}"):
        make_config("paper", **{field: value})


def test_unknown_names():
    with pytest.raises(InvalidArgumentError, match="`preset` must be one of"):
        make_config("huge")
    with pytest.raises(InvalidArgumentError, match="`variant` must be one of"):
        make_config("tiny", "ppo")
    with pytest.raises(InvalidArgumentError, match=r"Unknown config fields: \['etta'\]"):
        make_config("tiny", etta=1)
    with pytest.raises(InvalidArgumentError, match=r"Did you mean `learning_rate`\?"):
        make_config("tiny", learning_rat=1)


def test_one_default_variant_whatever_the_preset():
    """Presets are sizes only: no field of a component is set by one."""
    assert {make_config(preset).variant for preset in (*PRESETS, "auto")} == {DEFAULT_VARIANT}
    components = {field for settings in VARIANTS.values() for field in settings}
    assert not components & {field for sizes in PRESETS.values() for field in sizes}
    named = make_config("cpu", DEFAULT_VARIANT)
    assert make_config("cpu") == named


def test_the_preset_auto_goes_by_the_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert make_config() == make_config("cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert make_config() == make_config("paper")
    assert resolve_preset("auto", "cpu") == "cpu"  # a CPU that is asked for, beside a GPU
    assert resolve_preset("auto", "cuda:1") == "paper"
    assert resolve_preset("tiny", "cuda") == "tiny"


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("batch_size", "64", "a whole number"),
        ("batch_size", 64.0, "a whole number"),
        ("learning_rate", "1e-3", "a number"),
        ("ctg_floor", "0", "a number or None"),
        ("micro_batch_size", 2.5, "a whole number or None"),
        ("replan", 1, "True or False"),
    ],
)
def test_values_of_another_type_are_named(field, value, rule):
    with pytest.raises(InvalidArgumentError, match=f"`{field}` must be {rule}, got {value!r}"):
        make_config("tiny", **{field: value})


def test_numbers_of_numpy_are_plain_numbers():
    config = make_config("tiny", batch_size=np.int64(32), eta=np.float32(0.5))
    assert json.loads(json.dumps(config.to_dict()))["batch_size"] == 32
    assert config.eta == 0.5


def test_gamma_that_looks_like_a_discount():
    with pytest.warns(UserWarning, match="`gamma=0.99`.*stable-baselines3.*called `discount`"):
        assert make_config("tiny", gamma=0.99).gamma == 0.99
    make_config("tiny", gamma=0.3)  # warnings are errors here


def test_fields_that_can_be_changed_after_training_exist():
    names = {field.name for field in fields(Config)}
    assert set(TRAINING) | set(DEPLOYMENT) <= names
    assert not {"n_layers", "n_heads", "context_length", "embedding_size"} & set(TRAINING)
