"""Several processes under torchrun: real ones, with Gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch
from safetensors.torch import load_file

from rcdt_agent.algorithms import ALGORITHMS

CASES = [*ALGORITHMS, "rcdt+micro"]
pytestmark = pytest.mark.slow


def torchrun(*arguments, n=2, **kwargs):
    """Run under torchrun on a free port; its output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(n), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, **kwargs,
    )  # fmt: skip


def trained(folder, mode, cases):
    """Weights of each case on both ranks."""
    result = torchrun(Path(__file__).parent / "ranks.py", folder, mode, *cases)
    assert result.returncode == 0, result.stderr[-3000:]
    return {
        case: [load_file(folder / f"{mode}-{case}-{rank}.safetensors") for rank in (0, 1)]
        for case in cases
    }


def test_ranks_have_equal_weights_bit_for_bit_after_50_steps(tmp_path):
    for case, (first, second) in trained(tmp_path, "natural", CASES).items():
        assert first.keys() == second.keys()
        unequal = [name for name in first if not torch.equal(first[name], second[name])]
        assert not unequal, (case, unequal)


def test_a_loss_that_goes_around_the_wrapped_module_lets_replicas_drift(tmp_path):
    # What the test above would show if the hooks were not armed: each rank learns from its share.
    for first, second in trained(tmp_path, "around", ["rcdt", "bc"]).values():
        assert any(not torch.equal(first[name], second[name]) for name in first)


def test_two_ranks_equal_one_process_at_the_same_global_batch(tmp_path):
    for case, (ours, _) in trained(tmp_path, "shared", CASES).items():
        expected = ranks.weights(ranks.train(case, ranks.STEPS["shared"]))
        for name, values in expected.items():
            assert float((ours[name] - values).abs().max()) <= 1e-5, (case, name)
