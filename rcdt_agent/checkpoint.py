"""One zip of safetensors and JSON: everything an agent is, and nothing that could run.

`meta.json` holds plain values, `tensors.safetensors` every array. The file is written next to its
place and renamed, so it is complete or not there.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from rcdt_agent._io import atomic_write
from rcdt_agent.errors import CheckpointError, InvalidArgumentError, TrainingError

FORMAT = "rcdt_agent"
FORMAT_VERSION = 2
META, TENSORS = "meta.json", "tensors.safetensors"


def write_checkpoint(
    target: Path | BinaryIO, kind: str, meta: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write a checkpoint.

    Args:
        target: A path (written atomically) or an open binary file.
        kind: What is stored, e.g. `RCDT`; `read_checkpoint` checks it.
        meta: Anything JSON can hold.
        tensors: Named arrays, finite.

    Raises:
        TrainingError: A tensor is not finite; an older file at `target` stays.
        CheckpointError: The disk is full or the folder read-only; an older file stays here too.
    """
    bad = first_not_finite(tensors)
    if bad is not None:
        raise TrainingError(f"Not saved to {target}: `{bad}` is not finite.")
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": kind}
    text = json.dumps({**head, **meta}, allow_nan=False, sort_keys=True)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if not isinstance(target, Path):
        _write_zip(target, text, plain)
        return
    with atomic_write(target, CheckpointError) as partial, partial.open("wb") as file:
        _write_zip(file, text, plain)


def read_checkpoint(source: Path | BinaryIO, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read and check a checkpoint; nothing in it is executed.

    Raises:
        CheckpointError: Not there, damaged, of another kind, of another version, or with
            contents that do not belong; the message says which.
    """
    name = str(source) if isinstance(source, Path) else "checkpoint"
    with _opened(source, name) as archive:
        meta = _read_meta(archive, name)
        if meta.get("kind") != kind:
            raise CheckpointError(f"{name}: holds a {meta.get('kind')}, not a {kind}.")
        tensors = load_tensors(archive.read(TENSORS))
    bad = first_not_finite(tensors)
    if bad is not None:
        raise CheckpointError(f"{name}: damaged, its tensor `{bad}` is not finite.")
    return meta, tensors


def checkpoint_kind(source: Path | BinaryIO) -> str:
    """What a checkpoint holds, e.g. `RCDT`.

    Raises:
        CheckpointError: As `read_checkpoint`.
    """
    name = str(source) if isinstance(source, Path) else "checkpoint"
    with _opened(source, name) as archive:
        return str(_read_meta(archive, name).get("kind"))


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[zipfile.ZipFile]:
    """The archive, its members checked; whatever fails in the block is the file's fault."""
    if isinstance(source, Path) and not source.is_file():
        raise CheckpointError(f"{name}: there is no such file.")
    try:
        with zipfile.ZipFile(source) as archive:
            _check_members(archive, name)
            yield archive
    except CheckpointError:
        raise
    except Exception as error:  # the file may hold anything
        raise CheckpointError(f"{name}: damaged or cut short ({error}).") from error


def _read_meta(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    meta = json.loads(archive.read(META), parse_float=_finite_number, parse_constant=_finite_number)
    _check_head(meta, name)
    values: dict[str, Any] = meta
    return values


@contextmanager
def as_checkpoint_error(path: Any) -> Iterator[None]:
    """Turn any failure to make something of a checkpoint's contents into our error.

    Raises:
        CheckpointError: Names the file and what went wrong.
    """
    try:
        yield
    except Exception as error:  # the contents may be anything: whatever fails is their fault
        name = path if isinstance(path, str | Path) else "checkpoint"
        raise CheckpointError(f"{name}: its contents do not fit together ({error}).") from error


Module = TypeVar("Module", bound=nn.Module)


def load_module(make: Callable[[], Module], state: dict[str, Tensor]) -> Module:
    """Make a network and give it the weights of a checkpoint.

    The sizes a file asks for are compared with the weights it really holds before any memory is
    taken.

    Raises:
        CheckpointError: Names the first difference.
    """
    with torch.device("meta"):
        wanted = {name: tuple(value.shape) for name, value in make().state_dict().items()}
    held = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(wanted.keys() | held.keys()):
        if wanted.get(name) != held.get(name):
            raise CheckpointError(
                f"`{name}` must have shape {wanted.get(name)}, got {held.get(name)}"
            )
    module = make()
    module.load_state_dict(state)
    return module


def first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    """Name of the first tensor that holds NaN or infinity, if one does."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def flatten_state(state: dict[str, Any], prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Separate the tensors of nested dicts and lists from the plain values around them.

    Returns:
        Tensors by path, and the same structure with `{"tensor": path}` in their places.
    """
    tensors: dict[str, Tensor] = {}

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            tensors[path] = value
            return {"tensor": path}
        if isinstance(value, dict):
            return {
                "dict": [
                    [key, visit(inner, f"{path}/{key}" if path else str(key))]
                    for key, inner in value.items()
                ]
            }
        if isinstance(value, list | tuple):
            return {"list": [visit(inner, f"{path}/{i}") for i, inner in enumerate(value)]}
        return {"value": value}

    plain = visit(state, prefix)
    return tensors, plain


def unflatten_state(tensors: dict[str, Tensor], plain: Any) -> Any:
    """The inverse of `flatten_state`.

    Raises:
        CheckpointError: A tensor is missing.
    """
    if "tensor" in plain:
        if plain["tensor"] not in tensors:
            raise CheckpointError(f"The checkpoint lacks the tensor {plain['tensor']!r}.")
        return tensors[plain["tensor"]]
    if "dict" in plain:
        return {key: unflatten_state(tensors, inner) for key, inner in plain["dict"]}
    if "list" in plain:
        return [unflatten_state(tensors, inner) for inner in plain["list"]]
    return plain["value"]


def _write_zip(file: BinaryIO, text: str, tensors: dict[str, Tensor]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for member, content in ((META, text.encode()), (TENSORS, save_tensors(tensors))):
            # A fixed date: the same agent gives the same bytes.
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), content)


def _check_members(archive: zipfile.ZipFile, name: str) -> None:
    found = sorted(info.filename for info in archive.infolist())
    expected = sorted((META, TENSORS))
    if found != expected:
        strange = [member for member in found if member not in expected]
        reason = f"unexpected contents {strange}" if strange else f"only {found} inside"
        raise CheckpointError(
            f"{name}: not an rcdt_agent checkpoint, {reason}; nothing was loaded. Checkpoints hold "
            f"{expected} only, never pickled code."
        )
    # Stored as they are, members cannot be larger than the file: no small file fills the memory.
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise CheckpointError(f"{name}: compressed; checkpoints are not. Nothing was loaded.")


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{META} holds {text[:20]}, which is not finite")
    return value


def _check_head(meta: Any, name: str) -> None:
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{name}: not an rcdt_agent checkpoint.")
    version = meta.get("format_version")
    if version != FORMAT_VERSION:
        written_by = meta.get("versions")
        writer = written_by.get("rcdt_agent") if isinstance(written_by, dict) else "?"
        newer = not isinstance(version, int) or version > FORMAT_VERSION
        remedy = "Update rcdt_agent to load it" if newer else f"Load it with rcdt_agent {writer}"
        raise CheckpointError(
            f"{name}: written in format {version} by rcdt_agent {writer}; this version reads "
            f"format {FORMAT_VERSION}. {remedy}, or train again."
        )


def check_source(name: str, source: Any) -> None:
    """Refuse what is neither a path nor an open file."""
    if not isinstance(source, str | Path) and not hasattr(source, "seek"):
        raise InvalidArgumentError(
            f"`{name}` must be a path or an open binary file, got {source!r}."
        )


def to_path(path: str | Path | io.IOBase) -> Path | BinaryIO:
    """A path with `.zip` added where there is no suffix, as stable-baselines3 does."""
    if isinstance(path, str | Path):
        resolved = Path(path)
        return resolved if resolved.suffix else resolved.with_suffix(".zip")
    return path  # type: ignore[return-value]
