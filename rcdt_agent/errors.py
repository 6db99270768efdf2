"""Errors that a user can act on; each is also a built-in error (ValueError, RuntimeError)."""

from __future__ import annotations


class RCDTError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidArgumentError(RCDTError, ValueError):
    """An argument is outside its rule; the message names argument, rule and value."""


class UnknownTaskError(InvalidArgumentError):
    """A task id that the registry does not hold; the message names the nearest ids."""


class SimulatorError(RCDTError, RuntimeError):
    """A simulator is not installed or does not start; the message says what to run."""


class DatasetError(RCDTError, ValueError):
    """A dataset is wrong; the message names the file, the key and the first offending row."""


class DownloadError(RCDTError, RuntimeError):
    """A dataset file could not be fetched; the message says which file to put where."""


class HubError(RCDTError, RuntimeError):
    """A model hub refused a request or could not be reached; the message names the repository."""


class CheckpointError(RCDTError, ValueError):
    """A checkpoint is damaged, too new, or does not fit; the message says which."""


class StateError(RCDTError, RuntimeError):
    """A state was dropped, is of another episode, or has not seen its last reward and cost."""


class TrainingError(RCDTError, RuntimeError):
    """Training cannot go on (for example a term is no longer finite); the message says why."""


class LostProcessError(RCDTError, RuntimeError):
    """Another process of a distributed training is gone; the message says where this one was."""
