"""Answer a question with a span of a text (SQuAD 1.1; Devlin et al. 2019, section 4.2), or with no answer (SQuAD 2.0).

A text that is too long is read in overlapping windows; the answer is the best span of all windows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import make_placeholder_names
from bertkit.errors import DataError
from bertkit.metrics import squad
from bertkit.metrics.intervals import Metric
from bertkit.metrics.probabilities import mean_logits
from bertkit.modeling.heads.targets import build_span_targets
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Answer, Outputs, Prediction, Predictions, TaskReport, score_table
from bertkit.tokens import answer_spans as spans
from bertkit.tokens.features import (
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    Tensors,
    find_template,
    padding_collator,
    to_batch,
    token_budget,
    tokenize_texts,
)
from bertkit.tokens.sentences import split_sentences
from bertkit.tokens.truncation import find_lost_answers

_SPAN = ("start", "end", "score", "probability")
COLUMNS = ColumnSpec(inputs=("question", "context"), gold="answers", lists=("answers",), predicted=_SPAN)
TYPES: Mapping[str, Any] = {"prediction": str}
METRICS: Mapping[str, Metric] = squad.METRICS
OPTIONS: Mapping[str, object] = {
    "no_answer": False,
    "overlap": 128,
    "n_best": Option(20, minimum=1),
    "max_answer_length": Option(30, minimum=1),
    "null_score_diff_threshold": None,
}

_option, score = partial(read_option, OPTIONS), partial(score_table, METRICS)

combine, targets = mean_logits, build_span_targets

_NO_ANSWER, _FIRST_SENTENCE, _OTHERS = "no answer", "first sentence", "(others)"
# Lower than any sum of two logits.
_NO_SPAN = -1e4


def read(row: Row, recipe: Recipe) -> Row:
    """Check the question, the text and the answers, which are converted to ``{"text": [...], "answer_start": [...]}``.

    `bertkit.metrics.squad.read_answers` lists the possible forms of answers.

    Raises:
        DataError: If the question or the text is missing, a required answer is missing, or an answer is not at its
            ``answer_start``.
    """
    for column in ("question", "context"):
        if not isinstance(row[column], str) or not row[column].strip():
            problem = f"{squad.question_prefix(row)}no {column}"
            raise DataError(problem, "fill it in, or leave the row out", column=column)
    if "answers" not in row:
        return row
    texts, starts = squad.read_answers(row)
    if not texts and not _option(recipe, "no_answer"):
        problem = f"{squad.question_prefix(row)}no answer, but this recipe expects one for every question"
        raise DataError(problem, "use the recipe squad2, or --set options.no_answer=true", column="answers")
    return {**row, "answers": {"text": texts, "answer_start": starts}}


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with two logits per token: the answer starts here, the answer ends here."""
    labels = make_placeholder_names(2)
    return load_pretrained("AutoModelForQuestionAnswering", folder, context, labels=labels, new_head=new_head)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the question with each window of the text.

    ``context`` is the position in ``input_ids`` at which the text starts, ``offsets`` are the first and last + 1
    characters of its tokens (shape (tokens, 2)). ``start_positions`` and ``end_positions`` are 0 if the window does not
    contain the answer, or the question has no answer.
    """
    template = find_template(context.tokenizer, pair=True)
    budget = token_budget(context, template)
    questions = _encode_once([row["question"].lstrip() for row in rows], context)
    contexts = _encode_once([row["context"] for row in rows], context)
    offsets = {
        text: spans.extend_offsets(text, np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2))
        for text, encoded in contexts.items()
    }
    # With `max_length` 12, [CLS], two [SEP] and a question of 3 tokens, a window has 6 tokens of the text, which starts
    # at token 5. With an overlap of 2, a text of 10 tokens has the windows 0 to 5 and 4 to 9.
    overlap = _option(context.recipe, "overlap")
    features = []
    for index, row in enumerate(rows):
        # A question is truncated to half of the tokens, so that windows have at least the other half.
        question = questions[row["question"].lstrip()].ids[: budget // 2]
        tokens, characters = contexts[row["context"]].ids, offsets[row["context"]]
        first = len(template.before) + len(question) + len(template.between)
        context_budget = budget - len(question)
        for window in spans.window_slices(len(tokens), context_budget, min(overlap, context_budget // 2)):
            feature = {"row": index, **template.fill(question, tokens[window])}
            feature.update(context=first, offsets=characters[window])
            if "answers" in row:
                # Without an answer, `start` and `end` are -1, and the product is 0: the position of [CLS], which means
                # no answer (Devlin et al. 2019, section 4.3).
                start, end = spans.find_answer_tokens(row["answers"], characters[window])
                feature.update(start_positions=(end >= 0) * (first + start), end_positions=(end >= 0) * (first + end))
            features.append(feature)
    return features


def find_truncated_answers(features: Features, rows: Rows, context: TaskContext) -> list[int]:
    """Return the indices of the rows whose answer no window contains completely, or is too long to be predicted."""
    return find_lost_answers(features, rows, _option(context.recipe, "max_answer_length"))


def collator(context: TaskContext) -> Collator:
    """Build the padding collator, which also batches ``start_positions`` and ``end_positions``. Shape: (windows,)."""
    pad = padding_collator(context)

    def collate(features: Features) -> Tensors:
        batch = pad(features)
        if all("start_positions" in feature for feature in features):
            for name in ("start_positions", "end_positions"):
                batch |= to_batch({name: np.array([feature[name] for feature in features])}, context)
        return batch

    return collate


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose each question's answer: ``prediction``, its characters ``start`` and ``end``, score and probability.

    The score is the sum of both logits, and the probability is a softmax over the n best spans. With ``no_answer``,
    ``null_odds`` is the score of no answer minus the score of the best span; if it is above the threshold, the
    prediction is empty.
    """
    # 1. Find the best spans of each question over its windows.
    windows = [(feature["row"], feature["context"], feature["offsets"]) for feature in features]
    # Answers are spans of the context, so drop the logits of the question and of special tokens.
    in_context = [slice(first, first + len(offsets)) for _, first, offsets in windows]
    n_best = spans.find_n_best(
        [output["start_logits"][tokens] for output, tokens in zip(outputs, in_context, strict=True)],
        [output["end_logits"][tokens] for output, tokens in zip(outputs, in_context, strict=True)],
        np.array([row for row, _, _ in windows]),
        n_best=_option(context.recipe, "n_best"),
        max_tokens=_option(context.recipe, "max_answer_length"),
    )
    # 2. Convert tokens to characters, for all spans at once, which is faster than a loop over spans: `offsets` has the
    # tokens of all windows, and `window_start` the index of the first token of each span's window.
    offsets = np.concatenate([offsets for _, _, offsets in windows])
    window_start = np.cumsum([0, *(len(offsets) for _, _, offsets in windows)])[n_best["window"]]
    # 3. Score no answer by the two logits of [CLS].
    null_scores = None
    if _option(context.recipe, "no_answer"):
        # A row has the lowest score of its windows, because one window with an answer is enough. Shape: (rows,).
        null_scores = np.full(len(rows), np.inf)
        window_scores = [float(output["start_logits"][0]) + float(output["end_logits"][0]) for output in outputs]
        # Windows of the rows [0, 0, 1] with the scores [-1, -4, 2] result in [-4, 2].
        np.minimum.at(null_scores, [row for row, _, _ in windows], window_scores)
    # 4. Choose the answers. Convert all spans to lists of Python numbers at once, which is faster than one by one.
    columns = {
        "start": offsets[window_start + n_best["start"], 0].tolist(),
        "end": offsets[window_start + n_best["end"], 1].tolist(),
        "start_logit": n_best["start_logit"].tolist(),
        "end_logit": n_best["end_logit"].tolist(),
        "score": (n_best["start_logit"].astype(np.float64) + n_best["end_logit"]).tolist(),
        "probability": spans.probabilities(n_best["score"], n_best["row"], len(rows), null_scores).tolist(),
    }
    # Spans are sorted by row, so the spans of row i are columns[...][edges[i]:edges[i + 1]]. Spans of the rows
    # [0, 0, 2] have the edges [0, 2, 2, 3]: row 1 has no span.
    edges = np.searchsorted(n_best["row"], np.arange(len(rows) + 1)).tolist()
    threshold = float(_option(context.recipe, "null_score_diff_threshold") or 0.0)
    row_nulls = [None] * len(rows) if null_scores is None else null_scores.tolist()
    return [
        _choose_answer(row["context"], columns, slice(first, stop), null_score, threshold)
        for row, (first, stop), null_score in zip(rows, itertools.pairwise(edges), row_nulls, strict=True)
    ]


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return exact match and F1 of each question's prediction, and of its best span regardless of the threshold.

    `bertkit.metrics.squad.METRICS` describes the arrays.
    """
    no_answer = bool(_option(context.recipe, "no_answer"))
    golds = [row["answers"]["text"] for row in rows]
    predicted = [record["prediction"] for record in predictions]
    best_spans = list(map(_get_best_span, predictions))
    exact, f1 = squad.score_answers(golds, predicted, no_answer=no_answer)
    span_exact, span_f1 = squad.score_answers(golds, best_spans, no_answer=no_answer) if no_answer else (exact, f1)
    return {
        "exact": exact,
        "f1": f1,
        "span_exact": span_exact,
        "span_f1": span_f1,
        "span_empty": np.array([not text for text in best_spans]),
        "has_answer": np.array([bool(texts) for texts in golds]),
        "null_odds": np.array([record.get("null_odds", 0.0) for record in predictions]),
    }


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict no answer, or the first sentence of the context."""
    first = {text: " ".join(split_sentences(text)[:1]) for text in {row["context"] for row in rows}}
    return {
        _NO_ANSWER: [{"prediction": ""} for _ in rows],
        _FIRST_SENTENCE: [{"prediction": first[row["context"]]} for row in rows],
    }


def tune(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Find the threshold on ``null_odds`` that has the best F1 on these rows, unless the recipe sets a threshold."""
    if not _option(context.recipe, "no_answer") or _option(context.recipe, "null_score_diff_threshold") is not None:
        return {}
    return {"null_score_diff_threshold": METRICS["best_f1_thresh"].compute(compare(predictions, rows, context))}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores by the first word of the question, and the files of the official SQuAD evaluation."""
    row_scores = compare(predictions, rows, context)
    by_id = dict(zip((str(row.get("id", index)) for index, row in enumerate(rows)), predictions, strict=True))
    files: dict[str, Any] = {
        "predictions.json": {name: record["prediction"] for name, record in by_id.items()},
        # Stored predictions have no spans.
        "nbest_predictions.json": {name: list_n_best(record) for name, record in by_id.items() if "_spans" in record},
    }
    if _option(context.recipe, "no_answer"):
        files["null_odds.json"] = {name: record.get("null_odds") for name, record in by_id.items()}
    answers = []
    for row, record, exact in zip(rows, predictions, row_scores["exact"], strict=True):
        gold = " | ".join(dict.fromkeys(row["answers"]["text"])) or _NO_ANSWER
        answers.append(Answer(gold, record["prediction"] or _NO_ANSWER, bool(exact), record.get("probability")))
    return TaskReport({"by the first word of the question": _score_by_first_word(rows, row_scores)}, files, answers)


def _encode_once(texts: Sequence[str], context: TaskContext) -> dict[str, Any]:
    """Return text -> its tokens; each distinct text is tokenized once, because SQuAD repeats texts in many rows."""
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, tokenize_texts(context.tokenizer, distinct), strict=True)) if distinct else {}


def _choose_answer(
    context: str, columns: Mapping[str, list[Any]], question_spans: slice, null_score: float | None, threshold: float
) -> dict[str, Any]:
    """Choose the answer of one question.

    Args:
        context: Text that contains the answer.
        columns: Values of the spans of all questions.
        question_spans: Slice of the question's spans in each column, the best first.
        null_score: Score of no answer, or None if each question has an answer.
        threshold: Maximum of ``null_odds`` for an answer.
    """
    fields: dict[str, Any] = {"_spans": (context, columns, question_spans), "_null": null_score}
    best, has_span = question_spans.start, question_spans.start < question_spans.stop
    if null_score is not None:
        fields["null_odds"] = null_score - (columns["score"][best] if has_span else _NO_SPAN)
    if not has_span or (null_score is not None and fields["null_odds"] > threshold):
        probability = None if null_score is None else 1 - sum(columns["probability"][question_spans])
        return {"prediction": "", "start": None, "end": None, "score": null_score, "probability": probability, **fields}
    span = {name: columns[name][best] for name in _SPAN}
    return {"prediction": context[span["start"] : span["end"]], **span, **fields}


def list_n_best(prediction: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List a question's n best answers in the form of the question-answering script of transformers."""
    context, columns, question_spans = prediction["_spans"]
    values = [columns[name][question_spans] for name in ("start", "end", "probability", "start_logit", "end_logit")]
    entries = [
        {"text": context[start:end], "probability": probability, "start_logit": start_logit, "end_logit": end_logit}
        for start, end, probability, start_logit, end_logit in zip(*values, strict=True)
    ]
    # Entries are sorted by the sum of two logits, so the score of no answer is split into two halves.
    if prediction["_null"] is not None:
        rest, half = 1 - sum(entry["probability"] for entry in entries), prediction["_null"] / 2
        entries.append({"text": "", "probability": rest, "start_logit": half, "end_logit": half})
        entries.sort(key=lambda entry: -(entry["start_logit"] + entry["end_logit"]))
    return entries


def _get_best_span(prediction: Mapping[str, Any]) -> str:
    """Return the text of the best span, even if no answer was predicted; for a baseline, return its prediction."""
    if "_spans" not in prediction:
        return str(prediction["prediction"])
    context, columns, question_spans = prediction["_spans"]
    best, has_span = question_spans.start, question_spans.start < question_spans.stop
    return str(context[columns["start"][best] : columns["end"][best]]) if has_span else ""


def _score_by_first_word(rows: Rows, row_scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compute scores by the first word of the question, for the 8 most frequent words and for all other words."""
    words = [row["question"].split()[0].lower().strip("\"'¿?.,") for row in rows]
    frequent_words = [word for word, _ in Counter(words).most_common(8)]
    groups = np.array([word if word in frequent_words else _OTHERS for word in words])
    table, scores = [], {"exact_match": row_scores["exact"], "f1": row_scores["f1"]}
    for word in [*frequent_words, _OTHERS]:
        if (in_group := groups == word).any():
            percent = {name: float(100 * values[in_group].mean()) for name, values in scores.items()}
            table.append({"question": word, **percent, "questions": int(in_group.sum())})
    return table
