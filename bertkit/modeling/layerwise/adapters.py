"""Low-rank adapters of peft inside a model: added by its structure, saved apart, and merged into its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import architecture_of, shares_layers
from bertkit.modeling.info import Model
from bertkit.modeling.layers import check_layers
from bertkit.modeling.layerwise.depths import children_above, encoder_layers, find_depths, freeze, reinitialize
from bertkit.recipe import Training
from bertkit.recipe.training import Lora

ADAPTER = "adapter"
"""The folder of a run that peft loads."""

_NAME = "default"  # of the only adapter
_STAGING = ".adapter"


def add_adapters(model: Model, lora: Lora) -> None:
    """Let linear layers of an encoder train adapters in place of their weights; what is above the layers stays.

    Raises:
        RecipeError: no linear layer has such a name, or adapters there would have no effect.
    """
    from peft import LoraConfig, inject_adapter_in_model

    depths = find_depths(model)
    head = [weights for weights in depths.select(depths.head) if weights.requires_grad]
    names = target_names(model, lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names)
    inject_adapter_in_model(config, model, _NAME)
    for weights in head:  # which peft freezes with all that has no adapter
        weights.requires_grad_(True)


def target_names(model: Model, targets: str | list[str]) -> list[str]:
    """List the linear layers of a model's layers that get an adapter: those of attention, all, or those of some names.

    An attention is what transformers calls so: projections of queries, keys and values, and that of its output.

    Raises:
        RecipeError: as `add_adapters` does.
    """
    if architecture_of(model.config).reads_weights:
        what = f"training.lora: the attention of a {model.config.model_type} model reads weights, not layers"
        raise RecipeError(f"{what}, so adapters would have no effect", "use another model")
    in_layers = {id(module) for layer in encoder_layers(model) for module in layer.modules()}
    in_attention = {
        id(module)
        for attention in model.base_model.modules()
        if "Attention" in type(attention).__name__
        for module in attention.modules()
    }
    linear = {
        name: id(module) in in_attention
        for name, module in model.named_modules()
        if id(module) in in_layers and isinstance(module, nn.Linear)
    }
    if targets == "all-linear":
        return list(linear)
    if targets == "attention":
        return [name for name, attends in linear.items() if attends]
    endings = {name.rpartition(".")[2] for name in linear}
    for target in targets:
        if target not in endings:
            known = ", ".join(sorted(endings))
            raise RecipeError(f"training.lora.targets: no linear layer is called {target!r}", f"choose from {known}")
    return [name for name in linear if name.rpartition(".")[2] in targets]


def merge_adapters(model: Model, folder: Path | None, base: str) -> None:
    """Merge a model's adapters into its weights, once they are saved apart in a run's folder, where one is given."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    if folder is not None:
        _save_adapters(model, folder, base)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer.get_base_layer())
    vars(model).pop("peft_config", None)


def _save_adapters(model: Model, folder: Path, base: str) -> None:
    """Write the adapters and what is above the layers as a folder that peft's `PeftModel.from_pretrained` loads."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    # the model that peft will load it into
    is_encoder = getattr(model, "is_saved_as_encoder", False)
    saved: nn.Module = model.base_model if is_encoder else model
    heads = [] if is_encoder else [one for name, one in model.named_children() if name != model.base_model_prefix]
    above = {id(module) for module in (*children_above(model), *heads) if any(True for _ in module.parameters())}
    whole = sorted(name for name, module in saved.named_modules() if id(module) in above)
    config = model.peft_config[_NAME]
    config.base_model_name_or_path, config.modules_to_save, config.inference_mode = base, whole or None, True
    config.target_modules = sorted(name for name, one in saved.named_modules() if isinstance(one, BaseTunerLayer))
    tensors = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": weights.detach().cpu().contiguous()
        for name, weights in saved.named_parameters()
        if f".{_NAME}." in name or name.startswith(tuple(f"{module}." for module in whole))
    }
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    config.save_pretrained(staging)
    save_file(tensors, staging / "adapter_model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(folder / ADAPTER, ignore_errors=True)
    staging.rename(folder / ADAPTER)


def prepare_depths(model: Model, training: Training) -> None:
    """Initialize anew and freeze what the `layer_keys` of a recipe say, before a model is trained.

    Raises:
        RecipeError: the model has no such layers, or trains nothing but a head anyway.
    """
    keys = training.layer_keys
    if keys and not any(weights.requires_grad for weights in model.base_model.parameters()):
        raise RecipeError(f"training.{keys[0]}: this recipe does not train the encoder", "leave it out")
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
