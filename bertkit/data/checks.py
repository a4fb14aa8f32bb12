"""Warnings about rows that can be read but are probably wrong, and an error if columns are swapped."""

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
from bertkit.recipe.load import assignment
from bertkit.recipe.records import DataConfig, Recipe
from bertkit.recipe.sections import Row

_MIN_ROWS = 10  # fewer rows are not judged
_MAX_NAMES = 1000  # more names are not compared with one another
_RARE = 1000  # times rarer than with equally frequent labels
_PREFIXES = tuple(f"{letter}-" for letter in "BIESLU")  # prefixes of entity tags
_MAX_SHOWN = 5  # labels per warning
_SKEWED = 0.8  # fraction of the training rows with one label
# Metrics that weight a rare label as much as a frequent one.
_BALANCED_METRICS = ("f1_macro", "balanced_accuracy", "matthews_correlation")
_TYPO = 100  # times rarer than the intended label


def check_swapped(train: Split, columns: ColumnSpec, data: DataConfig) -> None:
    """Check that the column of texts does not hold the labels, and the column of labels the texts.

    Raises:
        DataError: If most labels differ, at most half as many texts do, and the texts are shorter.
    """
    gold = columns.gold
    for text in columns.inputs:
        if not all(isinstance(value, str) for name in (text, gold) for value in train.column(name)):
            continue
        distinct = len(set(train.column(gold)))
        # Texts rarely repeat, but labels almost always do. If the texts repeat instead, the columns are swapped.
        # Labels are counted first, because most datasets have few of them, so that their texts need not be counted.
        if len(train.rows) > 2 * distinct or 2 * len(set(train.column(text))) > distinct:
            continue
        if sum(map(len, train.column(text))) < sum(map(len, train.column(gold))):
            names = {text: source_column(text, data), gold: source_column(gold, data)}
            swap = " ".join(
                f"--set {assignment(f'data.columns.{canonical}', names[source])}"
                for canonical, source in ((text, gold), (gold, text))
            )
            message = f"{names[text]!r} looks like labels ({train.rows[0][text][:40]!r}), {names[gold]!r} like texts"
            remedy = f"{swap}; or, if this is intended, list the classes under `labels:`"
            raise DataError(message, remedy, **train.locate(0)._asdict())


def find_suspicious_columns(train: Split, columns: ColumnSpec, data: DataConfig, *, finds_names: bool) -> list[str]:
    """Describe columns that do not look like labels or texts: labels that look like ids, texts without letters.

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
            warnings.append(f"{count:,} training rows have {names:,} different labels. Is {label!r} their column?")
    elif all(isinstance(value, float) and value.is_integer() for value in gold()) and all(
        starmap(lt, pairwise(gold()))
    ):
        example = ", ".join(f"{value:g}" for value in islice(gold(), 3))
        warnings.append(f"The labels are integers in ascending order: {example}, ... Is {label!r} their column?")
    for column in columns.inputs:
        # Texts without any letter are probably ids or numbers that were mapped by mistake.
        if not any(map(_has_letter, train.column(column))):
            name = source_column(column, data)
            example = str(train.rows[0].get(column))[:40]
            warnings.append(f"No training text has a letter, such as {example!r}. Is {name!r} their column?")
    return warnings


def find_odd_rows(splits: Mapping[str, Split], columns: ColumnSpec, *, found_names: Sequence[str]) -> list[str]:
    """Describe rare labels, and rows of other splits that are training rows too, one sentence per finding.

    Args:
        splits: ``train`` and validation splits, with label names as gold values if the task family has names.
        columns: Columns of the task family.
        found_names: Label names that were collected from the training rows; empty if the recipe declares them.
    """
    rare = find_rare_names(splits["train"], columns.gold, found_names)
    return [*(text for text, _ in rare), *_find_shared(splits, columns)]


def _key(row: Row, inputs: Iterable[str]) -> int:
    """Return a hash of the columns that the model reads; an integer takes less memory than a text."""
    # Lists, such as the words of a sentence, cannot be hashed, but their `repr` can. Python salts the hash of a text
    # for each process, so these numbers must not be stored.
    values = (row.get(name) for name in inputs)
    return hash(tuple(value if isinstance(value, str) else repr(value) for value in values))


def _has_letter(value: object) -> bool:
    """Return whether a text has a letter; True for values that are not text."""
    return not isinstance(value, str) or any(map(str.isalpha, value))


def find_rare_names(train: Split, gold: str, names: Sequence[str]) -> list[tuple[str, RowLocation]]:
    """Describe labels that may be typos or placeholders for no label.

    Returns:
        Pairs of a warning, which suggests the frequent label that may be meant, and the first row with the label.
    """
    if not names or len(names) > _MAX_NAMES:
        return []
    # Tags and lists of labels hold several names per row, which are counted separately.
    rows, is_single = len(train.rows), all(isinstance(value, str) for value in train.column(gold))
    counts = Counter(chain.from_iterable(map(get_label_types, train.column(gold))))

    def first_place(name: str) -> RowLocation:
        return train.locate(next(i for i, value in enumerate(train.column(gold)) if name in get_label_types(value)))

    doubts = []
    for name in (name for name in counts if is_placeholder(name, counts)):
        labels = shlex.quote(f"labels=[{list_names(sorted(counts.keys() - {name}))}]")
        remedy = f"--set {labels} --set data.empty_label=drop leaves them out" if is_single else "Leave it empty if so"
        doubt = f"{format_fraction(counts[name], rows)} training rows have the label {name!r}, which may mean no label"
        doubts.append((f"{doubt}. {remedy}.", first_place(name)))
    forms = {name: fold_label(name) for name in counts}
    for name, count in counts.items():
        # Another case, or another spelling of a number, is doubtful even if both labels are frequent.
        twins = (label for label in counts if forms[label] == forms[name] and (counts[label], label) > (count, name))
        typos = (label for label in counts if counts[label] >= _TYPO * count and _is_typo(name, label))
        meant = next(chain(twins, typos), None)
        # Equally frequent labels would have rows / len(counts) rows each. With 4 labels in 40,000 rows, a label is rare
        # if it has at most 10.
        if meant is None and not (is_single and count * len(counts) * _RARE <= rows):
            continue
        first = first_place(name)
        times = "once" if count == 1 else f"{count:,} times"
        location = str(first) if count == 1 else f"first in {first}"
        question = f" Is {meant!r} meant?" if meant else ""
        doubts.append((f"The label {name!r} occurs {times} in {rows:,} training rows ({location}).{question}", first))
    return doubts


def find_skew(train: Split, gold: str) -> tuple[str, int] | None:
    """Return the label of most training rows and its number of rows, or None if labels are balanced."""
    rows = len(train.rows)
    if rows < _MIN_ROWS or not all(isinstance(value, str) for value in train.column(gold)):
        return None
    label, count = Counter(train.column(gold)).most_common(1)[0]
    return (label, count) if _SKEWED * rows <= count < rows else None


def describe_skew(train: Split, gold: str, labels: Sequence[str], recipe: Recipe) -> list[str]:
    """Warn if most rows have the same label, with the settings that help to learn the other labels."""
    if (skew := find_skew(train, gold)) is None:
        return []
    label, count = skew
    advice = []
    if recipe.training.class_weights is None:
        advice.append("give the other labels more weight (--set training.class_weights=balanced)")
    # F1 scores the second label, so it suits a rare second label.
    rare_metrics = ("f1",) if len(labels) == 2 and label == labels[0] else ()
    # A model that always predicts the frequent label has a high accuracy, and the best checkpoint would be chosen by
    # it.
    if recipe.best_metric not in (*_BALANCED_METRICS, *rare_metrics):
        better = next((name for name in recipe.metrics if name in _BALANCED_METRICS), "")
        metrics = ", ".join([_BALANCED_METRICS[0], *recipe.metrics])
        setting = f"best_metric={better}" if better else f"metrics=[{metrics}]"
        advice.append(f"select by a metric that weights all labels equally (--set {shlex.quote(setting)})")
    message = f"{format_fraction(count, len(train.rows))} training rows have the label {label!r}"
    return [f"{message}: {', and '.join(advice)}."] if advice else []


def rows_by_label(
    splits: Mapping[str, Split], gold: str, left_out: Collection[str] = ()
) -> dict[str, dict[str, list[int]]]:
    """Return label -> split -> indices of its rows with this label.

    For tags, the labels are entity types. The labels in `left_out` are omitted.
    """
    rows_by_name: dict[str, dict[str, list[int]]] = {}
    for name, split in splits.items():
        for index, value in enumerate(split.column(gold)):
            for label in set(get_label_types(value or ())) - set(left_out):
                rows_by_name.setdefault(label, {}).setdefault(name, []).append(index)
    return rows_by_name


def find_unseen_names(splits: Mapping[str, Split], gold: str) -> dict[str, dict[str, list[int]]]:
    """Return the result of `rows_by_label` for the labels that no training row has."""
    trained = {label for value in splits["train"].column(gold) for label in get_label_types(value or ())}
    return rows_by_label({name: split for name, split in splits.items() if name != "train"}, gold, trained)


def describe_unseen(splits: Mapping[str, Split], gold: str) -> list[str]:
    """Describe the labels that no training row has, in a sentence."""
    unseen = find_unseen_names(splits, gold)
    if not unseen:
        return []
    examples = [
        f"{label!r} ({len(rows):,} of {name}, the first {splits[name].locate(rows[0])})"
        for label, rows_by_split in list(unseen.items())[:_MAX_SHOWN]
        for name, rows in rows_by_split.items()
    ]
    more = f" and {len(unseen) - _MAX_SHOWN:,} more" if len(unseen) > _MAX_SHOWN else ""
    return [f"No training row has the label {', '.join(examples)}{more}. It cannot be learned, and counts as missed."]


def describe_lacking(gold: Sequence[Any], missing_labels: Sequence[str]) -> list[str]:
    """Describe the labels of rows to score that the model lacks, in a sentence.

    >>> describe_lacking(["a", "b", "a", "c"], ["c"])
    ["The model lacks the label 'c', which 1 of 4 (25.0%) rows have. It counts as missed."]
    """
    if not missing_labels:
        return []
    rows = sum(not set(missing_labels).isdisjoint([value] if isinstance(value, str) else value) for value in gold)
    listed = ", ".join(map(repr, missing_labels[:_MAX_SHOWN])) + (", ..." if len(missing_labels) > _MAX_SHOWN else "")
    return [
        f"The model lacks the label {listed}, which {format_fraction(rows, len(gold))} rows have. It counts as missed."
    ]


def find_contradictions(
    split: Split, pairs: Iterable[tuple[int, int]], gold: str
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Split pairs of rows with the same inputs into repeats and contradictions, which have different gold values."""
    repeats, contradictions, pairs = list[tuple[int, int]](), list[tuple[int, int]](), list(pairs)
    # Rows may be on disk, where reading them in order is fast.
    gold_values = {index: split.rows[index].get(gold) for index in sorted(set(chain.from_iterable(pairs)))}
    for earlier, index in pairs:
        first, second = gold_values[earlier], gold_values[index]
        if first == second:
            repeats.append((earlier, index))
        elif not isinstance(first, dict):  # a question may have several answers
            contradictions.append((earlier, index))
    return repeats, contradictions


def _find_shared(splits: Mapping[str, Split], columns: ColumnSpec) -> list[str]:
    """Describe the rows of other splits whose inputs also occur in the training rows."""
    import numpy as np

    inputs = [name for name in columns.names if name not in (columns.gold, "id")]
    keys = {name: np.fromiter((_key(row, inputs) for row in split.rows), np.int64) for name, split in splits.items()}
    train, train_keys, warnings = splits["train"], keys.pop("train"), []
    for name, split_keys in keys.items():
        # Rows with equal hashes count as equal: with 64 bits, other rows almost never collide.
        shared = np.flatnonzero(np.isin(split_keys, train_keys))
        if len(shared):
            first = np.flatnonzero(train_keys == split_keys[shared[0]])[0]
            example = f"such as {splits[name].locate(shared[0])}, which is {train.locate(first)}"
            share = format_fraction(len(shared), len(split_keys))
            warnings.append(f"{share} {name} rows are training rows too, {example}. Scores may be too high.")
    return warnings


def format_fraction(part: int, total: int) -> str:
    """Return a part of a total as text, with its percentage.

    >>> format_fraction(37, 1000), format_fraction(2, 14041)
    ('37 of 1,000 (3.7%)', '2 of 14,041 (0.01%)')
    """
    percent = 100 * part / total
    return f"{part:,} of {total:,} ({percent:.1f}%)" if percent >= 1 else f"{part:,} of {total:,} ({percent:.1g}%)"


def get_label_types(gold: Any) -> list[str]:
    """Return the label names in a gold value; an entity tag such as B-PER becomes its type."""
    if isinstance(gold, str):
        return [gold]
    return [name[2:] if name.startswith(_PREFIXES) else name for name in gold if name is not None]


def _is_typo(name: str, label: str) -> bool:
    """Return whether a name differs from a label only in case, spaces, or one wrong, missing or swapped letter.

    >>> [_is_typo(name, "not_good") for name in ("Not good", "not_god", "not_godo", "good", "not_goodish")]
    [True, True, True, False, False]
    >>> _is_typo("class 1", "class 2"), _is_typo("sad", "mad"), _is_typo("A", "A-")
    (False, False, False)
    """
    a, b = (text.casefold().replace("_", " ").replace("-", " ") for text in (name, label))
    if a == b:
        return name != label
    # In short names, one letter often makes another word: sad and mad.
    if min(len(a), len(b)) < 5:
        return False
    for _ in range(2):  # drop the common start, then the common end
        while a and b and a[0] == b[0]:
            a, b = a[1:], b[1:]
        a, b = a[::-1], b[::-1]
    # The remaining letters differ: at most one letter on each side, or two letters in the other order. Digits and signs
    # distinguish classes, so only letters count as typos.
    is_single_edit = max(len(a), len(b)) == 1 or (len(a) == 2 and a == b[::-1])
    return is_single_edit and (a + b).isalpha()
