"""Checkpoints: whole or not at all, never code, and clear about what is wrong."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from conftest import QUICK, random_arrays, small_settings

from rcdt_agent import RCDT, TrajectoryDataset, load_agent
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.checkpoint import META, TENSORS, flatten_state, unflatten_state
from rcdt_agent.errors import CheckpointError, DatasetError


def rewrite(trained, change):
    """The checkpoint with its members changed by `change(dict of name -> bytes)`."""
    with zipfile.ZipFile(io.BytesIO(trained)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    buffer.seek(0)
    return buffer


def with_meta(trained, **changes):
    def change(members):
        members[META] = json.dumps({**json.loads(members[META]), **changes}).encode()

    return rewrite(trained, change)


@pytest.fixture(params=ALGORITHMS)
def any_trained(request, drivers):
    """The bytes of a file of each algorithm, after two steps."""
    buffer = io.BytesIO()
    get_algorithm(request.param)(**small_settings(request.param)).learn(drivers, 2).save(buffer)
    return buffer.getvalue()


def test_contents_are_safetensors_and_json(any_trained):
    with zipfile.ZipFile(io.BytesIO(any_trained)) as archive:
        assert sorted(archive.namelist()) == [META, TENSORS]
        meta = json.loads(archive.read(META))
    assert {"config", "policy", "spaces", "settings", "versions", "fingerprint"} <= set(meta)
    assert meta["versions"]["torch"] == torch.__version__


def test_flatten_round_trip():
    state = {"a": torch.ones(2), "b": [1, {"c": torch.zeros(1), 3: "x"}], "d": None}
    tensors, plain = flatten_state(state)
    assert sorted(tensors) == ["a", "b/1/c"]
    again = unflatten_state(tensors, json.loads(json.dumps(plain)))
    assert again["b"][1][3] == "x" and again["d"] is None
    assert torch.equal(again["a"], state["a"])
    with pytest.raises(CheckpointError, match="lacks the tensor 'a'"):
        unflatten_state({}, plain)


def test_same_agent_same_bytes(agent):
    one, two = io.BytesIO(), io.BytesIO()
    agent.save(one)
    agent.save(two)
    assert one.getvalue() == two.getvalue()


def test_suffix_is_added_and_folders_made(agent, tmp_path):
    agent.save(tmp_path / "deep" / "agent")
    assert RCDT.load(tmp_path / "deep" / "agent.zip").num_timesteps == 40
    assert RCDT.load(str(tmp_path / "deep" / "agent")).num_timesteps == 40
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["agent.zip"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_file(trained, tmp_path, share):
    path = tmp_path / "cut.zip"
    path.write_bytes(trained[: int(len(trained) * share)])
    with pytest.raises(CheckpointError, match="cut.zip: damaged or cut short"):
        RCDT.load(path)


def test_a_flipped_bit_is_noticed(trained, tmp_path):
    damaged = bytearray(trained)
    damaged[len(damaged) // 2] ^= 1
    path = tmp_path / "flipped.zip"
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged"):
        RCDT.load(path)


class Bomb:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_a_pickle_inside_is_refused_and_not_run(any_trained, tmp_path):
    def plant(members):
        members["data.pkl"] = pickle.dumps(Bomb(tmp_path / "bomb"))

    with pytest.raises(
        CheckpointError, match=r"unexpected contents \['data.pkl'\]; nothing was loaded"
    ):
        load_agent(rewrite(any_trained, plant))

    def disguise(members):
        members[TENSORS] = pickle.dumps(Bomb(tmp_path / "bomb"))

    with pytest.raises(CheckpointError, match="damaged"):
        load_agent(rewrite(any_trained, disguise))
    assert not (tmp_path / "bomb").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "bomb")))  # it would have gone off
    assert (tmp_path / "bomb").exists()


def test_a_torch_or_sb3_file_is_not_ours(tmp_path):
    path = tmp_path / "model.zip"
    torch.save({"x": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="not an rcdt_agent checkpoint"):
        RCDT.load(path)


def test_a_newer_format(trained):
    with pytest.raises(CheckpointError, match="written in format 99 by rcdt_agent .*Update"):
        RCDT.load(with_meta(trained, format_version=99))


def test_an_older_format(trained):
    with pytest.raises(CheckpointError, match="format 1 by .*this version reads format 2. Load it"):
        RCDT.load(with_meta(trained, format_version=1))


def test_another_kind(trained):
    with pytest.raises(CheckpointError, match="holds a BC, not a RCDT"):
        RCDT.load(with_meta(trained, kind="BC"))


def test_contents_that_do_not_fit(trained):
    def shrink(meta):
        meta["config"]["embedding_size"] = 32
        return meta

    with zipfile.ZipFile(io.BytesIO(trained)) as archive:
        meta = shrink(json.loads(archive.read(META)))
    with pytest.raises(CheckpointError, match="do not fit together"):
        RCDT.load(with_meta(trained, config=meta["config"]))


def test_no_such_file(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such file"):
        RCDT.load(tmp_path / "absent.zip")


def test_continuing_on_data_of_another_size(agent):
    other = TrajectoryDataset.from_arrays(**random_arrays([5, 5], observation_size=7))
    with pytest.raises(DatasetError, match="`observations` have size 7, but .* size 4"):
        agent.learn(other, 50)


def test_continuing_on_other_data_of_the_same_size_is_said_aloud(agent, drivers):
    half, _ = drivers.split(0.5)
    with pytest.warns(UserWarning, match="is not the data this agent was trained on"):
        agent.learn(half, 2)
    assert agent.num_timesteps == 42


def test_everything_survives(agent, trained, drivers):
    agent.set_cost_budget(7.5)
    buffer = io.BytesIO()
    agent.save(buffer)
    buffer.seek(0)
    again = RCDT.load(buffer)
    assert (again.cost_budget, again.target_return) == (7.5, agent.target_return)
    assert again.config == agent.config
    assert again.action_space == agent.action_space
    assert again.observation_space == agent.observation_space
    assert again.seed == QUICK["seed"]
    obs = drivers.observations[:5]
    np.testing.assert_array_equal(again.predict(obs)[0], agent.predict(obs)[0])
    again.set_cost_budget(10)
    agent.set_cost_budget(10)
    assert again.target_return == agent.target_return
