"""Functions of tensors that run outside Python, where torch can still do that."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., object])


def script(function: Function) -> Function:
    """The function as a TorchScript program, or itself if this torch has none.

    It computes the same either way. As a program it does not hold Python's global lock, without
    which two parts of a batch side by side would wait for each other at every operation.
    """
    compiler = getattr(torch.jit, "script", None)
    if compiler is None:
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return cast(Function, compiler(function))
