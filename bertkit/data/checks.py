"""Warn about rows that can be read but are probably wrong, and raise an error if columns are swapped."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice, pairwise, starmap
from operator import lt
from typing import Any

from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import fold_label, is_placeholder, label_to_str, list_names
from bertkit.data.rows import RowLocation, Split
from bertkit.data.text import source_column
from bertkit.errors import DataError
from bertkit.recipe.load import format_assignment
from bertkit.recipe.records import DataConfig, Recipe
from bertkit.recipe.sections import Row

_MIN_ROWS = 10  # with fewer rows, nothing is reported
_MAX_NAMES = 1000  # more names are not compared with each other
_RARE_FACTOR = 1000  # a rare label has this many times fewer rows than with equally frequent labels
_PREFIXES = tuple(f"{letter}-" for letter in "BIESLU")  # prefixes of entity tags
_MAX_LISTED = 5  # labels per warning
_SKEWED_FRACTION = 0.8  # fraction of the training rows that have the same label
# Metrics that weight a rare label as much as a frequent one.
_BALANCED_METRICS = ("f1_macro", "balanced_accuracy", "matthews_correlation")
_TYPO_FACTOR = 100  # a typo has this many times fewer rows than the intended label


def check_swapped(train: Split, columns: ColumnSpec, data: DataConfig) -> None:
    """Check that the columns of texts and labels are not swapped.

    Raises:
        DataError: If most labels are distinct, the texts have at most half as many distinct values, and the texts are
            shorter than the labels.
    """
    gold = columns.gold
    for column in columns.inputs:
        if not all(isinstance(value, str) for name in (column, gold) for value in train.column(name)):
            continue
        num_labels = len(set(train.column(gold)))
        # Labels repeat and texts rarely do, unless the columns are swapped. The labels are counted first: in most
        # datasets they repeat, and the texts need not be counted.
        if len(train.rows) > 2 * num_labels or 2 * len(set(train.column(column))) > num_labels:
            continue
        if sum(map(len, train.column(column))) < sum(map(len, train.column(gold))):
            names = {column: source_column(column, data), gold: source_column(gold, data)}
            swap = " ".join(
                f"--set {format_assignment(f'data.columns.{canonical}', names[source])}"
                for canonical, source in ((column, gold), (gold, column))
            )
            example = train.rows[0][column][:40]
            message = f"{names[column]!r} looks like labels ({example!r}), {names[gold]!r} like texts"
            remedy = f"add {swap}; or, if this is intended, list the classes under `labels:`"
            raise DataError(message, remedy, **train.locate(0)._asdict())


def find_suspicious_columns(train: Split, columns: ColumnSpec, data: DataConfig, *, finds_names: bool) -> list[str]:
    """Describe label columns that look like ids, and text columns without letters.

    Args:
        train: Training rows, with their labels as written.
        columns: Columns of the task family.
        data: Data settings of the recipe.
        finds_names: Whether the label names are collected from the training rows.
    """
    count, gold = len(train.rows), partial(train.column, columns.gold)
    if count < _MIN_ROWS:
        return []
    warnings = []
    label = source_column(columns.gold, data)
    if finds_names and all(isinstance(value, (str, int, float)) for value in gold()):
        names = len(set(map(label_to_str, gold())))
        # A class usually has many rows. Ids and texts rarely repeat.
        if names > count / 2:
            warnings.append(f"{count:,} training rows have {names:,} different labels. Is {label!r} the label column?")
    elif all(isinstance(value, float) and value.is_integer() for value in gold()) and all(
        starmap(lt, pairwise(gold()))
    ):
        example = ", ".join(f"{value:g}" for value in islice(gold(), 3))
        warnings.append(f"The labels are integers in ascending order: {example}, ... Is {label!r} the label column?")
    for column in columns.inputs:
        # Texts without any letter are probably ids or numbers that were mapped by mistake.
        if not any(not isinstance(value, str) or any(map(str.isalpha, value)) for value in train.column(column)):
            name = source_column(column, data)
            example = str(train.rows[0].get(column))[:40]
            warnings.append(f"No training text has a letter; the first is {example!r}. Is {name!r} the text column?")
    return warnings


def find_odd_rows(splits: Mapping[str, Split], columns: ColumnSpec, *, found_names: Sequence[str]) -> list[str]:
    """Describe rare labels, and rows of other splits that are training rows too, in one text per finding.

    Args:
        splits: ``train`` and validation splits, with label names as gold values if the task family has names.
        columns: Columns of the task family.
        found_names: Label names that were collected from the training rows; empty if the recipe declares them.
    """
    rare = find_rare_names(splits["train"], columns.gold, found_names)
    return [*(text for text, _ in rare), *_find_shared(splits, columns)]


def _hash(row: Row, inputs: Iterable[str]) -> int:
    """Return a hash of the input columns, which takes less memory than the texts."""
    # Lists cannot be hashed, but their `repr` can. Python salts hashes per process, so they must not be stored.
    values = (row.get(name) for name in inputs)
    return hash(tuple(value if isinstance(value, str) else repr(value) for value in values))


def find_rare_names(train: Split, gold: str, names: Sequence[str]) -> list[tuple[str, RowLocation]]:
    """Describe labels that may be typos, or placeholders such as "-" for rows without a label.

    Returns:
        Warnings, each with the location of the first row that has the label.
    """
    if not names or len(names) > _MAX_NAMES:
        return []
    # Tags and lists of labels have several names per row, and each name is counted.
    rows, is_single = len(train.rows), all(isinstance(value, str) for value in train.column(gold))
    counts = Counter(chain.from_iterable(map(get_label_types, train.column(gold))))

    def locate_first(name: str) -> RowLocation:
        return train.locate(next(i for i, value in enumerate(train.column(gold)) if name in get_label_types(value)))

    warnings = []
    for name in (name for name in counts if is_placeholder(name, counts)):
        labels = shlex.quote(f"labels=[{list_names(sorted(counts.keys() - {name}))}]")
        remedy = f"To drop them: --set {labels} --set data.empty_label=drop" if is_single else "If so, leave it empty"
        text = f"{format_fraction(counts[name], rows)} training rows have the label {name!r}, which may mean no label"
        warnings.append((f"{text}. {remedy}.", locate_first(name)))
    forms = {name: fold_label(name) for name in counts}
    for name, count in counts.items():
        # Two labels that differ only in case or spelling are suspicious, even if both are frequent.
        variants = (label for label in counts if forms[label] == forms[name] and (counts[label], label) > (count, name))
        typos = (label for label in counts if counts[label] >= _TYPO_FACTOR * count and _is_typo(name, label))
        suggestion = next(chain(variants, typos), None)
        # Equally frequent labels would have rows / len(counts) rows each. With 4 labels in 40,000 rows, a label is rare
        # if it has at most 10.
        if suggestion is None and not (is_single and count * len(counts) * _RARE_FACTOR <= rows):
            continue
        location = locate_first(name)
        times = "once" if count == 1 else f"{count:,} times"
        first = str(location) if count == 1 else f"first in {location}"
        question = f" Is {suggestion!r} meant?" if suggestion else ""
        warnings.append((f"The label {name!r} occurs {times} in {rows:,} training rows ({first}).{question}", location))
    return warnings


def find_skew(train: Split, gold: str) -> tuple[str, int] | None:
    """Return the label of at least 80% of the training rows and its number of rows, or None."""
    rows = len(train.rows)
    if rows < _MIN_ROWS or not all(isinstance(value, str) for value in train.column(gold)):
        return None
    label, count = Counter(train.column(gold)).most_common(1)[0]
    return (label, count) if _SKEWED_FRACTION * rows <= count < rows else None


def describe_skew(train: Split, gold: str, labels: Sequence[str], recipe: Recipe) -> list[str]:
    """Describe the label of most rows, with settings that help the model to learn the other labels."""
    if (skew := find_skew(train, gold)) is None:
        return []
    label, count = skew
    advice = []
    if recipe.training.class_weights is None:
        advice.append("give the other labels more weight (--set training.class_weights=balanced)")
    # With two labels, F1 is the score of the second, so it is suitable if the first is frequent.
    f1_metrics = ("f1",) if len(labels) == 2 and label == labels[0] else ()
    # By accuracy, a checkpoint that always predicts the frequent label could be selected as the best.
    if recipe.best_metric not in (*_BALANCED_METRICS, *f1_metrics):
        balanced_metric = next((name for name in recipe.metrics if name in _BALANCED_METRICS), "")
        metrics = ", ".join([_BALANCED_METRICS[0], *recipe.metrics])
        setting = f"best_metric={balanced_metric}" if balanced_metric else f"metrics=[{metrics}]"
        advice.append(f"select by a metric that weights all labels equally (--set {shlex.quote(setting)})")
    message = f"{format_fraction(count, len(train.rows))} training rows have the label {label!r}"
    return [f"{message}: {', and '.join(advice)}."] if advice else []


def rows_by_label(
    splits: Mapping[str, Split], gold: str, excluded_labels: Collection[str] = ()
) -> dict[str, dict[str, list[int]]]:
    """Return label -> split -> indices of the split's rows with the label; for tags, labels are entity types."""
    rows_by_name: dict[str, dict[str, list[int]]] = {}
    for name, split in splits.items():
        for index, value in enumerate(split.column(gold)):
            for label in set(get_label_types(value or ())) - set(excluded_labels):
                rows_by_name.setdefault(label, {}).setdefault(name, []).append(index)
    return rows_by_name


def find_unseen_names(splits: Mapping[str, Split], gold: str) -> dict[str, dict[str, list[int]]]:
    """Return the result of `rows_by_label` for the labels that no training row has."""
    train_labels = {label for value in splits["train"].column(gold) for label in get_label_types(value or ())}
    return rows_by_label({name: split for name, split in splits.items() if name != "train"}, gold, train_labels)


def describe_unseen(splits: Mapping[str, Split], gold: str) -> list[str]:
    """Describe the labels that no training row has, in one text."""
    unseen = find_unseen_names(splits, gold)
    if not unseen:
        return []
    examples = [
        f"{label!r} ({len(rows):,} of {name}, the first {splits[name].locate(rows[0])})"
        for label, rows_by_split in list(unseen.items())[:_MAX_LISTED]
        for name, rows in rows_by_split.items()
    ]
    more = f" and {len(unseen) - _MAX_LISTED:,} more" if len(unseen) > _MAX_LISTED else ""
    return [f"No training row has the label {', '.join(examples)}{more}. It cannot be learned, and counts as missed."]


def describe_lacking(gold: Sequence[Any], missing_labels: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Describe the labels of rows to score that are not among the model's labels, in a sentence.

    >>> describe_lacking(["cheerful", "sad", "cheerfull", "sad"], ["cheerfull"], ["cheerful", "sad"])
    ["The model lacks the label 'cheerfull', which 1 of 4 (25.0%) rows have. It counts as missed. Is 'cheerful' meant?"]
    """
    if not missing_labels:
        return []
    rows = sum(not set(missing_labels).isdisjoint([value] if isinstance(value, str) else value) for value in gold)
    names = ", ".join(map(repr, missing_labels[:_MAX_LISTED])) + ", ..." * (len(missing_labels) > _MAX_LISTED)
    meant = next((label for name in missing_labels for label in labels if _is_typo(name, label)), None)
    question = f" Is {meant!r} meant?" if meant else ""
    fraction = format_fraction(rows, len(gold))
    return [f"The model lacks the label {names}, which {fraction} rows have. It counts as missed.{question}"]


def find_contradictions(
    split: Split, pairs: Iterable[tuple[int, int]], gold: str
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Divide pairs of rows with equal inputs into repeats (equal gold values) and contradictions (different ones)."""
    repeats, contradictions, pairs = list[tuple[int, int]](), list[tuple[int, int]](), list(pairs)
    # Rows can be on disk, which is read fastest in order.
    gold_values = {index: split.rows[index].get(gold) for index in sorted(set(chain.from_iterable(pairs)))}
    for earlier, index in pairs:
        first, second = gold_values[earlier], gold_values[index]
        if first == second:
            repeats.append((earlier, index))
        elif not isinstance(first, dict):  # dictionaries are answers, and a question can have several
            contradictions.append((earlier, index))
    return repeats, contradictions


def _find_shared(splits: Mapping[str, Split], columns: ColumnSpec) -> list[str]:
    """Describe the rows of other splits whose inputs also occur in the training rows."""
    import numpy as np

    inputs = [name for name in columns.names if name not in (columns.gold, "id")]
    keys = {name: np.fromiter((_hash(row, inputs) for row in split.rows), np.int64) for name, split in splits.items()}
    train, train_keys, warnings = splits["train"], keys.pop("train"), []
    for name, split_keys in keys.items():
        # Rows with equal hashes count as equal, because 64-bit hashes almost never collide.
        shared_indices = np.flatnonzero(np.isin(split_keys, train_keys))
        if len(shared_indices):
            first = np.flatnonzero(train_keys == split_keys[shared_indices[0]])[0]
            example = f"such as {splits[name].locate(shared_indices[0])}, which is {train.locate(first)}"
            fraction = format_fraction(len(shared_indices), len(split_keys))
            warnings.append(f"{fraction} {name} rows are training rows too, {example}. Scores may be too high.")
    return warnings


def format_fraction(part: int, total: int) -> str:
    """Format a count as a part of a total, with its percentage.

    >>> format_fraction(37, 1000), format_fraction(2, 14041)
    ('37 of 1,000 (3.7%)', '2 of 14,041 (0.01%)')
    """
    percent = 100 * part / total
    return f"{part:,} of {total:,} ({percent:.1f}%)" if percent >= 1 else f"{part:,} of {total:,} ({percent:.1g}%)"


def get_label_types(gold: Any) -> list[str]:
    """Return the label names in a gold value; a list of tags such as B-PER becomes their entity types."""
    if isinstance(gold, str):
        return [gold]
    return [name[2:] if name.startswith(_PREFIXES) else name for name in gold if name is not None]


def _is_typo(name: str, label: str) -> bool:
    """Return whether a name differs from a label only in case, spaces, or one wrong, missing or transposed letter.

    >>> [_is_typo(name, "not_good") for name in ("Not good", "not_god", "not_godo", "good", "not_goodish")]
    [True, True, True, False, False]
    >>> _is_typo("class 1", "class 2"), _is_typo("sad", "mad"), _is_typo("A", "A-")
    (False, False, False)
    """
    first, second = (text.casefold().replace("_", " ").replace("-", " ") for text in (name, label))
    if first == second:
        return name != label
    # Short names with one different letter are often different words, such as sad and mad.
    if min(len(first), len(second)) < 5:
        return False
    for _ in range(2):  # remove the common prefix, then the common suffix
        while first and second and first[0] == second[0]:
            first, second = first[1:], second[1:]
        first, second = first[::-1], second[::-1]
    # A typo leaves at most one letter of each name, or the same two letters in reverse order. Digits and signs
    # distinguish classes, so they are not typos.
    is_single_edit = max(len(first), len(second)) == 1 or (len(first) == 2 and first == second[::-1])
    return is_single_edit and (first + second).isalpha()
