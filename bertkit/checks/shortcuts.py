"""Find shortcuts: words, lengths, parts of the input, ids or the row order that predict the label or the split."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from bertkit.checks import Finding, Level, get_severity, locate_examples, predict_unseen, read_texts
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Split
from bertkit.evaluation.baselines import fit_and_score
from bertkit.metrics.linear import draw_rows, find_words
from bertkit.metrics.paired import LEVEL, permutation_test
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.slices import fisher
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.tasks import Task
from bertkit.tokens.features import TaskContext

_WARN = 0.2  # fraction of the errors of the majority class that a shortcut avoids
_MAX_ROWS = 10_000
# Limits for words.
_MAX_ERRORS = 0.1  # errors if the word predicts the label / errors without the word
_MIN_RECALL = 0.1  # fraction of the label's rows that contain the word
_MIN_COUNT = 20  # rows with the word and the label
_PARTIAL = " alone"  # ends the names of baselines that read a part of the input
_ROUNDING = 1e-9
_LETTERS = re.compile(r"[^\W\d_]+")
_FOLDS = 5
_MIN_ROWS = 50
_MAX_WORDS = 10_000
_MIN_STANDARD_ERRORS = 4.0  # minimum size of a gain; high, because many features are tried
_MAX_SHIFT_ROWS, _MIN_SHIFT_ROWS = 2000, 30  # per split
_WARN_SHIFT = 0.8  # area under the ROC curve


def find_shortcuts(splits: Mapping[str, Split], task: Task, recipe: Recipe, labels: Sequence[str]) -> list[Finding]:
    """Find features that predict the gold values of training rows, if these are labels or numbers."""
    train, columns = splits["train"], task.COLUMNS
    findings = []
    classes = get_classes([row.get(columns.gold) for row in train.rows]) if columns.gold else None
    if classes is not None:
        rows = draw_rows(len(train.rows), _MAX_ROWS, 42).tolist()
        sampled_rows, row_classes = [train.rows[row] for row in rows], [classes[row] for row in rows]
        findings += _find_words(train, columns, rows, row_classes)
        by_length = measure_numbers(_measure_lengths(sampled_rows, columns), row_classes)
        findings.append(_describe_gain("length", "the lengths of the texts", by_length))
        findings.append(_describe_gain("row_order", "the order of the rows", _measure_order(classes, rows)))
        if "id" in sampled_rows[0]:
            # Predict the labels from the letters of the ids, or from the number in each id.
            ids = list(map(str, [row["id"] for row in sampled_rows]))
            id_letters = [set(_LETTERS.findall(name)) for name in ids]
            # A float holds 15 digits exactly.
            id_values = np.array([[float((re.sub(r"\D", "", name) or "0")[:15])] for name in ids])
            by_number, by_letters = measure_numbers(id_values, row_classes), measure_words(id_letters, row_classes)
            best_gain = max(by_number, by_letters, key=lambda gain: gain.accuracy)
            findings.append(_describe_gain("ids", "the ids", best_gain))
    return [*findings, *_find_partial(splits, task, recipe, labels)]


def _describe_gain(name: str, description: str, gain: Gain) -> Finding:
    level: Level = "warn" if gain.error_reduction >= _WARN else "good"
    text = f"by {description} alone, {gain.accuracy:.1%} of the labels are found ({gain.baseline:.1%} without)"
    return Finding(level, "shortcuts", name, text)


def _find_words(train: Split, columns: ColumnSpec, rows: Sequence[int], classes: Sequence[int]) -> list[Finding]:
    """Find words that predict the label of many rows (Gardner et al. 2021), corrected for multiple tests."""
    words = [_find_row_words(train.rows[row], columns) for row in rows]
    word_labels: Counter[tuple[str, int]] = Counter()
    for row_words, label in zip(words, classes, strict=True):
        word_labels.update((word, label) for word in row_words)
    totals, class_counts = Counter(word for row_words in words for word in row_words), Counter(classes)
    gold = {label: train.rows[row].get(columns.gold) for row, label in zip(rows, classes, strict=True)}
    findings = []
    # Bonferroni correction: some of thousands of words predict a label by chance.
    num_tests = len(totals) * len(class_counts)
    for (word, label), count in word_labels.most_common():
        prior, recall = class_counts[label] / len(classes), count / class_counts[label]
        precision = count / totals[word]
        if count < _MIN_COUNT or recall < _MIN_RECALL or 1 - precision > _MAX_ERRORS * (1 - prior) + _ROUNDING:
            continue
        if fisher(count, totals[word], class_counts[label], len(classes))[0] * num_tests < LEVEL:
            label_name = repr(gold[label]) if isinstance(gold[label], str) else "one side of the median"
            text = f"{word!r} is in {recall:.0%} of the rows labeled {label_name}, and {precision:.1%} of its rows are"
            text += f" ({prior:.1%} of all)"
            examples = (row for row, row_words in zip(rows, words, strict=True) if word in row_words)
            places = locate_examples(train, examples)
            findings.append(Finding("warn", "shortcuts", "words", text, places, totals[word]))
    return findings[:5] or [Finding("good", "shortcuts", "words", "no single word predicts the label of many rows")]


def _find_row_words(row: Row, columns: ColumnSpec) -> set[str]:
    """Return the words of a row, with the column's name as a prefix except for the first column."""
    texts = read_texts(row, columns)
    first = next(iter(texts), "")
    return {word if name == first else f"{name}:{word}" for name, text in texts.items() for word in find_words(text)}


def _measure_lengths(rows: Sequence[Row], columns: ColumnSpec) -> np.ndarray:
    """Return the number of words and characters of each text. Shape: (rows, 2 * texts)."""
    names = list(dict.fromkeys(name for row in rows[:100] for name in read_texts(row, columns)))
    texts = [[row_texts.get(name, "") for name in names] for row_texts in (read_texts(row, columns) for row in rows)]
    return np.array([[size for text in row for size in (len(text.split()), len(text))] for row in texts], dtype=float)


def _measure_order(classes: Sequence[int], rows: Sequence[int]) -> Gain:
    """Predict the label of each row from the labels of the two rows before it, and from its tenth of the file."""
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
    """Compare the task's baselines that read a part of the input with the baseline that reads nothing."""
    validation = splits.get("validation")
    # A constant answer often has an F1 of 0, so any part of the input would look like a shortcut.
    metric = "accuracy" if "accuracy" in recipe.metrics else recipe.best_metric
    if validation is None or not task.COLUMNS.gold or is_lower_better(metric):
        return []
    context = TaskContext(recipe, cast(Any, None), tuple(labels))  # baselines read no tokens
    baselines = fit_and_score(task, splits["train"].rows, {"validation": validation.rows}, context)
    scores = {name: baseline_scores.get(metric) for name, baseline_scores in baselines.scores["validation"].items()}
    constant_score = max(0.0, next(iter(scores.values()), 0.0) or 0.0)
    partial_scores = {name: score for name, score in scores.items() if name.endswith(_PARTIAL) and score is not None}
    row_scores = baselines.row_scores["validation"]
    findings = []
    for name, score in partial_scores.items():
        if np.isfinite(score):
            is_shortcut = score - constant_score >= _WARN * (1 - constant_score)
            if is_shortcut:  # with few rows, the difference can be accidental
                pair = next(iter(row_scores.values())), row_scores[name]
                p = permutation_test(lambda rows: task.score(dict(rows), context), *pair, samples=1000)[0][metric]
                is_shortcut = p is not None and p * len(partial_scores) < LEVEL
            text = f"by its {name}, validation reaches {metric} {score:.3f} ({constant_score:.3f} without)"
            findings.append(Finding("warn" if is_shortcut else "good", "shortcuts", "partial_input", text))
    return findings


class Gain(NamedTuple):
    """Accuracy of a classifier, and of the most frequent class."""

    accuracy: float
    baseline: float
    rows: int

    @property
    def error_reduction(self) -> float:
        """Fraction of the majority class's errors that the classifier avoids, or 0 if the gain may be accidental."""
        error = math.sqrt(self.baseline * (1 - self.baseline) / self.rows)
        gain = self.accuracy - self.baseline
        return 0.0 if gain <= _MIN_STANDARD_ERRORS * error else gain / (1 - self.baseline)


def get_classes(gold: Sequence[Any]) -> list[int] | None:
    """Return the class of each gold value, or None with fewer than 50 rows or unless there are 2 to 20 classes.

    The class is the label or, for numbers, whether the number is above the median. Other values have no classes.
    """
    if len(gold) < _MIN_ROWS:
        return None
    if all(isinstance(value, float) for value in gold):
        median = float(np.median(np.array(gold)))
        classes = [int(value > median) for value in gold]
    elif all(isinstance(value, (str, int)) for value in gold):
        indices = {name: index for index, name in enumerate(sorted(set(map(str, gold))))}
        classes = [indices[str(value)] for value in gold]
    else:
        return None
    return classes if 2 <= len(set(classes)) <= 20 else None


def measure_words(features: Sequence[Iterable[str]], classes: Sequence[int]) -> Gain:
    """Predict classes from each row's features, such as words, by logistic regression."""
    gold = np.array(classes)
    if np.sort(np.bincount(gold))[-2] < _FOLDS:
        # Some fold would have only one class, so the largest class is predicted.
        return _compute_gain(np.full(len(gold), np.bincount(gold).argmax()), gold)
    return _compute_gain(_predict_words(features, gold, "predict"), gold)


def _predict_words(features: Sequence[Iterable[str]], classes: np.ndarray, method: str) -> np.ndarray:
    """Predict each row from its features, with a model that was fitted to other rows."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline

    # `min_df` drops rare features. The empty feature is in all rows, so the vocabulary is never empty.
    rows = [["", *row_features] for row_features in features]
    vectorizer = CountVectorizer(analyzer=list, min_df=2, max_features=_MAX_WORDS)
    model = make_pipeline(vectorizer, LogisticRegression(C=0.1, max_iter=50))
    return predict_unseen(model, rows, classes, StratifiedKFold(_FOLDS, shuffle=True, random_state=42), method)


def measure_numbers(values: np.ndarray, classes: Sequence[int]) -> Gain:
    """Predict classes from a few numbers per row by a decision tree. Shape of `values`: (rows, numbers)."""
    from sklearn.model_selection import StratifiedKFold
    from sklearn.tree import DecisionTreeClassifier

    gold = np.array(classes)
    tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(gold) // 50), random_state=0)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    return _compute_gain(predict_unseen(tree, values, gold, folds), gold)


def _compute_gain(predicted: np.ndarray, gold: np.ndarray) -> Gain:
    return Gain(float((predicted == gold).mean()), float(np.bincount(gold).max() / len(gold)), len(gold))


def find_shift(splits: Mapping[str, Split], columns: ColumnSpec) -> list[Finding]:
    """Measure how well the words of a row predict whether it is a training row or a row of another split.

    The area under the ROC curve is 0.5 by chance, with the variance of the Mann-Whitney statistic (Hanley and McNeil
    1982), and 1 if every row can be assigned to its split.
    """
    return [
        _compare_words(splits["train"], split, columns)
        for name, split in splits.items()
        if name != "train" and min(len(split.rows), len(splits["train"].rows)) >= _MIN_SHIFT_ROWS
    ]


def _compare_words(train: Split, other_split: Split, columns: ColumnSpec) -> Finding:
    from sklearn.metrics import roc_auc_score

    words = [_draw_words(split, columns) for split in (train, other_split)]
    sizes = len(words[0]), len(words[1])
    is_other = np.repeat([0, 1], sizes)
    scores = _predict_words([*words[0], *words[1]], is_other, "decision_function")
    auc = float(roc_auc_score(is_other, scores))
    # For sizes n and m, the variance of the area by chance is (n + m + 1) / (12 n m).
    margin = 1.96 * math.sqrt((sizes[0] + sizes[1] + 1) / (12 * sizes[0] * sizes[1]))
    text = f"{other_split.name}: its words separate it from train with an AUC of {auc:.2f}"
    text += f" (by chance {0.5 - margin:.2f} to {0.5 + margin:.2f})"
    return Finding(get_severity(auc, warn=max(_WARN_SHIFT, 0.5 + 2 * margin)), "splits", "shift", text)


def _draw_words(split: Split, columns: ColumnSpec) -> list[set[str]]:
    """Return the words of randomly drawn rows. Rows with the same longest text are drawn once."""
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
