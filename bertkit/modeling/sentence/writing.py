"""The files that make a model folder one that a class of sentence-transformers loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.modeling.sentence.modules import ENCODER_SETTINGS, MODULES, OLD_MODES, SETTINGS, SentenceModules
from bertkit.storage.files import write_json

# by the names that releases before 6 know, and later ones too
_CLASSES = {
    **{name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize", "Dense")},
    "SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
}


def write_modules(folder: Path, modules: SentenceModules, width: int) -> None:
    """Write the files that make a model folder one that ``SentenceTransformer(folder)`` loads.

    Args:
        folder: it has config, weights and tokenizer of the encoder already.
        modules: without dense layers.
        width: hidden size of the encoder.
    """
    mode = modules.pooling[0] if len(modules.pooling) == 1 else list(modules.pooling)
    # text-embeddings-inference, vLLM and older versions read the old keys; all others read these too
    switches = {key: name in modules.pooling for key, name in OLD_MODES.items()}
    pooling = {"word_embedding_dimension": width, **switches, "pooling_mode": mode}
    # vLLM takes the first key that is true
    pooling["include_prompt"] = modules.include_prompt
    later = [(type(module).__name__, dict[str, Any]()) for module in modules.after]
    write_folder(folder, modules, [("Pooling", pooling), *later], model_type="SentenceTransformer", encoder={})


def write_folder(
    folder: Path,
    modules: SentenceModules,
    later: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    model_type: str,
    encoder: Mapping[str, Any],
) -> None:
    """Write the files of sentence-transformers beside those of an encoder.

    Args:
        folder: it has config, weights and tokenizer of the encoder already.
        modules: what they say of texts, prompts and similarity.
        later: name and config of each module behind the encoder; number N of them is in the folder ``N_NAME``.
        model_type: the class of sentence-transformers that loads the folder.
        encoder: more settings of the encoder.
    """
    names = ["Transformer", *(name for name, _ in later)]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names[1:], start=1))]
    for path, (_, content) in zip(paths[1:], later, strict=True):
        (folder / path).mkdir(exist_ok=True)
        write_json(folder / path / "config.json", content)
    lengths = {"max_seq_length": modules.max_length, "do_lower_case": modules.lowercase}
    write_json(folder / ENCODER_SETTINGS, {**encoder, **lengths})
    settings = {
        "model_type": model_type,
        "prompts": {"query": "", "document": "", **modules.prompts},
        "default_prompt_name": modules.default_prompt,
        "similarity_fn_name": modules.similarity,
        **({} if modules.dimension is None else {"truncate_dim": modules.dimension}),
    }
    write_json(folder / SETTINGS, settings)
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": _CLASSES[name]}
        for number, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder / MODULES, listed)  # last: without it the folder is a plain model
