"""Doubts about rows that can be read but may not be meant: warnings, and an error where columns are swapped."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice, pairwise, starmap
from operator import lt
from typing import Any

from bertkit.data.columns import Columns
from bertkit.data.labels import folded, is_placeholder, list_names, spelled
from bertkit.data.rows import Place, Split
from bertkit.data.text import source_column
from bertkit.errors import DataError
from bertkit.recipe.load import assignment
from bertkit.recipe.records import Data, Recipe
from bertkit.recipe.sections import Row

_FEW = 10  # rows that say little about their columns
_MANY_NAMES = 1000  # more names than these are not compared with one another
_RARE = 1000  # times rarer than if all labels were equally frequent
_PREFIXES = tuple(f"{letter}-" for letter in "BIESLU")  # of entity tags
_SHOWN = 5  # labels that a sentence names
_SKEWED = 0.8  # of the training rows, that have one label
# metrics to which a rare label is worth as much
_LIKE_EACH = ("f1_macro", "balanced_accuracy", "matthews_correlation")
_TYPO = 100  # times rarer than the label that is meant


def refuse_swapped(train: Split, columns: Columns, data: Data) -> None:
    """Check that the column of texts does not hold the labels, and the column of labels the texts.

    Raises:
        DataError: most labels differ, at most half as many texts do, and the texts are shorter.
    """
    gold = columns.gold
    for text in columns.given:
        if not all(isinstance(value, str) for name in (text, gold) for value in train.column(name)):
            continue
        distinct = len(set(train.column(gold)))
        # Texts hardly repeat and labels hardly do anything else; where it is the other way round, they are swapped.
        # Labels are asked first: they are few in most sets, and texts are all of them.
        if len(train.rows) > 2 * distinct or 2 * len(set(train.column(text))) > distinct:
            continue
        if sum(map(len, train.column(text))) < sum(map(len, train.column(gold))):
            names = {text: source_column(text, data), gold: source_column(gold, data)}
            swap = " ".join(
                f"--set {assignment(f'data.columns.{canonical}', names[other])}"
                for canonical, other in ((text, gold), (gold, text))
            )
            what = f"{names[text]!r} looks like labels ({train.rows[0][text][:40]!r}), {names[gold]!r} like texts"
            remedy = f"{swap}; or, if they are meant so, list the classes under `labels:`"
            raise DataError(what, remedy, **train.place(0)._asdict())


def find_odd_columns(train: Split, columns: Columns, data: Data, *, finds_names: bool) -> list[str]:
    """Describe columns that look like others: labels that are ids, texts that are numbers.

    Args:
        train: the training rows, with their labels as written.
        columns: those of the task family.
        data: of the recipe.
        finds_names: whether the names of the labels are found in the training rows.
    """
    count, gold = len(train.rows), partial(train.column, columns.gold)
    if count < _FEW:
        return []
    warnings = []
    label = source_column(columns.gold, data)
    if finds_names and all(isinstance(value, (str, int, float)) for value in gold()):
        names = len(set(map(spelled, gold())))
        if names > count / 2:
            warnings.append(f"{count:,} training rows have {names:,} different labels. Is {label!r} their column?")
    elif all(isinstance(value, float) and value.is_integer() for value in gold()) and all(
        starmap(lt, pairwise(gold()))
    ):
        shown = ", ".join(f"{value:g}" for value in islice(gold(), 3))
        warnings.append(f"The labels are whole numbers in ascending order: {shown}, ... Is {label!r} their column?")
    for column in columns.given:
        if not any(map(_has_letter, train.column(column))):
            name = source_column(column, data)
            shown = str(train.rows[0].get(column))[:40]
            warnings.append(f"No training text has a letter, such as {shown!r}. Is {name!r} their column?")
    return warnings


def find_odd_rows(splits: Mapping[str, Split], columns: Columns, *, found_names: Sequence[str]) -> list[str]:
    """Describe rare labels, and rows of other splits that are training rows too, each in a sentence.

    Args:
        splits: ``train`` and what validates it, with label names as gold values where the family has names.
        columns: those of the task family.
        found_names: the label names, where they were not declared but found in the training rows.
    """
    rare = find_rare_names(splits["train"], columns.gold, found_names)
    return [*(text for text, _ in rare), *_find_shared(splits, columns)]


def _key(row: Row, inputs: Iterable[str]) -> int:
    """Return a hash of what the model reads of a row: a number takes less memory than a text."""
    values = (row.get(name) for name in inputs)
    return hash(tuple(value if isinstance(value, str) else repr(value) for value in values))


def _has_letter(value: object) -> bool:
    """Tell whether a text has a letter; what is not a text is not judged."""
    return not isinstance(value, str) or any(map(str.isalpha, value))


def find_rare_names(train: Split, gold: str, names: Sequence[str]) -> list[tuple[str, Place]]:
    """Describe labels that may be typos, or mean no label, with the frequent label that may be meant, and a row."""
    if not names or len(names) > _MANY_NAMES:
        return []
    rows, is_single = len(train.rows), all(isinstance(value, str) for value in train.column(gold))
    counts = Counter(chain.from_iterable([value] if is_single else types_of(value) for value in train.column(gold)))

    def first_place(name: str) -> Place:
        return train.place(next(i for i, value in enumerate(train.column(gold)) if name in types_of(value)))

    doubts = []
    for name in (name for name in counts if is_placeholder(name, counts)):
        labels = shlex.quote(f"labels=[{list_names(sorted(counts.keys() - {name}))}]")
        remedy = f"--set {labels} --set data.empty_label=drop leaves them out" if is_single else "Leave it empty if so"
        doubt = f"{share_of(counts[name], rows)} training rows have the label {name!r}, which may mean no label"
        doubts.append((f"{doubt}. {remedy}.", first_place(name)))
    forms = {name: folded(name) for name in counts}
    for name, count in counts.items():
        # Another case, or another spelling of a number, is doubtful even if both labels are frequent.
        twins = (label for label in counts if forms[label] == forms[name] and (counts[label], label) > (count, name))
        typos = (label for label in counts if counts[label] >= _TYPO * count and _is_typo(name, label))
        meant = next(chain(twins, typos), None)
        if meant is None and not (is_single and count * len(counts) * _RARE <= rows):
            continue
        first = first_place(name)
        times = "once" if count == 1 else f"{count:,} times"
        location = str(first) if count == 1 else f"first in {first}"
        question = f" Is {meant!r} meant?" if meant else ""
        doubts.append((f"The label {name!r} occurs {times} in {rows:,} training rows ({location}).{question}", first))
    return doubts


def find_skew(train: Split, gold: str) -> tuple[str, int] | None:
    """Return the label that most training rows have, and how many do; None where labels are more even, or no names."""
    rows = len(train.rows)
    if rows < _FEW or not all(isinstance(value, str) for value in train.column(gold)):
        return None
    label, count = Counter(train.column(gold)).most_common(1)[0]
    return (label, count) if _SKEWED * rows <= count < rows else None


def describe_skew(train: Split, gold: str, labels: Sequence[str], recipe: Recipe) -> list[str]:
    """Describe labels of which most rows have one, with what the recipe lacks to learn the others, in a sentence."""
    if (skew := find_skew(train, gold)) is None:
        return []
    label, count = skew
    advice = []
    if recipe.training.class_weights is None:
        advice.append("give the others more weight (--set training.class_weights=balanced)")
    # the metric is of the second label
    of_rare = ("f1",) if len(labels) == 2 and label == labels[0] else ()
    if recipe.best_metric not in (*_LIKE_EACH, *of_rare):
        better = next((name for name in recipe.metrics if name in _LIKE_EACH), "")
        metrics = ", ".join([_LIKE_EACH[0], *recipe.metrics])
        setting = f"best_metric={better}" if better else f"metrics=[{metrics}]"
        advice.append(f"choose by a metric that counts each label alike (--set {shlex.quote(setting)})")
    what = f"{share_of(count, len(train.rows))} training rows have the label {label!r}"
    return [f"{what}: {', and '.join(advice)}."] if advice else []


def rows_by_label(
    splits: Mapping[str, Split], gold: str, left_out: Collection[str] = ()
) -> dict[str, dict[str, list[int]]]:
    """Return label -> split -> the indices of its rows that have it; of tags, entity types.

    Labels may be left out.
    """
    rows_of: dict[str, dict[str, list[int]]] = {}
    for name, split in splits.items():
        for index, value in enumerate(split.column(gold)):
            for label in set(types_of(value or ())) - set(left_out):
                rows_of.setdefault(label, {}).setdefault(name, []).append(index)
    return rows_of


def find_unseen_names(splits: Mapping[str, Split], gold: str) -> dict[str, dict[str, list[int]]]:
    """Return what `rows_by_label` does of the labels that no training row has."""
    trained = {label for value in splits["train"].column(gold) for label in types_of(value or ())}
    return rows_by_label({name: split for name, split in splits.items() if name != "train"}, gold, trained)


def describe_unseen(splits: Mapping[str, Split], gold: str) -> list[str]:
    """Describe the labels that no training row has, in a sentence."""
    unseen = find_unseen_names(splits, gold)
    if not unseen:
        return []
    shown = [
        f"{label!r} ({len(rows):,} of {name}, the first {splits[name].place(rows[0])})"
        for label, of_splits in list(unseen.items())[:_SHOWN]
        for name, rows in of_splits.items()
    ]
    more = f" and {len(unseen) - _SHOWN:,} more" if len(unseen) > _SHOWN else ""
    return [f"No training row has the label {', '.join(shown)}{more}. It cannot be learned, and counts as missed."]


def describe_lacking(gold: Sequence[Any], lacking: Sequence[str]) -> list[str]:
    """Describe the labels of rows to score that the model lacks, in a sentence.

    >>> describe_lacking(["a", "b", "a", "c"], ["c"])
    ["The model lacks the label 'c', which 1 of 4 (25.0%) rows have. It counts as missed."]
    """
    if not lacking:
        return []
    rows = sum(not set(lacking).isdisjoint([value] if isinstance(value, str) else value) for value in gold)
    shown = ", ".join(map(repr, lacking[:_SHOWN])) + (", ..." if len(lacking) > _SHOWN else "")
    return [f"The model lacks the label {shown}, which {share_of(rows, len(gold))} rows have. It counts as missed."]


def find_contradictions(
    split: Split, pairs: Iterable[tuple[int, int]], gold: str
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Tell which rows repeat an earlier one and which contradict it, from pairs of rows with the same inputs."""
    repeats, contradictions, pairs = list[tuple[int, int]](), list[tuple[int, int]](), list(pairs)
    # in the order of the rows, in which they are read fast
    gold_of = {index: split.rows[index].get(gold) for index in sorted(set(chain.from_iterable(pairs)))}
    for earlier, index in pairs:
        first, second = gold_of[earlier], gold_of[index]
        if first == second:
            repeats.append((earlier, index))
        elif not isinstance(first, dict):  # a question may have several answers
            contradictions.append((earlier, index))
    return repeats, contradictions


def _find_shared(splits: Mapping[str, Split], columns: Columns) -> list[str]:
    """Describe the rows of other splits whose texts are in the training rows too."""
    import numpy as np

    inputs = [name for name in columns.names if name not in (columns.gold, "id")]
    keys = {name: np.fromiter((_key(row, inputs) for row in split.rows), np.int64) for name, split in splits.items()}
    train, train_keys, warnings = splits["train"], keys.pop("train"), []
    for name, split_keys in keys.items():
        shared = np.flatnonzero(np.isin(split_keys, train_keys))
        if len(shared):
            first = np.flatnonzero(train_keys == split_keys[shared[0]])[0]
            example = f"such as {splits[name].place(shared[0])}, which is {train.place(first)}"
            share = share_of(len(shared), len(split_keys))
            warnings.append(f"{share} {name} rows are training rows too, {example}. Scores may be too high.")
    return warnings


def share_of(part: int, whole: int) -> str:
    """Write a share with its numbers.

    >>> share_of(37, 1000), share_of(2, 14041)
    ('37 of 1,000 (3.7%)', '2 of 14,041 (0.01%)')
    """
    percent = 100 * part / whole
    return f"{part:,} of {whole:,} ({percent:.1f}%)" if percent >= 1 else f"{part:,} of {whole:,} ({percent:.1g}%)"


def types_of(gold: Any) -> list[str]:
    """Return the names in a gold value; of entity tags such as B-PER, the type."""
    if isinstance(gold, str):
        return [gold]
    return [name[2:] if name.startswith(_PREFIXES) else name for name in gold if name is not None]


def _is_typo(name: str, other: str) -> bool:
    """Tell whether a name differs from another in case or spaces, or in one letter that is wrong, missing or swapped.

    >>> [_is_typo(name, "not_good") for name in ("Not good", "not_god", "not_godo", "good", "not_goodish")]
    [True, True, True, False, False]
    >>> _is_typo("class 1", "class 2"), _is_typo("sad", "mad"), _is_typo("A", "A-")
    (False, False, False)
    """
    a, b = (text.casefold().replace("_", " ").replace("-", " ") for text in (name, other))
    if a == b:
        return name != other
    if min(len(a), len(b)) < 5:
        return False
    for _ in range(2):  # drop the start that both have, then the end
        while a and b and a[0] == b[0]:
            a, b = a[1:], b[1:]
        a, b = a[::-1], b[::-1]
    is_one = max(len(a), len(b)) == 1 or (len(a) == 2 and a == b[::-1])
    return is_one and (a + b).isalpha()
