"""`rcdt` as a user types it: in this process, or in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess
from unittest import mock

import pytest

from rcdt_agent.cli import main
from rcdt_agent.cli.console import console

WIDTH = 200
IGNORED_BY_PYTHON = (
    DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning,
)  # fmt: skip


def rcdt_process(*words: object, **environment: str) -> CompletedProcess[str]:
    """`rcdt WORDS` in a process of its own, which takes seconds where torch is imported."""
    return subprocess.run(
        [sys.executable, "-m", "rcdt_agent", *map(str, words)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": str(WIDTH), **environment},
    )  # fmt: skip


def rcdt(*words: object) -> CompletedProcess[str]:
    """`rcdt WORDS` in this process: exit code, words on the screen, warnings as a user sees them.

    What is no failure that a user can act on is raised: in a process, it would be a traceback.
    """
    arguments = ["rcdt", *map(str, words)]
    out, err = StringIO(), StringIO()
    with (
        as_in_a_process(arguments),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as exit_,
    ):
        main()
    return CompletedProcess(arguments, exit_.value.code or 0, out.getvalue(), err.getvalue())


@contextmanager
def as_in_a_process(arguments: list[str]) -> Iterator[None]:
    """Python's own warning filters, a wide screen; what `main` changes is put back."""
    handler = signal.getsignal(signal.SIGTERM)
    with (
        warnings.catch_warnings(),
        mock.patch.object(sys, "argv", arguments),
        mock.patch.dict(os.environ, COLUMNS=str(WIDTH)),
        mock.patch.object(console, "_width", WIDTH),
    ):
        warnings.resetwarnings()
        for category in IGNORED_BY_PYTHON:
            warnings.simplefilter("ignore", category)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)
