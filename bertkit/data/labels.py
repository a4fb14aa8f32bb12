"""Collect label names from rows, and match them to raw values and to the labels of a checkpoint."""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from typing import Any

from bertkit.data.rows import FILL_IN, NO_LABEL, Split, find_joined_labels, locate_row, merge_errors
from bertkit.data.text import describe_record, normalize, source_column
from bertkit.errors import DataError, ModelError, RecipeError, did_you_mean
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import Row
from bertkit.storage.cache import log_once
from bertkit.storage.disk import offload_to_disk

CORRECT_ROW = "correct the row, or declare the names under `labels:`"
"""Remedy for a value that is not a label."""

VECTOR_ERROR = (
    "a 0/1 vector instead of labels",
    'list the names, such as ["fear", "joy"], or map a 0/1 column per label: --set data.columns.label=[fear,joy]',
)
"""Message and remedy for a 0/1 vector, which would be read as indices of labels."""

_MAX_NAMES = 200
_DECIMAL = re.compile(r"[-+]?[0-9]{1,15}\.[0-9]{1,15}")
# SNLI has the label "-" if annotators did not agree.
_PLACEHOLDERS = {"-", "--", "?", "#n/a", "n/a", "na", "nan", "<na>", "null", "unlabeled", "unlabelled", "no label"}


def label_to_str(value: object) -> str | None:
    """Return a raw label as text in composed Unicode (NFC), or None if the label is missing, whitespace or NaN.

    >>> label_to_str(1.0), label_to_str(True), label_to_str(" pos "), label_to_str(float("nan")), label_to_str("")
    ('1', 'true', 'pos', None, None)

    Raises:
        DataError: If the value is a list, an object or bytes.
    """
    # Only NaN, which pandas has in empty cells, differs from itself.
    if value is None or value != value:
        return None
    if isinstance(value, (dict, list, tuple, bytes)):
        raise DataError(f"label {str(value)[:60]} is not a name", 'write a name, or a list such as ["a", "b"]')
    if isinstance(value, bool):
        return str(value).lower()
    # pandas reads integers as floats if a cell of the column is empty.
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return unicodedata.normalize("NFC", str(value)).strip() or None


@lru_cache(10_000)  # called for each tag of each word
def normalize_label(name: str) -> str:
    """Return a label name, with numbers and booleans written as in JSON.

    >>> normalize_label("True"), normalize_label("1.0"), normalize_label("0.50"), normalize_label("No")
    ('true', '1', '0.5', 'No')
    """
    if _DECIMAL.fullmatch(name):
        return label_to_str(float(name)) or name
    return name.lower() if name.lower() in ("true", "false") else unicodedata.normalize("NFC", name)


def fold_label(name: str) -> str:
    """Return a form that is the same for names that differ only in case, whitespace, Unicode form or number format."""
    return normalize(normalize_label(name))


def is_placeholder(name: str, names: Iterable[str]) -> bool:
    """Return whether one of a dataset's label names probably means "no label".

    >>> is_placeholder("-", ["-", "yes", "no"]), is_placeholder("-", ["-", "+"]), is_placeholder("-1", ["-1", "0", "1"])
    (True, False, False)
    """
    other_names = set(names) - {name}
    if name == "-1":  # no label if there are 0, 1 and 2; perhaps a class if there are only 0 and 1
        return len(other_names) > 2 and all(map(str.isdigit, other_names))
    return name.casefold() in _PLACEHOLDERS and all(any(map(str.isalnum, other_name)) for other_name in other_names)


def labels_to_strs(value: object) -> list[str]:
    """Return the labels in a raw value or list of values as text.

    >>> labels_to_strs("pos"), labels_to_strs([1.0, None, "b"])
    (['pos'], ['1', 'b'])
    """
    if isinstance(value, (list, tuple)):
        return [name for item in value for name in labels_to_strs(item)]
    spelling = label_to_str(value)
    return [] if spelling is None else [spelling]


def find_names(values: Iterable[Any]) -> list[str]:
    """Collect the label names of training rows, with numbers in numerical and words in alphabetical order.

    Raises:
        DataError: If there is only one label, there are too many labels for classes, or a label joins several labels.
    """
    names, texts, count, max_labels, are_tags = set[str](), set[str](), 0, 1, False
    for value in values:
        labels = labels_to_strs(value)
        names.update(labels)
        count, max_labels = count + len(labels), max(max_labels, len(labels))
        are_tags = are_tags or len(set(labels)) < len(labels)  # a list of labels has no duplicates
        if isinstance(value, str):
            texts.add(value)
    if len(names) < 2:
        message = f"every row has the same label {next(iter(names), None)!r}"
        raise DataError(message, "a classifier needs at least two labels")
    # If no list has two labels, the recipe may have the wrong separator.
    if problem := find_joined_labels(texts or (() if are_tags else names), min_count=2 if max_labels == 1 else count):
        remedy = problem[1] if max_labels == 1 else "write one separator in all rows"
        raise DataError(problem[0], f"{remedy}; if it is one label, list the classes under `labels:`")
    # A column with more different values holds ids, numbers or texts.
    if len(names) > max(_MAX_NAMES, count // 5):
        message = f"{len(names):,} different labels in {count:,} rows"
        raise DataError(message, "for numbers, use the recipe `regress`; otherwise list the classes under `labels:`")
    return _sort_names(names)


def add_unseen_names(names: Sequence[str], values: Iterable[Any]) -> list[str]:
    """Add unseen labels of other rows to the names, so that predictions for these rows count as wrong.

    Probable mistakes are not added: labels that differ from a name only in case or whitespace, and numbers if the names
    are words, because they may be indices. Nothing is added if the rows and the names have no label in common, not
    counting O, which means no entity.
    """
    row_names = {name for value in values for name in labels_to_strs(value)}
    unknown, forms = {name for name in row_names if not _is_known(name, names)}, set(map(fold_label, names))
    if not row_names - unknown - {"O"}:
        return list(names)
    has_numbers = any(map(_is_integer, names))
    unseen = {name for name in unknown if fold_label(name) not in forms and (has_numbers or not _is_integer(name))}
    return _sort_names({*names, *unseen}) if unseen else list(names)


def _is_known(name: str, names: Sequence[str]) -> bool:
    try:
        get_label_name(name, names)
    except DataError:
        return False
    return True


def _sort_names(names: Set[str]) -> list[str]:
    """Sort names, and add missing B- and I- tags of entity types, because rows to predict can have them."""
    if all(name == "O" or (name[:2] in ("B-", "I-") and len(name) > 2) for name in names):
        names = names | {prefix + name[2:] for name in names - {"O"} for prefix in ("B-", "I-")}
    return sorted(names, key=lambda name: (0, int(name), "") if _is_integer(name) else (1, 0, name))


def get_label_name(value: object, names: Sequence[str], remedy: str = CORRECT_ROW) -> Any:
    """Return the label name of a raw value: a name, or an index from 0.

    Formats can write a name differently: True or true, 1.0 or 1. A list (several labels, or one per word) is converted
    item by item. None, and placeholders such as -1 and "-" that are not names, mean that the row has no label.

    >>> get_label_name("acceptable", ["unacceptable", "acceptable"]), get_label_name(0, ["unacceptable", "acceptable"])
    ('acceptable', 'unacceptable')

    Raises:
        DataError: If the value is not one of the labels.
    """
    if isinstance(value, (list, tuple)):
        return [get_label_name(item, names, remedy) for item in value]
    text = label_to_str(value)
    if text is None or text in names:
        # Return the object in `names`, so that all rows share it.
        return text and names[names.index(text)]
    plain_name, plain_names = normalize_label(text), list(map(normalize_label, names))
    # 1, 1.0 and "1" are the same label, because CSV has only text, and JSON has numbers.
    if plain_names.count(plain_name) == 1:
        return names[plain_names.index(plain_name)]
    if plain_name == "-1" or is_placeholder(plain_name, names):
        return None
    # Datasets on the Hub store indices from 0. If any name is a number, a number is a name and not an index.
    can_be_index = not any(map(_is_integer, plain_names))
    if can_be_index and _is_integer(plain_name) and 0 <= int(plain_name) < len(names):
        return names[int(plain_name)]
    listing = ", ".join(
        f"{index} {list_names([name])}" if can_be_index else repr(name) for index, name in enumerate(names[:20])
    )
    similar_name = next((name for name in names if fold_label(name) == fold_label(text)), None)
    suggestion = f"did you mean {similar_name}?" if similar_name else did_you_mean(text, names)
    hint = suggestion if suggestion.startswith("did") else remedy
    raise DataError(f"label {text!r} is not one of the {len(names)} labels ({listing})", hint)


def log_label_indices(values: Iterable[Any], names: Sequence[str]) -> None:
    """Log the label of each index, if rows have indices instead of label names."""
    # Unlabeled rows on the Hub, such as GLUE's test rows, have the label -1.
    indices = {name for value in values for name in labels_to_strs(value)} - {*names, "-1"}
    if indices and all(_is_integer(index) and _is_known(index, names) for index in indices):
        log_once(f"labels are numbers, which are read as: {', '.join(f'{n} {name}' for n, name in enumerate(names))}")


def replace_raw_labels(
    split: Split,
    gold: str,
    names: Sequence[str],
    data: DataConfig,
    remedy: str = CORRECT_ROW,
    row_errors: list[DataError] | None = None,
) -> Split:
    """Replace the raw gold values of a split by label names.

    Args:
        split: Rows with raw gold values.
        gold: Gold column.
        names: Label names.
        data: Data settings of the recipe.
        remedy: Remedy for a value that is not one of the names.
        row_errors: List that gets the errors of rows, which are then skipped; without it, errors are raised.

    Raises:
        DataError: If a row has no label, or a value that is not a label; the message lists all lines with this error.
    """
    # With two labels, a vector such as [0, 1] would be read as both labels.
    if len(names) == 2 and all(value in (["0", "1"], ["1", "0"]) for value in split.column(gold)):
        raise DataError(*VECTOR_ERROR, file=split.source, column=source_column(gold, data))
    lines = array("q")
    errors: list[DataError] = [] if row_errors is None else row_errors
    dropped_lines: list[int] = []

    def convert_rows() -> Iterator[Row]:
        for line, row in zip(split.lines, split.rows, strict=True):
            try:
                label = get_label_name(row[gold], names, remedy)
                # Words can lack tags, unless all words of the row do.
                if label is None or (isinstance(label, list) and label and not any(label)):
                    raise DataError(NO_LABEL, FILL_IN)
            except DataError as error:
                if error.message == NO_LABEL and data.empty_label == "drop":
                    dropped_lines.append(line)
                    continue
                error.column, (error.file, error.row) = source_column(gold, data), locate_row(split.source, line, row)
                error.record = describe_record(row, f"{error.message} {error.file}")
                errors.append(error)
                continue
            lines.append(line)
            yield {**row, gold: label}

    # This consumes the generator, which fills `lines`, `errors` and `dropped_lines`.
    rows = offload_to_disk(convert_rows())
    if errors and row_errors is None:
        raise merge_errors(errors)
    if dropped_lines:
        log_once(f"rows of {split.source} without a label, left out: {len(dropped_lines):,}")
    return replace(split, rows=rows, lines=lines)


def list_names(names: Iterable[str]) -> str:
    """Join names by commas; a name with a comma is quoted, as in YAML.

    >>> list_names(["bad", "good, at last"])
    'bad, "good, at last"'
    """
    return ", ".join(json.dumps(name, ensure_ascii=False) if "," in name else name for name in names)


def make_placeholder_names(count: int) -> list[str]:
    """Return the names that transformers gives to unnamed labels, such as LABEL_0."""
    return [f"LABEL_{index}" for index in range(count)]


def match_names(checkpoint: Sequence[str], recipe: Sequence[str]) -> list[str]:
    """Return the recipe's label names in the order of the checkpoint's labels.

    Equal names are matched first, and then names with an equal `fold_label`.

    Raises:
        ModelError: If the two lists do not have the same labels; the message has both.
    """
    matched = {name: name for name in checkpoint if name in recipe}
    for name in checkpoint:
        # Match only unique names, because names that differ only in case can be different labels.
        similar = [label for label in recipe if label not in matched.values() and fold_label(label) == fold_label(name)]
        if name not in matched and len(similar) == 1:
            matched[name] = similar[0]
    if len(matched) == len(checkpoint) == len(recipe):
        return [matched[name] for name in checkpoint]
    lists = list_names(checkpoint[:20]), list_names(recipe[:20])
    remedy = "use the recipe that the checkpoint was trained with, or another checkpoint"
    if len(checkpoint) == len(recipe):
        remedy = f"if you know what its outputs mean, list them in this order: --set 'model_labels=[{lists[1]}]'"
    raise ModelError(f"the checkpoint's labels ({lists[0]}) are not the recipe's ({lists[1]})", remedy)


def compute_class_weights(
    weights: str | Mapping[str, float] | None, labels: Sequence[str], gold: Sequence[Any]
) -> list[float]:
    """Return the weight of each label in the loss.

    ``balanced`` means rows / (labels * rows with the label), as in scikit-learn.

    >>> compute_class_weights("balanced", ["a", "b"], ["a", "a", "a", "b"])
    [0.6666666666666666, 2.0]
    """
    if weights is None:
        return [1.0] * len(labels)
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in labels:
                raise RecipeError(f"class_weights: unknown label {name!r}", did_you_mean(name, labels))
        return [float(weights.get(name, 1.0)) for name in labels]
    counts = Counter(name for names in gold for name in (names if isinstance(names, list) else [names]) if name)
    # A label without rows adds no loss, so its weight only has to be finite.
    total = sum(counts.values())
    return [total / (len(labels) * counts[name]) if counts[name] else 1.0 for name in labels]


def _is_integer(spelling: str) -> bool:
    # Python converts at most 4,300 digits.
    return spelling.removeprefix("-").isdigit() and spelling.isascii() and len(spelling) <= 4000
