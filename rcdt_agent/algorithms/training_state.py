"""What training needs and acting does not, as one object that can be saved and put back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rcdt_agent.base_config import Precision
from rcdt_agent.checkpoint import as_checkpoint_error
from rcdt_agent.distributed import Replicas


class TrainingState:
    """Optimisers, training-only networks, counters and random generators of one agent.

    `OfflineAlgorithm.setup` fills `optimizers`, `modules` and `counters`. The generators are on the
    CPU whatever the device, so that a run can move between devices.

    Attributes:
        optimizers: By name.
        modules: Target networks, multipliers and the like, by name.
        counters: Whole numbers by name.
        generators: `batches` and `noise`.
        torch_rng: The agent's own state of torch's global generator, which dropout draws from.
        scaler: Loss scaler; it does nothing unless the precision is fp16.
        replicas: Of the optimisers' parameters, if several processes train.
    """

    def __init__(self, seed: int, precision: Precision = "float32") -> None:
        """Begin with generators only."""
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.modules: dict[str, nn.Module] = {}
        self.counters: dict[str, int] = {}
        self.generators = {"batches": torch.Generator(), "noise": torch.Generator()}
        self._stored: dict[str, Any] = {}  # of a checkpoint, until `resume`
        self.seed(seed)
        enabled = precision == "fp16" and torch.cuda.is_available()
        self.scaler = torch.amp.GradScaler("cuda", enabled=enabled)
        self.replicas = Replicas()

    @property
    def ready(self) -> bool:
        """Whether `setup` has been called."""
        return bool(self.optimizers)

    def seed(self, seed: int) -> None:
        """Put all generators to where this seed begins."""
        for i, generator in enumerate(self.generators.values()):
            generator.manual_seed(seed + i)
        self.torch_rng = torch.Generator().manual_seed(seed).get_state()
        if self._stored:
            self._stored |= self._random_state()

    def backward(self, name: str, loss: Tensor, *, inputs: Any = None, last: bool = True) -> None:
        """Add the gradient of an optimiser's loss, averaged over processes.

        Args:
            name: Of the optimiser.
            loss: Of its parameters.
            inputs: The only leaves to get a gradient; default: all.
            last: False for micro-batches that others follow: the last one averages.
        """
        if last:
            loss = self.replicas.through(name, self.optimizers[name], loss)
        self.scaler.scale(loss).backward(inputs=inputs)  # type: ignore[no-untyped-call]

    def _random_state(self) -> dict[str, Any]:
        generators = {name: g.get_state() for name, g in self.generators.items()}
        return {"generators": generators, "torch_rng": self.torch_rng}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which training continues bit for bit.

        Before `setup` that is what a checkpoint gave, or the random generators alone.
        """
        if not self.ready:
            return self._stored or self._random_state()
        return {
            "optimizers": {name: opt.state_dict() for name, opt in self.optimizers.items()},
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "counters": dict(self.counters),
            "scaler": self.scaler.state_dict(),
            **self._random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put everything where `state_dict` found it; parts that were not saved stay."""
        if "optimizers" in state:
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
        if "modules" in state:
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            self.counters = {name: int(value) for name, value in state["counters"].items()}
            if state["scaler"]:  # empty unless it was fp16's
                self.scaler.load_state_dict(state["scaler"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.torch_rng = state["torch_rng"]

    def store(self, state: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until training goes on."""
        if state:
            torch.Generator().set_state(state["torch_rng"])  # raises if it is none
        self._stored = state

    def resume(self) -> None:
        """After `setup`: go on from the stored state, if there is one.

        Options of the optimisers (learning rate, weight decay) are the configuration's, which may
        have been changed since.

        Raises:
            CheckpointError: It does not fit the networks.
        """
        if not self._stored:
            return
        groups = [group for opt in self.optimizers.values() for group in opt.param_groups]
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        with as_checkpoint_error("The checkpoint's training state"):
            self.load_state_dict(self._stored)
        groups = [group for opt in self.optimizers.values() for group in opt.param_groups]
        for group, option in zip(groups, options, strict=True):
            group.update(option)
        self._stored = {}

    @property
    def module_states(self) -> dict[str, dict[str, torch.Tensor]]:
        """State dicts of the modules by name, also those of a checkpoint before `resume`."""
        states: dict[str, dict[str, torch.Tensor]] = self.state_dict().get("modules", {})
        return states
