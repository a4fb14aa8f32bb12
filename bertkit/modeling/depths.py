"""How deep each weight of a model lies: below its layers, in one of them, or above; what is frozen or new by depth.

Low-rank adapters of peft are added by the structure of the model, saved apart, and merged into its weights.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import architecture_of, layers_of, shares_layers
from bertkit.modeling.info import Model
from bertkit.modeling.layers import check_layers
from bertkit.modeling.load import initialize_again
from bertkit.recipe.sections import Lora, Training

ADAPTER = "adapter"
"""The folder of a run that peft loads."""

_NAME = "default"  # of the only adapter
_STAGING = ".adapter"


@dataclass(frozen=True)
class Depths:
    """The depth of each weight: 0 for embeddings, 1 for the first layer, and so on; the head is above the last one."""

    layers: int
    of: dict[nn.Parameter, int]

    @property
    def head(self) -> int:
        """The depth of all that stands above the layers: pooler, last norm, and what the task adds."""
        return self.layers + 1

    def select(self, lowest: int, highest: int | None = None) -> list[nn.Parameter]:
        """List the weights from one depth to another, the head's by default."""
        last = self.head if highest is None else highest
        return [weights for weights, depth in self.of.items() if lowest <= depth <= last]


def find_depths(model: Model) -> Depths:
    """Find the depth of each weight of a model with any encoder.

    Of the encoder, what is neither in a layer nor above them counts among the embeddings, such as positions that all
    layers share. Layers that share weights are one.
    """
    base, layers = model.base_model, encoder_layers(model)
    above = {weights for child in children_above(model) for weights in child.parameters()}
    depths = dict.fromkeys(model.parameters(), len(layers) + 1)
    depths |= {weights: 0 for weights in base.parameters() if weights not in above}
    for depth, layer in enumerate(layers, start=1):
        depths |= dict.fromkeys(layer.parameters(), depth)
    return Depths(len(layers), depths)


def encoder_layers(model: Model) -> list[nn.Module]:
    """List the layers of a model of any type; those that share their weights are listed once."""
    from bertkit.modeling.speed_paths import repeated_layers

    return layers_of(model) or repeated_layers(model.base_model)


def children_above(model: Model) -> list[nn.Module]:
    """List the children of the encoder that stand above its layers: a pooler, and what comes after the layers."""
    children, layers = dict(model.base_model.named_children()), encoder_layers(model)
    if not layers:
        return []
    holder = next(number for number, child in enumerate(children.values()) if layers[-1] in child.modules())
    return [child for number, (name, child) in enumerate(children.items()) if number > holder or name == "pooler"]


def freeze(model: Model, what: str | int) -> None:
    """Let the embeddings, these and the first layers, or the whole encoder have no gradients."""
    depths = find_depths(model)
    highest = {"embeddings": 0, "encoder": depths.layers}[what] if isinstance(what, str) else what
    for weights in depths.select(0, highest):
        weights.requires_grad_(False)


def reinitialize(model: Model, count: int) -> None:
    """Initialize the pooler and the top layers anew, as the model initializes them (Zhang et al. 2021, section 5).

    Raises:
        RecipeError: there is nothing to initialize.
    """
    layers = encoder_layers(model)
    above = children_above(model)
    poolers = [child for child in above if any(isinstance(module, nn.Linear) for module in child.modules())]
    if not poolers and not count:
        what = f"training.reinit_layers 0: this {model.config.model_type} model has no pooler"
        raise RecipeError(what, "leave it out")
    initialize_again(model, [*layers[len(layers) - count :], *poolers])


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
