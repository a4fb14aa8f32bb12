"""Read rows and texts from other machines: files at an address, which are copied, and datasets on the Hub."""

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

_RECORD_FILE = ".copied.json"  # name of a copy -> state of the remote file when it was copied, or "" before
_WILDCARD = re.compile(r"[*?\[]")
_ADDRESSES: dict[Path, str] = {}
"""File or folder in the cache -> its address, for copies of this process."""


def is_remote(source: str | Path) -> bool:
    """Return whether a source has a protocol, such as ``s3://bucket/rows.csv``."""
    return "://" in str(source)


def find_hub_dataset(data: DataConfig | CorpusConfig) -> str | None:
    """Return the id of the source's dataset on the Hub, or None if the source is not on the Hub."""
    if match := re.match(r"hf://datasets/([^/@]+/[^/@]+)", data.source):
        return match[1]
    is_elsewhere = data.source == "demo" or data.files or is_remote(data.source) or expand_path(data.source).exists()
    return None if is_elsewhere else hub.split_revision(data.source)[0]


def find_source(source: str | Path) -> Path:
    """Return the path of a source or, for an address, the path of its copy.

    Raises:
        BertkitError: If the address cannot be copied; see `copy_remote`.
    """
    return copy_remote(str(source)) if is_remote(source) else expand_path(source)


def name_source(path: Path) -> str:
    """Return the name of a file in messages: the address of a copy, or the path of another file."""
    for copy in (path, *path.parents):
        if copy in _ADDRESSES:
            return "/".join([_ADDRESSES[copy], *path.relative_to(copy).parts])
    return str(path)


@cache  # check each address for changes once per process
def copy_remote(address: str) -> Path:
    """Copy a file, the files of a folder, or the files that match a pattern, into the cache.

    Changed files are copied again, and copies of deleted files are deleted. After 30 days without use, all copies are
    deleted. If the address cannot be reached, the existing copies are used if they are complete.

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
        except Exception as error:  # each protocol has other error classes
            failure = _explain_failure(error, address)
            record = _read_record(folder)
            is_complete = bool(record) and all(record.values())
            if isinstance(failure, DataError) or not is_complete:
                raise failure from None
            log_once(f"using the cached copy, because the address cannot be read: {failure.message}")
        copies = list(_read_record(folder))
    delete_unused(folder.parent)
    # For messages, store the address of the file, or of the folder above the first wildcard of a pattern.
    name = _strip_query(address)
    is_file = len(copies) == 1 and name.endswith(f"/{copies[0]}")
    location = folder / copies[0] if is_file else folder
    wildcard = _WILDCARD.search(name)
    _ADDRESSES[location] = name[: wildcard.start()].rpartition("/")[0] if wildcard else name.rstrip("/")
    return location


def _copy_changed(address: str, folder: Path) -> None:
    """Copy the files at an address that have changed, and delete copies of deleted files.

    Raises:
        FileNotFoundError: If there is no file.
    """
    import fsspec

    # 1. List the files. Copies keep their paths below the root, because folders can be named after splits.
    system, path = fsspec.core.url_to_fs(address, **_client_options(address))
    wildcard = _WILDCARD.search(_strip_query(path))
    if wildcard:
        root = path[: wildcard.start()].rpartition("/")[0]
        remote_files = [name for name in system.glob(path) if system.isfile(name)]
    elif not path.endswith("/") and system.info(path)["type"] == "file":
        root, remote_files = _strip_query(path).rpartition("/")[0], [path]
    else:
        root, remote_files = path, [name for name in system.find(path) if system.isfile(name)]
    if not remote_files:
        raise FileNotFoundError(address)
    remote_names = {_strip_query(name).removeprefix(root).lstrip("/"): name for name in sorted(remote_files)}
    if any(map(leaves_folder, remote_names)):
        raise ValueError("a name with '..' in it would be copied elsewhere")

    # 2. Compare the files with the copies. Without a valid record, all files are copied.
    states = {copy: _find_state(system, name) for copy, name in remote_names.items()}
    record = _read_record(folder)
    # Copies of deleted files must not be read as splits.
    for old_copy in record.keys() - states.keys():
        (folder / old_copy).unlink(missing_ok=True)
    copied = {
        copy: state if record.get(copy) == state and (folder / copy).is_file() else "" for copy, state in states.items()
    }

    # 3. Copy changed files, and record each, so that interrupted copying can be resumed.
    changed = [copy for copy, state in copied.items() if not state]
    files.write_json(folder / _RECORD_FILE, copied)
    if not changed:
        return
    with stage(f"copying {_strip_query(address)}", len(changed)) as update_progress:
        for copy in changed:
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(folder / copy) as temporary:
                system.get_file(remote_names[copy], str(temporary))
            # Record the state after the copy. If the process is killed in between, the file is copied again.
            copied[copy] = states[copy]
            files.write_json(folder / _RECORD_FILE, copied)
            update_progress(1)


def _client_options(address: str) -> dict[str, Any]:
    """Return options of the web client: the timeouts of huggingface_hub, and proxies and logins of the environment."""
    if not address.startswith("http"):
        return {}
    import aiohttp
    from huggingface_hub import constants

    # The default timeout of five minutes would also abort long downloads.
    timeout = aiohttp.ClientTimeout(sock_connect=10, sock_read=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _strip_query(address: str) -> str:
    """Return a web address without its query, which follows the file ending and can contain a key."""
    return address.partition("?")[0] if address.startswith("http") else address


def _find_state(system: Any, name: str) -> str:
    """Return a text that changes when the file changes."""
    # fsspec does not notice changes of files on web servers.
    if "https" not in system.protocol:
        return str(system.ukey(name))
    info = system.info(name)
    return str([info.get(key) for key in ("ETag", "Last-Modified", "size")])


def _read_record(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, RecursionError):
        record: dict[str, str] = json.loads((folder / _RECORD_FILE).read_text(encoding="utf-8"))
        return record
    return {}


def _explain_failure(error: Exception, address: str) -> DataError | UnavailableError:
    name = _strip_query(address)
    if isinstance(error, ImportError):
        return UnavailableError(f"{name}: {error_summary(error)}", "install that package")
    if address.startswith("hf://") and (hub_error := hub.explain(error, f"{name}: ")):
        return hub_error
    # fsspec also raises FileNotFoundError if a web server denies access or does not answer.
    is_web = address.startswith("http")
    cause: Any = (error.__cause__ if is_web and isinstance(error, FileNotFoundError) else None) or error
    status = getattr(cause, "status", None) if is_web else None
    if isinstance(cause, FileNotFoundError) or status in (404, 410):
        return DataError("no such file", "check the address, and whether it can be reached", file=name)
    # The messages of the client contain the address with its query, which can contain a key.
    problem, remedy = error_summary(cause), "check the address and your access"
    if status:
        problem = f"the server answered {status} {cause.message}"
    elif is_web and isinstance(cause, TimeoutError):
        problem, remedy = "the server does not answer", "try again later, or set HF_HUB_DOWNLOAD_TIMEOUT"
    elif is_web and type(cause).__name__ == "ClientPayloadError":
        problem, remedy = "the connection was interrupted", hub.REPEAT
    return UnavailableError(f"{name}: {problem}", remedy)


# --- Datasets of the Hub ---


_ALTERNATIVES = "use --data DIR or FILE with the same columns, or --data demo (comes with bertkit)"


def read_hub_split(data: DataConfig, split: str, *, streaming: bool = False) -> Iterator[Record]:
    """Yield the rows of a split, numbered from 1, with the names of class labels.

    The files of all splits are downloaded first. With `streaming`, rows are downloaded when they are needed.

    Raises:
        UnavailableError: If the dataset is neither available on the Hub nor in the cache, or the connection is lost.
        DataError: If the name is invalid, there is no such configuration or split, a file is damaged, or
            ``data.revision`` contradicts ``org/name@revision``.
    """
    from huggingface_hub.utils import httpx

    source, revision = hub.split_revision(data.source)
    if revision and data.revision not in (None, revision):
        problem = f"data.revision {data.revision} contradicts the revision in {data.source}"
        raise DataError(problem, "leave one of them out: --set data.revision=null")
    data = data.model_copy(update={"source": source, "revision": revision or data.revision})
    table = _open_split(data, split, streaming=streaming)
    # Streams of csv or JSON files have no features.
    labels = find_label_names(table.features.to_dict() if table.features else {})
    try:
        for position, row in enumerate(table, start=1):
            yield position, name_labels(row, labels, data.source, position)
    except (OSError, httpx.HTTPError) as error:  # the errors of all network libraries
        problem = f"{data.source}: reading was interrupted ({str(error) or type(error).__name__})"
        raise UnavailableError(problem, "the same command continues from the last checkpoint") from None


def _open_split(data: DataConfig, split: str, *, streaming: bool) -> Dataset | IterableDataset:
    """Open a split from the Hub or, if the Hub is unavailable, from the cache of `datasets`."""
    if not hub.is_name(data.source):
        raise DataError(f"{data.source!r} is neither a path nor a name on the Hub", _ALTERNATIVES)
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
        if hub_error := hub.explain(error, f"{data.source}: "):
            raise hub_error from None
        if isinstance(error, OSError) and error.errno:
            raise  # a disk error
        # The cause is an unknown configuration or split, a dataset script, or missing or damaged files.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise DataError(f"{data.source}: {error_summary(cause)}", "check data.config and data.splits") from None


def _open_online(
    data: DataConfig, split: str, repository: hub.Repository, *, streaming: bool
) -> Dataset | IterableDataset:
    """Download the files of a configuration, compare checksums, and prepare the files in the cache of `datasets`."""
    import datasets

    # Load a commit and not a branch, which could change between two files.
    builder = datasets.load_dataset_builder(data.source, data.config, revision=repository.commit)
    if streaming:
        return builder.as_streaming_dataset(split=split)
    prefix = f"hf://datasets/{repository.name}@{repository.commit}/"
    paths: Iterable[list[str]] = (builder.config.data_files or {}).values()
    names = [path.removeprefix(prefix) for split_paths in paths for path in split_paths]
    hub.fetch(repository, [name for name in names if name in repository.files])
    hub.write_ref(repository)
    # The checks of `datasets` use the dataset card, which can be out of date; checksums were compared above.
    builder.download_and_prepare(verification_mode="no_checks")
    return builder.as_dataset(split=split)


def _open_cached(data: DataConfig, split: str, hub_error: UnavailableError) -> Dataset:
    """Open a split that bertkit or another program prepared in the cache of `datasets`.

    Raises:
        UnavailableError: If the split is not in the cache; the message includes the error of the Hub.
    """
    import datasets

    cached_folder = hub.cached_folder("dataset", data.source, data.revision)
    commit = cached_folder.name if cached_folder else data.revision
    table = None
    with suppress(OSError, ValueError), hub.offline():
        builder = datasets.load_dataset_builder(data.source, data.config)
        # `datasets` uses the commit that was prepared last.
        table = builder.as_dataset(split=split) if commit in (None, builder.hash) else None
    if table is not None:
        if not hub.is_offline_by_choice():
            log_once(f"{data.source} is read from the cache: {hub_error.message}")
        return table
    problem = f"the dataset {data.source!r} is neither a path nor in the cache, and {hub_error.message}"
    remedy = _ALTERNATIVES if datasets.config.HF_HUB_OFFLINE else f"{hub_error.remedy}; or {_ALTERNATIVES}"
    raise UnavailableError(problem, remedy)
