"""Folders of sentence-transformers whose texts have a sparse vector, or one vector per token.

`SparseEncoder` has the head of a masked language model and `SpladePooling` behind it. `MultiVectorEncoder` has a
projection of token states, the mask of the tokens that count, and a normalization.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.modeling.sentence.modules import (
    MODULES,
    Dense,
    SentenceModules,
    is_sentence_folder,
    read_encoder_settings,
    read_entries,
    read_later,
    read_modules,
    read_optional,
    read_settings,
)
from bertkit.modeling.sentence.writing import write_folder

DENSE, SPARSE, LATE = "SentenceTransformer", "SparseEncoder", "MultiVectorEncoder"
"""Formats, by the class of sentence-transformers that loads them."""

PROJECTION = "1_Dense"
"""Folder of the projection in a folder that bertkit writes."""

_MODULES = {
    SPARSE: ["Transformer", "SpladePooling"],
    LATE: ["Transformer", "Dense", "MultiVectorMask", "Normalize"],
}
_EXPECTED: dict[str, dict[str, Any]] = {
    "SpladePooling": {"pooling_strategy": "max", "activation_function": "relu"},
    "MultiVectorMask": {"skiplist_words": [], "keep_only_token_ids": None},
}
"""What bertkit knows of a module's config; a key that is missing has this value."""
_UNKNOWN = ("query_length", "document_length", "query_expansion", "processing_kwargs")
"""Settings of the encoder that change which tokens it reads."""
_MASKED_LM = {
    "transformer_task": "fill-mask",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "token_embeddings",
}


def find_format(folder: Path) -> str | None:
    """Tell which class of sentence-transformers loads a folder; None where it is none of theirs.

    Raises:
        ModelError: ``modules.json`` is damaged.
    """
    if not is_sentence_folder(folder):
        return None
    names = {name for _, name, _ in read_entries(folder / MODULES)}
    return SPARSE if "SpladePooling" in names else LATE if "MultiVectorMask" in names else DENSE


def read_format(folder: Path, wanted: str) -> SentenceModules:
    """Read what a folder of a format says, or any other encoder's that is to be trained for it.

    Of a folder with one dense vector per text, only what is said of texts counts: prompts, length, lower case.

    Raises:
        ModelError: a file is damaged, the folder is of another format, or it says what bertkit does not know.
    """
    saved_as = find_format(folder)
    if saved_as in (None, DENSE) or wanted == DENSE:
        modules = read_modules(folder)
        return modules if wanted == DENSE else replace(modules, pooling=(), after=(), dimension=None)
    if saved_as != wanted:
        raise ModelError(f"it is a {saved_as}, not a {wanted}", "start from another model", file=folder)
    entries = [(name, path) for _, name, path in read_entries(folder / MODULES)]
    settings = read_encoder_settings(folder)
    unknown = [name for name in _UNKNOWN if settings.get(name)]
    if [name for name, _ in entries] != _MODULES[wanted]:
        unknown = [f"modules in the order {', '.join(name for name, _ in entries)}"]
    for name, path in entries:
        config = read_optional(folder / path / "config.json") if name in _EXPECTED else {}
        expected = _EXPECTED.get(name, {}).items()
        unknown += [f"{key} {config[key]!r}"[:80] for key, value in expected if config.get(key, value) != value]
    if unknown or entries[0][1]:
        what = ", ".join(unknown) or "an encoder in a subfolder"
        raise ModelError(f"it has what bertkit does not know: {what}", "load it with that library", file=folder)
    return replace(
        read_settings(folder),
        after=(_read_projection(folder, entries[1][1]),) if wanted == LATE else (),
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case", False)),
    )


def _read_projection(folder: Path, path: str) -> Dense:
    projection = read_later(folder, "Dense", path)
    assert isinstance(projection, Dense)
    if projection.bias or projection.use_residual or not projection.activation.endswith(".Identity"):
        what = "its projection has a bias, an activation or a residual connection, which bertkit does not know"
        raise ModelError(what, "load it with sentence-transformers", file=folder / path)
    return projection


def write_sparse(folder: Path, modules: SentenceModules, vocabulary: int) -> None:
    """Write the files that make the folder of a masked language model one that ``SparseEncoder(folder)`` loads."""
    pooling = {**_EXPECTED["SpladePooling"], "embedding_dimension": vocabulary}
    write_folder(
        folder, replace(modules, similarity="dot"), [("SpladePooling", pooling)], model_type=SPARSE, encoder=_MASKED_LM
    )


def write_late(folder: Path, modules: SentenceModules, width: int, dimension: int) -> None:
    """Write the files that make a model folder one that ``MultiVectorEncoder(folder)`` loads, but for the projection.

    Args:
        folder: it has config, weights and tokenizer of the encoder already.
        modules: what it says of texts.
        width: hidden size of the encoder.
        dimension: of the vectors of tokens.
    """
    of_tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    identity = "torch.nn.modules.linear.Identity"
    projection = {"in_features": width, "out_features": dimension, "bias": False, "activation_function": identity}
    mask = {**_EXPECTED["MultiVectorMask"], "skiplist_tasks": ["document"]}
    later = [("Dense", {**projection, **of_tokens}), ("MultiVectorMask", mask), ("Normalize", of_tokens)]
    write_folder(folder, replace(modules, similarity="maxsim"), later, model_type=LATE, encoder={})
