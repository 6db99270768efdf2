"""Agents on the Hugging Face hub: one file and its model card up, one file down.

What comes down is read like any other checkpoint: safetensors and JSON, nothing that runs. The
package `huggingface_hub` is an extra, imported when first used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcdt_agent.arguments import check_flags, check_path, check_texts
from rcdt_agent.errors import HubError, InvalidArgumentError
from rcdt_agent.model_card import write_card
from rcdt_agent.version import __version__

if TYPE_CHECKING:
    from rcdt_agent.algorithms.saved import SavedAgent

FILENAME = "agent.zip"
"""Of the agent in a repository."""
CARD = "README.md"
"""Of its model card there."""


def push_agent(
    agent: SavedAgent[Any, Any],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    training: bool = False,
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload an agent and its card in one commit; see `SavedAgent.push_to_hub`.

    Raises:
        InvalidArgumentError: The package is missing, `repo_id` is none, or the agent is untrained.
        HubError: The hub refused, or could not be reached.
    """
    _check_repo(repo_id)
    _check_access(revision, token, endpoint)
    check_texts(commit_message=commit_message)
    check_flags(training=training, **({} if private is None else {"private": private}))
    hub = _package()
    agent.policy  # noqa: B018  # untrained: refused before anything is sent
    api = hub.HfApi(
        endpoint=endpoint, token=token, library_name="rcdt_agent", library_version=__version__
    )
    with tempfile.TemporaryDirectory() as folder, _as_hub_error(repo_id):
        file, card = Path(folder) / FILENAME, Path(folder) / CARD
        agent.save(file, exclude=() if training else ("training",))
        write_card(agent, card, f'load_agent_from_hub("{repo_id}")')
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.create_commit(
            repo_id,
            [
                hub.CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path)
                for path in (file, card)
            ],
            commit_message=commit_message or f"{type(agent).__name__} after {agent.num_timesteps}",
            revision=revision,
        )
    return str(commit.commit_url)


def download_agent(
    repo_id: str,
    *,
    filename: str = FILENAME,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """The checkpoint of a repository in the local cache, downloaded if it is not there.

    Raises:
        InvalidArgumentError: The package is missing, or `repo_id` or `filename` is none.
        HubError: It is not there, must not be read, or the hub cannot be reached.
    """
    _check_repo(repo_id)
    if not isinstance(filename, str) or not filename or ".." in Path(filename).parts:
        raise InvalidArgumentError(
            f"`filename` must be a file of the repository, got {filename!r}."
        )
    _check_access(revision, token, endpoint)
    check_flags(local_files_only=local_files_only)
    if cache_dir is not None:
        check_path("cache_dir", cache_dir)
    hub = _package()
    with _as_hub_error(repo_id):
        found = hub.hf_hub_download(
            repo_id,
            filename,
            revision=revision,
            token=token,
            endpoint=endpoint,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            library_name="rcdt_agent",
            library_version=__version__,
        )
    return Path(found)


def _package() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InvalidArgumentError(
            "The hub needs the package huggingface_hub: pip install 'rcdt_agent[hub]'."
        ) from error
    return huggingface_hub


def _check_repo(repo_id: Any) -> None:
    if not isinstance(repo_id, str) or repo_id.count("/") > 1 or not repo_id.strip("/"):
        raise InvalidArgumentError(f"`repo_id` must be 'user/name', got {repo_id!r}.")


def _check_access(revision: Any, token: Any, endpoint: Any) -> None:
    check_texts(revision=revision, endpoint=endpoint)
    if not (token is None or isinstance(token, str | bool)):
        raise InvalidArgumentError(
            f"`token` must be a text, True, False or None, got {type(token).__name__}."
        )


@contextmanager
def _as_hub_error(repo_id: str) -> Iterator[None]:
    """Turn what the package raises into our errors, the first line of its words kept."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except (InvalidArgumentError, HubError):
        raise
    except HFValidationError as error:
        raise InvalidArgumentError(
            f"`repo_id` must be 'user/name', got {repo_id!r} ({_first_line(error)})."
        ) from error
    except Exception as error:  # HTTP, network, authorisation, files: many types of many packages
        cause = f" ({_first_line(error.__cause__)})" if error.__cause__ else ""
        reason = f"{type(error).__name__}: {_first_line(error)}{cause}"
        raise HubError(f"{repo_id}: {reason}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400]
