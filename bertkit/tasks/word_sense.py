"""Choose the sense of a word in its text (CoarseWSD-20: Loureiro et al. 2021), by one of two methods.

``fine_tuned`` trains the encoder with a linear layer over the word's tokens. ``nearest`` trains nothing: the word's
hidden states, summed over the last layers and averaged over its tokens, are compared with their mean over each sense's
training rows, and the highest cosine wins. Only senses of the same word compete.
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
from bertkit.metrics.registry import CLASSIFICATION
from bertkit.modeling.heads.targets import Target, label_targets, log_odds
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
_FREQUENT = "most frequent sense"
_NEVER = -1e4  # the score of a sense that no training row has


def read(row: Row, recipe: Recipe) -> Row:
    """Check the text and its target, and name a sense ``word/sense`` from here on.

    The target is a word's index from 0 in ``tokens``, or the first and last + 1 character in ``text``. The word is the
    column ``word``, or else the target itself in lower case.

    Raises:
        DataError: If the target is outside the text, or there is no sense.
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
    """Load an encoder with a linear layer over each token, one logit per sense; ``nearest`` freezes the encoder."""
    nearest = _option(context.recipe, "method") == "nearest"
    head = {"layers": _option(context.recipe, "layers"), "tagger": "linear", "size": 0} if nearest else None
    return load_tagger(folder, context, head, new_head=new_head)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the window that gives the target word the most context; ``positions`` are its tokens in ``input_ids``.

    Raises:
        DataError: If a word has no tokens, or the model does not know its senses.
    """
    texts = [row["tokens"] for row in rows]
    template = find_template(context.tokenizer, pair=False)
    budget = token_budget(context, template)
    label_ids = context.label_ids
    senses = _senses(context)
    features = []
    for index, tokens in enumerate(tokenize_words(context.tokenizer, texts, max_tokens=budget // 2)):
        row = rows[index]
        if row["word"].replace("/", "_") not in senses:
            message = f"row {index + 1}: the model has no senses of {row['word']!r}"
            raise DataError(message, f"it has senses of {', '.join(list(senses)[:20])}", column="word")
        if not tokens[row["target"]]:
            message = f"row {index + 1}: the target word {texts[index][row['target']]!r} has no visible character"
            raise DataError(message, "correct the row", column="target")
        # Windows overlap by half, so that the target has at least a quarter of the tokens on each side if it can.
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
    """Set each sense's output weights to the mean direction of its training rows' hidden states, if `nearest` is set.

    Returns:
        Whether nothing is left to train.
    """
    if _option(context.recipe, "method") != "nearest":
        return False
    import torch

    from bertkit.modeling.heads.taggers import compute_states

    training = features["train"]
    # Sums of unit vectors, shape (senses, hidden size). Scaled to length 1 they are the head's weights, so that a logit
    # is the word's length times the cosine, and the largest logit the nearest sense: no index or search is needed.
    sums = np.zeros((len(context.labels), model.output.in_features))
    for feature, states in zip(training, compute_states(model, training, run), strict=True):
        mean = states[feature["positions"]].mean(axis=0)
        sums[feature["labels"][feature["positions"][0]]] += mean / np.linalg.norm(mean)
    lengths = np.linalg.norm(sums, axis=1)
    with torch.no_grad():
        model.output.weight.copy_(torch.from_numpy(sums / np.maximum(lengths, 1e-12)[:, None]))
        model.output.bias.copy_(torch.from_numpy(np.where(lengths > 0, 0.0, _NEVER)))
    return True


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose the best sense of each row's word, and score all senses of that word.

    The scores are probabilities if the encoder was fine-tuned, or else the length of the word's vector in the
    direction of each sense, which ranks them as the cosine does.
    """
    senses = _senses(context)
    nearest = _option(context.recipe, "method") == "nearest"
    decoded = []
    for output, feature, row in zip(outputs, features, rows, strict=True):
        word_senses = senses[row["word"].replace("/", "_")]
        # (tokens of the word, senses of all words) -> (senses of this word,)
        scores = output["logits"][feature["positions"]].astype(np.float64).mean(axis=0)[word_senses]
        best = word_senses[int(scores.argmax())]
        if not nearest:
            scores = np.exp(scores - scores.max())
            scores /= scores.sum()
        sense_scores = {context.labels[sense]: float(value) for sense, value in zip(word_senses, scores, strict=True)}
        decoded.append({"prediction": context.labels[best], "sense_scores": sense_scores})
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each sense among all senses of the word."""
    word_senses, positions = _senses(context)[row["word"].replace("/", "_")], features[0]["positions"]

    def score(outputs: Batch, sense: int) -> Tensor:
        return log_odds(outputs["logits"][:, positions].mean(dim=1)[:, word_senses], sense)

    return label_targets([context.labels[sense] for sense in word_senses], [prediction["prediction"]], score)


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return the label ids of the ``gold`` and ``predicted`` senses, and the indices of their words."""
    ids, words = context.label_ids, {word: index for index, word in enumerate(_senses(context))}
    gold, predicted = ([row["sense"] for row in rows], [record["prediction"] for record in predictions])
    row_scores = {}
    for side, senses in (("gold", gold), ("predicted", predicted)):
        row_scores[side] = np.array([ids[sense] for sense in senses])
        row_scores[f"{side}_word"] = np.array([words[sense.partition("/")[0]] for sense in senses])
    return row_scores


def _score_words(row_scores: RowScores) -> dict[int, dict[str, Any]]:
    """Compute each word's accuracy, macro F1 over its senses that occur, and the ratio of its most frequent sense."""
    # Counts per sense, (senses,). A sense belongs to one word, so rows are counted once for all words.
    size = 1 + max(int(row_scores[side].max()) for side in ("gold", "predicted"))
    gold, predicted = (np.bincount(row_scores[side], minlength=size) for side in ("gold", "predicted"))
    right = np.bincount(row_scores["gold"][row_scores["gold"] == row_scores["predicted"]], minlength=size)
    # The gold senses [0, 0, 1, 2], predicted as [0, 1, 1, 2], have the counts [2, 1, 1], [1, 2, 1] and [1, 1, 1] right,
    # so F1 is [2/3, 2/3, 1]. With senses 0 and 1 of one word, its macro F1 is 2/3.
    f1 = 2 * right / np.maximum(gold + predicted, 1)
    word_of_sense = np.full(size, -1)
    # -1 marks a sense that does not occur, and so does not count.
    for side in ("predicted", "gold"):
        word_of_sense[row_scores[side]] = row_scores[f"{side}_word"]
    scores = {}
    for word in np.unique(row_scores["gold_word"]).tolist():
        occurring = np.flatnonzero(word_of_sense == word)
        rows = int(gold[occurring].sum())
        scores[word] = {
            "accuracy": float(right[occurring].sum() / rows),
            "f1_macro": float(f1[occurring].mean()),
            "most frequent": float(gold[occurring].max() / rows),
            "rows": rows,
        }
    return scores


def _mean_over_words(name: str, row_scores: RowScores) -> float:
    return float(np.mean([scores[name] for scores in _score_words(row_scores).values()]))


METRICS: Mapping[str, Metric] = {
    "accuracy": CLASSIFICATION["accuracy"],
    "f1_macro": Metric(partial(_mean_over_words, "f1_macro")),
    "accuracy_by_word": Metric(partial(_mean_over_words, "accuracy")),
}
score = partial(score_table, METRICS)


def fit_baselines(training: Rows, context: TaskContext) -> dict[str, Any]:
    """Learn the most frequent sense of each word."""
    counts = Counter(row["sense"] for row in training)
    # For a word without training rows, predict its first sense.
    return {
        _FREQUENT: [
            max(word_senses, key=lambda sense: counts[context.labels[sense]])
            for word_senses in _senses(context).values()
        ]
    }


def baselines(learned: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the most frequent sense of each word."""
    frequent = [context.labels[sense] for sense in learned[_FREQUENT]]
    senses = {sense.partition("/")[0]: sense for sense in frequent}
    return {_FREQUENT: [{"prediction": senses[row["sense"].partition("/")[0]]} for row in rows]}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores of each word, along with the score of its most frequent sense in these rows."""
    row_scores, method = compare(predictions, rows, context), _option(context.recipe, "method")
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        scores = record.get("sense_scores", {}).values() if method == "fine_tuned" else ()
        right = row["sense"] == record["prediction"]
        answers.append(Answer(row["sense"], record["prediction"], right, max(scores, default=None)))
    senses = _senses(context)
    names = list(senses)
    table = []
    for word, scores in _score_words(row_scores).items():
        rows_of_word = scores.pop("rows")
        table.append({"word": names[word], **scores, "senses": len(senses[names[word]]), "rows": rows_of_word})
    return TaskReport({"words": table}, answers=answers)


def _senses(context: TaskContext) -> dict[str, list[int]]:
    """Return each word's senses as label ids."""
    senses: dict[str, list[int]] = {}
    for label_id, label in enumerate(context.labels):
        senses.setdefault(label.partition("/")[0], []).append(label_id)
    return senses
