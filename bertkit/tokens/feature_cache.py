"""Features that are computed once: columns of numbers in memory-mapped files that are named after their content.

The features of a split depend on its rows, on the tokenizer and on the recipe. The same three find the same files, in
this run and in later ones, so a text is tokenized once. A file has the features of so many rows, so that no more are
lists in memory at a time, and a run that was killed while it tokenized goes on at the next file.
"""

from __future__ import annotations

import gc
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from itertools import accumulate, chain, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

import bertkit
from bertkit.data.rows import Split
from bertkit.metrics import Numbers
from bertkit.progress import log
from bertkit.storage.cache import cache_folder, say_once, touch, writing
from bertkit.storage.disk import IN_MEMORY, spool
from bertkit.storage.fingerprints import feed_file, package_fingerprint, tokenizer_content, without_digest
from bertkit.tokens.features import (
    IGNORED,
    Feature,
    Features,
    Rows,
    Setup,
    count_tokens,
    join_ids,
    longest_text,
)

if TYPE_CHECKING:
    # imported where a file is: a server of exported models has none, and may lack the package
    import pyarrow as pa

Encode = Callable[[Rows, Setup], list[Feature]]

_SCHEMA = 2  # of the files
# prompts and lengths
_BESIDE = ("config_sentence_transformers.json", "sentence_bert_config.json")
_LEAST_ROWS = 1000  # fewer rows are encoded faster than a file is found, opened and checked
_FEATURES_AT_ONCE = 16  # of those without a file


class FeatureColumns(Features):
    """Features that are stored as Arrow columns; their lists of numbers are read as arrays, and none can be changed.

    ``lengths``, ``longest`` and ``rows``, of shape (features,), are `count_tokens`, `longest_text` and the row of each.
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        parts = [{name: table.column(name).chunk(0) for name in table.column_names} for table in tables]
        self._readers = [{name: _reader(column) for name, column in part.items()} for part in parts]
        self._ends: list[int] = list(accumulate(table.num_rows for table in tables))
        self.rows = np.concatenate([_numbers(part["row"]) for part in parts])
        sizes = zip(*(_sizes(part["input_ids"]) for part in parts), strict=True)
        self.lengths, self.longest = map(np.concatenate, sizes)
        self._tokens = [part["input_ids"].flatten(recursive=True) for part in parts]
        self._added: dict[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> Feature: ...
    @overload
    def __getitem__(self, index: slice) -> list[Feature]: ...
    def __getitem__(self, index: int | slice) -> Feature | list[Feature]:
        """Build a feature from the columns, as a read-only mapping: a key added to it would be lost."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        part = bisect_right(self._ends, number)
        within = number - self._ends[part - 1] if part else number
        feature = {name: read(within) for name, read in self._readers[part].items()}
        if self._added:
            feature |= {name: values[number] for name, values in self._added.items()}
        return cast(Feature, MappingProxyType(feature))

    def __iter__(self) -> Iterator[Feature]:
        return map(self.__getitem__, range(len(self)))

    def tokens(self) -> Numbers:
        """Return the token ids that occur, sorted and without repetition."""
        return np.unique(np.concatenate([np.unique(_numbers(tokens)) for tokens in self._tokens]))

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Add a key with a value per feature, or replace its values, in this process only."""
        self._added[name] = values
        if name == "input_ids":
            self.lengths = np.fromiter((count_tokens({name: ids}) for ids in values), np.int64, len(values))


def add_values(features: Features, name: str, values: Sequence[Any]) -> None:
    """Add a key with a value per feature."""
    if isinstance(features, FeatureColumns):
        features.add(name, values)
        return
    for feature, value in zip(features, values, strict=True):
        feature[name] = value


def lengths_of(features: Features) -> Numbers:
    """Count the tokens that each feature costs, shape (features,); see `count_tokens`."""
    if isinstance(features, FeatureColumns):
        return features.lengths
    return np.fromiter(map(count_tokens, features), dtype=np.int64, count=len(features))


def longest_of(features: Features) -> Numbers:
    """Count the tokens of each feature's longest text, shape (features,)."""
    if isinstance(features, FeatureColumns):
        return features.longest
    return np.fromiter(map(longest_text, features), dtype=np.int64, count=len(features))


def rows_of(features: Features) -> Numbers:
    """Return the number of each feature's row, shape (features,)."""
    if isinstance(features, FeatureColumns):
        return features.rows
    return np.fromiter((feature["row"] for feature in features), dtype=np.int64, count=len(features))


def items_of(features: Features) -> Numbers | None:
    """Count the labels of each feature, shape (features,), if labels belong to tokens; None if they belong to rows."""
    # labels belong to tokens where the first feature has as many whole numbers as tokens
    first = np.asarray(features[0].get("labels") if len(features) else None)
    if first.dtype.kind != "i" or first.shape != (len(features[0]["input_ids"]),):
        return None
    return np.fromiter(
        (np.count_nonzero(np.asarray(feature["labels"]) != IGNORED) for feature in features), np.int64, len(features)
    )


def texts_of(features: Features) -> list[list[int]] | None:
    """Return the numbers of each feature's texts, none of which may occur twice in a batch; None without numbers."""
    has_numbers = len(features) > 0 and "texts" in features[0]
    return [np.asarray(feature["texts"]).tolist() for feature in features] if has_numbers else None


def occurring_tokens_of(features: Features) -> Numbers:
    """Return the token ids that occur in any feature, sorted and without repetition."""
    if isinstance(features, FeatureColumns):
        return features.tokens()
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *map(join_ids, features)]))


def encode_split(split: Split, setup: Setup, encode: Encode) -> Features:
    """Encode the rows of a split, or map the files of their features that an earlier run has written.

    Only features of bertkit's own task families are cached, since a change in the code of another one would go
    unnoticed; small splits are not, because they are encoded faster than read.

    Args:
        split: the rows.
        setup: everything else that `encode` depends on.
        encode: the function of a task family.
    """
    starts = range(0, max(len(split.rows), 1), IN_MEMORY)
    if is_ours(encode) and len(split.rows) >= _LEAST_ROWS:
        key = content_key(split, setup)[:32] if setup.recipe.data.cache else ""
        parts = (_encode_part(split, setup, encode, start, key) for start in starts)
        tables = list(takewhile(lambda table: table is not None, parts))
        if len(tables) == len(starts):
            return FeatureColumns(tables)
    encoded = chain.from_iterable(_encode_rows(split, setup, encode, start) for start in starts)
    # batches are drawn in any order, so few features are read together
    return spool(encoded, block=_FEATURES_AT_ONCE)


def _encode_part(split: Split, setup: Setup, encode: Encode, start: int, key: str) -> pa.Table | None:
    """Encode `IN_MEMORY` rows, or map the file that has them; return None where no table can hold their features.

    Without a key, the table stays in memory.
    """
    file = cache_folder("features") / f"{key}-{start // IN_MEMORY:05}.arrow"
    if key and (mapped := _map_features(file)) is not None:
        return mapped
    table = _table(_encode_rows(split, setup, encode, start))
    return _write_features(table, file) if key and table is not None else table


def content_key(split: Split, setup: Setup) -> str:
    """Compute a SHA-256 of everything that features can depend on; in doubt, a setting is included."""
    recipe, folder = setup.recipe, Path(setup.tokenizer.name_or_path)
    settings = [
        *(_SCHEMA, bertkit.__version__, package_fingerprint()),
        *map(metadata.version, ("tokenizers", "transformers")),
        *(recipe.task, recipe.training.max_length, recipe.options, recipe.data.columns, setup.labels),
        *(split.fingerprint(), tokenizer_content(setup.tokenizer)),
        *((folder / name).read_text(encoding="utf-8") for name in _BESIDE if (folder / name).is_file()),
    ]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _encode_rows(split: Split, setup: Setup, encode: Encode, start: int) -> list[Feature]:
    """Encode `IN_MEMORY` rows without the garbage collector, which would scan all the new lists and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        features = encode(split.rows[start : start + IN_MEMORY], setup)
    finally:
        if was_enabled:
            gc.enable()
    for feature in features if start else ():
        feature["row"] += start
    return features


def is_ours(encode: Encode) -> bool:
    """Tell whether a task family is one of bertkit's, whose code is part of the content key."""
    return encode.__module__.startswith("bertkit.")


def _map_features(file: Path) -> pa.Table | None:
    """Map a file of features; None if it is missing, damaged or unreadable."""
    import pyarrow as pa

    try:
        if not file.is_file():
            return None
        with pa.memory_map(str(file)) as stream:
            content = stream.read_buffer()
        # Columns are views of the mapped file and not copies.
        if (body := without_digest(content)) is None:
            raise pa.ArrowInvalid("the checksum differs")
        table = pa.ipc.open_file(pa.BufferReader(body)).read_all()
    except pa.ArrowInvalid:
        log.info(f"the features in {file} are damaged and are encoded again")
        return None
    except OSError as error:
        say_once(f"cached features cannot be read: {error}; set BERTKIT_CACHE to use another folder")
        return None
    touch(file)
    return table


def _write_features(table: pa.Table, file: Path) -> pa.Table:
    """Write features to a file and return them mapped from it, or as they are if they cannot be written."""
    import pyarrow as pa

    try:
        with writing(file) as beside:
            with pa.OSFile(str(beside), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
                writer.write_table(table)
            # `writing` renames the file once it has its checksum, so a kill leaves no file that looks whole
            digest = hashlib.sha256()
            feed_file(digest, beside)
            with beside.open("ab") as stream:
                stream.write(digest.digest())
    except OSError as error:
        say_once(f"features are not cached: {error}; set BERTKIT_CACHE to use another folder")
        return table
    mapped = _map_features(file)
    return table if mapped is None else mapped


def _table(features: list[Feature]) -> pa.Table | None:
    """Convert features to an Arrow table; None if their keys differ or a value is no number or list of numbers."""
    import pyarrow as pa

    names = list(features[0]) if features else []
    if not names or any(list(feature) != names for feature in features):
        return None
    columns = [_column([feature[name] for feature in features]) for name in names]
    return None if any(column is None for column in columns) else pa.Table.from_arrays(columns, names)


def _column(values: list[Any]) -> pa.Array | None:
    """Convert the values of a key to an Arrow array of numbers, of lists or of (n, 2) matrices; None of all else."""
    import pyarrow as pa

    types = set(map(type, values))
    if types <= {int} or types == {float}:
        try:
            return _flat(_shrunk(np.array(values, dtype=np.float64 if types == {float} else np.int64)))
        except OverflowError:
            return None
    # Lists become one flat array of all their numbers and the offsets of the rows in it, (rows + 1,); lists of lists
    # recurse. A row is then read as a slice, without a Python object for each number.
    if types == {list}:
        inner = _column(list(chain.from_iterable(values)))
    elif types == {np.ndarray} and {(value.dtype, value.shape[1:]) for value in values} == {(np.dtype(np.int64), (2,))}:
        inner = pa.FixedSizeListArray.from_arrays(_flat(_shrunk(np.concatenate(values).ravel())), 2)
    else:
        return None
    if inner is None:
        return None
    return pa.LargeListArray.from_arrays(_flat(np.cumsum([0, *map(len, values)], dtype=np.int64)), inner)


def _flat(values: Numbers) -> pa.Array:
    """Wrap numbers in an Arrow array without a copy; `pyarrow.array` and `to_numpy` would import pandas."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _numbers(array: pa.Array) -> Numbers:
    """View the numbers of an Arrow array without a copy."""
    dtype = np.dtype(str(array.type).replace("double", "float64"))
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _shrunk(values: Numbers) -> Numbers:
    """Cast integers to the smallest dtype that holds them: most are token ids, token types and characters."""
    if not len(values) or values.dtype != np.int64:
        return values
    dtypes = (np.int8, np.int16, np.int32)
    least, most = values.min(), values.max()
    fitting = (dtype for dtype in dtypes if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max)
    return values.astype(next(fitting, np.int64))


def _reader(array: pa.Array) -> Callable[[int], Any]:
    """Build the function that reads the value of a row: a number, an array, or a list of arrays."""
    import pyarrow as pa

    if not pa.types.is_large_list(array.type):
        return _numbers(array).item
    edges, inner = _numbers(array.offsets), array.values
    if pa.types.is_large_list(inner.type):
        read = _reader(inner)
        return lambda row: [read(number) for number in range(edges[row], edges[row + 1])]
    is_matrix = pa.types.is_fixed_size_list(inner.type)
    values = _numbers(inner.values).reshape(-1, 2) if is_matrix else _numbers(inner)
    # Numbers are stored as narrow as they fit. A row is widened when it is read, to what `np.array` makes of the lists
    # of a task's `encode`.
    dtype = np.float64 if values.dtype == np.float64 else np.int64
    return lambda row: values[edges[row] : edges[row + 1]].astype(dtype)


def _sizes(tokens: pa.Array) -> tuple[Numbers, Numbers]:
    """Count the tokens that each feature costs, and those of its longest text, both of shape (features,)."""
    import pyarrow as pa

    # read off the offsets of ``input_ids``, without any token: of texts, or of choices and of the texts in them
    counts = np.diff(_numbers(tokens.offsets))
    if not pa.types.is_large_list(tokens.values.type):
        return counts, counts
    longest = np.zeros(len(counts), dtype=np.int64)
    np.maximum.at(longest, np.repeat(np.arange(len(counts)), counts), np.diff(_numbers(tokens.values.offsets)))
    return counts * longest, longest
