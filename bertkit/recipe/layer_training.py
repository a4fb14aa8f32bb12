"""Which weights of a model are trained, from when on, and how fast: keys of `training` for fine-tuning."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertkit.recipe.sections import Finite, Section


class Lora(Section):
    """Low-rank adapters, trained in place of the encoder's own weights (Hu et al. 2022)."""

    rank: int = Field(8, ge=1, le=4096)
    alpha: Finite = Field(16, gt=0)
    """An adapter's output is multiplied by alpha / rank."""
    dropout: Finite = Field(0.1, ge=0, lt=1)
    targets: Literal["attention", "all-linear"] | list[str] = "attention"
    """Linear layers that get an adapter: a group of them, or their names."""

    @field_validator("targets")
    @classmethod
    def _some_are_named(cls, targets: str | list[str]) -> str | list[str]:
        if not targets:
            raise ValueError("must name at least one")
        return targets


class LayerTraining(Section):
    """Settings that tell the embeddings, the layers and the head of a model apart."""

    freeze: Literal["embeddings", "encoder"] | int | None = None
    """Weights that are never trained: `embeddings`; a number: these and as many layers, the lowest first; `encoder`:
    all but the head."""
    head_only_epochs: Finite | None = Field(None, gt=0, le=10_000)
    """Epochs in which the head alone is trained; then the rest is unfrozen."""
    gradual_unfreezing: Literal["epoch"] | int | None = None
    """Unfreeze one layer per `epoch`, or per so many steps, from the top (ULMFiT)."""
    layerwise_lr_decay: Finite | None = Field(None, gt=0, le=1)
    """A layer's learning rate as a share of that of the layer above it."""
    head_learning_rate: Finite | None = Field(None, gt=0, lt=1)
    """By default, `learning_rate`."""
    reinit_layers: int | None = Field(None, ge=0, le=1000)
    """Initialize the pooler and so many of the top layers anew."""
    lora: Lora | None = None
    """Train low-rank adapters in place of the encoder's weights."""

    @field_validator("freeze")
    @classmethod
    def _some_layers_are_frozen(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be `embeddings`, `encoder`, or a number of layers of at least 1")
        return value

    @field_validator("head_only_epochs", "gradual_unfreezing", "layerwise_lr_decay", "reinit_layers", "lora")
    @classmethod
    def _encoder_is_trained(cls, value: Any, info: ValidationInfo) -> Any:
        # reinit_layers: 0 is the pooler alone, which is trained with the head
        if value and info.data.get("freeze") == "encoder":
            raise ValueError("does not go with training.freeze = encoder: leave one of them out")
        return value

    @field_validator("head_only_epochs")
    @classmethod
    def _the_rest_is_trained_too(cls, value: float | None, info: ValidationInfo) -> float | None:
        epochs = info.data.get("epochs", 0)
        if value is not None and info.data.get("steps") is None and not value < epochs:  # `auto` is NaN
            limit = "given as a number" if math.isnan(epochs) else f"{epochs:g}"
            raise ValueError(f"must be less than training.epochs ({limit}); `freeze: encoder` trains the head alone")
        return value

    @field_validator("gradual_unfreezing")
    @classmethod
    def _steps_between_layers(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be `epoch` or a number of steps of at least 1")
        return value

    @field_validator("lora")
    @classmethod
    def _adapters_are_trained(cls, value: Lora | None, info: ValidationInfo) -> Lora | None:
        if value is not None and info.data.get("reinit_layers"):
            raise ValueError("does not go with training.reinit_layers: new layers would not be trained")
        return value
