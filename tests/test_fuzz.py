"""The readers on mutated files: our errors or a sound result; no crash, no hang, no code run.

`RCDT_FUZZ_SECONDS=600 RCDT_FUZZ_SEED=7 pytest tests/test_fuzz.py` looks longer and elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fuzzing
import numpy as np
import pytest
from conftest import QUICK, random_arrays

from rcdt_agent import BC, RCDT, TrajectoryDataset
from rcdt_agent.errors import CheckpointError, DatasetError, InvalidArgumentError
from rcdt_agent.fitted_q import FQEConfig
from rcdt_agent.tasks.speed_limit import ENV_ID

SECONDS = float(os.environ.get("RCDT_FUZZ_SECONDS", "12"))
SEED = os.environ.get("RCDT_FUZZ_SEED", "0")
SMALL = {"n_layers": 1, "embedding_size": 8, "critic_width": 4, "critic_layers": 2}


def make_base(reader, drivers, path):
    """A sound file, as small as it gets: mutations should hit what matters."""
    if reader == "hdf5":
        arrays = random_arrays([4, 1, 7], terminated=[True, False, True])
        TrajectoryDataset.from_arrays(**arrays).to_hdf5(path)
    elif reader == "rcdt":
        RCDT(**{**QUICK, **SMALL, "total_steps": 4}).learn(drivers.select(range(10))).save(path)
    else:
        BC(width=8).learn(drivers, 5).save(path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["hdf5", "rcdt", "bc"])
def test_mutated_files(reader, drivers, tmp_path):
    base = tmp_path / ("base.hdf5" if reader == "hdf5" else "base.zip")
    make_base(reader, drivers, base)
    command = [sys.executable, fuzzing.__file__, reader, base, tmp_path, SEED, str(SECONDS)]
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=SECONDS + 400, check=False
    )
    under_way = (tmp_path / "now.json").read_text()
    assert result.returncode == 0, f"died at {under_way}: {result.returncode} {result.stderr}"
    *problems, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert problems == []
    assert summary["as it is: accepted"] == 1
    assert summary["refused"] >= 30 and summary["accepted"] >= 3
    tricks = fuzzing.HDF5_TRICKS if reader == "hdf5" else fuzzing.ZIP_TRICKS
    tried = {name.rsplit(":", 1)[0] for name in summary if ":" in name}
    assert set(tricks) <= tried
    assert not Path("/tmp/rcdt_fuzz_escaped").exists()


def mutated_jsons(text, count):
    """Damaged bytes, and sound JSON with the wrong things in it."""
    for number in range(count):
        rng = np.random.default_rng([int(SEED), number])
        yield (fuzzing.mutate_bytes if number % 3 == 0 else fuzzing.mutate_json)(text, rng)


@pytest.mark.slow
def test_mutated_files_of_a_run(drivers, tmp_path):
    """`report.json`, `offline.json` and `run.json`: a page or a card is made, or our error."""
    from rcdt_agent.experiments.evaluate import add_to_report, write_offline
    from rcdt_agent.experiments.report import write_report
    from rcdt_agent.experiments.runs import Run, RunOptions
    from rcdt_agent.model_card import model_card

    data = drivers.select(range(20))
    run = Run(tmp_path / "run")
    agent = RCDT(**{**QUICK, **SMALL, "total_steps": 4}).learn(data)
    run.folder.mkdir()
    run.write_options(RunOptions(data="SpeedLimit", config=agent.config))
    agent.save(run.final)
    add_to_report(run, agent, agent.evaluate(ENV_ID, [5, 20], 2))
    write_offline(
        run, agent.evaluate_offline(data, [5, 20], config=FQEConfig(n_members=1, n_features=4))
    )
    write_report(run)
    outcomes, messages = Counter(), []
    for path in (run.report, run.offline, run.options_file):
        sound = path.read_bytes()
        for mutant in mutated_jsons(sound, 14):
            path.write_bytes(mutant)
            try:
                write_report(run)
                outcomes["shown", path.name] += 1
            except InvalidArgumentError as error:
                messages.append((str(path), str(error)))
                outcomes["refused", path.name] += 1
            if path == run.report:
                assert "## Budgets measured" in model_card(RCDT.load(run.final), "load")
        path.write_bytes(sound)
    write_report(run)
    assert not [message for path, message in messages if path not in message]
    assert len(outcomes) == 6, outcomes  # some of each file were shown, and some refused


def test_mutated_onnx_files(agent, tmp_path):
    """Damaged, or sealed again with metadata that lie: our error, or a policy that acts."""
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    import onnx

    from rcdt_agent.deploy.onnx_file import METADATA_KEY, NO_CHECKSUM, seal
    from rcdt_agent.onnx_agent import OnnxAgent

    path = tmp_path / "policy.onnx"
    agent.export_onnx(path)
    sound = path.read_bytes()
    model = onnx.load_from_string(sound)
    (entry,) = [entry for entry in model.metadata_props if entry.key == METADATA_KEY]
    metadata = entry.value.encode()
    model.metadata_props[-1].value = NO_CHECKSUM
    counts, messages = Counter(), []
    for number, text in enumerate(mutated_jsons(metadata, 45)):
        rng = np.random.default_rng([int(SEED), number])
        content = fuzzing.mutate_bytes(sound, rng)
        if number % 3:
            entry.value = text.decode()
            content = seal(model.SerializeToString())
        path.write_bytes(content)
        try:
            policy = OnnxAgent(path)
            action, _ = policy.predict(np.zeros(4, np.float32), policy.begin())
            assert np.isfinite(action).all()
            counts["acted"] += 1
        except CheckpointError as error:
            messages.append(str(error))
            counts["refused"] += 1
    assert all(message.startswith(f"{path}: ") for message in messages)
    assert min(counts.values()) >= 3 and len(counts) == 2, counts


@pytest.mark.parametrize("event", ["exec", "subprocess.Popen"])
def test_the_watch_sees_code(event, monkeypatch):
    """The hook that the test above relies on notices what a pickle would do."""
    monkeypatch.setattr(fuzzing, "armed", True)
    monkeypatch.setattr(fuzzing, "seen", [])
    fuzzing.audit(event, ("os.system('true')",))
    fuzzing.audit("open", ("file",))
    assert fuzzing.seen == [f"{event} (\"os.system('true')\",)"]


def test_mutated_npy_folders(tmp_path):
    """Names of costs and parts of observations included: our error or a sound dataset."""
    arrays = random_arrays([4, 1, 7])
    seen = arrays.pop("observations")
    arrays.pop("next_observations")
    costs = arrays.pop("costs")
    data = TrajectoryDataset.from_arrays(
        **arrays,
        observations={"a": seen[:, :1], "b": seen[:, 1:]},
        costs={"one": costs, "two": 2 * costs},
    )
    data.to_npy(tmp_path / "base")
    names = sorted(path.name for path in (tmp_path / "base").iterdir())
    assert {"observation_space.npy", "cost_names.npy"} <= set(names)
    refused, messages = 0, []
    for number in range(400):
        rng = np.random.default_rng([int(SEED), number])
        folder = tmp_path / "mutant"
        shutil.copytree(tmp_path / "base", folder)
        path = folder / names[number % len(names)]
        path.write_bytes(fuzzing.mutate_bytes(path.read_bytes(), rng))
        try:
            read = TrajectoryDataset.from_npy(folder)
            assert len(read) >= 1 and np.isfinite(read.episode_costs).all()
        except DatasetError as error:
            refused += 1
            messages.append(str(error))
        shutil.rmtree(folder)
    assert 100 < refused < 400
    assert all(message.startswith(str(tmp_path / "mutant")) for message in messages)
