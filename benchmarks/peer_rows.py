"""Features as the example scripts of transformers make them, and the scores of validation rows.

The code follows run_glue, run_ner and run_qa; settings and columns come from bertkit's recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
STRIDE = 128  # default of run_qa


@dataclass
class Rows:
    """Features and functions for a Trainer; questions have no function for scores."""

    tokenizer: Any
    train: Dataset
    validation: Dataset
    load_model: Callable[[], Any]
    collate: Any
    measure: Callable[[Any], Scores] | None


def load_rows(case: Case, *, pad: bool) -> Rows:
    """Read and tokenize the rows of a case, with padding to the recipe's length if the script pads."""
    recipe = case.load()
    names = {name: recipe.data.splits.get(name, name) for name in ("train", "validation")}
    files = {name: f"{case.data}/{file}.parquet" for name, file in names.items()}
    splits = dict(load_dataset("parquet", data_files=files))
    limited = {name: rows.select(range(min(case.limit or len(rows), len(rows)))) for name, rows in splits.items()}
    tokenizer = AutoTokenizer.from_pretrained(case.model)
    prepare = {
        "text_classification": _prepare_texts,
        "text_regression": _prepare_texts,
        "token_classification": _prepare_words,
        "question_answering": _prepare_questions,
    }[recipe.task]
    encode, auto_class, labels, measure = prepare(limited, recipe, tokenizer, pad)
    features = {
        name: rows.map(encode, batched=True, remove_columns=rows.column_names) for name, rows in limited.items()
    }
    if recipe.task == "token_classification":
        collate: Any = DataCollatorForTokenClassification(tokenizer, padding="max_length" if pad else True)
    else:
        collate = default_data_collator if pad else DataCollatorWithPadding(tokenizer)
    load_model = partial(auto_class.from_pretrained, case.model, **labels)
    return Rows(tokenizer, features["train"], features["validation"], load_model, collate, measure)


def _prepare_texts(splits: dict[str, Dataset], recipe: Any, tokenizer: Any, pad: bool) -> tuple[Any, ...]:
    columns, is_regression = recipe.data.columns, recipe.task == "text_regression"
    texts = [columns[column] for column in ("text", "text_pair") if column in columns]

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        padding = "max_length" if pad else False
        batch_texts = [batch[text] for text in texts]
        encoded = tokenizer(*batch_texts, padding=padding, truncation=True, max_length=recipe.training.max_length)
        return {**encoded, "labels": batch[columns["label"]]}

    def measure(prediction: Any) -> Scores:
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        functions = {
            "matthews_correlation": matthews_corrcoef,
            "accuracy": accuracy_score,
            "f1": f1_score,
            "pearsonr": lambda gold, predicted: pearsonr(gold, predicted).statistic,
            "spearmanr": lambda gold, predicted: spearmanr(gold, predicted).statistic,
        }
        logits = prediction.predictions
        predicted = np.squeeze(logits) if is_regression else logits.argmax(axis=1)
        return {name: float(functions[name](prediction.label_ids, predicted)) for name in recipe.metrics}

    labels = {"num_labels": 1 if is_regression else len(recipe.labels)}
    return encode, AutoModelForSequenceClassification, labels, measure


def _prepare_words(splits: dict[str, Dataset], recipe: Any, tokenizer: Any, pad: bool) -> tuple[Any, ...]:
    columns, settings = recipe.data.columns, {"truncation": True, "max_length": recipe.training.max_length}
    names = splits["train"].features[columns["tags"]].feature.names

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        encoded = tokenizer(batch[columns["tokens"]], is_split_into_words=True, **settings)
        encoded["labels"] = []
        for index, tags in enumerate(batch[columns["tags"]]):
            words = encoded.word_ids(index)
            starts = [word is not None and word != before for before, word in zip([None, *words], words, strict=False)]
            encoded["labels"].append(
                [tags[word] if is_start else -100 for word, is_start in zip(words, starts, strict=True)]
            )
        return encoded

    def measure(prediction: Any) -> Scores:
        from seqeval.metrics import f1_score, precision_score, recall_score

        gold, predicted = [], []
        for logits, labels in zip(prediction.predictions, prediction.label_ids, strict=True):
            is_word = labels != -100
            gold.append([names[tag] for tag in labels[is_word]])
            predicted.append([names[tag] for tag in logits.argmax(axis=1)[is_word]])
        functions = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
        return {name: float(function(gold, predicted)) for name, function in functions.items()}

    labels = {"id2label": dict(enumerate(names)), "label2id": {name: tag for tag, name in enumerate(names)}}
    return encode, AutoModelForTokenClassification, labels, measure


def _prepare_questions(splits: dict[str, Dataset], recipe: Any, tokenizer: Any, pad: bool) -> tuple[Any, ...]:
    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        """Split contexts into windows, and find the answer's tokens; both are 0 if it is not in the window."""
        encoded = tokenizer(
            [question.lstrip() for question in batch["question"]],
            batch["context"],
            truncation="only_second",
            max_length=recipe.training.max_length,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length" if pad else False,
        )
        samples, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        positions: dict[str, list[int]] = {"start_positions": [], "end_positions": []}
        for index, (sample, offsets) in enumerate(zip(samples, all_offsets, strict=True)):
            answers, start, end = batch["answers"][sample], 0, 0
            tokens = [token for token, part in enumerate(encoded.sequence_ids(index)) if part == 1]
            if answers["text"]:
                first = answers["answer_start"][0]
                last = first + len(answers["text"][0])
                if offsets[tokens[0]][0] <= first and offsets[tokens[-1]][1] >= last:
                    start = max(token for token in tokens if offsets[token][0] <= first)
                    end = min(token for token in tokens if offsets[token][1] >= last)
            positions["start_positions"].append(start)
            positions["end_positions"].append(end)
        return {**encoded, **positions}

    return encode, AutoModelForQuestionAnswering, {}, None
