"""Loading of checkpoints: completely, or with an error that states the reason.

`load_pretrained` loads a model with the head of a task, and `load_for_pretraining` a model with the head of an
objective. Both call `load_weights`, which checks the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from bertkit.data.labels import make_placeholder_names
from bertkit.errors import ModelError
from bertkit.hardware.device import Device
from bertkit.hardware.process import is_memory_error
from bertkit.modeling.architectures import ARCHITECTURES, is_causal
from bertkit.modeling.checkpoint import (
    FETCH_AGAIN,
    FINE_TUNE,
    NOT_ONLY_WEIGHTS,
    custom_code_error,
    get_label_names,
    load_config,
    not_encoder_error,
    quiet_transformers,
    read_config,
    read_json_object,
    shorten_error,
)
from bertkit.modeling.cls_only import read_one_token
from bertkit.modeling.info import (
    Config,
    LoadingInfo,
    Model,
    get_tagger_head,
    is_sharded,
    set_tagger_head,
)
from bertkit.tokens.features import TaskContext

if TYPE_CHECKING:
    import torch
    from torch import nn

# Constants that old checkpoints contain.
_BUFFERS = ("position_ids", "token_type_ids")
# Relative differences of states in `check_encoder`: the largest from rounding, and the smallest from reading a token.
_MAX_ROUNDING = 1e-5
_MIN_EFFECT = 1e-6
# peft's name for a layer inside its adapter.
_ADAPTED_LAYER = ".base_layer."


def load_pretrained(
    head: str | Callable[[type], type[Model]],
    folder: Path,
    context: TaskContext,
    *,
    labels: Sequence[str],
    new_head: bool,
    problem_type: str | None = None,
    tagger: dict[str, Any] | None = None,
) -> Model:
    """Load a checkpoint in float32 with a head for a task.

    The checkpoint must have all weights of the encoder. Its head is kept if it has the same class, labels and settings.
    Otherwise, if `new_head`, a new head is drawn from torch's generator. `get_loading_info` returns the outcome.

    Args:
        head: Name of one of transformers' Auto classes, such as ``AutoModelForSequenceClassification``, or a function
            from the class of a config to the class of a model.
        folder: Model folder.
        context: Task context. For inference, the result can be an `InferenceModel`, which needs no transformers.
        labels: Names of the head's outputs, in order.
        new_head: Whether the head can be untrained.
        problem_type: Kind of labels in transformers' terms, which selects the loss.
        tagger: Settings of a tagger over a frozen encoder, for the config.

    Raises:
        ModelError: If the checkpoint is damaged, is not an encoder, has weights that do not fit its config or are not
            finite, or (without `new_head`) has no trained head for the task.
    """
    # 1. For inference, avoid importing transformers if the model type and the config are known.
    cls_only = context.recipe.training.cls_only_last_layer
    if context.inference and isinstance(head, str):
        from bertkit.modeling.inference.model import load_for_inference

        if model := load_for_inference(head, folder, labels, problem_type=problem_type, cls_only=cls_only):
            return model
    from bertkit.modeling.heads import text

    # 2. Load the config, and replace the checkpoint's labels by the labels of the task.
    config = load_config(folder)
    saved_labels = get_label_names(config.to_dict()) or make_placeholder_names(config.num_labels)
    saved_problem, saved_class = config.problem_type, (config.architectures or [""])[0]
    saved_tagger = get_tagger_head(config)
    config.id2label, config.label2id = dict(enumerate(labels)), {name: index for index, name in enumerate(labels)}
    config.problem_type = problem_type
    set_tagger_head(config, tagger)
    # 3. Load the weights. transformers draws missing weights.
    find_class = partial(text.find_model_class, head) if isinstance(head, str) else head
    model, report = load_weights(find_class(type(config)), folder, config)
    # 4. Keep the trained head if it fits, or draw a new head.
    same_class = saved_class == type(model).__name__
    if not new_head and saved_problem not in (None, problem_type):
        reason = f"it is a {saved_class} for {saved_problem}"
        raise ModelError(f"no trained head for this task ({reason})", FINE_TUNE, file=folder)
    is_trained = same_class and not report["missing_keys"] and not report["mismatched_keys"]
    if not is_trained and not new_head:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        reason = f"missing weights: {missing}" if missing else "it was trained for another task"
        raise ModelError(f"no trained head for this task ({reason})", FINE_TUNE, file=folder)
    if new_head:
        is_trained = is_trained and saved_labels == list(labels) and saved_tagger == tagger
        # A head for other labels may have the same shape; its loaded weights are useless.
        if not is_trained and not report["missing_keys"]:
            initialize_again(model, _list_head_modules(model))
        # Otherwise transformers' default for a missing id could contradict the tokenizer.
        model.config.pad_token_id = context.tokenizer.pad_token_id
    compute_head_in_fp32(model)
    read_one_token(model, cls_only=cls_only)
    # 5. Record what was loaded.
    model.loading_info = LoadingInfo(
        new_weights=tuple(sorted(report["missing_keys"])),
        head=("kept" if is_trained else "new") if new_head else None,
        other_labels=tuple(saved_labels) if same_class and saved_labels != list(labels) else (),
    )
    return model


def load_tagger(folder: Path, context: TaskContext, tagger: dict[str, Any] | None, *, new_head: bool) -> Model:
    """Load a model with one output per label for every token.

    Args:
        folder: Model folder.
        context: Task context, whose labels are in the order of the outputs.
        tagger: Layers, tagger and size of a head over a frozen encoder; None to train the encoder with a linear layer.
        new_head: Whether the head can be untrained; if not, the checkpoint's settings replace `tagger`.

    Raises:
        ModelError: If `load_pretrained` raises it.
    """
    if not new_head:
        tagger = get_tagger_head(read_config(folder))
    head: str | Callable[[type], type[Model]] = "AutoModelForTokenClassification"
    if tagger is not None:
        from bertkit.modeling.heads.taggers import build_tagger_class

        head = build_tagger_class
    return load_pretrained(head, folder, context, labels=context.labels, new_head=new_head, tagger=tagger)


def load_for_pretraining(head: type[Model], folder: Path | None, config: Config) -> Model:
    """Load a checkpoint to continue pretraining, or build a new model with weights from torch's generator.

    The checkpoint must have all weights of the encoder. `get_loading_info` returns the head weights that it lacks.

    Args:
        head: One of transformers' classes, such as AutoModelForMaskedLM.
        folder: Model folder, or None for a new model.
        config: Config of the model.

    Raises:
        ModelError: If weights do not fit the config or are not finite, or the model reads from left to right.
    """
    from bertkit.modeling.attention import preserve_sliding_window

    if folder is None:
        # Auto classes have no constructor for this, but a method.
        model: Model = getattr(head, "from_config", head)(config)
    else:
        if is_causal(config) and head.__name__ != "AutoModelForCausalLM":
            problem = "causal (left-to-right) models are not supported"
            raise ModelError(problem, "choose a bidirectional encoder such as BERT", file=folder)
        model, report = load_weights(head, folder, config)
        model.loading_info = LoadingInfo(tuple(sorted(report["missing_keys"])))
    preserve_sliding_window(model)
    return model


def load_weights(
    model_class: type[Model], folder: Path, config: Config, *, decoders: bool = False
) -> tuple[Model, dict[str, Any]]:
    """Load a model in float32, and copy its weights into memory.

    Args:
        model_class: One of transformers' classes, or a class with a head of bertkit.
        folder: Model folder.
        config: Config of the model.
        decoders: Whether decoders are allowed.

    Returns:
        the model, and transformers' loading info: names of weights that are missing, unexpected or of another shape.

    Raises:
        ModelError: If a weight file is damaged or could run code, weights do not fit the config or are not finite,
            transformers has no such head for the model type, or `check_encoder` raises it.
    """
    quiet_transformers()
    import torch
    from safetensors import SafetensorError

    types = getattr(model_class, "_model_mapping", None)
    if types is not None and type(config) not in types:
        problem = f"transformers has no {model_class.__name__} for models of type {config.model_type!r}"
        raise ModelError(problem, "name another encoder, or choose another task", file=folder)
    for index in folder.glob("*.index.json"):
        read_json_object(index)
    if not any(folder.glob("model*.safetensors")):
        # transformers will read the pickle, so check first that it contains only weights.
        for file in sorted(folder.glob("pytorch_model*.bin")):
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
    except (ValueError, OSError, RuntimeError, LookupError, ImportError, SafetensorError, UnpicklingError) as error:
        if is_memory_error(error):
            raise
        raise ModelError(f"the checkpoint does not load: {shorten_error(error)}", file=folder) from None
    check_fit(model, report, folder)
    check_finite(model.named_parameters(), folder)
    # transformers leaves weights memory-mapped. If the file were overwritten, outputs would change or the process would
    # crash. And each weight that is a slice of a larger tensor in the file would keep all of it in memory.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    if config.model_type not in ARCHITECTURES:
        check_encoder(model, folder, decoders=decoders or is_causal(config))
    return model, report


def check_encoder(model: Model, folder: Path, *, decoders: bool) -> None:
    """Check on two short texts that a model is an encoder.

    The first token's state must depend on the last token, and no state or logit on masked padding. Neither the model
    nor torch's generator changes.

    Args:
        model: Model on the CPU.
        folder: Model folder, for errors.
        decoders: Whether states can depend on earlier tokens only.

    Raises:
        ModelError: If the model fails the check, or needs more inputs than token ids and a mask.
    """
    import torch

    # 1. Copy the model, which shares its weights with the copy. After a short text, BigBird keeps full attention.
    model_type = model.config.model_type
    model = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
    padding = max(getattr(model.config, "pad_token_id", None) or 0, 0)
    model.config.pad_token_id = padding
    # 2. Make two texts that differ in their last token, (2, tokens). No stride of a convolution divides their length.
    length, padded_length = 7, 16
    ids = torch.arange(1, padded_length + 1).repeat(2, 1) + (padding if padding < padded_length else 0)
    ids[1, length - 1] += 1
    mask = (torch.arange(padded_length) < length).long().repeat(2, 1)
    ids = ids.where(mask.bool(), padding)
    # 3. Run them without padding and with it. A head for texts may read the last token, which can be padding.
    head = model if type(model).__name__.endswith("ForSequenceClassification") else model.base_model
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            states = model.base_model(ids[:, :length], attention_mask=mask[:, :length])[0]
            unpadded = head(ids[:, :length], attention_mask=mask[:, :length])[0][:, :length]
            padded = head(ids, attention_mask=mask)[0][:, :length]
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_memory_error(error):
            raise
        reason = f"it needs more inputs than token ids and a mask ({shorten_error(error)})"
        raise not_encoder_error(model_type, folder, reason) from None
    # 4. Compare the outputs.
    if _get_difference(unpadded, padded) > _MAX_ROUNDING:
        problem = f"a model of type {model_type!r} reads padding, so its scores would depend on the batch"
        raise ModelError(problem, "use an encoder with an attention mask, such as BERT", file=folder)
    if not decoders and _get_difference(states[0, 0], states[1, 0]) < _MIN_EFFECT:
        raise not_encoder_error(model_type, folder, "its first token does not depend on the last token")


def _get_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the mean absolute difference of two tensors, relative to the mean absolute value of the first."""
    return float((first - second).abs().mean() / first.abs().mean())


def check_fit(model: Model, report: dict[str, Any], folder: Path) -> None:
    """Raise ModelError if weights of the encoder are missing, unexpected or of another shape than the config has."""
    prefix = f"{model.base_model_prefix}."
    modules = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    # Only heads and the pooler can be missing: a random weight in the encoder would spoil scores without any error.
    def in_encoder(name: str) -> bool:
        inner_name = name.removeprefix(prefix)
        return inner_name.split(".")[0] in modules and not inner_name.endswith(_BUFFERS)

    if any(_ADAPTED_LAYER in name for name in report["unexpected_keys"]):
        problem = "the adapters of this checkpoint (training.lora) are not merged into its weights"
        raise ModelError(problem, "name the finished run, whose adapters are merged", file=folder)
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"]]
    for mismatch, names in (
        ("the checkpoint lacks", report["missing_keys"]),
        ("config.json does not define", report["unexpected_keys"]),
        ("config.json has another shape for", mismatched),
    ):
        if bad_names := sorted(filter(in_encoder, names)):
            if hasattr(model.config, "auto_map"):
                raise custom_code_error(model.config.to_dict(), folder)
            more_names = f" and {len(bad_names) - 1} more" if len(bad_names) > 1 else ""
            problem = f"weights and config do not fit: {mismatch} {bad_names[0]}{more_names}"
            raise ModelError(problem, "fetch both from one source", file=folder)


def check_finite(parameters: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Raise ModelError if a weight is NaN or infinite."""
    for name, parameter in parameters:
        if not parameter.isfinite().all():
            raise ModelError(f"the weight {name} is not finite (NaN or infinity)", FETCH_AGAIN, file=folder)


def initialize_again(model: Model, modules: Iterable[nn.Module]) -> None:
    """Draw the weights of modules of a model again, from torch's generator."""
    for module in modules:
        # transformers skips weights that it marked as loaded.
        for weights in module.parameters():
            weights._is_hf_initialized = False  # type: ignore[attr-defined]
        for submodule in module.modules():
            submodule._is_hf_initialized = False  # type: ignore[assignment]
        module.apply(model._init_weights)


def _list_head_modules(model: Model) -> list[nn.Module]:
    """List the modules of a model outside its encoder."""
    return [module for name, module in model.named_children() if name != model.base_model_prefix]


def compute_head_in_fp32(model: Model) -> None:
    """Compute the linear layers of the pooler and the head in float32, even under autocast.

    They cost next to nothing. In bf16, logits that differ by less than a hundredth could be equal. For MiniLM on STS-B,
    a pooler in bf16 makes the error of the scores 2.6 times as large as an encoder in bf16 does.
    """
    import torch

    def in_fp32(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            return torch.nn.functional.linear(inputs.float(), layer.weight, layer.bias)

    poolers = [module for name, module in model.base_model.named_children() if name == "pooler"]
    for module in [*_list_head_modules(model), *poolers]:
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = partial(in_fp32, layer)  # type: ignore[method-assign]


def collect_weights(model: Model) -> dict[str, Any] | None:
    """Copy the weights of a model to the CPU, or return None if `save_pretrained` can read them from the device.

    It cannot if weights have no storage on the device (XLA), or are split among processes. All processes call this
    function together. A tensor with two names stays one tensor.
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
    """Load the weights of a checkpoint into the model that wrote it.

    Raises:
        ModelError: If names or shapes differ.
    """
    from safetensors.torch import load_file

    from bertkit.modeling.sharding import scatter_like

    target = model.base_model if getattr(model, "is_saved_as_encoder", False) else model
    try:
        # `load_model` of safetensors finds tied weights by their storage. On XLA tensors have none, and on a GPU all
        # weights of an LSTM share one storage.
        weights, state = load_file(file), target.state_dict(keep_vars=True)
        loaded_ids = {id(state[name]) for name in weights if name in state}
        missing = [name for name, value in state.items() if id(value) not in loaded_ids]
        weights = {name: scatter_like(value, state.get(name, value)) for name, value in weights.items()}
        _, unexpected = target.load_state_dict(weights, strict=False)
        if missing or unexpected:
            raise RuntimeError(f"missing: {', '.join(missing)}; unexpected: {', '.join(unexpected)}")
        # On XLA, compile one graph for all weights now. Otherwise each shape is compiled when a weight is first read.
        Device(model.device.type).end_graph()
        # A late-interaction model stores its projection in a separate file.
        if restore := getattr(model, "restore_projection", None):
            restore(file.parent)
    except RuntimeError as error:
        problem = f"the weights do not fit the model: {shorten_error(error)}"
        raise ModelError(problem, "--restart starts over", file=file) from None


def load_pickle(file: Path, device: str = "cpu") -> dict[str, Any]:
    """Load a weight file in torch's format without running code in it; on the device ``meta``, only check it.

    Raises:
        ModelError: If the file is missing or damaged, or contains anything except weights.
    """
    import torch

    try:
        with file.open("rb") as stream:
            is_zip = stream.read(2) == b"PK"
        # To check a zip file, torch reads only its index.
        content = torch.load(file, map_location=device, weights_only=True, mmap=is_zip and device == "meta")
    except UnpicklingError:
        raise ModelError(NOT_ONLY_WEIGHTS, "get the checkpoint as model.safetensors", file=file) from None
    except Exception as error:  # a damaged file can raise any error
        if is_memory_error(error):
            raise
        raise ModelError(f"the weights are damaged: {type(error).__name__}", FETCH_AGAIN, file=file) from error
    are_weights = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    )
    if not are_weights:
        raise ModelError("the file contains something other than weights", FETCH_AGAIN, file=file)
    return dict(content)
