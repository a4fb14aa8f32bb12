"""Rows and text that are not on this machine: files at an address, which are copied, and datasets of the Hub."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.formats.tables import find_label_names, name_labels
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, UnavailableError, error_summary
from bertkit.progress import stage
from bertkit.recipe.records import CorpusConfig, DataConfig
from bertkit.recipe.sections import expand_path
from bertkit.storage import files, hub
from bertkit.storage.cache import cache_folder, delete_unused, lock_folder, log_once
from bertkit.storage.fingerprints import leaves_folder

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_COPIED = ".copied.json"  # name of a copy -> state of its file when it was copied, or "" until it is copied
_WILDCARD = re.compile(r"[*?\[]")
_ADDRESSES: dict[Path, str] = {}
"""File or folder in the cache -> the address that this process copied it from."""


def is_remote(source: str | Path) -> bool:
    """Return whether a source is an address with a protocol, such as ``s3://bucket/rows.csv``."""
    return "://" in str(source)


def find_hub_dataset(data: DataConfig | CorpusConfig) -> str | None:
    """Return the id of the Hub dataset that rows or texts come from, or None if they come from elsewhere."""
    if match := re.match(r"hf://datasets/([^/@]+/[^/@]+)", data.source):
        return match[1]
    is_elsewhere = data.source == "demo" or data.files or is_remote(data.source) or expand_path(data.source).exists()
    return None if is_elsewhere else hub.split_revision(data.source)[0]


def find_source(source: str | Path) -> Path:
    """Return the path that a user means, or the path of the copy if the user gave an address.

    Raises:
        BertkitError: If the address cannot be copied; see `copy_remote`.
    """
    return copy_remote(str(source)) if is_remote(source) else expand_path(source)


def name_source(path: Path) -> str:
    """Return the name of a file in messages: the address if it is a copy, or else its path."""
    for copy in (path, *path.parents):
        if copy in _ADDRESSES:
            return "/".join([_ADDRESSES[copy], *path.relative_to(copy).parts])
    return str(path)


@cache  # Like a repository of the Hub, an address is looked up once per process.
def copy_remote(address: str) -> Path:
    """Copy a file, the files of a folder, or the files that match a pattern, into the cache.

    A file is copied again if it has changed, and its copy is deleted if the file is gone. After 30 days without use,
    all copies are deleted. If the address cannot be reached, complete copies are used as they are.

    Returns:
        The copy of the file, or the folder of the copies.

    Raises:
        DataError: If there is no file.
        UnavailableError: If the package for this protocol is not installed, or the files cannot be read.
        ResourceError: If the disk is full.
    """
    folder = cache_folder("remote") / hashlib.sha256(address.encode()).hexdigest()[:32]
    with lock_folder(folder):
        folder.mkdir(exist_ok=True)
        try:
            with files.disk_errors(folder):
                _copy_changed(address, folder)
        except BertkitError:
            raise
        except Exception as error:  # Each protocol has a client with its own errors.
            failure = _explain_failure(error, address)
            record = _read_record(folder)
            is_complete = bool(record) and all(record.values())
            if isinstance(failure, DataError) or not is_complete:
                raise failure from None
            log_once(f"read from the cache: {failure.message}")
        names = list(_read_record(folder))
    delete_unused(folder.parent)
    # Messages name the file, or the folder above the first wildcard of a pattern.
    name = _without_query(address)
    is_file = len(names) == 1 and name.endswith(f"/{names[0]}")
    copy = folder / names[0] if is_file else folder
    wildcard = _WILDCARD.search(name)
    _ADDRESSES[copy] = name[: wildcard.start()].rpartition("/")[0] if wildcard else name.rstrip("/")
    return copy


def _copy_changed(address: str, folder: Path) -> None:
    """Copy the files at an address that have changed, and delete the copies of files that are gone.

    Raises:
        FileNotFoundError: If there is no file.
    """
    import fsspec

    # 1. List the files. Names of copies start below the folder, because folders may be named after splits.
    system, path = fsspec.core.url_to_fs(address, **_client_options(address))
    wildcard = _WILDCARD.search(_without_query(path))
    if wildcard:
        root = path[: wildcard.start()].rpartition("/")[0]
        names = [name for name in system.glob(path) if system.isfile(name)]
    elif not path.endswith("/") and system.info(path)["type"] == "file":
        root, names = _without_query(path).rpartition("/")[0], [path]
    else:
        root, names = path, [name for name in system.find(path) if system.isfile(name)]
    if not names:
        raise FileNotFoundError(address)
    remote_names = {_without_query(name).removeprefix(root).lstrip("/"): name for name in sorted(names)}
    if any(map(leaves_folder, remote_names)):
        raise ValueError("a name with '..' in it would be copied elsewhere")

    # 2. Compare them with the copies. Without a record, or with a damaged one, all files are copied.
    states = {copy: _find_state(system, name) for copy, name in remote_names.items()}
    before = _read_record(folder)
    # A file that was deleted at its address must not be read as a split.
    for old_copy in before.keys() - states.keys():
        (folder / old_copy).unlink(missing_ok=True)
    copied = {
        copy: state if before.get(copy) == state and (folder / copy).is_file() else "" for copy, state in states.items()
    }

    # 3. Copy the others, and record each, so that an interrupted copy can be resumed.
    changed = [copy for copy, state in copied.items() if not state]
    files.write_json(folder / _COPIED, copied)
    if not changed:
        return
    with stage(f"copying {_without_query(address)}", len(changed)) as tick:
        for copy in changed:
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(folder / copy) as temporary:
                system.get_file(remote_names[copy], str(temporary))
            # The state is recorded after the copy is complete: a kill in between copies the file again.
            copied[copy] = states[copy]
            files.write_json(folder / _COPIED, copied)
            tick(1)


def _client_options(address: str) -> dict[str, Any]:
    """Return the options of the client of web servers: timeouts of the Hub's client, and its proxies and logins."""
    if not address.startswith("http"):
        return {}
    import aiohttp
    from huggingface_hub import constants

    # By default, aiohttp waits for five minutes, and then also aborts a long download that makes progress.
    timeout = aiohttp.ClientTimeout(sock_connect=10, sock_read=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _without_query(address: str) -> str:
    """Return a web address without its query, which can hold a key, and hides the ending that shows the format."""
    return address.partition("?")[0] if address.startswith("http") else address


def _find_state(system: Any, name: str) -> str:
    """Return a text that changes if a file does. For fsspec, files of web servers never change."""
    if "https" not in system.protocol:
        return str(system.ukey(name))
    info = system.info(name)
    return str([info.get(key) for key in ("ETag", "Last-Modified", "size")])


def _read_record(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, RecursionError):
        record: dict[str, str] = json.loads((folder / _COPIED).read_text(encoding="utf-8"))
        return record
    return {}


def _explain_failure(error: Exception, address: str) -> DataError | UnavailableError:
    name = _without_query(address)
    if isinstance(error, ImportError):
        return UnavailableError(f"{name}: {error_summary(error)}", "install that package")
    if address.startswith("hf://") and (refusal := hub.explain(error, f"{name}: ")):
        return refusal
    # For fsspec, a file is not found if a web server refuses it or does not answer.
    is_web = address.startswith("http")
    cause: Any = (error.__cause__ if is_web and isinstance(error, FileNotFoundError) else None) or error
    status = getattr(cause, "status", None) if is_web else None
    if isinstance(cause, FileNotFoundError) or status in (404, 410):
        return DataError("no such file", "check the address, and that it can be reached", file=name)
    # The client's own messages repeat the address with its query, which can hold a key.
    problem, remedy = error_summary(cause), "check the address and your access"
    if status:
        problem = f"the server answered {status} {cause.message}"
    elif is_web and isinstance(cause, TimeoutError):
        problem, remedy = "the server does not answer", "try again later, or set HF_HUB_DOWNLOAD_TIMEOUT"
    elif is_web and type(cause).__name__ == "ClientPayloadError":
        problem, remedy = "the connection was interrupted", hub.REPEAT
    return UnavailableError(f"{name}: {problem}", remedy)


# --- Datasets of the Hub ---


_INSTEAD = "--data DIR or FILE with the same columns, or --data demo (comes with bertkit)"


def read_hub_split(data: DataConfig, split: str, *, streaming: bool = False) -> Iterator[Record]:
    """Yield the rows of a split, numbered from 1; class labels come out as their names.

    The files of all splits are downloaded first. With `streaming`, rows are read as they are needed instead.

    Raises:
        UnavailableError: If the Hub does not give the dataset and the cache lacks it, or the connection is lost.
        DataError: If the name is not possible, there is no such configuration or split, a file is damaged, or
            ``data.revision`` is not the revision in ``org/name@revision``.
    """
    from huggingface_hub.utils import httpx

    source, revision = hub.split_revision(data.source)
    if revision and data.revision not in (None, revision):
        problem = f"{data.source} and data.revision {data.revision} are two revisions of one dataset"
        raise DataError(problem, "leave one of them out: --set data.revision=null")
    data = data.model_copy(update={"source": source, "revision": revision or data.revision})
    table = _open_split(data, split, streaming=streaming)
    # A stream of csv or JSON files has no features.
    labels = find_label_names(table.features.to_dict() if table.features else {})
    try:
        for position, row in enumerate(table, start=1):
            yield position, name_labels(row, labels, data.source, position)
    except (OSError, httpx.HTTPError) as error:  # the errors of all network libraries
        problem = f"{data.source}: reading was interrupted ({str(error) or type(error).__name__})"
        raise UnavailableError(problem, "the same command continues from the last checkpoint") from None


def _open_split(data: DataConfig, split: str, *, streaming: bool) -> Dataset | IterableDataset:
    """Open a split of the Hub or, if the Hub does not give it, of the cache of `datasets`."""
    if not hub.is_name(data.source):
        raise DataError(f"{data.source!r} is neither a path nor a name on the Hub", _INSTEAD)
    import datasets
    from huggingface_hub.utils import httpx

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity_error()
    try:
        if hub.is_offline_by_choice():
            raise UnavailableError("offline mode is on")
        repository = hub.get_repo_info("dataset", data.source, data.revision)
    except UnavailableError as error:
        return _open_cached(data, split, error)
    try:
        return _open_online(data, split, repository, streaming=streaming)
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        if refused := hub.explain(error, f"{data.source}: "):
            raise refused from None
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the disk
        # An unknown configuration or split, a script, or files that are missing or damaged.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise DataError(f"{data.source}: {error_summary(cause)}", "see data.config and data.splits") from None


def _open_online(
    data: DataConfig, split: str, repository: hub.Repository, *, streaming: bool
) -> Dataset | IterableDataset:
    """Download the files of a configuration, compare their checksums, and prepare them in the cache of `datasets`."""
    import datasets

    # The commit instead of a branch keeps all files consistent, even if the dataset changes in the meantime.
    builder = datasets.load_dataset_builder(data.source, data.config, revision=repository.commit)
    if streaming:
        return builder.as_streaming_dataset(split=split)
    prefix = f"hf://datasets/{repository.name}@{repository.commit}/"
    paths: Iterable[list[str]] = (builder.config.data_files or {}).values()
    names = [path.removeprefix(prefix) for split_paths in paths for path in split_paths]
    hub.fetch(repository, [name for name in names if name in repository.files])
    hub.write_ref(repository)
    # The sizes on the card of a dataset can be out of date, and checksums are compared above.
    builder.download_and_prepare(verification_mode="no_checks")
    return builder.as_dataset(split=split)


def _open_cached(data: DataConfig, split: str, refusal: UnavailableError) -> Dataset:
    """Open a split that bertkit or another program prepared in the cache of `datasets`.

    Raises:
        UnavailableError: If the cache lacks it; the message has the reason of the Hub too.
    """
    import datasets

    fetched = hub.cached_folder("dataset", data.source, data.revision)
    commit = fetched.name if fetched else data.revision
    table = None
    with suppress(OSError, ValueError), hub.offline():
        builder = datasets.load_dataset_builder(data.source, data.config)
        # `datasets` takes the commit that was prepared last.
        table = builder.as_dataset(split=split) if commit in (None, builder.hash) else None
    if table is not None:
        if not hub.is_offline_by_choice():
            log_once(f"{data.source} is read from the cache: {refusal.message}")
        return table
    problem = f"the dataset {data.source!r} is neither a path nor in the cache, and {refusal.message}"
    remedy = _INSTEAD if datasets.config.HF_HUB_OFFLINE else f"{refusal.remedy}; or {_INSTEAD}"
    raise UnavailableError(problem, remedy)
