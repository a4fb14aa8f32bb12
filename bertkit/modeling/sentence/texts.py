"""Code that the task families for vectors share: options, encoding of texts, loading, and scores in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.info import Model
from bertkit.modeling.sentence.folder import (
    DENSE,
    POOLING_MODES,
    SentenceModules,
    find_format,
    read_format,
    read_modules,
    with_options,
)
from bertkit.recipe.records import Option, accept, read_option
from bertkit.tokens.features import Feature, TaskContext, max_tokens, split_by_size
from bertkit.tokens.multi_text import encode_multi_text


def _read_dimensions(value: Any) -> tuple[int, ...]:
    are_counts = isinstance(value, list) and all(type(count) is int and count > 0 for count in value)
    if not are_counts or len(set(value)) < len(value):
        raise ValueError("give a list of integers, such as [384, 128, 64]")
    return tuple(value)


_PROMPTS_REMEDY = 'give texts by name, such as {query: "query: ", document: "passage: "}'


def _are_prompts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in (*value, *value.values()))


OPTIONS: Mapping[str, Option] = {
    "scale": Option(20.0, minimum=0.1, maximum=1000),
    "dimensions": Option([], read=_read_dimensions),
    "pooling": Option(None, choices=POOLING_MODES),
    "normalize": Option(None, read=accept(lambda value: value in (None, True, False), "give true or false")),
    "prompts": Option({}, read=accept(_are_prompts, _PROMPTS_REMEDY)),
    "mini_batch": Option(None, minimum=1),
    "dropout": Option(None, minimum=0.01, maximum=0.9),
}


def resolve_modules(folder: Path, context: TaskContext, model_format: str = DENSE) -> SentenceModules:
    """Read the modules of a folder, and replace settings by the options of the recipe."""
    recipe, modules = context.recipe, read_format(folder, model_format)
    pooling, normalize = (read_option(OPTIONS, recipe, name) for name in ("pooling", "normalize"))
    modules = with_options(modules, pooling=pooling, normalize=normalize, prompt=None)
    length = min(max_tokens(context), modules.max_length or 10**9)
    prompts = {**modules.prompts, **read_option(OPTIONS, recipe, "prompts")}
    return replace(modules, prompts=prompts, max_length=length)


def encode_rows(
    rows: Sequence[Sequence[str]],
    context: TaskContext,
    roles: tuple[str, str] | None = None,
    *,
    pairs: Sequence[str] | None = None,
    model_format: str = DENSE,
) -> list[Feature]:
    """Encode the texts of each row, with a prompt before each text if the model has prompts.

    Args:
        rows: Texts of each row.
        context: Context with the tokenizer of the model folder.
        roles: Names of the prompts for a row's first text and for its other texts. Without roles, or if the model lacks
            these prompts, its default prompt is used.
        pairs: Second text of each row with one text, to encode both as a pair.
        model_format: Class of sentence-transformers that loads the model; see `bertkit.modeling.sentence.folder`.

    Raises:
        ModelError: If the model excludes the tokens of prompts from its pooling.
    """
    folder = Path(context.tokenizer.name_or_path)
    modules = resolve_modules(folder, context, model_format)
    default = modules.prompts.get(modules.default_prompt or "", "")
    first_prompt, prompt = (modules.prompts.get(role, default) for role in roles) if roles else (default, default)
    if (first_prompt or prompt) and not modules.include_prompt:
        message = "bertkit cannot train a model whose pooling excludes the tokens of prompts"
        raise ModelError(message, "start from another model", file=folder)
    text_rows = [[f"{prompt if index else first_prompt}{text}" for index, text in enumerate(texts)] for texts in rows]
    if modules.lowercase:
        text_rows = [[text.lower() for text in texts] for texts in text_rows]
    context = replace(context, recipe=context.recipe.replace("training", max_length=modules.max_length))
    row_features = [[{"text": text} for text in texts] for texts in text_rows]
    for (text,), pair in zip(row_features, pairs or (), strict=True) if pairs else ():
        text["text_pair"] = pair.lower() if modules.lowercase else pair
    return encode_multi_text(row_features, context)


def load_encoder(
    folder: Path, context: TaskContext, *, new_head: bool, loss: str, simcse_texts: int | None = None
) -> Model:
    """Load an encoder to train with a loss of `bertkit.modeling.sentence.losses`, or a trained sentence encoder.

    Args:
        folder: Model folder, with or without modules of sentence-transformers.
        context: Context with the recipe.
        new_head: Whether the encoder will be trained.
        loss: Name of the loss.
        simcse_texts: Number of a row's texts that ``simcse`` is trained on, or None for all texts.

    Raises:
        ModelError: If weights are damaged or do not fit, or (without `new_head`) the encoder was not trained for
            vectors.
        RecipeError: If a Matryoshka dimension exceeds the vectors, or the loss needs dropout and the model has none.
    """
    from bertkit.modeling.dropout import get_dropout_rates
    from bertkit.modeling.sentence.head import load_sentence_head
    from bertkit.modeling.sentence.losses import VectorLoss

    if not new_head:
        check_format(folder, DENSE)
        return load_sentence_head(folder, read_modules(folder))
    recipe, modules = context.recipe, resolve_modules(folder, context)
    if loss == "margin_mse":
        modules = replace(modules, similarity="dot")
    scale, dimensions, mini_batch, dropout = (
        read_option(OPTIONS, recipe, name) for name in ("scale", "dimensions", "mini_batch", "dropout")
    )
    model = load_sentence_head(
        folder,
        modules,
        VectorLoss(loss, float(scale), tuple(dimensions), simcse_texts),
        texts_at_once=mini_batch and int(mini_batch),
        dropout=dropout,
    )
    if loss == "simcse" and not any(get_dropout_rates(model.config).values()):
        message = "the loss simcse reads each text with two dropout masks, but this model has no dropout"
        raise RecipeError(message, "add --set options.dropout=0.1")
    model.config.pad_token_id = context.tokenizer.pad_token_id
    if dimensions:  # for vLLM
        model.config.is_matryoshka, model.config.matryoshka_dimensions = True, list(dimensions)
    return model


def check_format(folder: Path, expected: str) -> None:
    """Raise ModelError unless the class `expected` of sentence-transformers loads a folder."""
    model_format = find_format(folder)
    if model_format is None:
        remedy = "fine-tune it first, or name a folder of sentence-transformers"
        raise ModelError("the model was not trained for sentence vectors (no modules.json)", remedy, file=folder)
    if model_format != expected:
        raise ModelError(f"it is a {model_format}, not a {expected}", f"name the folder of a {expected}", file=folder)


def uses_dot_product(context: TaskContext, loss: str = "") -> bool:
    """Return whether a model's vectors are compared by dot products instead of cosines."""
    return loss == "margin_mse" or read_modules(Path(context.tokenizer.name_or_path)).similarity == "dot"


def normalize(vectors: np.ndarray, *, dot: bool) -> np.ndarray:
    """Return vectors (..., dimension) in double precision, with length 1 unless they are compared by dot products."""
    vectors = vectors.astype(np.float64)
    return vectors if dot else vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


# Similarities of tokens in memory at a time.
_MAX_PRODUCTS = 2**23


def drop_padding(vectors: np.ndarray) -> np.ndarray:
    """Return a copy of a text's token vectors (tokens, dimension) without padding, whose vectors are 0."""
    token_vectors: np.ndarray = vectors[(vectors != 0).any(axis=-1)]
    return token_vectors


def max_sim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Compute the MaxSim score of each query and document, given arrays (tokens, dimension).

    Here, the highest similarities of the two query tokens are 0.8 and 1:

    >>> query, document = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.8, 0.6], [0.0, 1.0]])
    >>> round(float(max_sim([query], [document])[0, 0]), 2)
    1.8

    Returns:
        the scores. Shape: (queries, documents).
    """
    starts = np.cumsum([0, *(len(query) for query in queries)])[:-1]
    query_tokens = np.concatenate(queries)
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    size = _MAX_PRODUCTS // len(query_tokens)
    for indices in split_by_size(range(len(documents)), size, lambda index: len(documents[index])):
        chunk = [documents[index] for index in indices]
        chunk_starts = np.cumsum([0, *(len(document) for document in chunk)])[:-1]
        # Reduce (tokens of all queries, tokens of the chunk) to the maximum per document, then to the sum per query.
        maxima = np.maximum.reduceat(query_tokens @ np.concatenate(chunk).T, chunk_starts, axis=1)
        scores[:, indices] = np.add.reduceat(maxima, starts, axis=0)
    return scores
