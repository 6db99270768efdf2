"""Every public entry with an argument of a wrong type: our error, which names the argument."""

from __future__ import annotations

import inspect
import io
from dataclasses import fields

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from conftest import random_arrays

import rcdt_agent
from rcdt_agent import (
    BC,
    RCDT,
    AgentState,
    ReturnCostTokens,
    TrajectoryDataset,
    VectorReturnCostTokens,
    evaluate_budgets,
    get_task,
    load_agent,
    load_agent_from_hub,
    make_config,
    make_env,
)
from rcdt_agent.algorithms import ALGORITHMS
from rcdt_agent.algorithms.agent import Agent
from rcdt_agent.collect import TrajectoryRecorder
from rcdt_agent.data.readers import frame_arrays
from rcdt_agent.errors import RCDTError
from rcdt_agent.experiments.record import record_episodes
from rcdt_agent.offline_evaluation import evaluate_offline
from rcdt_agent.tasks.speed_limit import ENV_ID, SpeedLimitEnv, record_drivers


class Wrong:
    """An object that is of the wrong type everywhere."""


WRONG = (Wrong(), 1j)
SAID_AS = {"k": "cost_budget", "budgets": "cost_budget", "task_id": "task"}
"""How messages call an argument, where not by its name."""
ANYTHING = {("predict", "state")}
"""Tested elsewhere, with more: tests/test_misuse.py."""
EPISODE = {name: values[:3] for name, values in random_arrays([3]).items()}
FLAT = random_arrays([4, 3])
HUB = {"repo_id": "user/name", "endpoint": "http://127.0.0.1:9"}  # nobody listens


def acted(agent, **kwargs):
    agent.reset()
    agent.act(np.zeros(4))
    return agent.act(**{"observation": np.zeros(4), "reward": 1.0, "cost": 0.0, **kwargs})


def observed(agent, **kwargs):
    _, state = agent.predict(np.zeros(4), agent.begin())
    return state.observe(**{"reward": 1.0, "cost": 0.0, **kwargs})


def entries(agent, data, folder):
    """Name -> (function, what its arguments are read from, sound values of those it needs)."""
    rollout = {"env": ENV_ID, "budgets": [5.0], "n_episodes": 1}
    spaces = {"observation_space": gym.spaces.Box(-1, 1, (3,)),
              "action_space": gym.spaces.Box(-1, 1, (2,))}  # fmt: skip
    vector = gym.vector.SyncVectorEnv([lambda: gym.make(ENV_ID)] * 2)
    near = {"target_return": 5.0, "cost_budget": 5.0}
    copy = {"path": io.BytesIO(agent)}
    agent = RCDT.load(io.BytesIO(agent))
    episodes = {"episodes": [EPISODE]}
    frame = pd.DataFrame({"obs": [0.0], "action": [0.0], "reward": [0.0], "cost": [0.0],
                          "episode": [0]})  # fmt: skip

    def tiny(kind):
        return lambda **kwargs: kind(**{"preset": "tiny", **kwargs})

    return {
        "RCDT": (tiny(RCDT), RCDT, {}),
        "RCDT's base": (tiny(RCDT), Agent, {}),
        "BC": (tiny(BC), BC, {}),
        "from_dsrl": (RCDT.from_dsrl, None, {"task": "SpeedLimit", "dataset": data}),
        "learn": (agent.learn, None, {"dataset": data, "total_steps": 1}),
        "learn, other name": (agent.learn, None, {"dataset": data, "total_timesteps": 1}),
        "set_dataset": (agent.set_dataset, None, {}),
        "predict": (agent.predict, None, {"observation": np.zeros(4)}),
        "act": (lambda **kwargs: acted(agent, **kwargs), agent.act, {}),
        "observe": (lambda **kwargs: observed(agent, **kwargs), AgentState.observe, {}),
        "reset": (agent.reset, None, {}),
        "begin": (agent.begin, None, {}),
        "set_cost_budget": (agent.set_cost_budget, None, {"k": 5.0}),
        "resolve_target": (agent.resolve_target, None, {"cost_budget": 5.0}),
        "evaluate": (agent.evaluate, None, rollout),
        "evaluate_budgets": (evaluate_budgets, None, {"agent": agent, **rollout}),
        "evaluate_offline": (evaluate_offline, None,
                             {"agent": agent, "dataset": data, "budgets": [5.0]}),
        "calibrate": (agent.calibrate, None, {**rollout, "n_tokens": 3}),
        "save": (agent.save, None, {"path": folder / "agent.zip"}),
        "load": (RCDT.load, None, copy),
        "load_agent": (load_agent, None, copy),
        "set_env": (agent.set_env, None, {}),
        "set_logger": (agent.set_logger, None, {}),
        "set_parameters": (agent.set_parameters, None,
                           {"load_path_or_dict": agent.get_parameters()}),
        "set_random_seed": (agent.set_random_seed, None, {}),
        "wrap": (agent.wrap, None, {"env": SpeedLimitEnv()}),
        "export_onnx": (agent.export_onnx, None, {}),
        "push_to_hub": (agent.push_to_hub, None, HUB),
        "from_hub": (RCDT.from_hub, None, HUB),
        "load_agent_from_hub": (load_agent_from_hub, RCDT.from_hub, HUB),
        "from_arrays": (TrajectoryDataset.from_arrays, None, FLAT),
        "from_episodes": (TrajectoryDataset.from_episodes, None, episodes),
        "from_dataframe": (TrajectoryDataset.from_dataframe, frame_arrays, {"frame": frame}),
        "from_hdf5": (TrajectoryDataset.from_hdf5, None, {"path": folder / "none.hdf5"}),
        "from_npy": (TrajectoryDataset.from_npy, None, {}),
        "from_minari": (TrajectoryDataset.from_minari, None, {}),
        "to_npy": (data.to_npy, None, {}),
        "to_hdf5": (data.to_hdf5, None, {"path": folder / "data.hdf5"}),
        "to_minari": (data.to_minari, None, {}),
        "coverage": (data.coverage, None, near),
        "alignment_bound": (data.alignment_bound, None, {**near, "epsilon": 0.1}),
        "check_spaces": (data.check_spaces, None, spaces),
        "select": (data.select, None, {"rows": [0]}),
        "filter": (data.filter, None, {}),
        "bottom": (data.bottom, None, {}),
        "extremes": (data.extremes, None, {}),
        "split": (data.split, None, {"fraction": 0.5}),
        "get_task": (get_task, None, {}),
        "make_env": (make_env, None, {"task": "SpeedLimit"}),
        "make_config": (make_config, None, {}),
        "ReturnCostTokens": (ReturnCostTokens, None, {"env": SpeedLimitEnv()}),
        "VectorReturnCostTokens": (VectorReturnCostTokens, VectorReturnCostTokens.__init__,
                                   {"env": vector}),
        "TrajectoryRecorder": (TrajectoryRecorder, None, {"env": SpeedLimitEnv()}),
        "record_episodes": (record_episodes, None,
                            {"agent": agent, "path": folder / "drive.gif", "budgets": [5.0],
                             "env": ENV_ID, "every": 30}),
        "record_drivers": (record_drivers, None, {"episodes": 2}),
    }  # fmt: skip


def walk(function, signature, sound):
    """What is wrong with the answers, an entry for each argument and wrong value."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    arguments = inspect.signature(signature or function).parameters.values()
    for argument in arguments:
        if argument.kind in kinds or argument.name == "self":
            continue
        for wrong in WRONG:
            try:
                function(**{**sound, argument.name: wrong})
                yield argument.name, wrong, "accepted"
            except RCDTError as error:
                if f"`{SAID_AS.get(argument.name, argument.name)}`" not in str(error):
                    yield argument.name, wrong, f"not named: {error}"
            except Exception as error:
                yield argument.name, wrong, f"{type(error).__name__}: {error}"


def problems(of_entries):
    """Of all entries, a line each."""
    return [
        f"{name}({argument}={wrong!r}): {problem}"
        for name, entry in of_entries.items()
        for argument, wrong, problem in walk(*entry)
        if (name, argument) not in ANYTHING
    ]


def test_wrong_types_are_refused_by_name(trained, drivers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = problems(entries(trained, drivers, tmp_path))
    assert not found, "\n".join(found)


def test_wrong_types_are_refused_by_name_without_torch(agent, tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    from rcdt_agent.onnx_agent import OnnxAgent

    path = tmp_path / "policy.onnx"
    agent.export_onnx(path)
    agent = OnnxAgent(path)
    found = problems(
        {
            "OnnxAgent": (OnnxAgent, None, {"path": path}),
            "begin": (agent.begin, None, {}),
            "predict": (agent.predict, None, {"observation": np.zeros(4)}),
            "act": (lambda **kwargs: acted(agent, **kwargs), agent.act, {}),
            "reset": (agent.reset, None, {}),
            "set_cost_budget": (agent.set_cost_budget, None, {"k": 5.0}),
        }
    )
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_of_a_wrong_type_are_refused_by_name(name):
    kind = ALGORITHMS[name]
    for field in fields(kind.config_class):
        for wrong in WRONG:
            with pytest.raises(RCDTError, match=f"`{field.name}`"):
                kind(preset="tiny", **{field.name: wrong})


def test_every_public_entry_is_walked(trained, drivers, tmp_path):
    """Whatever is public and takes an argument is in the walk, or has a reason not to be."""
    walked = {name.split(",")[0] for name in entries(trained, drivers, tmp_path)}
    public = {name for name in rcdt_agent.__all__ if callable(getattr(rcdt_agent, name))}
    same_constructor = {cls.__name__ for cls in ALGORITHMS.values()} - {"BC", "RCDT"}
    results = {"AgentState", "BudgetReport", "Config", "OfflineAlgorithm", "TrajectoryDataset"}
    assert public - walked == same_constructor | results
    methods = {
        name
        for name, method in inspect.getmembers(TrajectoryDataset, callable)
        if not name.startswith("_") and list(inspect.signature(method).parameters) != ["self"]
    }
    assert methods - walked == {"check_sizes"}  # its arguments are our own
