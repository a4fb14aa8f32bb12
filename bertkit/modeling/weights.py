"""Weights and configs of checkpoints: loaded whole and fitting, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError

_NOT_LEARNED = ("position_ids", "token_type_ids")  # buffers that old checkpoints carry along


def load_weights(model_class: Any, folder: Path, config: Any) -> tuple[Any, dict[str, Any]]:
    """Give the model, and transformers' report of which weights were missing, left over or of another shape."""
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


def load_config(folder: Path) -> Any:
    """Load the config of an encoder.

    Raises:
        ModelError: it does not load, needs code of its own, or is no encoder's.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = saved.get("model_type", "")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        if "auto_map" in saved:
            raise ModelError(
                "this checkpoint wants to run code of its own",
                "bertkit runs none; use a standard architecture",
                file=folder,
            ) from None
        raise ModelError(f"the config does not load: {first_line(error)}", file=folder) from None
    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.is_encoder_decoder:
        raise ModelError(
            f"a model of type {kind!r} is not an encoder",
            "use BERT, RoBERTa, ELECTRA, DeBERTa, ...",
            file=folder,
        )
    return config


def refuse_misfit(model: Any, report: dict[str, Any], folder: Path) -> None:
    """Refuse weights that do not fit their config: missing, left over or of another shape inside the encoder."""
    prefix = f"{model.base_model_prefix}."
    parts = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    def in_encoder(name: str) -> bool:
        inner = name.removeprefix(prefix)
        return inner.split(".")[0] in parts and not inner.endswith(_NOT_LEARNED)

    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"]]
    for what, names in (
        ("lacks", report["missing_keys"]),
        ("has no place for", report["unexpected_keys"]),
        ("has another shape for", mismatched),
    ):
        wrong = sorted(filter(in_encoder, names))
        if wrong:
            side = "the checkpoint lacks" if what == "lacks" else f"its config.json {what}"
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ModelError(
                f"weights and config do not fit: {side} {wrong[0]}{more}",
                "fetch both from one source",
                file=folder,
            )


def refuse_non_finite(parameters: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Refuse weights that are not numbers."""
    for name, parameter in parameters:
        if not parameter.isfinite().all():
            raise ModelError(
                f"the weight {name} is not finite (NaN or infinity)",
                "fetch the checkpoint again",
                file=folder,
            )


def first_line(error: BaseException) -> str:
    """Give the first line of what an error says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
