"""Depth of each weight of a model, to freeze or reinitialize layers, and low-rank adapters of peft.

Adapters are saved in a separate folder, and then merged into the model's weights.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import get_architecture, get_layers, shares_layers
from bertkit.modeling.info import Model
from bertkit.modeling.layers import check_layers
from bertkit.modeling.load import initialize_again
from bertkit.recipe.sections import LoraConfig, TrainingConfig

ADAPTER = "adapter"
"""Folder in a run with the adapters, for peft."""

# Name of the adapter.
_NAME = "default"
_STAGING = ".adapter"


@dataclass(frozen=True)
class Depths:
    """Depth of each weight: 0 for embeddings, 1 for the first layer, and so on; the head is above the last layer."""

    layers: int
    """Number of layers."""
    by_weight: dict[nn.Parameter, int]

    @property
    def head(self) -> int:
        """Depth of all weights above the layers: pooler, last norm, and the head of the task."""
        return self.layers + 1

    def select(self, lowest: int, highest: int | None = None) -> list[nn.Parameter]:
        """Return the weights from depth `lowest` to `highest`, by default to the head."""
        highest = self.head if highest is None else highest
        return [weights for weights, depth in self.by_weight.items() if lowest <= depth <= highest]


def find_depths(model: Model) -> Depths:
    """Return the depth of each weight of a model.

    Weights of the encoder that are neither in a layer nor above the layers count as embeddings, such as relative
    positions for all layers. Layers that share their weights count as one layer.
    """
    base, layers = model.base_model, find_encoder_layers(model)
    above = {weights for child in find_modules_above(model) for weights in child.parameters()}
    depths = dict.fromkeys(model.parameters(), len(layers) + 1)
    depths |= {weights: 0 for weights in base.parameters() if weights not in above}
    for depth, layer in enumerate(layers, start=1):
        depths |= dict.fromkeys(layer.parameters(), depth)
    return Depths(len(layers), depths)


def find_encoder_layers(model: Model) -> list[nn.Module]:
    """Return the layers of a model of any type; layers that share their weights count as one layer."""
    from bertkit.modeling.speed_patches import find_repeated_layers

    return get_layers(model) or find_repeated_layers(model.base_model)


def find_modules_above(model: Model) -> list[nn.Module]:
    """Return the encoder's modules above its layers: a pooler, and modules that run after the layers."""
    children, layers = dict(model.base_model.named_children()), find_encoder_layers(model)
    if not layers:
        return []
    parent = next(index for index, child in enumerate(children.values()) if layers[-1] in child.modules())
    return [child for index, (name, child) in enumerate(children.items()) if index > parent or name == "pooler"]


def freeze(model: Model, part: str | int) -> None:
    """Freeze the ``embeddings``, the ``encoder``, or the embeddings and the first `part` layers."""
    depths = find_depths(model)
    highest = {"embeddings": 0, "encoder": depths.layers}[part] if isinstance(part, str) else part
    for weights in depths.select(0, highest):
        weights.requires_grad_(False)


def reinitialize(model: Model, count: int) -> None:
    """Reinitialize the pooler and the top `count` layers as in a new model (Zhang et al. 2021, section 5).

    Raises:
        RecipeError: If there are neither layers nor a pooler to initialize.
    """
    layers = find_encoder_layers(model)
    above = find_modules_above(model)
    poolers = [child for child in above if any(isinstance(module, nn.Linear) for module in child.modules())]
    if not poolers and not count:
        message = f"training.reinit_layers 0: this {model.config.model_type} model has no pooler"
        raise RecipeError(message, "leave it out")
    initialize_again(model, [*layers[len(layers) - count :], *poolers])


def configure_layers(model: Model, training: TrainingConfig) -> None:
    """Reinitialize layers, add adapters and freeze layers, as a recipe requires.

    Raises:
        RecipeError: If the model lacks these layers, or only a head is trained.
    """
    keys = training.layer_keys
    if keys and not any(weights.requires_grad for weights in model.base_model.parameters()):
        raise RecipeError(f"training.{keys[0]}: this recipe does not train the encoder", "leave it out")
    if shares_layers(model.config):
        for key, minimum in (("freeze", 1), ("reinit_layers", 2)):
            if isinstance(count := getattr(training, key), int) and count >= minimum:
                reason = f"the layers of this {model.config.model_type} model share their weights"
                raise RecipeError(f"training.{key} {count}: {reason}", "leave it out")
    check_layers(training, len(find_encoder_layers(model)))
    if training.reinit_layers is not None:
        reinitialize(model, training.reinit_layers)
    if training.lora is not None:
        add_adapters(model, training.lora)
    if training.freeze is not None:
        freeze(model, training.freeze)


def add_adapters(model: Model, lora: LoraConfig) -> None:
    """Add adapters to linear layers of an encoder, and freeze its weights except the modules above the layers.

    Raises:
        RecipeError: If no linear layer has a name in `lora.targets`, or adapters would have no effect.
    """
    import peft

    depths = find_depths(model)
    head_weights = [weights for weights in depths.select(depths.head) if weights.requires_grad]
    names = find_target_modules(model, lora.targets)
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names)
    peft.inject_adapter_in_model(config, model, _NAME)
    # peft has frozen all weights outside the adapters.
    for weights in head_weights:
        weights.requires_grad_(True)


def find_target_modules(model: Model, targets: str | list[str]) -> list[str]:
    """Return the names of the linear layers that get an adapter.

    Args:
        model: Model.
        targets: ``attention`` (the layers of modules that transformers calls attention), ``all-linear``, or names of
            linear layers, such as ``query``.

    Raises:
        RecipeError: If no linear layer has a name in `targets`, or adapters would have no effect.
    """
    if get_architecture(model.config).ignores_adapters:
        message = f"training.lora: the attention of a {model.config.model_type} model reads weights, not layers"
        raise RecipeError(f"{message}, so adapters would have no effect", "use another model")
    in_layers = {id(module) for layer in find_encoder_layers(model) for module in layer.modules()}
    in_attention = {
        id(module)
        for attention in model.base_model.modules()
        if "Attention" in type(attention).__name__
        for module in attention.modules()
    }
    # Name of each linear layer in the encoder's layers -> whether it is in attention.
    layers = {
        name: id(module) in in_attention
        for name, module in model.named_modules()
        if id(module) in in_layers and isinstance(module, nn.Linear)
    }
    if targets == "all-linear":
        return list(layers)
    if targets == "attention":
        return [name for name, attends in layers.items() if attends]
    short_names = {name.rpartition(".")[2] for name in layers}
    for target in targets:
        if target not in short_names:
            remedy = f"choose from {', '.join(sorted(short_names))}"
            raise RecipeError(f"training.lora.targets: no linear layer is called {target!r}", remedy)
    return [name for name in layers if name.rpartition(".")[2] in targets]


def merge_adapters(model: Model, folder: Path | None, base: str) -> None:
    """Merge a model's adapters into its weights, after saving them in the folder of a run if there is one.

    Args:
        model: Model with adapters.
        folder: Folder of the run, or None to save nothing.
        base: Model that the run started from, for the config of the adapters.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    if folder is not None:
        _save_adapters(model, folder, base)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer.get_base_layer())
    vars(model).pop("peft_config", None)


def _save_adapters(model: Model, folder: Path, base: str) -> None:
    """Write the adapters and the modules above the layers as a folder that `PeftModel.from_pretrained` loads."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    # 1. In the model that peft will load, find the modules that are saved in full: heads, and modules above the layers.
    is_encoder = getattr(model, "is_saved_as_encoder", False)
    target: nn.Module = model.base_model if is_encoder else model
    heads = [] if is_encoder else [child for name, child in model.named_children() if name != model.base_model_prefix]
    above = {id(module) for module in (*find_modules_above(model), *heads) if any(True for _ in module.parameters())}
    full_modules = sorted(name for name, module in target.named_modules() if id(module) in above)
    # 2. Write the config and the weights under peft's names.
    config = model.peft_config[_NAME]
    config.base_model_name_or_path = base
    config.modules_to_save = full_modules or None
    config.inference_mode = True
    adapted = (name for name, module in target.named_modules() if isinstance(module, BaseTunerLayer))
    config.target_modules = sorted(adapted)
    tensors = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": weights.detach().cpu().contiguous()
        for name, weights in target.named_parameters()
        if f".{_NAME}." in name or name.startswith(tuple(f"{module}." for module in full_modules))
    }
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    config.save_pretrained(staging)
    save_file(tensors, staging / "adapter_model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(folder / ADAPTER, ignore_errors=True)
    staging.rename(folder / ADAPTER)
