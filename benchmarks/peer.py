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


def load_cdt() -> ModuleType:
    """The peer's CDT, its logger replaced by a silent one."""
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
        return load("algorithms/cdt.py")
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
    module = load_cdt()
    settings = {"embedding_dim": 128, "num_layers": 3, "num_heads": 8, "seq_len": 10, **sizes}
    model = module.CDT(
        state_dim=observation_size,
        action_dim=action_size,
        max_action=1.0,
        episode_len=episode_length,
        attention_dropout=0.1,
        residual_dropout=0.1,
        embedding_dropout=0.1,
        use_rew=True,
        use_cost=True,
        cost_transform=True,
        stochastic=True,
        target_entropy=-action_size,
        **settings,
    )
    return module.CDTTrainer(model, env, logger=SilentLogger(), lr_warmup_steps=500)
