"""Checks of a checkpoint's files and config, before any weight is read.

This module imports neither torch nor transformers at the top, so it rejects a wrong folder in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from logging import DEBUG
from pathlib import Path
from typing import Any

from bertkit.data.labels import make_placeholder_names
from bertkit.errors import ModelError
from bertkit.modeling.architectures import ARCHITECTURES, BIDIRECTIONAL, find_native_port
from bertkit.modeling.info import Config
from bertkit.progress import log
from bertkit.storage.checkpoints import find_last_model
from bertkit.storage.exports import check_not_exported
from bertkit.storage.fingerprints import feed_file
from bertkit.storage.hub.models import WEIGHTS, bytes_left_out

FETCH_AGAIN = "fetch the checkpoint again"
FINE_TUNE = "fine-tune it first, or name another checkpoint"
NOT_ONLY_WEIGHTS = "not only weights, or damaged: loading it could run code"

_WEIGHT_ENDINGS = (".safetensors", ".bin")
_VOCAB_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
_PRETRAINING_CLASSES = ("ForMaskedLM", "ForPreTraining", "ForCausalLM")
_TEXT_HEADS = ("SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING")
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
# For larger integers, torch raises an error that is not a ValueError.
_MAX_INT = 2**63


def read_config(folder: Path, *, decoders: bool = False) -> dict[str, Any]:
    """Read a model folder's ``config.json`` after checking that the folder contains a model and a tokenizer.

    Args:
        folder: Model folder.
        decoders: Whether decoders are allowed.

    Raises:
        ModelError: If config, weights or tokenizer are missing, the config is invalid, or the model is not an encoder.
    """
    file = folder / "config.json"
    if not file.is_file():
        if (folder / "adapter_config.json").is_file():
            raise ModelError("adapters without a model", "merge them: `merge_and_unload()` of peft", file=folder)
        checkpoint, remedy = find_last_model(folder), "name a folder with config.json, weights and tokenizer"
        remedy = f"name its newest checkpoint: {checkpoint}" if checkpoint else remedy
        raise ModelError("no config.json", remedy, file=folder)
    config = read_json_object(file)
    check_config(config, file)
    check_not_exported(folder)
    if not any((folder / name).is_file() for name in WEIGHTS) and bytes_left_out(folder) is None:
        raise ModelError("no weights", f"expected one of {', '.join(WEIGHTS)}", file=folder)
    if not any((folder / name).is_file() for name in _VOCAB_FILES):
        remedy = "copy tokenizer.json and tokenizer_config.json from the pretrained model"
        raise ModelError("no tokenizer files", remedy, file=folder)
    # `load_config` rejects custom code, with a better remedy: a model of transformers that replaces the code.
    if "auto_map" not in config and not decoders:
        _check_type(config, folder)
    return config


def load_config(folder: Path, *, decoders: bool = False) -> Config:
    """Load the config of an encoder with transformers.

    Args:
        folder: Model folder.
        decoders: Whether decoders are allowed, for reading their hidden states.

    Raises:
        ModelError: If the config does not load, needs custom code, or is not an encoder's.
    """
    quiet_transformers()
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    content = read_json_object(folder / "config.json")
    check_config(content, folder / "config.json")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, LookupError, TypeError, AttributeError, StrictDataclassError) as error:
        if "auto_map" in content:
            raise custom_code_error(content, folder) from None
        raise ModelError(f"the config does not load: {shorten_error(error)}", file=folder) from None
    if "auto_map" in content and not _is_native(content, config):
        raise custom_code_error(content, folder)
    # A stored implementation can name a kernel of the Hub, which is code, or need a package that is not installed.
    config._attn_implementation = None
    if decoders:
        # Nothing is generated, so no later token reads the cache.
        config.use_cache = False
    else:
        _check_type(content, folder)
    if config.is_encoder_decoder:
        raise not_encoder_error(config.model_type, folder, "it has a decoder")
    if not hasattr(config, "vocab_size"):
        raise not_encoder_error(config.model_type, folder, "its config has no vocab_size")
    return config


def check_head(config: dict[str, Any], folder: Path) -> None:
    """Check that a checkpoint was fine-tuned, by the class name in its config.

    Raises:
        ModelError: If the class is an encoder without a head, or a pretraining model.
    """
    model_class = (config.get("architectures") or [""])[0]
    if "For" not in model_class or model_class.endswith(_PRETRAINING_CLASSES):
        problem = f"no trained head for this task (it is a {model_class or 'model of an unknown class'})"
        raise ModelError(problem, FINE_TUNE, file=folder)


def get_label_names(config: dict[str, Any]) -> list[str] | None:
    """Return a checkpoint's label names in the order of its outputs, or None if they are placeholders.

    >>> get_label_names({"id2label": {"1": "good", "0": "bad"}}), get_label_names({"id2label": {"0": "LABEL_0"}})
    (['bad', 'good'], None)
    """
    names = config.get("id2label") or {}
    labels = [str(names[key]) for key in sorted(names, key=int)]
    return None if not labels or labels == make_placeholder_names(len(labels)) else labels


def fingerprint(folder: Path, *, weights: bool = True) -> str:
    """Compute a SHA-256 over a model folder's config, vocabulary and, unless `weights` is False, weights."""
    digest = hashlib.sha256()
    names = {"config.json", *_VOCAB_FILES}
    for file in sorted(folder.iterdir()):
        if file.name in names or (weights and file.suffix in _WEIGHT_ENDINGS):
            digest.update(file.name.encode())
            feed_file(digest, file)
    return digest.hexdigest()


def get_weight_bytes(folder: Path) -> int:
    """Return the size of a model folder's weights in bytes, also if they were not downloaded from the Hub."""
    return bytes_left_out(folder) or sum(file.stat().st_size for file in _list_weight_files(folder))


def get_loaded_weight_bytes(folder: Path) -> int:
    """Return the size in bytes of a model folder's weights after loading them in float32."""
    return bytes_left_out(folder) or sum(map(get_loaded_file_bytes, _list_weight_files(folder)))


def get_loaded_file_bytes(file: Path) -> int:
    """Return the size in bytes of a file's weights in float32, or the size of the file if it is not safetensors."""
    from safetensors import SafetensorError, safe_open

    if file.suffix != ".safetensors":
        return file.stat().st_size
    try:
        with safe_open(file, "np") as weights:
            return sum(4 * math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    except SafetensorError:
        return file.stat().st_size


def _list_weight_files(folder: Path) -> list[Path]:
    """List the weight files of a model folder that are loaded; a pickle next to safetensors is not."""
    files = [file for file in folder.iterdir() if file.suffix in _WEIGHT_ENDINGS and file.name != "training_args.bin"]
    has_safetensors = any(file.suffix == ".safetensors" for file in files)
    return [file for file in files if not (has_safetensors and file.name.startswith("pytorch_model"))]


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model folder.

    Raises:
        ModelError: If the file is not valid JSON, or contains another value.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ModelError("not valid JSON", FETCH_AGAIN, file=file) from None
    if not isinstance(content, dict):
        raise ModelError("not a JSON object", FETCH_AGAIN, file=file)
    return content


def check_config(config: dict[str, Any], file: Path) -> None:
    """Check the sizes in a ``config.json``, and the keys that bertkit reads before transformers checks all keys.

    Raises:
        ModelError: If a key has the wrong type, or a size is not positive.
    """
    if not isinstance(config.get("model_type"), str):
        raise ModelError("no model_type", "name the type of the model, such as bert", file=file)
    if config.get("quantization_config"):
        raise ModelError("the weights are quantized", "use the model before quantization", file=file)
    names, classes = config.get("id2label") or {}, config.get("architectures") or []
    is_wrong = {
        **{
            key: isinstance(value, int) and not (0 if key in _SIZES else -_MAX_INT) < value < _MAX_INT
            for key, value in config.items()
        },
        "id2label": not isinstance(names, dict) or not all(key.isdecimal() and len(key) < 10 for key in names),
        "architectures": not isinstance(classes, list) or not all(isinstance(name, str) for name in classes),
        "auto_map": not isinstance(config.get("auto_map") or {}, dict),
        "num_labels": not isinstance(config.get("num_labels", 2), int),
    }
    for key in is_wrong:
        if is_wrong[key]:
            raise ModelError(f"{key} is {str(config[key])[:80]}", FETCH_AGAIN, file=file)


def quiet_transformers() -> None:
    """Silence warnings and progress bars of transformers, unless bertkit logs at the level DEBUG."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if log.isEnabledFor(DEBUG):
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def custom_code_error(config: dict[str, Any], folder: Path) -> ModelError:
    """Return the error for a checkpoint with custom code; the remedy is transformers' model of this type, if any."""
    port = find_native_port(config)
    remedy = f"use transformers' own {port}" if port else "use a standard architecture"
    return ModelError("this checkpoint needs to run its own code", f"bertkit never does that; {remedy}", file=folder)


def shorten_error(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters, or its class name if it has none.

    A line that ends with a colon is joined with the next line. torch's message for a pickle with code is replaced,
    because it advises to run the code.
    """
    if "weights_only" in str(error):
        return NOT_ONLY_WEIGHTS
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]


def not_encoder_error(model_type: str, folder: Path, reason: str) -> ModelError:
    """Return the error for a model that is not a text encoder."""
    remedy = "use BERT, RoBERTa, ELECTRA, DeBERTa, ..."
    return ModelError(f"a model of type {model_type!r} is not an encoder: {reason}", remedy, file=folder)


def _check_type(config: Mapping[str, Any], folder: Path) -> None:
    """Raise ModelError if transformers has no encoder for a ``config.json``.

    A model that passes may still not be an encoder, so `bertkit.modeling.load` also checks what it computes.
    """
    model_type = config["model_type"]
    # For types in bertkit's table, avoid importing transformers, which takes seconds.
    if model_type in ARCHITECTURES:
        return
    import transformers
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type not in CONFIG_MAPPING_NAMES:
        problem = f"transformers {transformers.__version__} does not know the model type {model_type!r}"
        raise ModelError(problem, "correct config.json, or update transformers", file=folder)
    is_bidirectional = (
        model_type in BIDIRECTIONAL
        or model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        or config.get("is_causal") is False
        or config.get("use_bidirectional_attention")
    )
    has_head = any(model_type in getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES") for head in _TEXT_HEADS)
    if model_type not in auto.MODEL_MAPPING_NAMES or not (is_bidirectional or has_head):
        raise not_encoder_error(model_type, folder, "transformers has no head for texts")
    if model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not is_bidirectional:
        raise not_encoder_error(model_type, folder, "causal (left-to-right) models are not supported")


def _is_native(content: dict[str, Any], config: Config) -> bool:
    """Return whether transformers can load a checkpoint with custom code: it has the class and reads the sizes.

    Otherwise transformers would use its default sizes, which belong to another model.
    """
    import transformers

    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    names = [config.attribute_map.get(name, name) for name in sizes if hasattr(config, name)]
    has_classes = all(hasattr(transformers, name) for name in content.get("architectures") or ())
    return has_classes and all(name in content for name in names)
