"""What a recipe says of a model's weights by depth, done before the model is trained."""

from __future__ import annotations

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import shares_layers
from bertkit.modeling.info import Model
from bertkit.modeling.layers import check_layers
from bertkit.modeling.layerwise.adapters import add_adapters
from bertkit.modeling.layerwise.depths import encoder_layers, freeze, reinitialize
from bertkit.recipe import Training


def prepare_depths(model: Model, training: Training) -> None:
    """Initialize anew and freeze what a recipe says, before a model is trained.

    Raises:
        RecipeError: the model has no such layers, or trains nothing but a head anyway.
    """
    keys = ("freeze", "head_only_epochs", "gradual_unfreezing", "layerwise_lr_decay", "reinit_layers", "lora")
    named = next((key for key in keys if getattr(training, key) is not None), None)
    if named and not any(weights.requires_grad for weights in model.base_model.parameters()):
        raise RecipeError(f"training.{named}: this recipe does not train the encoder", "leave it out")
    if shares_layers(model.config):
        for key, least in (("freeze", 1), ("reinit_layers", 2)):
            if isinstance(number := getattr(training, key), int) and number >= least:
                what = f"the layers of this {model.config.model_type} model share their weights"
                raise RecipeError(f"training.{key} {number}: {what}", "leave it out")
    check_layers(training, len(encoder_layers(model)))
    if training.reinit_layers is not None:
        reinitialize(model, training.reinit_layers)
    if training.lora is not None:
        add_adapters(model, training.lora)
    if training.freeze is not None:
        freeze(model, training.freeze)
