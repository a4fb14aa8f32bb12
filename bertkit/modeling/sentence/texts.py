"""Shared parts of the task families of vectors: options, encoding of texts, loading, and scores in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import ModelError, RecipeError
from bertkit.metrics import Numbers
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
from bertkit.tokens.features import Feature, Setup, max_tokens, split_by_size
from bertkit.tokens.several import encode_several


def _read_dimensions(value: Any) -> tuple[int, ...]:
    are_whole = isinstance(value, list) and all(type(count) is int and count > 0 for count in value)
    if not are_whole or len(set(value)) < len(value):
        raise ValueError("give a list of whole numbers, such as [384, 128, 64]")
    return tuple(value)


_PROMPTS = 'give texts by name, such as {query: "query: ", document: "passage: "}'


def _are_prompts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in (*value, *value.values()))


OPTIONS: Mapping[str, Option] = {
    "scale": Option(20.0, minimum=0.1, maximum=1000),
    "dimensions": Option([], read=_read_dimensions),
    "pooling": Option(None, choices=POOLING_MODES),
    "normalize": Option(None, read=accept(lambda value: value in (None, True, False), "give true or false")),
    "prompts": Option({}, read=accept(_are_prompts, _PROMPTS)),
    "mini_batch": Option(None, minimum=1),
    "dropout": Option(None, minimum=0.01, maximum=0.9),
}


def modules_of(folder: Path, setup: Setup, model_format: str = DENSE) -> SentenceModules:
    """Return how a folder makes vectors, with what the recipe says in its place."""
    recipe, modules = setup.recipe, read_format(folder, model_format)
    pooling, normalize = (read_option(OPTIONS, recipe, name) for name in ("pooling", "normalize"))
    modules = with_options(modules, pooling=pooling, normalize=normalize, prompt=None)
    length = min(max_tokens(setup), modules.max_length or 10**9)
    prompts = {**modules.prompts, **read_option(OPTIONS, recipe, "prompts")}
    return replace(modules, prompts=prompts, max_length=length)


def encode_rows(
    rows: Sequence[Sequence[str]],
    setup: Setup,
    roles: tuple[str, str] | None = None,
    *,
    pairs: Sequence[str] | None = None,
    model_format: str = DENSE,
) -> list[Feature]:
    """Encode the texts of each row, begun with a prompt where the model has some.

    Args:
        rows: texts of each row.
        setup: its tokenizer is that of the model folder.
        roles: names of the prompts of a row's first text and of its others; None for the model's default prompt. That
            one also begins texts for whose role the model has no prompt.
        pairs: second texts of rows with one text, which the encoder reads together with it.
        model_format: which class of sentence-transformers the model is of; see `bertkit.modeling.sentence.folder`.

    Raises:
        ModelError: the model leaves the tokens of prompts out of its pooling.
    """
    folder = Path(setup.tokenizer.name_or_path)
    modules = modules_of(folder, setup, model_format)
    default = modules.prompts.get(modules.default_prompt or "", "")
    first, second = (modules.prompts.get(role, default) for role in roles) if roles else (default, default)
    if (first or second) and not modules.include_prompt:
        what = "its pooling leaves out the tokens of prompts, which bertkit does not train"
        raise ModelError(what, "start from another model", file=folder)
    begun = [[f"{second if number else first}{text}" for number, text in enumerate(texts)] for texts in rows]
    if modules.lowercase:
        begun = [[text.lower() for text in texts] for texts in begun]
    shortened = replace(setup, recipe=setup.recipe.changed("training", max_length=modules.max_length))
    several = [[{"text": text} for text in texts] for texts in begun]
    for (text,), pair in zip(several, pairs or (), strict=True) if pairs else ():
        text["text_pair"] = pair.lower() if modules.lowercase else pair
    return encode_several(several, shortened)


def load_encoder(folder: Path, setup: Setup, *, new_head: bool, loss: str, learned_texts: int | None = None) -> Model:
    """Load an encoder to train with a loss of `bertkit.modeling.sentence.losses`, or one of sentence vectors to use.

    Args:
        folder: of any encoder, or of sentence-transformers.
        setup: its recipe says how vectors are made and trained.
        new_head: whether the encoder is to be trained.
        loss: its name.
        learned_texts: how many of a row's texts ``simcse`` learns from; None for all.

    Raises:
        ModelError: weights that do not fit or are damaged; without `new_head` also a plain encoder.
        RecipeError: a dimension that the vectors do not have, or a loss that needs dropout which the model has not.
    """
    from bertkit.modeling.dropout import dropout_rates
    from bertkit.modeling.sentence.head import load_sentence_head
    from bertkit.modeling.sentence.losses import VectorLoss

    if not new_head:
        refuse_other_formats(folder, DENSE)
        return load_sentence_head(folder, read_modules(folder))
    recipe, modules = setup.recipe, modules_of(folder, setup)
    if loss == "margin_mse":  # trained on dot products
        modules = replace(modules, similarity="dot")
    scale, dimensions, mini_batch, dropout = (
        read_option(OPTIONS, recipe, name) for name in ("scale", "dimensions", "mini_batch", "dropout")
    )
    model = load_sentence_head(
        folder,
        modules,
        VectorLoss(loss, float(scale), tuple(dimensions), learned_texts),
        texts_at_once=mini_batch and int(mini_batch),
        dropout=dropout,
    )
    if loss == "simcse" and not any(dropout_rates(model.config).values()):
        what = "the loss simcse finds a text again that other dropout has changed, and this model has no dropout"
        raise RecipeError(what, "--set options.dropout=0.1")
    model.config.pad_token_id = setup.tokenizer.pad_token_id  # as `load_pretrained` does
    if dimensions:  # under the names that vLLM reads
        model.config.is_matryoshka, model.config.matryoshka_dimensions = True, list(dimensions)
    return model


def refuse_other_formats(folder: Path, wanted: str) -> None:
    """Raise ModelError where a folder is not what one class of sentence-transformers loads."""
    model_format = find_format(folder)
    if model_format is None:
        remedy = "fine-tune it first, or name a folder of sentence-transformers"
        raise ModelError("it was not trained for sentence vectors (it has no modules.json)", remedy, file=folder)
    if model_format != wanted:
        raise ModelError(f"it is a {model_format}, not a {wanted}", f"name the folder of a {wanted}", file=folder)


def is_dot(setup: Setup, loss: str = "") -> bool:
    """Tell whether a model's vectors are compared by dot products, and not by cosines."""
    return loss == "margin_mse" or read_modules(Path(setup.tokenizer.name_or_path)).similarity == "dot"


def to_compare(vectors: Numbers, *, dot: bool) -> Numbers:
    """Return vectors (..., dimension) in double precision, of length 1 unless dot products compare them."""
    wide = vectors.astype(np.float64)
    return wide if dot else wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)


_NUMBERS = 2**23  # products of tokens that are in memory at a time


def real_tokens(vectors: Numbers) -> Numbers:
    """Return a copy of the vectors of a text's tokens (tokens, dimension) without padding, whose vectors are 0."""
    token_vectors: Numbers = vectors[(vectors != 0).any(axis=-1)]
    return token_vectors


def max_sim(queries: Sequence[Numbers], documents: Sequence[Numbers]) -> Numbers:
    """Score each query with each document, (queries, documents); each is an array (its tokens, dimension).

    Two query tokens, each with its most similar token of a document: 0.8 and 1.

    >>> query, document = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.8, 0.6], [0.0, 1.0]])
    >>> round(float(max_sim([query], [document])[0, 0]), 2)
    1.8
    """
    starts = np.cumsum([0, *(len(query) for query in queries)])[:-1]
    stacked = np.concatenate(queries)
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    for numbers in split_by_size(range(len(documents)), _NUMBERS // len(stacked), lambda n: len(documents[n])):
        chunk = [documents[number] for number in numbers]
        ends = np.cumsum([0, *(len(document) for document in chunk)])[:-1]
        # (tokens of all queries, tokens of these documents): the highest of each document, then sums of each query
        highest = np.maximum.reduceat(stacked @ np.concatenate(chunk).T, ends, axis=1)
        scores[:, numbers] = np.add.reduceat(highest, starts, axis=0)
    return scores
