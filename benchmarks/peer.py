"""The peer: `osrl-lib` from the package index, without its dependencies, in a folder of its own.

Only its files are loaded, one by one; its own `__init__` modules pull in an unmaintained stack.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "build" / "peer"
REQUIREMENT = "osrl-lib==0.1.0"


def load(relative: str) -> ModuleType:
    """Load one file of the peer as a module, e.g. `common/dataset.py`."""
    path = FOLDER / "osrl" / relative
    if not path.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(FOLDER), REQUIREMENT], check=True)
    name = f"peer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints about a missing optional package
        spec.loader.exec_module(module)
    return module


class SilentLogger:
    """Stands in for the logger of the package that is not installed."""

    def store(self, *_args: Any, **_kwargs: Any) -> None:
        pass


def load_algorithm(name: str) -> ModuleType:
    """The peer's `cdt`, `bcql`, `bearl`, `cpq` or `coptidice`, with a silent logger."""
    utils = ModuleType("fsrl.utils")
    utils.DummyLogger = utils.WandbLogger = SilentLogger  # type: ignore[attr-defined]
    stand_ins = {
        "fsrl": ModuleType("fsrl"),
        "fsrl.utils": utils,
        "osrl": ModuleType("osrl"),
        "osrl.common": ModuleType("osrl.common"),
        "osrl.common.net": load("common/net.py"),
    }
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        return load(f"algorithms/{name}.py")
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def make_cdt(
    observation_size: int, action_size: int, *, episode_length: int, env: Any = None, **sizes: Any
) -> Any:
    """The peer's trainer around its model, with the paper's sizes and its own other settings."""
    module = load_algorithm("cdt")
    settings = {
        "embedding_dim": 128, "num_layers": 3, "num_heads": 8, "seq_len": 10,
        "attention_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1, **sizes,
    }  # fmt: skip
    model = module.CDT(
        state_dim=observation_size,
        action_dim=action_size,
        max_action=1.0,
        episode_len=episode_length,
        use_rew=True,
        use_cost=True,
        cost_transform=True,
        stochastic=True,
        target_entropy=-action_size,
        **settings,
    )
    return module.CDTTrainer(model, env, logger=SilentLogger(), lr_warmup_steps=500)


def training_loop(arrays: dict[str, Any], config: Any, workers: int) -> Any:
    """The peer's CDT in training with our sizes: its dataset, a `DataLoader`, its step.

    Args:
        arrays: Flat arrays in DSRL's layout.
        config: Our settings.
        workers: Processes of the loader.

    Returns:
        A function that makes some steps.
    """
    import numpy as np
    import torch

    length = int(np.flatnonzero(arrays["timeouts"])[0]) + 1
    trainer = make_cdt(
        arrays["observations"].shape[1],
        arrays["actions"].shape[1],
        episode_length=length,
        embedding_dim=config.embedding_size,
        num_layers=config.n_layers,
        num_heads=config.n_heads,
        seq_len=config.context_length,
        attention_dropout=config.attention_dropout,
        residual_dropout=config.dropout,
        embedding_dropout=config.dropout,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sequences = load("common/dataset.py").SequenceDataset(
            arrays, seq_len=config.context_length, reward_scale=0.1
        )
    loader = iter(
        torch.utils.data.DataLoader(sequences, batch_size=config.batch_size, num_workers=workers)
    )

    def run(steps: int) -> None:
        for _ in range(steps):
            trainer.train_one_step(*next(loader))

    return run
