"""Commits to model repositories of the hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, UnavailableError
from bertkit.storage.hub.answers import answering


def check_token() -> None:
    """Check that there is a token to write with.

    Raises:
        UnavailableError: there is none.
    """
    from huggingface_hub import get_token

    if get_token() is None:
        raise UnavailableError("there is no token for the hub", "log in with `hf auth login`, or set HF_TOKEN")


def find_repository(name: str) -> Any | None:
    """Return what the hub says of a model, as `huggingface_hub.ModelInfo`; None where it has none of this name.

    Raises:
        UnavailableError: the hub cannot be reached, or its answer is no.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    with answering(f"{name}: "):
        try:
            return HfApi().model_info(name)
        except RepositoryNotFoundError:  # to a token that may not see it too, which cannot create it either
            return None


def create_repository(name: str, *, private: bool) -> None:
    """Create an empty model repository; raises what `find_repository` does."""
    from huggingface_hub import HfApi

    with answering(f"{name}: "):
        HfApi().create_repo(name, private=private, exist_ok=True)


def commit_files(
    name: str, files: Mapping[str, Path], deleted: Iterable[str], *, parent: str | None, message: str
) -> str:
    """Add and delete files of a model in one commit, which is made whole or not at all; return the newest commit.

    Large files are sent first, and those that have arrived are not sent again when the command is repeated.

    Args:
        name: of the model.
        files: path there -> file.
        deleted: paths there.
        parent: the newest commit, where one is known: the hub refuses if there is a newer one by now.
        message: of the commit.

    Raises:
        ModelError: the hub does not accept the metadata of the card.
        UnavailableError: the hub cannot be reached, breaks off, or its answer is no.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    operations = [CommitOperationAdd(path, file) for path, file in files.items()]
    operations += [CommitOperationDelete(path) for path in deleted]
    with answering(f"{name}: "):
        try:
            return str(HfApi().create_commit(name, operations, commit_message=message, parent_commit=parent).oid)
        except ValueError as error:
            if "README.md" not in str(error):
                raise
            why = " ".join(str(error).partition("\n")[2].split())
            raise ModelError(f"the hub does not accept the metadata of the card ({why})", "correct it") from None
