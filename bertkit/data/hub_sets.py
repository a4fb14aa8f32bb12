"""Data sets of the hub, read with the `datasets` library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertkit.data.text import Record
from bertkit.errors import DataError, UnavailableError
from bertkit.hub import go_offline_if_needed, is_online
from bertkit.recipe import Data


def read_hub_split(data: Data, split: str) -> Iterator[Record]:
    """Yield the rows of a split, numbered from 1; class labels come out as their names.

    With ``data.streaming``, rows are read as they are needed, and nothing is downloaded first.

    Raises:
        UnavailableError: the data set is neither cached nor reachable, or the connection breaks off.
        DataError: no such data set, configuration or split.
    """
    go_offline_if_needed()
    import datasets

    datasets.disable_progress_bars()
    try:
        table = datasets.load_dataset(
            data.source, data.config, split=split, revision=data.revision, streaming=data.streaming
        )
    except (ConnectionError, FileNotFoundError) as error:  # DatasetNotFoundError is a FileNotFoundError
        if is_online():
            raise DataError(f"no such data set: {data.source!r}", "look its name up on the hub") from error
        raise UnavailableError(
            f"the data set {data.source!r} is neither a path here nor in the cache, and the hub cannot be reached",
            "--data DIR or FILE with the same columns, or --data demo (comes with bertkit)",
        ) from None
    except (ValueError, RuntimeError) as error:  # an unknown configuration or split, or a script
        raise DataError(f"{data.source}: {str(error).splitlines()[0]}", "see data.config and data.splits") from None
    features = table.features or {}  # a stream of csv or JSON files names no labels
    try:
        for number, row in enumerate(table, start=1):
            yield number, {name: _named(value, features.get(name)) for name, value in row.items()}
    except OSError as error:  # what all network libraries raise
        what = f"{data.source}: reading was interrupted ({str(error) or type(error).__name__})"
        raise UnavailableError(what, "the same command continues from the last checkpoint") from None


def _named(value: Any, feature: Any) -> Any:
    """Replace the numbers of a ClassLabel, also in lists, by their names; -1 means unlabeled."""
    if isinstance(value, list) and hasattr(feature, "feature"):
        return [_named(item, feature.feature) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    return value
