"""Models and datasets of the Hub at one commit: looked up, fetched and kept in the Hub's own cache; commits to models.

Timeouts, proxies, tokens and the endpoint come from `huggingface_hub`. Its errors become one line with a remedy.
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

from bertkit.errors import ModelError, UnavailableError, error_summary
from bertkit.progress import log
from bertkit.storage.files import write_text

_unreachable = ""  # reason why the Hub cannot be reached, after a failed request


@dataclass(frozen=True)
class Repository:
    """Model or dataset on the Hub at one commit."""

    type: str
    """``model`` or ``dataset``."""
    name: str
    revision: str
    commit: str
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Path -> metadata on the Hub: ``size``, ``blobId`` and, for a large file, ``lfs`` with its SHA-256."""

    @property
    def folder(self) -> Path:
        """Folder of this commit in the cache, with the downloaded files."""
        return _cache_folder(self.type, self.name) / "snapshots" / self.commit


def is_name(text: str) -> bool:
    """Return whether a model or a dataset on the Hub can have this name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def get_repo_info(repo_type: str, name: str, revision: str | None = None) -> Repository:
    """Request the commit of a revision and its files from the Hub, once per process.

    The timeout is HF_HUB_ETAG_TIMEOUT seconds. If the Hub cannot be reached, there are no further requests. If it is
    overloaded, the request is repeated at increasing intervals, unless the cache has an answer.

    Raises:
        UnavailableError: If the Hub cannot be reached, or rejects the request.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise UnavailableError(_unreachable or "the Hub cannot be reached", TRY_LATER)
    return _look_up(repo_type, name, revision or constants.DEFAULT_REVISION)


@cache
def _look_up(repo_type: str, name: str, revision: str) -> Repository:
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, http_backoff, httpx

    with hub_errors():
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
            # Each further request would wait for the timeout again.
            _set_offline(str(explain(error)).partition(" - ")[0])
            raise
    try:
        answer = response.json()
        files = {sibling["rfilename"]: sibling for sibling in answer["siblings"]}
        return Repository(repo_type, name, revision, answer["sha"], files)
    except (ValueError, KeyError, TypeError):
        message = f"{constants.ENDPOINT} does not answer like the Hub"
        raise UnavailableError(message, "check HF_ENDPOINT and the proxy") from None


def fetch(repository: Repository, files: Iterable[str]) -> Path:
    """Download the files that the cache lacks, and return the folder with all files.

    An interrupted download is resumed a few times. Downloaded files are compared with the checksums of the Hub.

    Raises:
        UnavailableError: If the Hub does not give a file, or a download is incomplete or damaged.
    """
    from huggingface_hub import hf_hub_download

    missing = [name for name in files if not (repository.folder / name).exists()]
    if missing:
        size = sum(repository.files[name].get("size") or 0 for name in missing)
        log.info(f"downloading {', '.join(missing)} of {repository.name} ({size / 1e6:,.1f} MB)")
    for name in missing:
        with hub_errors(f"{repository.name}, {name}: "):
            hf_hub_download(repository.name, name, repo_type=repository.type, revision=repository.commit)
        _check_download(repository, name)
    return repository.folder


def read_benchmark(name: str, revision: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """Return the commit of a dataset and the tasks in its ``eval.yaml``; no tasks if it is not a benchmark.

    The specification is https://huggingface.co/docs/hub/eval-results.
    """
    import yaml

    folder = cached_folder("dataset", name, revision)
    with suppress(UnavailableError):
        repository = get_repo_info("dataset", name, revision)
        folder = fetch(repository, {"eval.yaml"} & repository.files.keys())
    try:
        if folder and (file := folder / "eval.yaml").is_file():
            tasks = yaml.safe_load(file.read_text(encoding="utf-8"))["tasks"]
            return folder.name, [task for task in tasks if isinstance(task["id"], str)]
    except (ValueError, TypeError, KeyError, yaml.YAMLError):
        log.warning(f"warning: eval.yaml of {name} is not valid, so there are no results for its leaderboard")
    return "", []


def write_ref(repository: Repository) -> None:
    """Store the commit of a revision in the cache, for use without the Hub.

    It is stored after all files of the commit, so that an interrupted update leaves the previous commit in use.
    """
    if cached_folder(repository.type, repository.name, repository.revision) != repository.folder:
        reference = _cache_folder(repository.type, repository.name) / "refs" / repository.revision
        with suppress(OSError):  # The cache can be read-only.
            reference.parent.mkdir(parents=True, exist_ok=True)
            write_text(reference, repository.commit)


def cached_folder(repo_type: str, name: str, revision: str | None = None) -> Path | None:
    """Return the folder in the cache for the last downloaded commit of a revision, or None."""
    from huggingface_hub import constants

    folder = _cache_folder(repo_type, name)
    reference = folder / "refs" / (revision or constants.DEFAULT_REVISION)
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / (commit or "")
    return snapshot if commit and snapshot.is_dir() else None


@contextmanager
def offline() -> Iterator[None]:
    """Keep the Hugging Face libraries from sending requests inside the block."""
    before = {name: module.HF_HUB_OFFLINE for name, module in _with_offline_flag()}
    for _, module in _with_offline_flag():
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for name, module in _with_offline_flag():
            module.HF_HUB_OFFLINE = before[name]


def is_offline_by_choice() -> bool:
    """Return whether the user chose offline mode, rather than bertkit because the Hub cannot be reached."""
    return not _unreachable and any(module.HF_HUB_OFFLINE for _, module in _with_offline_flag())


def _set_offline(reason: str) -> None:
    """Set the Hugging Face libraries, also libraries imported later, to offline mode."""
    global _unreachable
    _unreachable = reason
    # Libraries that are imported later read the variable; the others have read it already.
    os.environ["HF_HUB_OFFLINE"] = "1"
    for _, module in _with_offline_flag():
        module.HF_HUB_OFFLINE = True


def _with_offline_flag() -> list[tuple[str, Any]]:
    names = ("huggingface_hub.constants", "datasets.config")
    return [(name, sys.modules[name]) for name in names if name in sys.modules]


def _check_download(repository: Repository, name: str) -> None:
    """Compare a downloaded file with the Hub's checksum, SHA-256 or Git's, and delete it if they differ."""
    from huggingface_hub.utils.sha import git_hash, sha_fileobj

    file, about = repository.folder / name, repository.files[name]
    sha256 = (about.get("lfs") or {}).get("sha256")
    with file.open("rb") as stream:
        # Only large files have a SHA-256 on the Hub. Others have the id of Git's blob.
        actual = sha_fileobj(stream).hex() if sha256 else git_hash(stream.read())
    if actual != (sha256 or about.get("blobId", actual)):
        file.resolve().unlink()
        file.unlink(missing_ok=True)
        message = f"{repository.name}, {name}: what has arrived is damaged (checksum mismatch) and is deleted"
        raise UnavailableError(message, REPEAT)


def _cache_folder(repo_type: str, name: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=repo_type))


TRY_LATER = "try again later"
REPEAT = "repeat the command: whole files are kept"


@contextmanager
def hub_errors(subject: str = "") -> Iterator[None]:
    """Convert the errors of the Hub's libraries to one line that starts with `subject`.

    Raises:
        UnavailableError: If the Hub cannot be reached, interrupts the connection, or rejects the request.
    """
    from huggingface_hub.errors import XetDownloadError
    from huggingface_hub.utils import httpx

    try:
        yield
    except (OSError, httpx.HTTPError, RuntimeError, XetDownloadError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, TimeoutError)):
            raise  # an error of the disk
        failure = f"the transfer failed ({error_summary(error.__cause__ or error)})"
        raise explain(error, subject) or UnavailableError(subject + failure, REPEAT) from None


def explain(error: BaseException, subject: str = "") -> UnavailableError | None:
    """Return the error for a failed request, whose message starts with `subject`, or None for any other error."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.utils import httpx

    # Libraries wrap the error of a request several times, and only the inner one has the response.
    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for cause in chain:
        if isinstance(cause, HfHubHTTPError) and cause.response is not None:
            message, remedy = _read_answer(cause.response)
            return UnavailableError(subject + message, remedy)
    for cause in chain:
        reason = error_summary(cause)
        if isinstance(cause, OfflineModeIsEnabled) and is_offline_by_choice():
            return UnavailableError(f"{subject}the Hub is not used, because HF_HUB_OFFLINE is set", "unset it")
        if isinstance(cause, (httpx.ReadError, httpx.RemoteProtocolError)):
            return UnavailableError(f"{subject}the connection was interrupted ({reason})", REPEAT)
        if isinstance(cause, (httpx.TransportError, ConnectionError, TimeoutError)):
            return UnavailableError(f"{subject}the Hub cannot be reached ({reason})", TRY_LATER)
    return None


def _read_answer(response: Any) -> tuple[str, str]:
    """Return the meaning of an error response of the Hub, and the remedy."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    log_in = "`hf auth login`"
    if code == "GatedRepo":
        return f"it is gated ({status})", f"request access on its page on the Hub, then log in with {log_in}"
    if code == "RevisionNotFound":
        return f"the Hub does not have this revision ({status})", "check the revision"
    if code == "EntryNotFound":
        return f"the Hub does not have this file ({status})", TRY_LATER
    if status == 401 and "Authorization" in response.request.headers:
        return "the Hub does not accept your token for it (401)", f"check the name, or log in again with {log_in}"
    if status == 429:
        wait = response.headers.get("Retry-After", "")
        when = f"in {wait} s" if wait.isdigit() else "later"
        return "the Hub accepts no more requests for now (429)", f"try again {when}; {log_in} raises the limit"
    if status >= 500:
        return f"the Hub failed ({f'{status} {response.reason_phrase}'.strip()})", TRY_LATER
    meanings = {
        401: ("the Hub does not show it without a login (401)", f"check the name, or log in with {log_in}"),
        403: ("the Hub forbids it (403)", f"check what your token permits, or log in with {log_in}"),
        404: ("the Hub does not have it (404)", "check the name"),
    }
    return meanings.get(status, (f"the Hub answered {status} {response.reason_phrase}", TRY_LATER))


def check_token() -> None:
    """Check that there is a token to write with.

    Raises:
        UnavailableError: If there is no token.
    """
    from huggingface_hub import get_token

    if get_token() is None:
        raise UnavailableError("there is no token for the Hub", "log in with `hf auth login`, or set HF_TOKEN")


def find_repository(name: str) -> Any | None:
    """Return the `huggingface_hub.ModelInfo` of a model on the Hub, or None if the Hub does not have it.

    Raises:
        UnavailableError: If the Hub cannot be reached, or rejects the request.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    with hub_errors(f"{name}: "):
        try:
            return HfApi().model_info(name)
        # The Hub also answers this for a private model of others, which the token cannot create either.
        except RepositoryNotFoundError:
            return None


def create_repository(name: str, *, private: bool) -> None:
    """Create an empty model repository.

    Raises:
        UnavailableError: If the Hub cannot be reached, or rejects the request.
    """
    from huggingface_hub import HfApi

    with hub_errors(f"{name}: "):
        HfApi().create_repo(name, private=private, exist_ok=True)


def commit_files(
    name: str, files: Mapping[str, Path], deleted: Iterable[str], *, parent: str | None, message: str
) -> str:
    """Add and delete files of a model in one atomic commit, and return the newest commit.

    Large files are uploaded first. Uploaded files are not sent again if the command is repeated.

    Args:
        name: Name of the model.
        files: Path in the repository -> file.
        deleted: Paths in the repository.
        parent: Newest known commit, or None; the Hub rejects the commit if there is a newer one.
        message: Commit message.

    Raises:
        ModelError: If the Hub does not accept the metadata of the card.
        UnavailableError: If the Hub cannot be reached, interrupts the connection, or rejects the request.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    operations = [CommitOperationAdd(path, file) for path, file in files.items()]
    operations += [CommitOperationDelete(path) for path in deleted]
    with hub_errors(f"{name}: "):
        try:
            return str(HfApi().create_commit(name, operations, commit_message=message, parent_commit=parent).oid)
        except ValueError as error:
            if "README.md" not in str(error):
                raise
            reason = " ".join(str(error).partition("\n")[2].split())
            raise ModelError(f"the Hub does not accept the metadata of the card ({reason})", "correct it") from None
