"""Features that are computed once: memory-mapped arrays in folders that are named after their content.

The features of a split depend on its rows, on the tokenizer and on the recipe. The same three find the same files, in
this run and in later ones, so a text is tokenized once. A folder has the features of at most `IN_MEMORY` rows, so that
no more are lists in memory at a time, and a run that was killed while it tokenized continues with the next folder.
"""

from __future__ import annotations

import gc
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import accumulate, chain, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import bertkit
from bertkit.data.rows import Split
from bertkit.storage.cache import cache_folder, log_once
from bertkit.storage.disk import IN_MEMORY, ArrayWriter, map_arrays, map_or_write, offload_to_disk
from bertkit.storage.fingerprints import package_fingerprint, tokenizer_content
from bertkit.tokens.features import (
    IGNORE_INDEX,
    Feature,
    Features,
    Rows,
    TaskContext,
    count_tokens,
    get_max_text_length,
    join_ids,
)

Encode = Callable[[Rows, TaskContext], list[Feature]]
Arrays = Mapping[str, np.ndarray]

_SCHEMA = 3  # Version of the files.
_SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")  # prompts and lengths
_MIN_ROWS = 1000  # Fewer rows are encoded faster than a file is found, opened and checked.
_FEATURES_AT_ONCE = 16  # read together if they have no file


class FeatureColumns(Features):
    """Read-only features in arrays; their lists of numbers are read as arrays.

    ``lengths``, ``longest`` and ``rows``, all of shape (features,), have the `count_tokens`, the `get_max_text_length`
    and the row index of each feature.
    """

    def __init__(self, parts: Sequence[Arrays]) -> None:
        self._readers = [{name: _reader(part, name) for name in part if "." not in name} for part in parts]
        self._ends: list[int] = list(accumulate(len(part["row"]) for part in parts))
        self.rows = np.concatenate([part["row"] for part in parts])
        self.lengths, self.longest = map(np.concatenate, zip(*map(_count_part_tokens, parts), strict=True))
        self._tokens = [part["input_ids"] for part in parts]
        self._added: dict[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: Any) -> Any:
        """Build a feature from the arrays, as a read-only mapping: a key added to it would be lost."""
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        # A range resolves negative indices and raises IndexError at the end, as a list does.
        index = range(len(self))[index]
        part = bisect_right(self._ends, index)
        offset = self._ends[part - 1] if part else 0
        feature = {name: read(index - offset) for name, read in self._readers[part].items()}
        feature |= {name: values[index] for name, values in self._added.items()}
        return MappingProxyType(feature)

    def __iter__(self) -> Iterator[Feature]:
        return map(self.__getitem__, range(len(self)))

    def tokens(self) -> np.ndarray:
        """Return the token ids that occur, sorted and without repetition."""
        return np.unique(np.concatenate(list(map(np.unique, self._tokens))))

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


def get_lengths(features: Features) -> np.ndarray:
    """Count the tokens that each feature costs, shape (features,); see `count_tokens`."""
    if isinstance(features, FeatureColumns):
        return features.lengths
    return np.fromiter(map(count_tokens, features), dtype=np.int64, count=len(features))


def get_max_lengths(features: Features) -> np.ndarray:
    """Count the tokens of each feature's longest text, shape (features,)."""
    if isinstance(features, FeatureColumns):
        return features.longest
    return np.fromiter(map(get_max_text_length, features), dtype=np.int64, count=len(features))


def get_row_indices(features: Features) -> np.ndarray:
    """Return the row index of each feature, shape (features,)."""
    if isinstance(features, FeatureColumns):
        return features.rows
    return np.fromiter((feature["row"] for feature in features), dtype=np.int64, count=len(features))


def count_labels(features: Features) -> np.ndarray | None:
    """Count the labels of each feature, shape (features,), or return None if a feature has one label for all tokens."""
    # Labels are counted if the first feature has one integer label per token.
    first = np.asarray(features[0].get("labels") if len(features) else None)
    if first.dtype.kind != "i" or first.shape != (len(features[0]["input_ids"]),):
        return None
    return np.fromiter(
        (np.count_nonzero(np.asarray(feature["labels"]) != IGNORE_INDEX) for feature in features),
        np.int64,
        len(features),
    )


def get_text_ids(features: Features) -> list[list[int]] | None:
    """Return the ids of each feature's texts, which must be unique in a batch, or None if features have no such ids."""
    has_ids = len(features) > 0 and "texts" in features[0]
    return [np.asarray(feature["texts"]).tolist() for feature in features] if has_ids else None


def get_used_token_ids(features: Features) -> np.ndarray:
    """Return the token ids that occur in any feature, sorted and without repetition."""
    if isinstance(features, FeatureColumns):
        return features.tokens()
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *map(join_ids, features)]))


def encode_split(split: Split, context: TaskContext, encode: Encode) -> Features:
    """Encode the rows of a split, or map their features if an earlier run wrote them.

    Only features of bertkit's task families are cached, because a change in the code of a custom family would not be
    noticed. Small splits are not cached, because encoding them is faster than reading them.

    Args:
        split: Rows to encode.
        context: Everything else that `encode` depends on.
        encode: Function of a task family.
    """
    starts = range(0, max(len(split.rows), 1), IN_MEMORY)
    if is_ours(encode) and len(split.rows) >= _MIN_ROWS:
        key = content_key(split, context)[:32] if context.recipe.data.cache else ""
        parts = (_encode_part(split, context, encode, start, key) for start in starts)
        arrays: list[Any] = list(takewhile(lambda part: part is not None, parts))
        if len(arrays) == len(starts):
            return FeatureColumns(arrays)
    encoded = chain.from_iterable(_encode_rows(split, context, encode, start) for start in starts)
    # Batches are drawn in any order, so only a few features are read together.
    return offload_to_disk(encoded, block=_FEATURES_AT_ONCE)


def _encode_part(split: Split, context: TaskContext, encode: Encode, start: int, key: str) -> Arrays | None:
    """Encode `IN_MEMORY` rows, or map their arrays; return None if no arrays can hold their features.

    Without a key, the arrays stay in memory.
    """
    folder = cache_folder("features") / f"{key}-{start // IN_MEMORY:05}"
    try:
        # Without the folder's lock, because another user's cache can be read, but not locked.
        if key and (stored := map_arrays(folder)) is not None:
            return stored[0]
    except OSError as error:
        log_once(f"cached features cannot be read: {error}; set BERTKIT_CACHE to use another folder")
    arrays = _as_arrays(_encode_rows(split, context, encode, start))
    if not key or arrays is None:
        return arrays
    try:
        return map_or_write(folder, lambda: _write_arrays(folder, arrays))[0]
    except OSError as error:
        log_once(f"features are not cached: {error}; set BERTKIT_CACHE to use another folder")
        return arrays


def content_key(split: Split, context: TaskContext) -> str:
    """Compute a SHA-256 of everything that features can depend on; settings that may not matter are included."""
    recipe, folder = context.recipe, Path(context.tokenizer.name_or_path)
    settings = [
        *(_SCHEMA, bertkit.__version__, package_fingerprint()),
        *map(metadata.version, ("tokenizers", "transformers")),
        *(recipe.task, recipe.training.max_length, recipe.options, recipe.data.columns, context.labels),
        *(split.fingerprint(), tokenizer_content(context.tokenizer)),
        *((folder / name).read_text(encoding="utf-8") for name in _SETTINGS if (folder / name).is_file()),
    ]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _encode_rows(split: Split, context: TaskContext, encode: Encode, start: int) -> list[Feature]:
    """Encode `IN_MEMORY` rows without the garbage collector, which would scan all the new lists and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        features = encode(split.rows[start : start + IN_MEMORY], context)
    finally:
        if was_enabled:
            gc.enable()
    for feature in features if start else ():
        feature["row"] += start
    return features


def is_ours(encode: Encode) -> bool:
    """Return whether a task family belongs to bertkit, so that the content key covers its code."""
    return encode.__module__.startswith("bertkit.")


def _write_arrays(folder: Path, arrays: Arrays) -> None:
    with ArrayWriter(folder, {name: values.dtype.str for name, values in arrays.items()}) as writer:
        for name, values in arrays.items():
            writer.append(name, values)
        writer.finish({})


def _as_arrays(features: list[Feature]) -> dict[str, np.ndarray] | None:
    """Convert features to arrays, or return None if their keys differ or `_flatten` cannot convert a value."""
    names = list(features[0]) if features else []
    if not names or any(list(feature) != names for feature in features):
        return None
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        key_arrays = _flatten(name, [feature[name] for feature in features])
        if key_arrays is None:
            return None
        arrays |= key_arrays
    return arrays


def _flatten(name: str, values: list[Any]) -> dict[str, np.ndarray] | None:
    """Convert the values of a key to arrays: numbers, lists of numbers, lists of lists, or (n, 2) matrices.

    The numbers of all lists become one array NAME. The edges of the lists in it, (lists + 1,), become NAME.1; for lists
    of lists, NAME.2 has the edges of the outer ones in NAME.1. A row is then read as a slice, without a Python object
    for each number.

    Two rows, with two choices and with one:

    >>> for name, array in _flatten("ids", [[[2, 9, 3], [2, 3]], [[2, 3]]]).items():
    ...     print(name, array.tolist())
    ids [2, 9, 3, 2, 3, 2, 3]
    ids.1 [0, 3, 5, 7]
    ids.2 [0, 2, 3]

    Returns:
        The arrays, or None if a value is anything else.
    """
    types = set(map(type, values))
    if types <= {int} or types == {float}:
        try:
            return {name: _shrink(np.array(values, dtype=np.float64 if types == {float} else np.int64))}
        except OverflowError:
            return None
    if types == {list}:
        arrays = _flatten(name, list(chain.from_iterable(values)))
    elif types == {np.ndarray} and {(value.dtype, value.shape[1:]) for value in values} == {(np.dtype(np.int64), (2,))}:
        arrays = {name: _shrink(np.concatenate(values))}
    else:
        return None
    if arrays is None or len(arrays) > 2:
        return None
    return {**arrays, f"{name}.{len(arrays)}": np.cumsum([0, *map(len, values)], dtype=np.int64)}


def _shrink(values: np.ndarray) -> np.ndarray:
    """Cast integers to the smallest dtype that holds them: most are token ids, token types and characters."""
    if not len(values) or values.dtype != np.int64:
        return values
    lowest, highest = values.min(), values.max()
    dtypes = (np.int8, np.int16, np.int32)
    fitting = (dtype for dtype in dtypes if np.iinfo(dtype).min <= lowest and highest <= np.iinfo(dtype).max)
    return values.astype(next(fitting, np.int64))


def _reader(arrays: Arrays, name: str) -> Callable[[int], Any]:
    """Build the function that reads the value of a row: a number, an array, or a list of arrays."""
    values, edges, outer = arrays[name], arrays.get(f"{name}.1"), arrays.get(f"{name}.2")
    if edges is None:
        return values.item
    # Numbers are stored in the smallest dtype. A row gets the dtype that `np.array` gives to the lists of `encode`.
    dtype = np.float64 if values.dtype == np.float64 else np.int64

    def read(index: int) -> np.ndarray:
        return values[edges[index] : edges[index + 1]].astype(dtype)

    return read if outer is None else lambda row: [read(index) for index in range(outer[row], outer[row + 1])]


def _count_part_tokens(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Count the tokens that each feature costs, and the tokens of its longest text, both of shape (features,).

    The counts are differences of edges, so that no token is read.
    """
    # In the example of `_flatten`, the texts have [3, 2, 2] tokens and belong to the rows [0, 0, 1]. The longest texts
    # have [3, 2] tokens, and the rows cost [2 * 3, 1 * 2] tokens, because choices are padded to the longest.
    counts, outer = np.diff(arrays["input_ids.1"]), arrays.get("input_ids.2")
    if outer is None:
        return counts, counts
    texts = np.diff(outer)
    longest = np.zeros(len(texts), dtype=np.int64)
    np.maximum.at(longest, np.repeat(np.arange(len(texts)), texts), counts)
    return texts * longest, longest
