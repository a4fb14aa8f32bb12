"""Rows of every task family, and tiny random models with its head, to export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from bertkit.evaluation.forward import forward
from bertkit.modeling.heads.mixins import PROBABILITY
from bertkit.modeling.inference.graphs import ExportedGraph, TextGraph, export_graph
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.recipe import load_recipe
from bertkit.runtime import ExportedModel, open_tokenizer, tokenizer_settings
from bertkit.runtime.sessions import graph_file, open_graph
from bertkit.storage.exports import Export
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext

LONG = "The old baker carried a heavy basket of red apples along the river to the busy market before the rain. "
TEXTS = [{"text": "A bear sleeps."}, {"text": LONG * 3}, {"text": LONG}, {"text": "The cat saw it, and ran."}]
PAIRS = [{**row, "text_pair": other["text"]} for row, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
WORDS = [{"tokens": row["text"].split(), "target": 1, "word": "bear"} for row in TEXTS]
FOUND = [
    {"anchor": row["text"], "positive": row["text_pair"], "negative": ["No.", "The fox."][: number % 3]}
    for number, row in enumerate(PAIRS)
]
CHOICES = [
    {"context": row["text"], "choices": ["It sleeps.", "It runs away.", LONG][: 2 + number % 2]}
    for number, row in enumerate(TEXTS)
]
QUESTIONS = [{"question": "Who carried the basket?", "context": row["text"]} for row in TEXTS]
PASSAGES = [{"query": f"Who? {number // 2}", "passage": row["text"]} for number, row in enumerate(TEXTS)]
LISTS = [{**row, "relevance": float(number % 2)} for number, row in enumerate(PASSAGES)]
LABELS, SENSES, TAGS = ("bad", "good", "fair"), ("bear/animal", "bear/carry"), ("O", "B-PER", "I-PER")

FAMILIES = {
    "classes": ("classify", {}, TEXTS, LABELS),
    "pairs": ("mnli", {}, PAIRS, ("entailment", "neutral", "contradiction")),
    "labels": ("classify", {"options.multi_label": True, "metrics": ["f1_micro"]}, TEXTS, LABELS),
    "windows": ("classify", {"options.long_text": "windows_mean"}, TEXTS, LABELS),
    "hierarchical": ("classify", {"options.long_text": "hierarchical"}, TEXTS, LABELS),
    "regression": ("regress", {}, TEXTS, ()),
    "choices": ("choose", {}, CHOICES, ()),
    "tags": ("ner", {}, WORDS, TAGS),
    "tags over layers": ("ner", {"options.layers": "last", "options.tagger": "linear"}, WORDS, TAGS),
    "questions": ("squad2", {}, QUESTIONS, ()),
    "senses": ("wsd", {}, WORDS, SENSES),
    "nearest senses": ("wsd-nearest", {}, WORDS, SENSES),
    "similarity": ("similarity", {}, PAIRS, ()),
    "pairs to find": ("similarity-pairs", {}, FOUND, ()),
    "few-shot": ("few-shot", {}, TEXTS, LABELS),
    "rerank": ("rerank", {}, PASSAGES, ()),
    "lists": ("rerank", {"options.loss": "listwise"}, LISTS, ()),
    "sparse": ("sparse", {}, FOUND, ()),
    "late": ("late-interaction", {}, FOUND, ()),
}
"""Name -> recipe, changes of it, canonical rows, labels."""


def export_family(name: str, encoder: Path, backend: str, folder: Path) -> SimpleNamespace:
    """Export a random model with the head of a family; return what torch and the graph compute of its rows.

    The backend ``torch`` runs the graph as it is before it is exported.
    """
    recipe_name, changes, rows, labels = FAMILIES[name]
    changes = {"model": str(encoder), "data.source": "demo", "training.max_length": 32, **changes}
    recipe = load_recipe(recipe_name, {**changes, "training.cls_only_last_layer": False})
    task = load_task(recipe)
    tokenizer = load_tokenizer(encoder)
    torch.manual_seed(0)
    context = TaskContext(recipe, tokenizer, labels)
    model = task.load_model(encoder, context, new_head=True).eval()
    if name == "few-shot":
        torch.nn.init.normal_(model.logistic.weight)
    rows = [task.read(row, recipe) for row in rows]
    features = task.encode(rows, context)
    expected, _ = forward(model, features, task.collator(context), precision="fp32")
    names = [one for one in ("input_ids", "attention_mask", "token_type_ids") if one in tokenizer.model_input_names]
    graph = TextGraph(model)
    if backend == "torch":
        made = ExportedGraph(tuple(names), (), graph.reads, getattr(model, "score_activation", None) == PROBABILITY)
    else:
        made = export_graph(model, names, backend, folder / graph_file(backend, "fp32"))
    tokenizer.save_pretrained(folder)
    export = Export(
        backend=backend,
        file="" if backend == "torch" else graph_file(backend, "fp32"),
        task=recipe.task,
        reads=made.reads,
        inputs=made.inputs,
        outputs=made.outputs,
        tokenizer=tokenizer_settings(tokenizer),
        probabilities=made.probabilities,
    )
    exported = ExportedModel(export, open_graph(folder / export.file, backend) if export.file else graph.on_arrays)
    arrays = replace(context, tokenizer=open_tokenizer(folder, export.tokenizer), inference=True, arrays=True)
    again = task.encode(rows, arrays)
    computed, _ = forward(exported, again, task.collator(arrays), precision="fp32")
    return SimpleNamespace(expected=expected, computed=computed, features=(features, again), export=export)


def largest_difference(found: SimpleNamespace) -> float:
    """Return the largest difference of what tasks read of the outputs, those of the texts and tokens that rows have.

    It is relative to the largest output where that is above 1, since float32 rounds relative to what it adds up. The
    values of sparse encoders are logarithms, so what they are logarithms of is compared.
    """
    differences, largest = [0.0], 1.0
    for feature, one, other in zip(found.features[0], found.expected, found.computed, strict=True):
        ids = feature["input_ids"]
        texts = len(ids) if hasattr(ids[0], "__len__") else None
        for name in one.keys() & other.keys() - {"probabilities", "tokens"}:
            first, second = (values[name] for values in (one, other))
            if texts is not None and first.ndim and name != "windows":
                first, second = first[:texts], second[:texts]
            elif texts is None and first.ndim and len(first) > len(ids):
                first, second = first[: len(ids)], second[: len(ids)]
            shape = tuple(map(min, first.shape, second.shape))
            first, second = (values[tuple(map(slice, shape))] for values in (first, second))
            if name == "values":
                first, second = np.expm1(first), np.expm1(second)
            differences.append(float(np.nanmax(np.abs(first - second), initial=0.0)))
            largest = max(largest, float(np.nanmax(np.abs(first), initial=0.0)))
    return max(differences) / largest
