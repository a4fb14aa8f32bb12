"""The model of an index: the same for its rows and for every query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from bertkit.errors import BertkitError, ModelError, UsageError
from bertkit.recipe.sections import expand_path
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import SIMILARITIES, Manifest

PROMPTS = {"document": ("document", "passage", "corpus"), "query": ("query",)}
"""Role of a text -> usual names of its prompt, as in sentence-transformers."""
_OPTIONS = ("pooling", "normalize", "dimension", "max_length", "precision")


def choose_prompts(embedder: Embedder, names_by_role: Mapping[str, str | None]) -> dict[str, Embedder]:
    """Return the embedders of documents and of queries, with the named prompts, or the prompts of the model."""
    prompts = embedder.modules.prompts
    embedders = {}
    for role, names in PROMPTS.items():
        name = names_by_role.get(role) or next((name for name in names if name in prompts), None)
        embedders[role] = replace(embedder, prompt=name)
        _ = embedders[role].modules  # This raises an error if the model lacks the prompt.
    return embedders


def describe(embedders: Mapping[str, Embedder], similarity: str | None) -> Manifest:
    """Return the manifest of an index of these embedders, without shards.

    Raises:
        ModelError: If an index cannot use the similarity that the model was trained for, and none is chosen.
    """
    embedder = embedders["document"]
    similarity = similarity or embedder.modules.similarity
    if similarity not in SIMILARITIES:
        message = f"the similarity of the model is {similarity}, by which an index cannot be searched"
        raise ModelError(message, f"choose one with --similarity: {' or '.join(SIMILARITIES)}", file=embedder.folder)
    is_folder = expand_path(embedder.model).is_dir() and embedder.model != "demo"
    return Manifest(
        # Only a vector shows the dimension, which modules of the folder can change.
        dimension=embedder.encode(["."]).shape[1],
        similarity=similarity,
        model=str(embedder.folder.resolve()) if is_folder else embedder.model,
        embedding=embedder.describe(),
        options={name: value for name, value in asdict(embedder).items() if name in _OPTIONS and value is not None},
        prompts={role: {"name": model.prompt, "text": model.prompt_text} for role, model in embedders.items()},
    )


def open_embedder(manifest: Manifest, role: str, *, folder: Path, model: str | None = None) -> Embedder:
    """Return the embedder of an index for ``document`` or ``query``, after a check that its model has not changed.

    Args:
        manifest: Manifest of the index.
        role: ``document`` or ``query``; each has its own prompt.
        folder: Folder of the index, for messages.
        model: Current place of the model; by default, its place when the index was built.

    Raises:
        ModelError: If the model is missing, has changed, or is not the model of the index.
    """
    if manifest.model is None:
        raise UsageError("the index has vectors without a model", "search it from Python", file=folder)
    name = model or manifest.model
    prompt = manifest.prompts[role]
    try:
        embedder = Embedder(name, prompt=prompt["name"], **manifest.options)
        now, then, text = embedder.describe(), manifest.embedding, embedder.prompt_text
    except BertkitError as error:
        if model is None:
            error.remedy = f"{error.remedy}; if the model of the index has moved, name it with --model".lstrip("; ")
        raise
    # Vectors of another model or of other options cannot be compared, and no result would show it.
    different = {key: f"{key} is {now.get(key)}, not {value}" for key, value in then.items() if now.get(key) != value}
    if "model" in different:
        different["model"] = "its weights differ"
    if text != prompt["text"]:
        different["prompt"] = f"the prompt of the {role} is {text!r}, not {prompt['text']!r}"
    if different:
        message = f"{name} is not the model of the index, or it has changed: {'; '.join(different.values())}"
        raise ModelError(message, f"use {manifest.model} as it was, or build the index again", file=folder)
    return embedder
