"""Examples run, and the README shows the code that runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


@pytest.mark.slow
def test_quickstart_is_the_readmes_code_and_runs(tmp_path):
    code = (ROOT / "examples" / "quickstart.py").read_text()
    body = code.split('"""\n\n', 1)[1]
    assert body in python_blocks("README.md")
    result = subprocess.run(
        [sys.executable, "-c", body.replace("1_000", "120")],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    budgets = re.findall(r"budget (\d+): return (\S+), cost (\S+)", result.stdout)
    assert [budget for budget, _, _ in budgets] == ["5", "10", "20"]
    assert (tmp_path / "build" / "driver.zip").exists()


@pytest.mark.parametrize("name", ["custom_env", "custom_loop"])
def test_example_runs(name, capsys):
    load(name).main(total_steps=20)
    assert "spen" in capsys.readouterr().out if name == "custom_loop" else True


def test_random_rollout(capsys):
    load("random_rollout").main()
    assert "69.7" in capsys.readouterr().out


DSRL_DATA = """
import sys
import numpy as np
from rcdt_agent import TrajectoryDataset, make_env
env = make_env("HopperVelocity")
rng = np.random.default_rng(0)
rows = {k: [] for k in ("observations", "next_observations", "actions", "rewards", "costs",
                        "terminals", "timeouts")}
for episode in range(12):
    obs, _ = env.reset(seed=episode)
    done = False
    while not done:
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        following, reward, terminated, truncated, info = env.step(action)
        row = (obs, following, action, reward, info["cost"], terminated, truncated)
        for k, v in zip(rows, row):
            rows[k].append(v)
        obs, done = following, terminated or truncated
TrajectoryDataset.from_arrays(**{k: np.array(v) for k, v in rows.items()}).to_hdf5(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.safety_gymnasium
def test_the_users_own_sentences(tmp_path):
    """The README's DSRL block, on a small file from the real simulator in the cache."""
    path = tmp_path / "SafetyHopperVelocityGymnasium-v1-250-2240.hdf5"
    subprocess.run([sys.executable, "-c", DSRL_DATA, str(path)], check=True)
    (block,) = [code for code in python_blocks("README.md") if "from_dsrl" in code]
    assert 'RCDT.from_dsrl("OfflineHopperVelocity-v1")' in block
    code = block.replace("200_000", "2").replace('-v1")  #', '-v1", preset="tiny")  #')
    assert 'preset="tiny"' in code
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "DSRL_DATASET_DIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "hopper.zip").exists()
