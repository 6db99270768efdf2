"""Files, pickles and copies of agents: what can be changed, left out, and goes on the same."""

from __future__ import annotations

import ast
import copy
import io
import json
import pickle
import pickletools
import subprocess
import sys
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import QUICK, small_settings
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import SubprocVecEnv
from test_training_guard import saved

from rcdt_agent import BC, RCDT, load_agent
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.checkpoint import META
from rcdt_agent.errors import CheckpointError, InvalidArgumentError
from rcdt_agent.tasks.speed_limit import ENV_ID

# Dropout draws from torch's global generator, critics from the noise generator.
SETTINGS = {**QUICK, "critic_start": 0.1, "dropout": 0.1}


def rates_of(agent, steps=4):
    """Learning rates of the policy's optimiser while the agent makes so many steps."""
    rates = []

    def note(_locals, _globals):
        rates.append(agent.training.optimizers["policy"].param_groups[0]["lr"])
        return True

    agent.learn(steps, callback=note)
    return rates


# ------------------------------------------------------------ load


def test_load_changes_settings(trained, drivers):
    agent = RCDT.load(
        io.BytesIO(trained), env=gym.make(ENV_ID), batch_size=8, budget_margin=np.float64(0.5),
        critic_learning_rate=1e-5, weight_decay=0.25, warmup_steps=0,
        custom_objects={"learning_rate": 5e-3, "final_learning_rate": 1.0},
    )  # fmt: skip
    agent.set_dataset(drivers)
    saved(agent)  # numbers of numpy are plain ones in the file
    assert agent.policy.conditioning.margin == 0.5
    assert rates_of(agent) == [5e-3] * 4
    assert agent.sampler.sample().obs.shape[0] == 8
    # The optimisers' options are the new ones, not those of the file.
    policy, critics = agent.training.optimizers["policy"], agent.training.optimizers["critics"]
    assert policy.param_groups[0]["weight_decay"] == 0.25
    assert policy.param_groups[1]["weight_decay"] == 0.0
    assert critics.param_groups[0]["lr"] == 1e-5
    moments = next(iter(policy.state.values()))
    assert moments["step"].item() == 44  # while their moments were kept
    assert agent.get_env().num_envs == 1


def test_load_with_another_goal_extends_a_training(trained, drivers):
    agent = RCDT.load(io.BytesIO(trained), total_steps=43)
    assert agent.learn(drivers, resume=True).num_timesteps == 43


@pytest.mark.parametrize(
    ("field", "value"), [("n_layers", 3), ("n_heads", 1), ("context_length", 9), ("gama", 0.9)]
)
def test_load_refuses_what_the_weights_fix(trained, field, value):
    message = f"`{field}` cannot be changed in a trained RCDT. What can be: .*learning_rate"
    with pytest.raises(InvalidArgumentError, match=message):
        RCDT.load(io.BytesIO(trained), **{field: value})
    with pytest.raises(InvalidArgumentError, match=message):
        RCDT.load(io.BytesIO(trained), custom_objects={field: value})


def test_load_refuses_values_outside_their_rule(trained):
    with pytest.raises(InvalidArgumentError, match="`batch_size` must be >= 1, got 0"):
        RCDT.load(io.BytesIO(trained), batch_size=0)


def test_system_info(trained, capsys):
    RCDT.load(io.BytesIO(trained), print_system_info=True)
    here, there = capsys.readouterr().out.splitlines()
    assert torch.__version__ in here and there.startswith("Of the file: {")
    values = [ast.literal_eval(line.split(": ", 1)[1]) for line in (here, there)]
    assert values[0] == values[1]  # this process wrote it


def test_a_run_folder_is_a_path(agent, drivers, tmp_path):
    run = tmp_path / "speed"
    run.mkdir()
    for load in (RCDT.load, load_agent):
        with pytest.raises(CheckpointError, match="folder without agent.zip or last.zip"):
            load(run)
    agent.save(run / "last.zip")
    assert RCDT.load(run).num_timesteps == load_agent(str(run)).num_timesteps == 40
    agent.learn(drivers, 2).save(run / "agent.zip")
    assert RCDT.load(run).num_timesteps == load_agent(run).num_timesteps == 42  # the final one
    agent.learn(1).save(run)  # beside the folder, as stable-baselines3 does
    assert RCDT.load(run).num_timesteps == load_agent(run).num_timesteps == 43


# ------------------------------------------------------------ save


def test_a_file_for_acting_alone(agent, drivers, tmp_path):
    for name, left_out in (("whole", []), ("acting", ["training"]), ("no_adam", ["optimizers"])):
        agent.save(tmp_path / name, exclude=left_out)
    sizes = {path.stem: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["acting"] < 0.6 * sizes["whole"] and sizes["no_adam"] < sizes["whole"]
    obs = drivers.observations[:5]
    for name in sizes:
        loaded = RCDT.load(tmp_path / name)
        np.testing.assert_array_equal(
            loaded.predict(obs, loaded.begin(len(obs)))[0],
            agent.predict(obs, agent.begin(len(obs)))[0],
        )
        assert loaded.learn(drivers, 3).num_timesteps == 43  # with new optimisers
        steps = next(iter(loaded.training.optimizers["policy"].state.values()))["step"].item()
        assert steps == (43 if name == "whole" else 3)
    agent.save(tmp_path / "both", exclude=["training"], include=["training"])
    assert (tmp_path / "both.zip").stat().st_size == sizes["whole"]
    with pytest.raises(InvalidArgumentError, match=r"`exclude` must be of .*got \['policy'\]"):
        agent.save(tmp_path / "none", exclude=["policy"])
    assert not (tmp_path / "none.zip").exists()


def test_no_file_pins_a_device(trained):
    """Trained on a CPU, continued on a GPU, and back: nothing in the file says where."""
    with zipfile.ZipFile(io.BytesIO(trained)) as archive:
        text = archive.read(META).decode()
    assert "cuda" not in text and '"device"' not in text
    meta = json.loads(text)
    assert "cpu" not in json.dumps({**meta, "versions": None})
    # `fused` is an option of the optimiser, and the one thing in it that a device decides.
    agent = RCDT.load(io.BytesIO(trained))
    assert all(g.device.type == "cpu" for g in agent.training.generators.values())


# ------------------------------------------------------------ parameters


def test_parameters_of_a_file(agent, drivers, tmp_path):
    other = RCDT(**{**QUICK, "seed": 9}).learn(drivers, 3)
    other.save(tmp_path / "other.zip")
    obs = drivers.observations[:5]
    agent.set_parameters(tmp_path / "other.zip", device="cpu")
    for name, value in agent.policy.state_dict().items():
        assert torch.equal(value, other.policy.state_dict()[name])
    agent.learn(drivers, 1)  # now it has target networks, too
    agent.set_parameters(str(tmp_path / "other"))
    assert set(agent.get_parameters()) == {"policy", "online", "target_critics", "multipliers"}
    for name, values in other.get_parameters().items():
        for key, value in values.items():
            assert torch.equal(agent.get_parameters()[name][key], value)
    np.testing.assert_array_equal(agent.predict(obs)[0], other_actions(other, agent, obs))


def other_actions(other, agent, obs):
    other.set_cost_budget(agent.cost_budget)
    return other.predict(obs)[0]


def test_parameters_that_do_not_fit(agent, drivers, tmp_path):
    wide = RCDT(**{**QUICK, "embedding_size": 32}).learn(drivers, 1)
    wide.save(tmp_path / "wide.zip")
    before = saved(agent)
    with pytest.raises(
        InvalidArgumentError, match=r"`policy`: `transformer.*shape \(32,\), got \(64,\)"
    ):
        agent.set_parameters(tmp_path / "wide.zip")
    with pytest.raises(CheckpointError, match="there is no such file"):
        agent.set_parameters("nowhere")
    assert saved(agent) == before
    with pytest.raises(InvalidArgumentError, match=r"must hold \['policy'\], got \['actor'\]"):
        agent.set_parameters({"actor": {}}, exact_match=False)
    part = {"transformer.head.log_std": torch.full((1,), 0.25)}
    agent.set_parameters({"policy": part}, exact_match=False)
    assert agent.policy.transformer.head.log_std.tolist() == [0.25]
    with pytest.raises(
        InvalidArgumentError, match=r"`policy`: `critics.*must have shape .*got None"
    ):
        agent.set_parameters({"policy": part})


# ------------------------------------------------------------ learning-rate schedules


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_learning_rate_as_a_function(name, drivers):
    settings = {**small_settings(name), "learning_rate": lambda left: 1e-3 * left}
    agent = get_algorithm(name)(**settings)
    agent.set_dataset(drivers)
    np.testing.assert_allclose(rates_of(agent), [1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    # Four more: the progress is that of the whole training, as in stable-baselines3 with
    # `reset_num_timesteps=False`.
    np.testing.assert_allclose(rates_of(agent), [0.5e-3, 0.375e-3, 0.25e-3, 0.125e-3])


def test_a_schedule_of_stable_baselines3(drivers):
    agent = BC(preset="tiny", learning_rate=LinearSchedule(1e-2, 1e-3, 0.5))
    agent.set_dataset(drivers)
    np.testing.assert_allclose(rates_of(agent), [1e-2, 5.5e-3, 1e-3, 1e-3])


def test_a_file_asks_for_its_schedule_again(drivers, tmp_path):
    def schedule(left):
        return 1e-3 * left

    whole = RCDT(**SETTINGS, learning_rate=schedule).learn(drivers, 12)
    part = RCDT(**SETTINGS, learning_rate=schedule)
    part.learn(drivers, 12, callback=lambda *_: part.num_timesteps < 5)
    part.save(tmp_path / "part.zip")
    loaded = RCDT.load(tmp_path / "part.zip")
    loaded.predict(drivers.observations[0])  # acting needs none
    with pytest.raises(InvalidArgumentError, match="load it with `learning_rate=` the same func"):
        loaded.learn(drivers, 90)
    assert (loaded.num_timesteps, loaded.total_steps) == (5, 12)
    for again in ({"learning_rate": schedule}, {"custom_objects": {"lr_schedule": schedule}}):
        agent = RCDT.load(tmp_path / "part.zip", **again).learn(drivers, resume=True)
        assert saved(agent) == saved(whole)
    plain = RCDT.load(tmp_path / "part.zip", learning_rate=2e-3)
    assert plain.lr_schedule is None
    assert plain.learn(drivers, 1).num_timesteps == 6


# ------------------------------------------------------------ pickles and copies


def ways(agent):
    return {"deepcopy": copy.deepcopy(agent), "pickle": pickle.loads(pickle.dumps(agent))}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("stage", ["new", "with data", "trained", "loaded"])
def test_copies_make_the_same_next_step(name, stage, drivers):
    kind = get_algorithm(name)
    agent = kind(gym.make(ENV_ID), **small_settings(name), total_steps=9, verbose=0)
    if stage != "new":
        agent.set_dataset(drivers)
    if stage in ("trained", "loaded"):
        agent.learn(drivers, 9, callback=lambda *_: agent.num_timesteps < 4)
    if stage == "loaded":
        buffer = io.BytesIO()
        agent.save(buffer)
        agent = kind.load(buffer)
    copies = ways(agent)
    expected = saved(agent.learn(drivers, resume=True))
    for way, other in copies.items():
        assert type(other) is kind and other.seed == 5 and other.config == agent.config
        assert saved(other.learn(drivers, resume=True)) == expected, way


def test_copies_act_alike_and_are_independent(agent, drivers):
    agent.set_cost_budget(6.5)
    agent.set_dataset(drivers)
    obs = drivers.observations[:3]
    agent.predict(obs, agent.begin(3), deterministic=False)
    copies = ways(agent)
    expected = agent.predict(obs, agent.begin(3), deterministic=False)[0]
    for other in copies.values():
        assert other.cost_budget == 6.5
        actions, _ = other.predict(obs, other.begin(3), deterministic=False)
        np.testing.assert_array_equal(actions, expected)
        other.set_cost_budget(20)
        with torch.no_grad():
            other.policy.transformer.head.layers[-1].bias += 1
    assert agent.cost_budget == 6.5
    assert copies["deepcopy"].dataset is agent.dataset  # shared: nobody changes it
    assert copies["pickle"].dataset is None


def test_a_schedule_is_copied_but_not_pickled(drivers):
    agent = RCDT(**QUICK, learning_rate=lambda left: 1e-3 * left)
    for stage in (0, 2):
        agent.learn(drivers, stage) if stage else None
        copies = ways(agent)
        assert copies["deepcopy"].learn(drivers, 1).num_timesteps == stage + 1
        with pytest.raises(InvalidArgumentError, match="learning-rate schedule"):
            copies["pickle"].learn(drivers, 1)


def test_a_pickle_of_an_agent_calls_our_reader_only(agent):
    """Arrays are the bytes of a checkpoint, and what besides is called makes plain objects."""
    called = {
        argument.replace(" ", ".")
        for opcode, argument, _ in pickletools.genops(pickle.dumps(agent, protocol=2))
        if opcode.name == "GLOBAL"
    }
    assert "rcdt_agent.algorithms.files.bytes_to_agent" in called
    allowed = ("rcdt_agent.", "torch.", "collections.", "_codecs.", "numpy.")
    assert all(name.startswith(allowed) for name in called), called


def test_a_pickle_in_another_process(agent, drivers, tmp_path):
    (tmp_path / "agent.pkl").write_bytes(pickle.dumps(agent))
    np.save(tmp_path / "obs.npy", drivers.observations[:3])
    code = (
        "import pickle, sys, numpy as np; agent = pickle.load(open(sys.argv[1], 'rb'));"
        "print(agent.predict(np.load(sys.argv[2]))[0].tolist())"
    )
    paths = str(tmp_path / "agent.pkl"), str(tmp_path / "obs.npy")
    result = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    expected, _ = agent.predict(drivers.observations[:3])
    np.testing.assert_allclose(json.loads(result.stdout), expected, atol=1e-6)


def test_agents_travel_into_subprocesses(agent):
    """`agent` in the function that makes an environment there."""
    env = SubprocVecEnv([lambda: agent.wrap(gym.make(ENV_ID))] * 2, start_method="spawn")
    try:
        obs = env.reset()
        actions, _ = agent.predict(obs)
        assert actions.shape == (2, 1)
    finally:
        env.close()
