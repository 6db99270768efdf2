"""The layout of an exported ONNX file: its ports, its metadata, its checksum.

What the code around the graph has to know is JSON under the metadata key `rcdt_agent`. The last
metadata entry is `sha256`, and its value is the last 64 bytes of the file: the checksum of all
that comes before, which is compared before anything of the file is parsed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rcdt_agent.errors import CheckpointError
from rcdt_agent.version import __version__

METADATA_KEY, CHECKSUM_KEY = "rcdt_agent", "sha256"
FORMAT_VERSION = 2
INPUTS = {
    "observations": "obs",
    "actions": "actions",
    "returns_to_go": "rtg",
    "costs_to_go": "ctg",
    "timesteps": "timesteps",
}
"""Inputs of the graph, and the field of a `Window` that each takes."""
OUTPUTS, DISCRETE_OUTPUTS = ("action", "log_std"), ("action", "log_prob")
NO_CHECKSUM = "0" * 64


def seal(content: bytes) -> bytes:
    """A serialised model that ends in `NO_CHECKSUM`, with its checksum there instead."""
    unsealed = NO_CHECKSUM.encode()
    assert content.endswith(unsealed)
    body = content[: -len(unsealed)]
    return body + _checksum(body)


def read_sealed(path: Path) -> bytes:
    """The bytes of an exported file, as they were written.

    Raises:
        CheckpointError: Not there, not written by `export_onnx`, or changed since.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    size = len(NO_CHECKSUM)
    if content[-size:] != _checksum(content[:-size]):
        if METADATA_KEY.encode() not in content:
            raise CheckpointError(f"{path}: not a policy exported by rcdt_agent.")
        raise CheckpointError(
            f"{path}: damaged, changed after its export, or exported before format "
            f"{FORMAT_VERSION}: export the agent again."
        )
    return content


def parse_metadata(text: str | None, path: Path) -> dict[str, Any]:
    """What a file says of itself.

    Raises:
        CheckpointError: Not ours, or of another format.
    """
    with as_file_error(path):
        metadata = json.loads(text or "null")
        version = metadata["format_version"]
        writer = metadata["versions"]["rcdt_agent"]
    if version != FORMAT_VERSION:
        newer = not isinstance(version, int) or version > FORMAT_VERSION
        remedy = "Update rcdt_agent to run it" if newer else "Export the agent again"
        raise CheckpointError(
            f"{path}: exported in format {version} by rcdt_agent {writer}; rcdt_agent "
            f"{__version__} runs format {FORMAT_VERSION}. {remedy}."
        )
    values: dict[str, Any] = metadata
    return values


@contextmanager
def as_file_error(path: Path) -> Iterator[None]:
    """Turn any failure to make something of a file's contents into our error.

    Raises:
        CheckpointError: Names the file and what went wrong.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # the contents may be anything: whatever fails is their fault
        raise CheckpointError(
            f"{path}: not a policy that rcdt_agent {__version__} can run "
            f"({type(error).__name__}: {error})."
        ) from error


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
