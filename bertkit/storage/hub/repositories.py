"""Models and datasets of the Hub at one commit: looked up, fetched and kept in the Hub's own cache; commits to models.

Time-outs, proxies, tokens and the endpoint are those of `huggingface_hub`. Its errors become one line with a remedy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bertkit.errors import ModelError, UnavailableError, message_of
from bertkit.progress import log
from bertkit.storage.files import write_text

_unreachable = ""  # why the hub cannot be reached, once it has been tried


@dataclass(frozen=True)
class Repository:
    """A model or a data set of the hub at one commit."""

    type: str
    """``model`` or ``dataset``."""
    name: str
    revision: str
    commit: str
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Path -> what the hub says of the file: ``size``, ``blobId`` and, if it is large, ``lfs`` with its SHA-256."""

    @property
    def folder(self) -> Path:
        """The folder of this commit in the cache, where the files are that were fetched."""
        return _cache_folder(self.type, self.name) / "snapshots" / self.commit


def is_name(text: str) -> bool:
    """Tell whether a model or a data set of the hub may have this name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def look_up(repo_type: str, name: str, revision: str | None = None) -> Repository:
    """Ask the hub for the commit of a revision and for its files.

    The hub is asked once per process, and has HF_HUB_ETAG_TIMEOUT seconds to answer. If it cannot be reached, nothing
    else is asked of it. If it is overloaded, it is asked again, later and later, unless the cache has an answer.

    Raises:
        UnavailableError: the hub cannot be reached, or its answer is no.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise UnavailableError(_unreachable or "the hub cannot be reached", TRY_LATER)
    return _look_up(repo_type, name, revision or constants.DEFAULT_REVISION)


@cache
def _look_up(repo_type: str, name: str, revision: str) -> Repository:
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, http_backoff, httpx

    with answering():
        try:
            request = partial(http_backoff, retry_on_exceptions=())
            response = (get_session().request if cached_folder(repo_type, name, revision) else request)(
                "GET",
                f"{constants.ENDPOINT}/api/{repo_type}s/{name}/revision/{quote(revision, safe='')}",
                params={"blobs": True},
                headers=build_hf_headers(),
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
            hf_raise_for_status(response)
        except httpx.TransportError as error:
            _go_offline(str(explain(error)).partition(" - ")[0])
            raise
    try:
        answer = response.json()
        files = {sibling["rfilename"]: sibling for sibling in answer["siblings"]}
        return Repository(repo_type, name, revision, answer["sha"], files)
    except (ValueError, KeyError, TypeError):
        what = f"{constants.ENDPOINT} does not answer as a hub does"
        raise UnavailableError(what, "check HF_ENDPOINT and the proxy") from None


def fetch(repository: Repository, files: Iterable[str]) -> Path:
    """Download those of the files that the cache lacks, and return the folder with all of them.

    A download that breaks off goes on where it was, a few times. What has arrived is compared with the hub's checksums.

    Raises:
        UnavailableError: the hub does not give a file, or not the whole of it, or another one.
    """
    from huggingface_hub import hf_hub_download

    missing = [name for name in files if not (repository.folder / name).exists()]
    if missing:
        size = sum(repository.files[name].get("size") or 0 for name in missing)
        log.info(f"downloading {', '.join(missing)} of {repository.name} ({size / 1e6:,.1f} MB)")
    for name in missing:
        with answering(f"{repository.name}, {name}: "):
            hf_hub_download(repository.name, name, repo_type=repository.type, revision=repository.commit)
        _refuse_damaged(repository, name)
    return repository.folder


def remember(repository: Repository) -> None:
    """Note in the cache which commit the revision is, for when the hub cannot be asked.

    This comes after all files of the commit, so that a broken-off update leaves the commit before it in use.
    """
    if cached_folder(repository.type, repository.name, repository.revision) != repository.folder:
        reference = _cache_folder(repository.type, repository.name) / "refs" / repository.revision
        with suppress(OSError):  # the cache may be read-only
            reference.parent.mkdir(parents=True, exist_ok=True)
            write_text(reference, repository.commit)


def cached_folder(repo_type: str, name: str, revision: str | None = None) -> Path | None:
    """Return the folder in the cache of the commit that a revision was when it was fetched; None if there is none."""
    from huggingface_hub import constants

    folder = _cache_folder(repo_type, name)
    reference = folder / "refs" / (revision or constants.DEFAULT_REVISION)
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / (commit or "")
    return snapshot if commit and snapshot.is_dir() else None


@contextmanager
def offline() -> Iterator[None]:
    """Keep the Hugging Face libraries from asking the hub inside."""
    before = {name: module.HF_HUB_OFFLINE for name, module in _with_offline_flag()}
    for _, module in _with_offline_flag():
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for name, module in _with_offline_flag():
            module.HF_HUB_OFFLINE = before[name]


def is_offline_by_choice() -> bool:
    """Tell whether it is the user who keeps the libraries from asking the hub, and not that nobody has answered."""
    return not _unreachable and any(module.HF_HUB_OFFLINE for _, module in _with_offline_flag())


def _go_offline(reason: str) -> None:
    """Keep the Hugging Face libraries, also those imported later, from asking a hub that does not answer."""
    global _unreachable
    _unreachable = reason
    os.environ["HF_HUB_OFFLINE"] = "1"
    for _, module in _with_offline_flag():
        module.HF_HUB_OFFLINE = True


def _with_offline_flag() -> list[tuple[str, Any]]:
    names = ("huggingface_hub.constants", "datasets.config")
    return [(name, sys.modules[name]) for name in names if name in sys.modules]


def _refuse_damaged(repository: Repository, name: str) -> None:
    """Compare a file that has arrived with the hub's checksum, SHA-256 or Git's, and delete it if it is another."""
    from huggingface_hub.utils.sha import git_hash, sha_fileobj

    file, about = repository.folder / name, repository.files[name]
    sha256 = (about.get("lfs") or {}).get("sha256")
    with file.open("rb") as stream:
        actual = sha_fileobj(stream).hex() if sha256 else git_hash(stream.read())
    if actual != (sha256 or about.get("blobId", actual)):
        file.resolve().unlink()
        file.unlink(missing_ok=True)
        what = f"{repository.name}, {name}: what has arrived is damaged (its checksum is not the hub's), and is deleted"
        raise UnavailableError(what, REPEAT)


def _cache_folder(repo_type: str, name: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=repo_type))


TRY_LATER = "try again later"
REPEAT = "repeat the command: whole files are kept"


@contextmanager
def answering(subject: str = "") -> Iterator[None]:
    """Turn what the hub's libraries raise inside into one line, after `subject`.

    Raises:
        UnavailableError: the hub cannot be reached, breaks off, or its answer is no.
    """
    from huggingface_hub.errors import XetDownloadError
    from huggingface_hub.utils import httpx

    try:
        yield
    except (OSError, httpx.HTTPError, RuntimeError, XetDownloadError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, TimeoutError)):
            raise  # of the disk
        failed = f"the transfer failed ({message_of(error.__cause__ or error)})"
        raise explain(error, subject) or UnavailableError(subject + failed, REPEAT) from None


def explain(error: BaseException, subject: str = "") -> UnavailableError | None:
    """Say in one line, after `subject`, what the hub answered that led to an error; None if it did not come from it."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import httpx

    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for cause in chain:
        if isinstance(cause, HfHubHTTPError) and cause.response is not None:
            what, remedy = _read_answer(cause.response)
            return UnavailableError(subject + what, remedy)
    for cause in chain:
        reason = message_of(cause)
        if isinstance(cause, (httpx.ReadError, httpx.RemoteProtocolError)):
            return UnavailableError(f"{subject}the connection broke off ({reason})", REPEAT)
        if isinstance(cause, (httpx.TransportError, ConnectionError, TimeoutError)):
            return UnavailableError(f"{subject}the hub cannot be reached ({reason})", TRY_LATER)
    return None


def _read_answer(response: Any) -> tuple[str, str]:
    """Return what an answer of the hub that is a refusal means, and the remedy."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    log_in = "`hf auth login`"
    if code == "GatedRepo":
        return f"it is gated ({status})", f"ask for access on its page of the hub, then log in with {log_in}"
    if code == "RevisionNotFound":
        return f"the hub does not have this revision of it ({status})", "check the revision"
    if code == "EntryNotFound":
        return f"the hub does not have this file ({status})", TRY_LATER
    if status == 401 and "Authorization" in response.request.headers:
        return "the hub does not accept your token for it (401)", f"check the name, or log in again with {log_in}"
    if status == 429:
        wait = response.headers.get("Retry-After", "")
        when = f"in {wait} s" if wait.isdigit() else "later"
        return "the hub takes no more requests for now (429)", f"try again {when}; {log_in} raises the limit"
    if status >= 500:
        return f"the hub fails ({f'{status} {response.reason_phrase}'.strip()})", TRY_LATER
    meanings = {
        401: ("the hub does not show it without a login (401)", f"check the name, or log in with {log_in}"),
        403: ("the hub forbids it (403)", f"check what your token permits, or log in with {log_in}"),
        404: ("the hub does not have it (404)", "check the name"),
    }
    return meanings.get(status, (f"the hub answers {status} {response.reason_phrase}", TRY_LATER))


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
