"""Ctrl-C and SIGTERM during a training that must not lose its steps."""

from __future__ import annotations

import signal
import threading
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from typing_extensions import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal(BaseCallback):
    """Ends training after the step under way when the process is told to stop.

    As a context it takes SIGINT and SIGTERM over: in the middle of a step the agent cannot be
    saved. A second signal acts at once. A signal that the process ignores (a job in the background)
    stays ignored. Outside the main thread, where Python allows no handlers, it does nothing.
    """

    every_rank = True  # each process has to outlive the step under way

    def __init__(self) -> None:
        """Wait for a signal."""
        super().__init__()
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()

    def raise_received(self) -> None:
        """Let the signal that ended the training, if any, take its ordinary course."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _note(self, number: int, _frame: object) -> None:
        self.received = number
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _on_step(self) -> bool:
        return self.received is None
