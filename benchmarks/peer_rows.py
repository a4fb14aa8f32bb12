"""Rows as the example scripts of transformers make features of them, and the scores of what comes out.

Written anew from what run_glue, run_ner and run_qa do; settings and columns are those of bertkit's recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from datasets import Dataset, load_dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    default_data_collator,
)

from benchmarks.cases import Case

Scores = dict[str, float]
STRIDE, N_BEST, LONGEST_ANSWER = 128, 20, 30  # run_qa's defaults


@dataclass
class Material:
    """What a Trainer needs; `measure` scores the raw outputs for the validation features."""

    tokenizer: Any
    train: Dataset
    validation: Dataset
    load_model: Callable[[], Any]
    collate: Any
    measure: Callable[[Any], Scores]


def load_material(case: Case, *, pad: bool) -> Material:
    """Read and tokenize the rows of a case, padded to the recipe's length if the script does so."""
    recipe = case.load()
    splits = {name: recipe.data.splits.get(name, name) for name in ("train", "validation")}
    rows = load_dataset("parquet", data_files={name: f"{case.data}/{file}.parquet" for name, file in splits.items()})
    limited = {name: part.select(range(min(case.limit or len(part), len(part)))) for name, part in rows.items()}
    tokenizer = AutoTokenizer.from_pretrained(case.model)
    return _FAMILIES[recipe.task](limited, recipe, tokenizer, case.model, pad)


def _encode(rows: dict[str, Dataset], encode: Callable[..., Any], with_indices: bool = False) -> dict[str, Dataset]:
    """Replace the columns of both splits by features."""
    settings: dict[str, Any] = {"batched": True, "with_indices": with_indices}
    return {name: part.map(encode, remove_columns=part.column_names, **settings) for name, part in rows.items()}


def _texts(rows: dict[str, Dataset], recipe: Any, tokenizer: Any, folder: str, pad: bool) -> Material:
    columns, is_regression = recipe.data.columns, recipe.task == "text_regression"
    texts = [columns[column] for column in ("text", "text_pair") if column in columns]

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        padding = "max_length" if pad else False
        batch_texts = [batch[text] for text in texts]
        encoded = tokenizer(*batch_texts, padding=padding, truncation=True, max_length=recipe.training.max_length)
        return {**encoded, "labels": batch[columns["label"]]}

    features = _encode(rows, encode)

    def measure(prediction: Any) -> Scores:
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        functions = {
            "matthews_correlation": matthews_corrcoef,
            "accuracy": accuracy_score,
            "f1": f1_score,
            "pearsonr": lambda gold, answers: pearsonr(gold, answers).statistic,
            "spearmanr": lambda gold, answers: spearmanr(gold, answers).statistic,
        }
        logits = prediction.predictions
        answers = np.squeeze(logits) if is_regression else logits.argmax(axis=1)
        return {name: float(functions[name](prediction.label_ids, answers)) for name in recipe.metrics}

    def load_model() -> Any:
        number = 1 if is_regression else len(recipe.labels)
        return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=number)

    collate = default_data_collator if pad else DataCollatorWithPadding(tokenizer)
    return Material(tokenizer, features["train"], features["validation"], load_model, collate, measure)


def _words(rows: dict[str, Dataset], recipe: Any, tokenizer: Any, folder: str, pad: bool) -> Material:
    columns = recipe.data.columns
    names = rows["train"].features[columns["tags"]].feature.names

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        longest = recipe.training.max_length
        encoded = tokenizer(batch[columns["tokens"]], is_split_into_words=True, truncation=True, max_length=longest)
        encoded["labels"] = []
        for number, tags in enumerate(batch[columns["tags"]]):
            before, labels = None, []
            for word in encoded.word_ids(number):
                labels.append(-100 if word is None or word == before else tags[word])
                before = word
            encoded["labels"].append(labels)
        return encoded

    features = _encode(rows, encode)

    def measure(prediction: Any) -> Scores:
        from seqeval.metrics import f1_score, precision_score, recall_score

        gold, predicted = [], []
        for logits, labels in zip(prediction.predictions, prediction.label_ids, strict=True):
            kept = labels != -100
            gold.append([names[n] for n in labels[kept]])
            predicted.append([names[n] for n in logits.argmax(axis=1)[kept]])
        functions = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
        return {name: float(function(gold, predicted)) for name, function in functions.items()}

    def load_model() -> Any:
        id2label = dict(enumerate(names))
        return AutoModelForTokenClassification.from_pretrained(
            folder, id2label=id2label, label2id={name: n for n, name in id2label.items()}
        )

    collate = DataCollatorForTokenClassification(tokenizer, padding="max_length" if pad else True)
    return Material(tokenizer, features["train"], features["validation"], load_model, collate, measure)


def _questions(rows: dict[str, Dataset], recipe: Any, tokenizer: Any, folder: str, pad: bool) -> Material:
    longest, extra = recipe.training.max_length, ["row", "context", "offsets"]
    features = _encode(rows, lambda batch, numbers: _windows(batch, numbers, tokenizer, longest, pad), True)
    windows = features["validation"].select_columns(extra).to_list()
    questions = rows["validation"].to_list()

    def measure(prediction: Any) -> Scores:
        from bertkit.metrics.squad import score_answer

        starts, ends = prediction.predictions
        outputs = list(zip(starts, ends, strict=True))
        answers = _choose_answers(outputs, windows, questions)
        scored = [
            score_answer(row["answers"]["text"], text, no_answer=False)
            for row, text in zip(questions, answers, strict=True)
        ]
        exact, f1 = np.mean(scored, axis=0) * 100
        return {"f1": float(f1), "exact_match": float(exact)}

    slim = {name: part.remove_columns(extra) for name, part in features.items()}

    def load_model() -> Any:
        return AutoModelForQuestionAnswering.from_pretrained(folder)

    collate = default_data_collator if pad else DataCollatorWithPadding(tokenizer)
    return Material(tokenizer, slim["train"], slim["validation"], load_model, collate, measure)


def _windows(batch: dict[str, Any], rows: list[int], tokenizer: Any, longest: int, pad: bool) -> dict[str, Any]:
    """Split contexts into windows, and find where each window's answer starts and ends, 0 where it is not in it."""
    encoded = tokenizer(
        [question.lstrip() for question in batch["question"]],
        batch["context"],
        truncation="only_second",
        max_length=longest,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if pad else False,
    )
    samples, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    kept: dict[str, list[Any]] = {
        "row": [],
        "context": [],
        "offsets": [],
        "start_positions": [],
        "end_positions": [],
    }
    for number, (sample, positions) in enumerate(zip(samples, offsets, strict=True)):
        sequence_ids = encoded.sequence_ids(number)
        first = sequence_ids.index(1)
        last = len(sequence_ids) - 1 - sequence_ids[::-1].index(1)
        answers = batch["answers"][sample]
        start = end = 0
        if answers["text"]:
            begins = answers["answer_start"][0]
            ends = begins + len(answers["text"][0])
            if positions[first][0] <= begins and positions[last][1] >= ends:
                start = max(n for n in range(first, last + 1) if positions[n][0] <= begins)
                end = min(n for n in range(first, last + 1) if positions[n][1] >= ends)
        values = (rows[sample], first, positions[first : last + 1], start, end)
        for name, value in zip(kept, values, strict=True):
            kept[name].append(value)
    return {**encoded, **kept}


def _choose_answers(outputs: list[Any], windows: list[dict[str, Any]], questions: list[dict[str, Any]]) -> list[str]:
    """Pair the best starts and ends of each window, and return the text of the best pair of each question."""
    best = [(-np.inf, "")] * len(questions)
    for logits, window in zip(outputs, windows, strict=True):
        first, offsets, row = window["context"], window["offsets"], window["row"]
        starts, ends = (of_side[first : first + len(offsets)] for of_side in logits)
        best_starts, best_ends = (np.argsort(of_side)[-1 : -N_BEST - 1 : -1].tolist() for of_side in (starts, ends))
        for start, end in product(best_starts, best_ends):
            score = starts[start] + ends[end]
            if 0 <= end - start < LONGEST_ANSWER and score > best[row][0]:
                best[row] = score, questions[row]["context"][offsets[start][0] : offsets[end][1]]
    return [text for _, text in best]


_FAMILIES = {
    "text_classification": _texts,
    "text_regression": _texts,
    "token_classification": _words,
    "question_answering": _questions,
}
