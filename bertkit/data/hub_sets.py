"""Data sets of the hub, read with the `datasets` library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.data.text import Record
from bertkit.errors import DataError, UnavailableError
from bertkit.recipe.records import Data
from bertkit.storage import hub
from bertkit.storage.cache import say_once

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

# a split, or a slice of one such as train[:10%]
_SPLIT = re.compile(r"(\w+(?:\.\w+)*)(\[[^\]]*\])?")
_INSTEAD = "--data DIR or FILE with the same columns, or --data demo (comes with bertkit)"


def with_revision(data: Data) -> Data:
    """Return settings whose data set of the hub has its revision apart, where it is named as ``org/name@revision``.

    Raises:
        DataError: ``data.revision`` names another one.
    """
    source, revision = hub.split_revision(data.source)
    if revision and data.revision not in (None, revision):
        what = f"{data.source} and data.revision {data.revision} are two revisions of one data set"
        raise DataError(what, "leave one of them out: --set data.revision=null")
    return data.model_copy(update={"source": source, "revision": revision}) if revision else data


def read_hub_split(data: Data, split: str, *, streaming: bool = False) -> Iterator[Record]:
    """Yield the rows of a split, numbered from 1; class labels come out as their names.

    Only the files of this split are downloaded. With `streaming`, rows are read as they are needed, and nothing is
    downloaded first.

    Raises:
        UnavailableError: the data set is neither cached nor given by the hub, or the connection breaks off.
        DataError: a name that the hub cannot have, no such configuration or split, or files that are damaged.
    """
    from huggingface_hub.utils import httpx

    data = with_revision(data)
    table = _open_split(data, split, streaming=streaming)
    features = table.features or {}  # a stream of csv or JSON files names no labels
    try:
        for number, row in enumerate(table, start=1):
            yield number, {name: _named(value, features.get(name)) for name, value in row.items()}
    except (OSError, httpx.HTTPError) as error:  # what all network libraries raise
        what = f"{data.source}: reading was interrupted ({str(error) or type(error).__name__})"
        raise UnavailableError(what, "the same command continues from the last checkpoint") from None


def _open_split(data: Data, split: str, *, streaming: bool) -> Dataset | IterableDataset:
    """Open a split of the hub or, if the hub does not give it, of the cache of `datasets`."""
    if not hub.is_name(data.source):
        raise DataError(f"{data.source!r} is neither a path here nor a hub name", _INSTEAD)
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity_error()
    try:
        if hub.is_offline_by_choice():
            raise UnavailableError("the hub cannot be reached")
        repository = hub.look_up("dataset", data.source, data.revision)
    except UnavailableError as error:
        table = _open_cached(data, split)
        if table is None:
            what = f"the data set {data.source!r} is neither a path here nor in the cache, and {error.what}"
            remedy = _INSTEAD if datasets.config.HF_HUB_OFFLINE else f"{error.remedy}; or {_INSTEAD}"
            raise UnavailableError(what, remedy) from None
        if not hub.is_offline_by_choice():
            say_once(f"{data.source} is read from the cache: {error.what}")
        return table
    from huggingface_hub.utils import httpx

    try:
        return _open_online(data, split, repository, streaming=streaming)
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        if refused := hub.explain(error, f"{data.source}: "):
            raise refused from None
        if isinstance(error, OSError) and error.errno:
            raise  # of the disk
        # an unknown configuration or split, a script, or files that are missing or not what they should be
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        what = f"{data.source}: {next(iter(str(cause).splitlines()), type(cause).__name__)}"
        raise DataError(what, "see data.config and data.splits") from None


def _open_online(data: Data, split: str, repository: hub.Repository, *, streaming: bool) -> Dataset | IterableDataset:
    """Download the files of a split, and let `datasets` read them."""
    import datasets

    commit = repository.commit
    options = {"revision": commit, "cache_dir": _cache_folder(split, commit)}
    builder = datasets.load_dataset_builder(data.source, data.config, **options)
    files = builder.config.data_files or {}
    name = _split_name(split)
    if name and files and name not in files:
        raise ValueError(f'Unknown split "{name}". Should be one of {list(map(str, files))}.')
    if name and files:
        builder.config.data_files = datasets.data_files.DataFilesDict({name: files[name]})
    if streaming:
        return builder.as_streaming_dataset(split=split)
    prefix = f"hf://datasets/{repository.name}@{repository.commit}/"
    paths = [path for paths in (builder.config.data_files or {}).values() for path in paths]
    names = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
    hub.fetch(repository, [name for name in names if name in repository.files])
    hub.remember(repository)
    # The sizes that a data set states are those of all its splits; checksums are compared above.
    builder.download_and_prepare(verification_mode="no_checks")
    return builder.as_dataset(split=split)


def _open_cached(data: Data, split: str) -> Dataset | None:
    """Open a split of the cache of `datasets`, if it was prepared by bertkit or another program; else return None."""
    import datasets

    fetched = hub.cached_folder("dataset", data.source, data.revision)
    commit = fetched.name if fetched else data.revision
    with hub.offline():
        for folder in (_cache_folder(split, commit or ""), None):
            try:
                builder = datasets.load_dataset_builder(data.source, data.config, cache_dir=folder)
                # `datasets` takes the one prepared last
                if data.revision is None or builder.hash == commit:
                    return builder.as_dataset(split=split)
            except (OSError, ValueError):  # it is not there
                continue
    return None


def _split_name(split: str) -> str:
    """Return the one split that an expression is about; empty for a sum of splits."""
    match = _SPLIT.fullmatch(split)
    return match[1] if match else ""


def _cache_folder(split: str, commit: str) -> str | None:
    """Return where `datasets` is to keep a split that is prepared alone; None where it keeps whole configurations."""
    import datasets

    name = _split_name(split)
    return str(Path(datasets.config.HF_DATASETS_CACHE, "bertkit", commit, name)) if name else None


def _named(value: object, feature: object) -> object:
    """Replace the numbers of a ClassLabel, also in lists, by their names; -1 means unlabeled."""
    if isinstance(value, list) and hasattr(feature, "feature"):
        return [_named(item, feature.feature) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    return value
