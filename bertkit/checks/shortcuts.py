"""Shortcuts: a word, a length, a part of the input, an id or the row order that predicts labels or the split."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from bertkit.checks import Finding, Level, level_of, places_of, predict_unseen, read_texts
from bertkit.data.columns import Columns
from bertkit.data.rows import Split
from bertkit.evaluation.baselines import fit_and_score
from bertkit.metrics import Numbers
from bertkit.metrics.linear import draw_rows, find_words
from bertkit.metrics.paired import LEVEL, permutation_test
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.slices import fisher
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.tasks import Task
from bertkit.tokens.features import Setup

_WARN = 0.2  # share of the errors of chance that a shortcut avoids
_MOST_ROWS = 10_000
_LEFT, _COVERED, _LEAST = 0.1, 0.1, 20
"""The most errors that a word leaves of those of its label alone, and how many rows of the label have it at least."""
_ALONE = " alone"  # how the names of baselines end that read a part of the input
_ROUNDING = 1e-9
_LETTERS = re.compile(r"[^\W\d_]+")
_FOLDS = 5
_MIN_ROWS = 50
_MAX_WORDS = 10_000
_MIN_STANDARD_ERRORS = 4.0  # of a gain, because many features are tried
_MAX_SHIFT_ROWS, _MIN_SHIFT_ROWS = 2000, 30  # per split
_WARN_SHIFT = 0.8  # area under the ROC curve


def find_shortcuts(splits: Mapping[str, Split], task: Task, recipe: Recipe, labels: Sequence[str]) -> list[Finding]:
    """Find what predicts the labels of training rows; nothing where gold values are neither labels nor numbers."""
    train, columns = splits["train"], task.COLUMNS
    findings = []
    classes = classes_of([row.get(columns.gold) for row in train.rows]) if columns.gold else None
    if classes is not None:
        rows = draw_rows(len(train.rows), _MOST_ROWS, 42).tolist()
        chosen, of_rows = [train.rows[row] for row in rows], [classes[row] for row in rows]
        findings += _find_words(train, columns, rows, of_rows)
        by_length = measure_numbers(_lengths(chosen, columns), of_rows)
        findings.append(_describe_gain("length", "the lengths of the texts", by_length))
        findings.append(_describe_gain("row_order", "the order of the rows", _measure_order(classes, rows)))
        if "id" in chosen[0]:
            # Predict the labels of rows from the letters of their ids, or from the rank of their number.
            names = list(map(str, [row["id"] for row in chosen]))
            letters = [set(_LETTERS.findall(name)) for name in names]
            numbers = np.array([[float((re.sub(r"\D", "", name) or "0")[:15])] for name in names])
            by_number, by_letters = measure_numbers(numbers, of_rows), measure_words(letters, of_rows)
            larger = max(by_number, by_letters, key=lambda gain: gain.accuracy)
            findings.append(_describe_gain("ids", "the ids", larger))
    return [*findings, *_find_partial(splits, task, recipe, labels)]


def _describe_gain(name: str, what: str, gain: Gain) -> Finding:
    level: Level = "warn" if gain.share >= _WARN else "good"
    text = f"by {what} alone, {gain.accuracy:.1%} of the labels are found ({gain.chance:.1%} without)"
    return Finding(level, "shortcuts", name, text)


def _find_words(train: Split, columns: Columns, rows: Sequence[int], classes: Sequence[int]) -> list[Finding]:
    """Find single words that tell the label of many rows (Gardner et al. 2021), beyond chance over all words."""
    words = [_words_of(train.rows[row], columns) for row in rows]
    of_words: Counter[tuple[str, int]] = Counter()
    for own, label in zip(words, classes, strict=True):
        of_words.update((word, label) for word in own)
    totals, of_labels = Counter(word for own in words for word in own), Counter(classes)
    gold = {label: train.rows[row].get(columns.gold) for row, label in zip(rows, classes, strict=True)}
    findings = []
    tests = len(totals) * len(of_labels)
    for (word, label), count in of_words.most_common():
        prior, covered = of_labels[label] / len(classes), count / of_labels[label]
        sure = count / totals[word]
        if min(count / _LEAST, covered / _COVERED) < 1 or 1 - sure > _LEFT * (1 - prior) + _ROUNDING:
            continue
        if fisher(count, totals[word], of_labels[label], len(classes))[0] * tests < LEVEL:
            shown = repr(gold[label]) if isinstance(gold[label], str) else "one side of the median"
            text = f"{word!r} is in {covered:.0%} of the rows labeled {shown}, and {sure:.1%} of its rows are"
            text += f" ({prior:.1%} of all)"
            places = places_of(train, (row for row, own in zip(rows, words, strict=True) if word in own))
            findings.append(Finding("warn", "shortcuts", "words", text, places, totals[word]))
    return findings[:5] or [Finding("good", "shortcuts", "words", "no single word tells the label of many rows")]


def _words_of(row: Row, columns: Columns) -> set[str]:
    """Return the words of a row, those of another column than the first with its name."""
    texts = read_texts(row, columns)
    first = next(iter(texts), "")
    return {word if name == first else f"{name}:{word}" for name, text in texts.items() for word in find_words(text)}


def _lengths(rows: Sequence[Row], columns: Columns) -> Numbers:
    """Return the number of words and of characters of each text, shape (rows, 2 * texts)."""
    names = list(dict.fromkeys(name for row in rows[:100] for name in read_texts(row, columns)))
    texts = [read_texts(row, columns) for row in rows]
    return np.array([[n for name in names for n in _sizes(of_row.get(name, ""))] for of_row in texts], dtype=float)


def _sizes(text: str) -> tuple[int, int]:
    return len(text.split()), len(text)


def _measure_order(classes: Sequence[int], rows: Sequence[int]) -> Gain:
    """Predict the labels of rows from those of the two rows before them, and from where they are."""
    features = [
        (
            f"one before: {classes[row - 1] if row else ''}",
            f"two before: {classes[row - 2] if row > 1 else ''}",
            f"tenth: {10 * row // len(classes)}",
        )
        for row in rows
    ]
    return measure_words(features, [classes[row] for row in rows])


def _find_partial(splits: Mapping[str, Split], task: Task, recipe: Recipe, labels: Sequence[str]) -> list[Finding]:
    """Compare the baselines of the task family that read a part of the input with the one that reads nothing."""
    validation = splits.get("validation")
    # the F1 of always the same answer is mostly 0, beside which any part of the input looks good
    metric = "accuracy" if "accuracy" in recipe.metrics else recipe.best_metric
    if validation is None or not task.COLUMNS.gold or is_lower_better(metric):
        return []
    setup = Setup(recipe, cast(Any, None), tuple(labels))  # baselines read no tokens
    scored = fit_and_score(task, splits["train"].rows, {"validation": validation.rows}, setup)
    scores = {name: of_baseline.get(metric) for name, of_baseline in scored.scores["validation"].items()}
    nothing = max(0.0, next(iter(scores.values()), 0.0) or 0.0)
    alone = {name: score for name, score in scores.items() if name.endswith(_ALONE) and score is not None}
    judged = scored.judged["validation"]
    findings = []
    for name, score in alone.items():
        if np.isfinite(score):
            is_shortcut = score - nothing >= _WARN * (1 - nothing)
            if is_shortcut:  # of few rows, as large a share is right by accident
                sides = next(iter(judged.values())), judged[name]
                p = permutation_test(lambda of: task.score(dict(of), setup), *sides, samples=1000)[0][metric]
                is_shortcut = p is not None and p * len(alone) < LEVEL
            text = f"by its {name}, validation reaches {metric} {score:.3f} ({nothing:.3f} without)"
            findings.append(Finding("warn" if is_shortcut else "good", "shortcuts", "partial_input", text))
    return findings


class Gain(NamedTuple):
    """How often a classifier is right, and how often the most frequent class alone."""

    accuracy: float
    chance: float
    rows: int

    @property
    def share(self) -> float:
        """The share of the errors of chance that the classifier does not make; 0 where it may be an accident."""
        error = math.sqrt(self.chance * (1 - self.chance) / self.rows)
        gain = self.accuracy - self.chance
        return 0.0 if gain <= _MIN_STANDARD_ERRORS * error else gain / (1 - self.chance)


def classes_of(gold: Sequence[Any]) -> list[int] | None:
    """Return the gold values as classes: labels, or numbers above and below their median.

    None where there is one class, or more than 20, or where values are neither labels nor numbers.
    """
    if len(gold) < _MIN_ROWS:
        return None
    if all(isinstance(value, float) for value in gold):
        middle = float(np.median(np.array(gold)))
        classes = [int(value > middle) for value in gold]
    elif all(isinstance(value, (str, int)) for value in gold):
        names = {name: number for number, name in enumerate(sorted(set(map(str, gold))))}
        classes = [names[str(value)] for value in gold]
    else:
        return None
    return classes if 2 <= len(set(classes)) <= 20 else None


def measure_words(features: Sequence[Iterable[str]], classes: Sequence[int]) -> Gain:
    """Predict classes from the features that each row has, such as its words, by logistic regression."""
    gold = np.array(classes)
    if np.sort(np.bincount(gold))[-2] < _FOLDS:
        # Some fold may have no row of a second class to learn from.
        return _gain(np.full(len(gold), np.bincount(gold).argmax()), gold)
    return _gain(_predict_words(features, gold, "predict"), gold)


def _predict_words(features: Sequence[Iterable[str]], classes: Numbers, method: str) -> Numbers:
    """Return predictions for each row by a model of the features that was fitted to other rows."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline

    # The empty feature, which all rows have, keeps the vocabulary of rare features from being empty.
    rows = [["", *row_features] for row_features in features]
    vectorizer = CountVectorizer(analyzer=list, min_df=2, max_features=_MAX_WORDS)
    model = make_pipeline(vectorizer, LogisticRegression(C=0.1, max_iter=50))
    return predict_unseen(model, rows, classes, StratifiedKFold(_FOLDS, shuffle=True, random_state=42), method)


def measure_numbers(values: Numbers, classes: Sequence[int]) -> Gain:
    """Predict classes from a few numbers, an array (rows, numbers), by a decision tree."""
    from sklearn.model_selection import StratifiedKFold
    from sklearn.tree import DecisionTreeClassifier

    gold = np.array(classes)
    tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(gold) // 50), random_state=0)
    return _gain(predict_unseen(tree, values, gold, StratifiedKFold(_FOLDS, shuffle=True, random_state=0)), gold)


def _gain(predicted: Numbers, gold: Numbers) -> Gain:
    return Gain(float((predicted == gold).mean()), float(np.bincount(gold).max() / len(gold)), len(gold))


def find_shift(splits: Mapping[str, Split], columns: Columns) -> list[Finding]:
    """Tell how well the words of training rows differ from those of each other split.

    The area under the ROC curve is 0.5 by chance, with the variance of the Mann-Whitney statistic (Hanley and McNeil
    1982), and 1 where each row tells its split.
    """
    return [
        _compare_words(splits["train"], split, columns)
        for name, split in splits.items()
        if name != "train" and min(len(split.rows), len(splits["train"].rows)) >= _MIN_SHIFT_ROWS
    ]


def _compare_words(train: Split, another: Split, columns: Columns) -> Finding:
    from sklearn.metrics import roc_auc_score

    both = [_draw_words(split, columns) for split in (train, another)]
    sizes = len(both[0]), len(both[1])
    is_other = np.repeat([0, 1], sizes)
    scores = _predict_words([*both[0], *both[1]], is_other, "decision_function")
    area = float(roc_auc_score(is_other, scores))
    spread = 1.96 * math.sqrt((sizes[0] + sizes[1] + 1) / (12 * sizes[0] * sizes[1]))
    text = f"{another.name}: its words tell it from train with an AUC of {area:.2f}"
    text += f" (by chance {0.5 - spread:.2f} to {0.5 + spread:.2f})"
    return Finding(level_of(area, warn=max(_WARN_SHIFT, 0.5 + 2 * spread)), "splits", "shift", text)


def _draw_words(split: Split, columns: Columns) -> list[set[str]]:
    """Return the words of rows that are drawn, one row for each text of those that share one."""
    generator = np.random.default_rng(42)
    words: dict[str, set[str]] = {}
    for row in generator.permutation(len(split.rows)).tolist():
        texts = read_texts(split.rows[row], columns)
        longest = max(texts.values(), key=len, default="")
        if longest not in words:
            words[longest] = {word for text in texts.values() for word in find_words(text)}
        if len(words) == _MAX_SHIFT_ROWS:
            break
    return list(words.values())
