"""The switches of a GPU, as far as a CPU can run them: bf16, compile; and what the doctor finds."""

from __future__ import annotations

import types

import pytest
import torch
from conftest import small_settings

from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.doctor import check_gpus, check_scale


def trained(name, data, **settings):
    agent = get_algorithm(name)(**small_settings(name), **settings)
    agent.learn(data, 5)
    return torch.cat([p.detach().flatten() for p in agent.policy.parameters()])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bf16_makes_the_same_steps_but_for_rounding(drivers, name):
    exact, rough = (trained(name, drivers, precision=p) for p in ("float32", "bf16"))
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    steps = 5 * get_algorithm(name)(**small_settings(name)).config.learning_rate
    assert float((exact - rough).abs().mean()) < steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # its own
def test_every_algorithm_can_be_compiled(drivers, name, monkeypatch):
    # Without code generation, which `test_rcdt.py` has: what is traced must do the same.
    compiled = []

    def trace(module, compile_=torch.compile):
        compiled.append(module)
        return compile_(module, backend="eager")

    monkeypatch.setattr(torch, "compile", trace)
    expected, found = (trained(name, drivers, compile=switch) for switch in (False, True))
    assert compiled
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_doctor_says_what_it_found(monkeypatch):
    monkeypatch.setattr("rcdt_agent.doctor._cores", lambda: {0, 1})
    several, _compiler, cores = check_scale()
    assert (several.name, several.status) == ("torchrun", "ok") and "gloo" in several.detail
    assert cores.detail.startswith("2 to use, of ")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [(check.name, check.status) for check in check_gpus()] == [("gpu", "missing")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cards = [("A100", 8, 80), ("T4", 7, 16)]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties",
        lambda i: types.SimpleNamespace(
            name=cards[i][0], major=cards[i][1], total_memory=cards[i][2] * 2**30
        ),
    )  # fmt: skip
    assert [check.detail for check in check_gpus()] == [
        "A100, 80 GiB, bf16",
        "T4, 16 GiB, no bf16 (use fp16)",
    ]
