"""Weights and configs of checkpoints: complete and consistent, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.modeling.architectures import has_attention_mask, native_port

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_BUFFERS = ("position_ids", "token_type_ids")  # in old checkpoints, and learned by nobody


def load_weights(model_class: Any, folder: Path, config: PretrainedConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model, with transformers' report of the weights that were missing, unexpected or of another shape."""
    import torch
    from safetensors import SafetensorError

    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (ValueError, OSError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(f"the checkpoint does not load: {first_line(error)}", file=folder) from None
    return model, report


def load_config(folder: Path) -> PretrainedConfig:
    """Load the config of an encoder.

    Raises:
        ModelError: it does not load, needs code of its own, or is not an encoder's.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_type = saved.get("model_type", "")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, KeyError, StrictDataclassError) as error:
        if "auto_map" in saved:
            raise _own_code(saved, folder) from None
        raise ModelError(f"the config does not load: {first_line(error)}", file=folder) from None
    if "auto_map" in saved and not _is_native(saved, config):
        raise _own_code(saved, folder)
    if model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.is_encoder_decoder:
        raise ModelError(
            f"a model of type {model_type!r} is not an encoder",
            "use BERT, RoBERTa, ELECTRA, DeBERTa, ...",
            file=folder,
        )
    if not has_attention_mask(config):
        what = f"a model of type {model_type!r} reads the padding of a batch, so its scores would depend on the batches"
        raise ModelError(what, "use an encoder with an attention mask, such as BERT", file=folder)
    return config


def _is_native(saved: dict[str, Any], config: PretrainedConfig) -> bool:
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


def refuse_misfit(model: PreTrainedModel, report: dict[str, Any], folder: Path) -> None:
    """Raise ModelError where weights of the encoder are missing, unexpected or of another shape than the config has."""
    prefix = f"{model.base_model_prefix}."
    modules = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    # Heads and the pooler may be new or left over. But a weight that the encoder lacks would start at random, and
    # scores would be bad without any error.
    def in_encoder(name: str) -> bool:
        inner = name.removeprefix(prefix)
        return inner.split(".")[0] in modules and not inner.endswith(_BUFFERS)

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
            raise ModelError(
                f"weights and config do not fit: {side} {wrong[0]}{more}",
                "fetch both from one source",
                file=folder,
            )


def refuse_non_finite(parameters: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Raise ModelError where a weight is NaN or infinite."""
    for name, parameter in parameters:
        if not parameter.isfinite().all():
            raise ModelError(
                f"the weight {name} is not finite (NaN or infinity)",
                "fetch the checkpoint again",
                file=folder,
            )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters; its class name where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
