"""Weights and configs of checkpoints: complete and consistent, or refused."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.hardware.device import Device
from bertkit.hardware.process import is_memory_error
from bertkit.modeling.architectures import ARCHITECTURES, has_attention_mask, native_port
from bertkit.modeling.info import Config, Model, is_sharded

if TYPE_CHECKING:
    from torch import nn

_NOT_ONLY_WEIGHTS = "not only weights, or damaged: loading it could run code"
_AGAIN = "fetch the checkpoint again"
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_LARGEST = 2**63  # torch counts no further, and its error would be no ValueError
_BUFFERS = ("position_ids", "token_type_ids")  # in old checkpoints, and learned by nobody


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a file of a model folder that is one JSON object.

    Raises:
        ModelError: it is not.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ModelError("not valid JSON", _AGAIN, file=file) from None
    if not isinstance(content, dict):
        raise ModelError("not a JSON object", _AGAIN, file=file)
    return content


def check_config(config: dict[str, Any], file: Path) -> None:
    """Check the keys of a ``config.json`` that are read before transformers checks them all, and the sizes.

    Raises:
        ModelError: one is of the wrong type, or a size is not positive.
    """
    if not isinstance(config.get("model_type"), str):
        raise ModelError("no model_type", "name the type of the model, such as bert", file=file)
    if config.get("quantization_config"):
        raise ModelError("the weights are quantized", "use the model that they were made from", file=file)
    names, classes = config.get("id2label") or {}, config.get("architectures") or []
    wrong = {
        **{
            key: isinstance(value, int) and not (0 if key in _SIZES else -_LARGEST) < value < _LARGEST
            for key, value in config.items()
        },
        "id2label": not isinstance(names, dict) or not all(key.isdecimal() and len(key) < 10 for key in names),
        "architectures": not isinstance(classes, list) or not all(isinstance(name, str) for name in classes),
        "auto_map": not isinstance(config.get("auto_map") or {}, dict),
        "num_labels": not isinstance(config.get("num_labels", 2), int),
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise ModelError(f"{key} is {str(config[key])[:80]}", _AGAIN, file=file)


def refuse_other_types(model_type: str, folder: Path) -> None:
    """Raise ModelError where a model type is no encoder's; one of bertkit's table needs no transformers to tell."""
    if model_type in ARCHITECTURES:
        return
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if model_type not in CONFIG_MAPPING_NAMES:
        what = f"transformers {transformers.__version__} does not know the model type {model_type!r}"
        raise ModelError(what, "correct config.json, or update transformers", file=folder)
    if model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise _no_encoder(model_type, folder)


def _no_encoder(model_type: str, folder: Path) -> ModelError:
    remedy = "use BERT, RoBERTa, ELECTRA, DeBERTa, ..."
    return ModelError(f"a model of type {model_type!r} is not an encoder", remedy, file=folder)


def load_weights(model_class: type[Model], folder: Path, config: Config) -> tuple[Model, dict[str, Any]]:
    """Load a model, with transformers' report of the weights that were missing, unexpected or of another shape.

    Raises:
        ModelError: a file of weights is damaged, could run code, or does not fit the config.
    """
    import torch
    from safetensors import SafetensorError

    for index in folder.glob("*.index.json"):
        read_json_object(index)
    if not any(folder.glob("model*.safetensors")):
        for file in sorted(folder.glob("pytorch_model*.bin")):
            # which refuses what holds anything but weights, and runs nothing
            load_pickle(file, device="meta")
    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (ValueError, OSError, RuntimeError, LookupError, SafetensorError, pickle.UnpicklingError) as error:
        if is_memory_error(error):
            raise
        raise ModelError(f"the checkpoint does not load: {first_line(error)}", file=folder) from None
    refuse_misfit(model, report, folder)
    # Transformers leaves weights in the mapped file. Whoever overwrites it later would change the model's answers, or
    # end the process. Slices, where the file has one weight for several of the model's, would also keep the whole.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model, report


def weights_to_save(model: Model) -> dict[str, Any] | None:
    """Return the weights of a model on the CPU, if those on its device have no storage of their own, or are shares.

    None if the model can save its own. All processes call this together.

    Those that are one tensor under two names stay one.
    """
    from bertkit.modeling.sharding import gather

    if Device(model.device.type).shapes_may_change and not is_sharded(model):
        return None
    copies: dict[int, Any] = {}
    for value in (weights := model.state_dict(keep_vars=True)).values():
        if id(value) not in copies:
            copies[id(value)] = gather(value.detach()).cpu()
    return {name: copies[id(value)] for name, value in weights.items()}


def restore_weights(model: Model, file: Path) -> None:
    """Load the weights of a checkpoint into the model that has written it.

    Raises:
        ModelError: names or shapes differ.
    """
    from safetensors.torch import load_file

    from bertkit.modeling.sharding import scatter_like

    saved = model.base_model if getattr(model, "is_saved_as_encoder", False) else model
    try:
        # safetensors' own `load_model` tells tied weights by their storage, which on XLA no tensor has, and which on a
        # GPU all weights of an LSTM share
        weights, names = load_file(file), saved.state_dict(keep_vars=True)
        loaded = {id(names[name]) for name in weights if name in names}
        missing = [name for name, value in names.items() if id(value) not in loaded]
        weights = {name: scatter_like(value, names.get(name, value)) for name, value in weights.items()}
        _, unexpected = saved.load_state_dict(weights, strict=False)
        if missing or unexpected:
            raise RuntimeError(f"missing: {', '.join(missing)}; unexpected: {', '.join(unexpected)}")
        # one for all, where several devices compile one per shape that is read
        Device(model.device.type).end_graph()
        # which is in a file of its own
        if restore := getattr(model, "restore_projection", None):
            restore(file.parent)
    except RuntimeError as error:
        what = f"the weights do not fit the model: {first_line(error)}"
        raise ModelError(what, "--fresh starts over", file=file) from None


def load_pickle(file: Path, device: str = "cpu") -> dict[str, Any]:
    """Load a file of weights in torch's format, and run nothing of it; on the device ``meta``, only check it.

    Raises:
        ModelError: it is missing or damaged, or holds anything else.
    """
    import torch

    try:
        with file.open("rb") as stream:
            is_zip = stream.read(2) == b"PK"
        # to check such a file, torch can leave it on disk and read its index only
        content = torch.load(file, map_location=device, weights_only=True, mmap=is_zip and device == "meta")
    except pickle.UnpicklingError:
        raise ModelError(_NOT_ONLY_WEIGHTS, "get the checkpoint as model.safetensors", file=file) from None
    except Exception as error:  # torch's reader raises whatever a damaged file makes it stumble over
        if is_memory_error(error):
            raise
        raise ModelError(f"the weights are damaged: {type(error).__name__}", _AGAIN, file=file) from error
    are_weights = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    )
    if not are_weights:
        raise ModelError("it holds something other than weights", _AGAIN, file=file)
    return dict(content)


def load_config(folder: Path, *, decoders: bool = False) -> Config:
    """Load the config of an encoder, with `decoders` also that of a decoder whose states are to be read.

    Raises:
        ModelError: it does not load, needs code of its own, or is not an encoder's.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    saved = read_json_object(folder / "config.json")
    check_config(saved, folder / "config.json")
    model_type = saved["model_type"]
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, LookupError, TypeError, AttributeError, StrictDataclassError) as error:
        if "auto_map" in saved:
            raise _own_code(saved, folder) from None
        raise ModelError(f"the config does not load: {first_line(error)}", file=folder) from None
    if "auto_map" in saved and not _is_native(saved, config):
        raise _own_code(saved, folder)
    # a saved one may name a kernel of the hub, which is code, or lack its package
    config._attn_implementation = None
    if decoders:
        # of keys and values for more tokens, which nobody will ask for
        config.use_cache = False
    else:
        refuse_other_types(model_type, folder)
    if config.is_encoder_decoder:
        raise _no_encoder(model_type, folder)
    if not has_attention_mask(config):
        what = f"a model of type {model_type!r} reads the padding of a batch, so its scores would depend on the batches"
        raise ModelError(what, "use an encoder with an attention mask, such as BERT", file=folder)
    return config


def _is_native(saved: dict[str, Any], config: Config) -> bool:
    """Tell whether transformers has the class of a checkpoint that brings its own code, and reads the sizes it names.

    Otherwise its own class would fill in the sizes of another model.
    """
    import transformers

    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    names = [config.attribute_map.get(name, name) for name in sizes if hasattr(config, name)]
    known = all(hasattr(transformers, name) for name in saved.get("architectures") or ())
    return known and all(name in saved for name in names)


def _own_code(saved: dict[str, Any], folder: Path) -> ModelError:
    port = native_port(saved)
    remedy = f"use transformers' own {port}" if port else "use a standard architecture"
    return ModelError("this checkpoint needs to run its own code", f"bertkit never does that; {remedy}", file=folder)


def initialize_anew(model: Model, modules: Iterable[nn.Module]) -> None:
    """Draw the weights of some of a model's modules anew, from torch's generator."""
    for module in modules:
        for weights in module.parameters():
            weights._is_hf_initialized = False  # type: ignore[attr-defined]
        for submodule in module.modules():
            submodule._is_hf_initialized = False  # type: ignore[assignment]
        module.apply(model._init_weights)


_OF_ADAPTER = ".base_layer."  # what peft calls a layer inside its adapter


def refuse_misfit(model: Model, report: dict[str, Any], folder: Path) -> None:
    """Raise ModelError where weights of the encoder are missing, unexpected or of another shape than the config has."""
    prefix = f"{model.base_model_prefix}."
    modules = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    # Heads and the pooler may be new or left over. But a weight that the encoder lacks would start at random, and
    # scores would be bad without any error.
    def in_encoder(name: str) -> bool:
        inner = name.removeprefix(prefix)
        return inner.split(".")[0] in modules and not inner.endswith(_BUFFERS)

    if any(_OF_ADAPTER in name for name in report["unexpected_keys"]):
        what = "a checkpoint of a training with adapters (training.lora), which are not merged into its weights"
        raise ModelError(what, "name the finished run, whose model has them merged", file=folder)
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"]]
    for problem, names in (
        ("lacks", report["missing_keys"]),
        ("has no place for", report["unexpected_keys"]),
        ("has another shape for", mismatched),
    ):
        wrong = sorted(filter(in_encoder, names))
        if wrong:
            if hasattr(model.config, "auto_map"):
                raise _own_code(model.config.to_dict(), folder)
            side = "the checkpoint lacks" if problem == "lacks" else f"its config.json {problem}"
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            what = f"weights and config do not fit: {side} {wrong[0]}{more}"
            raise ModelError(what, "fetch both from one source", file=folder)


def refuse_non_finite(parameters: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Raise ModelError where a weight is NaN or infinite."""
    for name, parameter in parameters:
        if not parameter.isfinite().all():
            raise ModelError(f"the weight {name} is not finite (NaN or infinity)", _AGAIN, file=folder)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters; its class name where it has none.

    A line that ends with a colon is joined with the next one. That of torch for a pickle would advise to run its code.
    """
    if "weights_only" in str(error):
        return _NOT_ONLY_WEIGHTS
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]


def loaded_bytes(file: Path) -> int:
    """Return the size of a file's weights once they are loaded in single precision; its own if it does not tell."""
    from safetensors import SafetensorError, safe_open

    if file.suffix != ".safetensors":
        return file.stat().st_size
    try:
        with safe_open(file, "np") as weights:
            return sum(4 * math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    except SafetensorError:
        return file.stat().st_size
