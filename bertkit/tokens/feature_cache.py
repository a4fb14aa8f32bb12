"""Features that are computed once: columns of numbers in a file that is named by its content and mapped into memory.

The features of a split depend on its rows, on the tokenizer and on the recipe. The same three give the same file, in
this run and in the next, so a text is cut into tokens once.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, overload

import numpy as np
import pyarrow as pa

import bertkit
from bertkit.data.rows import Split
from bertkit.recipe import Row
from bertkit.storage.cache import cache_folder, say_once, touch, writing
from bertkit.storage.fingerprints import feed_file, package_fingerprint, tokenizer_content
from bertkit.tokens.features import IGNORED, Feature, Setup, count_tokens, longest_text

log = logging.getLogger("bertkit")

Numbers = np.ndarray[Any, Any]
Encode = Callable[[Sequence[Row], Setup], list[Feature]]

_SCHEMA = 1  # of the files
_LEAST_ROWS = 1000  # fewer are encoded before a file is found, opened and checked
_DIGEST = hashlib.sha256().digest_size


class Encoded(Sequence[Feature]):
    """Features as columns: lists of numbers are handed out as arrays, and nothing can be written into them.

    ``lengths`` and ``longest`` are what `count_tokens` and `longest_text` give for each feature.
    """

    def __init__(self, table: Any) -> None:
        columns = {name: table.column(name).chunk(0) for name in table.column_names}
        self._readers = {name: _reader(column) for name, column in columns.items()}
        self._count = table.num_rows
        self.lengths, self.longest = _sizes(columns["input_ids"])
        self._tokens = columns["input_ids"].flatten(recursive=True)

    def __len__(self) -> int:
        return int(self._count)

    @overload
    def __getitem__(self, place: int) -> Feature: ...
    @overload
    def __getitem__(self, place: slice) -> list[Feature]: ...
    def __getitem__(self, place: int | slice) -> Feature | list[Feature]:
        """Give one feature, made for this call: a key that was added to it would be lost, so it takes none."""
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(self._count))]
        number = range(self._count)[place]
        feature = {name: read(number) for name, read in self._readers.items()}
        return cast(Feature, MappingProxyType(feature))

    def __iter__(self) -> Iterator[Feature]:
        return map(self.__getitem__, range(self._count))

    def tokens(self) -> Numbers:
        """Give each token that occurs, once."""
        return np.unique(_numbers(self._tokens))

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Give every feature one more key, in this process only."""
        self._readers[name] = values.__getitem__


def add_values(features: Sequence[Feature], name: str, values: Sequence[Any]) -> None:
    """Give every feature one more key."""
    if isinstance(features, Encoded):
        features.add(name, values)
        return
    for feature, value in zip(features, values, strict=True):
        feature[name] = value


def lengths_of(features: Sequence[Feature]) -> Numbers:
    """Give the tokens that each feature costs; see `count_tokens`."""
    if isinstance(features, Encoded):
        return features.lengths
    return np.fromiter(map(count_tokens, features), dtype=np.int64, count=len(features))


def longest_of(features: Sequence[Feature]) -> Numbers:
    """Give the tokens of each feature's longest text."""
    if isinstance(features, Encoded):
        return features.longest
    return np.fromiter(map(longest_text, features), dtype=np.int64, count=len(features))


def items_of(features: Sequence[Feature]) -> Numbers | None:
    """Give how many labels each feature has where labels belong to tokens; None where they belong to rows."""
    first = np.asarray(features[0].get("labels") if len(features) else None)
    if first.dtype.kind != "i" or first.shape != (len(features[0]["input_ids"]),):
        return None
    return np.fromiter(
        (np.count_nonzero(np.asarray(feature["labels"]) != IGNORED) for feature in features), np.int64, len(features)
    )


def occurring_tokens_of(features: Sequence[Feature]) -> Numbers:
    """Give each token that occurs in any feature, once."""
    if isinstance(features, Encoded):
        return features.tokens()
    texts = (feature["input_ids"] for feature in features)
    flat = (
        np.concatenate([*map(np.asarray, ids)]) if len(ids) and hasattr(ids[0], "__len__") else ids for ids in texts
    )
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *flat]))


def encode_split(split: Split, setup: Setup, encode: Encode) -> Sequence[Feature]:
    """Encode the rows of a split, or map the file with their features that an earlier run has left.

    Only the families of bertkit are kept: of another one nobody can tell whether its code is still the same. Nor are
    small splits, which are encoded faster than read.

    Args:
        split: the rows.
        setup: all that `encode` knows beside them.
        encode: a task family's.
    """
    if not setup.recipe.data.cache or len(split.rows) < _LEAST_ROWS or not is_ours(encode):
        return _encode(split, setup, encode)
    file = cache_folder("features") / f"{content_key(split, setup)[:32]}.arrow"
    found = _read(file)
    return found if found is not None else _write(_encode(split, setup, encode), file)


def content_key(split: Split, setup: Setup) -> str:
    """Give a SHA-256 over all that features can depend on, and rather over too much than too little."""
    recipe = setup.recipe
    settings = [
        *(
            _SCHEMA,
            bertkit.__version__,
            package_fingerprint(),
            metadata.version("tokenizers"),
            metadata.version("transformers"),
        ),
        *(recipe.task, recipe.training.max_length, recipe.options, recipe.data.columns, setup.labels),
        *(split.fingerprint(), tokenizer_content(setup.tokenizer)),
    ]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _encode(split: Split, setup: Setup, encode: Encode) -> list[Feature]:
    """Encode without the garbage collector: it would go over all these lists again and again, and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return encode(split.rows, setup)
    finally:
        if was_enabled:
            gc.enable()


def is_ours(encode: Encode) -> bool:
    """Tell whether a task family comes with bertkit, so that its code is part of the content key."""
    return encode.__module__.startswith("bertkit.")


def _read(file: Path) -> Encoded | None:
    """Map a file of features; None where there is none, or one that is not as it was written."""
    try:
        if not file.is_file():
            return None
        with pa.memory_map(str(file)) as stream:
            whole = stream.read_buffer()
        body, digest = whole[:-_DIGEST], whole[-_DIGEST:]
        if hashlib.sha256(body).digest() != digest.to_pybytes():
            raise pa.ArrowInvalid("its checksum is another")
        found = Encoded(pa.ipc.open_file(pa.BufferReader(body)).read_all())
    except pa.ArrowInvalid:
        log.info(f"the features in {file} are damaged: they are made anew")
        return None
    except OSError as error:
        say_once(f"features cannot be read: {error}; BERTKIT_CACHE names another folder")
        return None
    touch(file)
    return found


def _write(features: list[Feature], file: Path) -> Sequence[Feature]:
    """Write features and give them back from the file, or as they are where a file cannot hold them or be written."""
    table = _table(features)
    if table is None:
        return features
    try:
        with writing(file) as beside:
            with pa.OSFile(str(beside), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
                writer.write_table(table)
            digest = hashlib.sha256()
            feed_file(digest, beside)
            with beside.open("ab") as stream:
                stream.write(digest.digest())
    except OSError as error:
        say_once(f"features are not kept: {error}; BERTKIT_CACHE names another folder")
        return features
    found = _read(file)
    return found if found is not None else features


def _table(features: list[Feature]) -> Any:
    """Give features as columns of numbers; None where they are not all of one kind, or other than numbers."""
    names = list(features[0]) if features else []
    if not names or any(list(feature) != names for feature in features):
        return None
    columns = [_column([feature[name] for feature in features]) for name in names]
    return None if any(column is None for column in columns) else pa.Table.from_arrays(columns, names)


def _column(values: list[Any]) -> Any:
    """Give an Arrow array of whole numbers, of other numbers, or of lists or matrices of them; None of all else."""
    kinds = set(map(type, values))
    if kinds <= {int} or kinds == {float}:
        try:
            return _flat(_shrunk(np.array(values, dtype=np.float64 if kinds == {float} else np.int64)))
        except OverflowError:
            return None
    if kinds == {list}:
        inner = _column(list(chain.from_iterable(values)))
    elif kinds == {np.ndarray} and {(each.dtype, each.shape[1:]) for each in values} == {(np.dtype(np.int64), (2,))}:
        inner = pa.FixedSizeListArray.from_arrays(_flat(_shrunk(np.concatenate(values).ravel())), 2)
    else:
        return None
    if inner is None:
        return None
    return pa.LargeListArray.from_arrays(_flat(np.cumsum([0, *map(len, values)], dtype=np.int64)), inner)


def _flat(values: Numbers) -> Any:
    """Give numbers as an Arrow array; `pyarrow.array` and `to_numpy` would import pandas first."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _numbers(array: Any) -> Numbers:
    """Give the numbers of an Arrow array where they lie."""
    kind = np.dtype(str(array.type).replace("double", "float64"))
    return np.frombuffer(array.buffers()[1], dtype=kind, count=len(array), offset=array.offset * kind.itemsize)


def _shrunk(values: Numbers) -> Numbers:
    """Give whole numbers in as few bytes as they fit in: most are tokens, segments and characters."""
    if not len(values) or values.dtype != np.int64:
        return values
    kinds = (np.int8, np.int16, np.int32)
    least, most = values.min(), values.max()
    fitting = (kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max)
    return values.astype(next(fitting, np.int64))


def _reader(array: Any) -> Callable[[int], Any]:
    """Give the function that gives the value of a row: a number, an array, or a list of arrays."""
    if not pa.types.is_large_list(array.type):
        return _numbers(array).item
    edges, inner = _numbers(array.offsets), array.values
    if pa.types.is_large_list(inner.type):
        read = _reader(inner)
        return lambda row: [read(number) for number in range(edges[row], edges[row + 1])]
    is_matrix = pa.types.is_fixed_size_list(inner.type)
    values = _numbers(inner.values).reshape(-1, 2) if is_matrix else _numbers(inner)
    kind = np.float64 if values.dtype == np.float64 else np.int64
    return lambda row: values[edges[row] : edges[row + 1]].astype(kind)


def _sizes(tokens: Any) -> tuple[Numbers, Numbers]:
    """Give the tokens that each feature costs, and those of its longest text, from the column ``input_ids``."""
    counts = np.diff(_numbers(tokens.offsets))
    if not pa.types.is_large_list(tokens.values.type):
        return counts, counts
    longest = np.zeros(len(counts), dtype=np.int64)
    np.maximum.at(longest, np.repeat(np.arange(len(counts)), counts), np.diff(_numbers(tokens.values.offsets)))
    return counts * longest, longest
