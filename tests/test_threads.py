"""Pieces of work side by side: in order, on one core each, and torch's own threads left alone."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest
import torch

from rcdt_agent.threads import in_lanes, keep_freed_memory


def test_runs_come_back_in_order(threads):
    threads(2)
    assert in_lanes(list, range(5)) == [[0, 1], [2, 3, 4]]
    assert in_lanes(list, [7]) == [[7]]
    threads(1)
    assert in_lanes(list, range(5)) == [[0, 1, 2, 3, 4]]


def test_each_run_has_one_core_and_its_own_thread(threads):
    threads(2)
    meeting = threading.Barrier(2, timeout=10)  # passes only if both run at the same time

    def look(_):
        meeting.wait()
        return torch.get_num_threads(), threading.get_ident()

    (one, here), (two, there) = in_lanes(look, range(2))
    assert (one, two) == (1, 1)
    assert here != there
    assert torch.get_num_threads() == 2


def test_a_run_alone_keeps_torchs_threads(threads):
    threads(2)
    assert in_lanes(lambda _: torch.get_num_threads(), [0]) == [2]


def test_an_error_of_a_run_is_raised(threads):
    threads(2)

    def fail(items):
        if 3 in items:
            raise ValueError("three")
        return items

    with pytest.raises(ValueError, match="three"):
        in_lanes(fail, range(4))
    assert in_lanes(sum, range(4)) == [1, 5]


def test_a_forked_process_makes_threads_of_its_own(threads):
    threads(2)
    in_lanes(list, range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 advises against it
        child = os.fork()
    if child == 0:
        os._exit(0 if in_lanes(list, range(2)) == [[0], [1]] else 1)
    for _ in range(100):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child waits for threads it does not have")
    assert os.waitstatus_to_exitcode(status) == 0


def test_memory_settings_can_be_made_again():
    keep_freed_memory()
    keep_freed_memory()
    assert torch.ones(1_000_000).sum() == 1_000_000
