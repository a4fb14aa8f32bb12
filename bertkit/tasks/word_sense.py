"""Choose the sense of a word in a text (CoarseWSD-20: Loureiro et al. 2021), by one of two methods.

``fine_tuned`` trains the encoder with a linear layer over the word's tokens. ``nearest`` trains nothing: the vector of
a word is the mean of its tokens' hidden states, summed over the last layers. It is compared with the mean vector of
each sense's training rows, and the highest cosine wins. Only senses of the same word are candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import label_to_str
from bertkit.data.rows import FILL_IN, NO_LABEL
from bertkit.errors import DataError
from bertkit.metrics.intervals import Metric, RowScores
from bertkit.metrics.registry import CLASSIFICATION_METRICS
from bertkit.modeling.heads.targets import Target, build_label_targets, compute_log_odds
from bertkit.modeling.info import Model
from bertkit.modeling.layers import LAYER_CHOICES
from bertkit.modeling.load import load_tagger
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Answer, Outputs, Prediction, Predictions, RunModule, TaskReport, score_table
from bertkit.tokens.features import (
    IGNORE_INDEX,
    Batch,
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    Tensor,
    find_template,
    padding_collator,
    token_budget,
)
from bertkit.tokens.words import read_target_word, split_windows, tokenize_words

COLUMNS = ColumnSpec(
    inputs=("tokens", "target"),
    gold="sense",
    optional=("word",),
    lists=("tokens", "target"),
    fallback_columns={"tokens": "text"},
    always_fall_back=True,
    predicted=("sense_scores",),
)
HAS_LABEL_NAMES: bool = True
TYPES: Mapping[str, Any] = {"target": int | list[int], "prediction": str}
OPTIONS: Mapping[str, Option] = {
    "method": Option("fine_tuned", choices=("fine_tuned", "nearest")),
    "layers": Option(
        "sum_last_four", choices=tuple(name for name, (_, how) in LAYER_CHOICES.items() if how != "weighted")
    ),
}

_option = partial(read_option, OPTIONS)
_MAJORITY = "most frequent sense"
# Bias of a sense without training rows.
_MIN_SCORE = -1e4


def read(row: Row, recipe: Recipe) -> Row:
    """Check the text and its target word, and change the sense to ``word/sense``.

    The target is the index of a word in ``tokens``, or its first and last + 1 character in ``text``. The word is the
    column ``word`` or, without it, the target in lower case.

    Raises:
        DataError: If the target is outside the text, or the word or sense is missing.
    """
    words, target = read_target_word(row)
    word = label_to_str(row.get("word", words[target].lower()))
    if word is None:
        raise DataError("no word", "fill it in", column="word")
    checked = {**row, "tokens": words, "target": target, "word": word}
    if "sense" not in row:
        return checked
    sense = label_to_str(row["sense"])
    if sense is None:
        raise DataError(NO_LABEL, FILL_IN, column="sense")
    return {**checked, "sense": f"{word.replace('/', '_')}/{sense}"}


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with a linear layer over each token, one logit per sense; for ``nearest``, it is frozen."""
    is_nearest = _option(context.recipe, "method") == "nearest"
    head = {"layers": _option(context.recipe, "layers"), "tagger": "linear", "size": 0} if is_nearest else None
    return load_tagger(folder, context, head, new_head=new_head)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the window in which the target word has the most context; ``positions`` are the word's tokens.

    Raises:
        DataError: If a word has no tokens, or the model has no senses of it.
    """
    texts = [row["tokens"] for row in rows]
    template = find_template(context.tokenizer, pair=False)
    budget = token_budget(context, template)
    label_ids = context.label_ids
    senses = _list_senses(context)
    features = []
    for index, tokens in enumerate(tokenize_words(context.tokenizer, texts, max_tokens=budget // 2)):
        row = rows[index]
        if row["word"].replace("/", "_") not in senses:
            message = f"row {index + 1}: the model has no senses of {row['word']!r}"
            raise DataError(message, f"it has senses of {', '.join(list(senses)[:20])}", column="word")
        if not tokens[row["target"]]:
            message = f"row {index + 1}: the target word {texts[index][row['target']]!r} has no visible character"
            raise DataError(message, "correct the row", column="target")
        # Windows overlap by half, so in long texts, a quarter of the window is on each side of the target word.
        windows = split_windows(tokens, budget, budget // 2)
        window = next(window for window in windows if row["target"] in window.words)
        first = len(template.before) + window.positions[window.words.index(row["target"])]
        positions = list(range(first, first + len(tokens[row["target"]])))
        feature = {"row": index, **template.fill(window.tokens), "positions": positions}
        if "sense" in row:
            feature["labels"] = [IGNORE_INDEX] * len(feature["input_ids"])
            feature["labels"][positions[0] : positions[-1] + 1] = [label_ids[row["sense"]]] * len(positions)
        features.append(feature)
    return features


def collator(context: TaskContext) -> Collator:
    """Build the padding collator."""
    return padding_collator(context, label_per_token=True)


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Set the weights of each sense to the mean direction of its training words' vectors (``nearest`` only).

    Returns:
        Whether nothing is left to train.
    """
    if _option(context.recipe, "method") != "nearest":
        return False
    import torch

    from bertkit.modeling.heads.taggers import compute_states

    train_features = features["train"]
    # Sums of unit vectors. Scaled to length 1, they are the weights of the head: a logit is the cosine times the length
    # of the word's vector, so the nearest sense has the highest logit. Shape: (senses, hidden size).
    sums = np.zeros((len(context.labels), model.output.in_features))
    for feature, states in zip(train_features, compute_states(model, train_features, run), strict=True):
        mean = states[feature["positions"]].mean(axis=0)
        sums[feature["labels"][feature["positions"][0]]] += mean / np.linalg.norm(mean)
    lengths = np.linalg.norm(sums, axis=1)
    with torch.no_grad():
        model.output.weight.copy_(torch.from_numpy(sums / np.maximum(lengths, 1e-12)[:, None]))
        model.output.bias.copy_(torch.from_numpy(np.where(lengths > 0, 0.0, _MIN_SCORE)))
    return True


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose the best sense of each row's word, and score all senses of the word.

    The scores are probabilities for ``fine_tuned``. For ``nearest``, they are cosines times the length of the word's
    vector, which have the same order as cosines.
    """
    senses = _list_senses(context)
    is_nearest = _option(context.recipe, "method") == "nearest"
    decoded = []
    for output, feature, row in zip(outputs, features, rows, strict=True):
        word_senses = senses[row["word"].replace("/", "_")]
        # Shapes: (tokens of the word, senses of all words) -> (senses of this word,).
        scores = output["logits"][feature["positions"]].astype(np.float64).mean(axis=0)[word_senses]
        best_sense = word_senses[int(scores.argmax())]
        if not is_nearest:
            scores = np.exp(scores - scores.max())
            scores /= scores.sum()
        sense_scores = {context.labels[sense]: float(value) for sense, value in zip(word_senses, scores, strict=True)}
        decoded.append({"prediction": context.labels[best_sense], "sense_scores": sense_scores})
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each sense among all senses of the word."""
    word_senses = _list_senses(context)[row["word"].replace("/", "_")]
    positions = features[0]["positions"]

    def score(outputs: Batch, sense: int) -> Tensor:
        return compute_log_odds(outputs["logits"][:, positions].mean(dim=1)[:, word_senses], sense)

    return build_label_targets([context.labels[sense] for sense in word_senses], [prediction["prediction"]], score)


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return the label ids of the ``gold`` and ``predicted`` senses, and the indices of their words. Shape: (rows,)."""
    ids, words = context.label_ids, {word: index for index, word in enumerate(_list_senses(context))}
    gold, predicted = ([row["sense"] for row in rows], [record["prediction"] for record in predictions])
    row_scores = {}
    for name, senses in (("gold", gold), ("predicted", predicted)):
        row_scores[name] = np.array([ids[sense] for sense in senses])
        row_scores[f"{name}_word"] = np.array([words[sense.partition("/")[0]] for sense in senses])
    return row_scores


def _score_words(row_scores: RowScores) -> dict[int, dict[str, Any]]:
    """Compute the accuracy of each word, its macro F1, and the fraction of rows with its most frequent sense.

    Macro F1 is the mean over the word's senses that are gold or predicted.
    """
    # Count all senses at once, because each belongs to one word. Shape: (senses,).
    gold_ids, predicted_ids = row_scores["gold"], row_scores["predicted"]
    size = 1 + int(max(gold_ids.max(), predicted_ids.max()))
    gold, predicted = (np.bincount(ids, minlength=size) for ids in (gold_ids, predicted_ids))
    correct = np.bincount(gold_ids[gold_ids == predicted_ids], minlength=size)
    # For the gold senses [0, 0, 1, 2], predicted as [0, 1, 1, 2], `gold` is [2, 1, 1], `predicted` [1, 2, 1], `correct`
    # [1, 1, 1], and F1 [2/3, 2/3, 1]. If senses 0 and 1 belong to one word, its macro F1 is 2/3.
    f1 = 2 * correct / np.maximum(gold + predicted, 1)
    # Word of each sense, or -1 for senses that do not occur.
    sense_words = np.full(size, -1)
    sense_words[predicted_ids] = row_scores["predicted_word"]
    sense_words[gold_ids] = row_scores["gold_word"]
    scores = {}
    for word in np.unique(row_scores["gold_word"]).tolist():
        senses = np.flatnonzero(sense_words == word)
        rows = int(gold[senses].sum())
        scores[word] = {
            "accuracy": float(correct[senses].sum() / rows),
            "f1_macro": float(f1[senses].mean()),
            "most frequent": float(gold[senses].max() / rows),
            "rows": rows,
        }
    return scores


def _mean_over_words(name: str, row_scores: RowScores) -> float:
    """Return the unweighted mean of a score over the words that have gold rows."""
    return float(np.mean([scores[name] for scores in _score_words(row_scores).values()]))


METRICS: Mapping[str, Metric] = {
    "accuracy": CLASSIFICATION_METRICS["accuracy"],
    "f1_macro": Metric(partial(_mean_over_words, "f1_macro")),
    "accuracy_by_word": Metric(partial(_mean_over_words, "accuracy")),
}
score = partial(score_table, METRICS)


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Find the most frequent sense of each word, or the first sense of a word without training rows."""
    counts = Counter(row["sense"] for row in training_rows)
    senses = _list_senses(context).values()
    return {_MAJORITY: [max(ids, key=lambda label_id: counts[context.labels[label_id]]) for ids in senses]}


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the most frequent sense of each word."""
    majority = [context.labels[label_id] for label_id in state[_MAJORITY]]
    senses = {sense.partition("/")[0]: sense for sense in majority}
    return {_MAJORITY: [{"prediction": senses[row["sense"].partition("/")[0]]} for row in rows]}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores of each word, next to the accuracy of its most frequent sense in these rows."""
    row_scores, method = compare(predictions, rows, context), _option(context.recipe, "method")
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        scores = record.get("sense_scores", {}).values() if method == "fine_tuned" else ()
        is_correct = row["sense"] == record["prediction"]
        answers.append(Answer(row["sense"], record["prediction"], is_correct, max(scores, default=None)))
    table, senses = [], list(_list_senses(context).items())
    for index, scores in _score_words(row_scores).items():
        (word, word_senses), num_rows = senses[index], scores.pop("rows")
        table.append({"word": word, **scores, "senses": len(word_senses), "rows": num_rows})
    return TaskReport({"words": table}, answers=answers)


def _list_senses(context: TaskContext) -> dict[str, list[int]]:
    """Return word -> label ids of its senses."""
    senses: dict[str, list[int]] = {}
    for label_id, label in enumerate(context.labels):
        senses.setdefault(label.partition("/")[0], []).append(label_id)
    return senses
