"""Checks of plain arguments, without torch: numbers, switches, text, functions, paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rcdt_agent.base_config import is_number, is_whole
from rcdt_agent.errors import InvalidArgumentError, RCDTError


def check_number(name: str, value: Any, low: float = -np.inf, high: float = np.inf) -> float:
    """A number within bounds (inclusive); NaN is none.

    Raises:
        InvalidArgumentError: It is not one.
    """
    if not is_number(value) or not low <= value <= high:
        bounds = f" >= {low:g}" if low > -np.inf else ""
        bounds += f"{' and' if bounds else ''} <= {high:g}" if high < np.inf else ""
        raise InvalidArgumentError(f"`{name}` must be a number{bounds}, got {value!r}.")
    return float(value)


def check_whole(name: str, value: Any, low: int = 0) -> int:
    """A whole number of at least `low`.

    Raises:
        InvalidArgumentError: It is not one.
    """
    if not is_whole(value) or value < low:
        raise InvalidArgumentError(f"`{name}` must be a whole number >= {low}, got {value!r}.")
    return int(value)


def check_flags(**flags: Any) -> None:
    """Switches by name, each True or False.

    Raises:
        InvalidArgumentError: One is something else.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise InvalidArgumentError(f"`{name}` must be True or False, got {value!r}.")


def check_texts(**texts: Any) -> None:
    """Texts by name, or None.

    Raises:
        InvalidArgumentError: One is something else.
    """
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgumentError(f"`{name}` must be a text or None, got {value!r}.")


def check_functions(**functions: Any) -> None:
    """Functions by name, or None.

    Raises:
        InvalidArgumentError: One is something else.
    """
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise InvalidArgumentError(f"`{name}` must be a function or None, got {value!r}.")


def check_path(name: str, value: Any) -> Path:
    """The path of a file or folder.

    Raises:
        InvalidArgumentError: It is not one.
    """
    if not isinstance(value, str | os.PathLike):
        raise InvalidArgumentError(f"`{name}` must be a path, got {value!r}.")
    return Path(value)


def as_floats(
    name: str, values: Any, error: type[RCDTError] = InvalidArgumentError, where: str = ""
) -> npt.NDArray[np.float32]:
    """Numbers as a float32 array of their shape.

    Args:
        name: Of the argument.
        values: Numbers in any form that numpy takes.
        error: To raise.
        where: Before the message, such as `file: `.

    Raises:
        RCDTError: `error`: they are not numbers, or not of one shape.
    """
    try:
        return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as cause:
        plain = not isinstance(values, list | tuple | np.ndarray)
        got = repr(values) if plain else str(cause)
        raise error(f"{where}`{name}` must be numbers of one shape, got {got}.") from cause
