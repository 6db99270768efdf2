"""The ONNX file: its graph, what it knows, the command; `test_onnx_agent.py` runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from commands import rcdt
from conftest import QUICK
from test_examples import ROOT

from rcdt_agent import RCDT, Config
from rcdt_agent.cli import run_command
from rcdt_agent.deploy import TokenCalibration
from rcdt_agent.deploy.export import INPUTS, WindowPolicy
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.onnx_agent import OnnxAgent


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """An agent's checkpoint and its export."""
    folder = tmp_path_factory.mktemp("onnx")
    (folder / "agent.zip").write_bytes(trained)
    agent = RCDT.load(folder / "agent.zip")
    agent.set_cost_budget(12.0)
    agent.policy.train()  # as it is while a callback exports in the middle of training
    agent.export_onnx(folder / "policy.onnx")
    assert agent.policy.training  # the export works on a copy
    return folder


def facts(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session, json.loads(session.get_modelmeta().custom_metadata_map["rcdt_agent"])


@pytest.mark.parametrize("size", [1, 3, 64])
def test_any_number_of_windows(exported, size):
    session, known = facts(exported / "policy.onnx")
    rng = np.random.default_rng(0)
    shape = (size, known["config"]["context_length"])
    inputs = {
        "observations": rng.normal(size=(*shape, 4)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (*shape, 1)).astype(np.float32),
        "returns_to_go": rng.uniform(0, 60, shape).astype(np.float32),
        "costs_to_go": rng.uniform(-5, 60, shape).astype(np.float32),
        "timesteps": rng.integers(0, 500, shape),  # past the end of the embedding too
    }
    action, log_std = session.run(None, inputs)
    agent = RCDT.load(exported / "agent.zip")
    module = WindowPolicy(agent.policy)
    with torch.no_grad():
        expected = module(*(torch.from_numpy(inputs[name]) for name in INPUTS))
    assert action.shape == (*shape, 1)
    np.testing.assert_allclose(action, expected[0], atol=1e-5)
    np.testing.assert_allclose(log_std, expected[1], atol=1e-5)


def test_what_the_file_knows(exported):
    session, known = facts(exported / "policy.onnx")
    agent = RCDT.load(exported / "agent.zip")
    agent.set_cost_budget(12.0)
    assert known["format_version"] == 2
    assert known["settings"] == {
        "cost_budget": 12.0,
        "target_return": "auto",
        "cost_window": None,
    }
    assert Config.from_dict(known["config"]) == agent.config
    assert known["conditioning"] == agent.policy.conditioning.to_dict()
    assert known["episode_length"] == agent.policy.episode_length
    assert (known["observation_shape"], known["action_shape"]) == ([4], [1])
    assert (known["action_low"], known["action_high"]) == ([-1.0], [1.0])
    assert known["num_timesteps"] == 40 and known["versions"]["torch"] == torch.__version__
    assert [i.name for i in session.get_inputs()] == list(INPUTS)
    assert {i.shape[1] for i in session.get_inputs()} == {agent.config.context_length}
    assert all(isinstance(i.shape[0], str) for i in session.get_inputs())
    model = onnx.load(exported / "policy.onnx")
    assert str(ROOT).encode() not in model.SerializeToString()  # nothing of this machine


def test_the_command_and_the_example_without_torch(exported, tmp_path):
    """As a user would: `rcdt export` of a calibrated agent, then the example on its own."""
    agent = RCDT.load(exported / "agent.zip")
    rows = np.array([0.0, 5.0, 50.0])
    agent.calibration = TokenCalibration(
        tokens=rows, costs=rows, upper=rows + 1, confidence=0.95, n_episodes=20, seed=0
    )
    agent.save(tmp_path / "calibrated.zip")
    path = tmp_path / "by_command.onnx"
    result = rcdt("export", str(tmp_path / "calibrated.zip"), str(path), "--cost-budget", "7")
    assert result.returncode == 0, result.stderr
    assert f"Policy: {path}" in result.stdout and "cost budget 7" in result.stdout
    runner = OnnxAgent(path)
    agent.set_cost_budget(7.0)
    assert runner.cost_budget == 7.0 and runner.target_return == agent.target_return
    np.testing.assert_array_equal(runner.conditioning.calibration.upper, rows + 1)
    example = subprocess.run(
        [sys.executable, ROOT / "examples" / "deploy_onnx.py", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert example.returncode == 0, example.stderr  # it asserts that torch was not imported
    assert example.stdout.count("action [") == 3
    assert "left to spend 9.0" in example.stdout


def test_other_bounds_no_cost_token_and_a_floor(tmp_path, drivers):
    """Actions of another scale, a policy that does not read CTG, and one whose CTG has a floor."""
    space = gym.spaces.Box(np.float32(-3.0), np.float32(5.0), (1,), dtype=np.float32)
    wide = replace(drivers, actions=drivers.actions * 4 + 1)
    settings = {**QUICK, "total_steps": 3, "n_layers": 1}
    for name, extra in (
        ("dt", {"variant": "dt", "replan": False, "exhausted_mode": False}),
        ("floor", {"ctg_floor": 0.5, "replan": False, "exhausted_mode": True}),
        ("smooth", {"time_embedding": "fourier", "token_rates": True}),
    ):
        agent = RCDT(**{**settings, **extra})
        agent.action_space = space
        agent.learn(wide)
        agent.export_onnx(tmp_path / f"{name}.onnx")
        runner = OnnxAgent(tmp_path / f"{name}.onnx")
        state, outcome = None, ()
        runner.reset()
        for obs in drivers.observations[:8]:
            action, state = agent.predict(obs, state)
            np.testing.assert_allclose(runner.act(obs, *outcome), action, atol=1e-5, rtol=0)
            outcome = 1.0, 9.0  # soon below zero, where the floor acts
            state = state.observe(*outcome)


def test_an_untrained_agent_cannot_be_exported(tmp_path):
    with pytest.raises(InvalidArgumentError, match="has not been trained"):
        RCDT().export_onnx(tmp_path / "x.onnx")


def test_a_shield_is_not_left_out_silently(agent, tmp_path):
    agent.set_deployment(shield_candidates=4)
    with pytest.raises(InvalidArgumentError, match="`shield_candidates` cannot be exported"):
        agent.export_onnx(tmp_path / "x.onnx")
    agent.save(tmp_path / "shielded.zip")
    command = ["export", str(tmp_path / "shielded.zip"), str(tmp_path / "x.onnx")]
    with pytest.raises(InvalidArgumentError, match="`rcdt export --without-shield`"):
        run_command(command)
    assert [path.name for path in tmp_path.iterdir()] == ["shielded.zip"]
    with pytest.raises(InvalidArgumentError, match="Name one file to write"):
        run_command([*command, "--output", "y.onnx"])
    assert run_command([*command, "--without-shield"]) == 0
    assert OnnxAgent(tmp_path / "x.onnx").metadata["config"]["shield_candidates"] == 0
