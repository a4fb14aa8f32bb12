"""Models of checkpoints: loaded completely, or rejected with a reason.

`load_pretrained` loads a model with the head of a task, and `load_for_pretraining` one with the head of an objective.
Both load weights by `load_weights`, as all other models do.
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
    first_line,
    label_names,
    load_config,
    not_an_encoder,
    quiet_transformers,
    read_config,
    read_json_object,
)
from bertkit.modeling.cls_only import read_one_token
from bertkit.modeling.info import (
    Config,
    LoadingInfo,
    Model,
    is_sharded,
    set_tagger_head,
    tagger_head,
)
from bertkit.tokens.features import TaskContext

if TYPE_CHECKING:
    import torch
    from torch import nn

_BUFFERS = ("position_ids", "token_type_ids")  # old checkpoints hold them, and they are not learned
# Tokens of the texts that show whether a model is an encoder, without padding and with it. No stride of a convolution
# divides the first number.
_TEXT, _PADDED = 7, 16
# Relative differences of states: rounding makes smaller ones than the first, a token that is read larger ones than the
# second. The states of a causal model are the same bits.
_ROUNDING, _EFFECT = 1e-5, 1e-6
_ADAPTED_LAYER = ".base_layer."  # peft's name for a layer inside its adapter


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
    Otherwise a new head is drawn from torch's generator, which only `new_head` allows. `get_loading_info` returns which
    of the two it was, and why.

    Args:
        head: One of transformers' Auto classes by name, such as ``AutoModelForSequenceClassification``, or a function
            from the class of a config to the class of a model.
        folder: Model folder.
        context: Task context. If it is for inference, the model may be one of bertkit's, which only computes
            outputs, and which loads in less time than transformers is imported.
        labels: Names of the head's outputs, in order.
        new_head: Whether the head may be untrained.
        problem_type: Kind of labels in transformers' words, which chooses the loss.
        tagger: Settings of a tagger over a frozen encoder, for the config.

    Raises:
        ModelError: If the checkpoint is damaged, is not an encoder, has weights that do not fit its config or are not
            finite, or (without `new_head`) has no trained head for the task.
    """
    # 1. A model that only answers needs no transformers, if its type is known and its config is the usual one.
    cls_only = context.recipe.training.cls_only_last_layer
    if context.inference and isinstance(head, str):
        from bertkit.modeling.inference.model import load_for_inference

        if model := load_for_inference(head, folder, labels, problem_type=problem_type, cls_only=cls_only):
            return model
    from bertkit.modeling.heads import text

    # 2. The config of the checkpoint gets the labels of the task.
    config = load_config(folder)
    saved_labels = label_names(config.to_dict()) or make_placeholder_names(config.num_labels)
    saved_problem, saved_class = config.problem_type, (config.architectures or [""])[0]
    saved_tagger = tagger_head(config)
    config.id2label, config.label2id = dict(enumerate(labels)), {name: index for index, name in enumerate(labels)}
    config.problem_type = problem_type
    set_tagger_head(config, tagger)
    # 3. The weights. transformers draws those that the checkpoint lacks.
    find_class = partial(text.model_class, head) if isinstance(head, str) else head
    model, report = load_weights(find_class(type(config)), folder, config)
    # 4. The head is the trained one, or a new one that is not trained yet.
    same_class = saved_class == type(model).__name__
    if not new_head and saved_problem not in (None, problem_type):
        untrained = f"it is a {saved_class} for {saved_problem}"
        raise ModelError(f"no trained head for this task ({untrained})", FINE_TUNE, file=folder)
    is_trained = same_class and not report["missing_keys"] and not report["mismatched_keys"]
    if not is_trained and not new_head:
        missing = ", ".join(sorted(report["missing_keys"])[:3]) or "it was trained for something else"
        raise ModelError(f"no trained head for this task ({missing})", FINE_TUNE, file=folder)
    if new_head:
        is_trained = is_trained and saved_labels == list(labels) and saved_tagger == tagger
        # Weights of a head for other labels fit and were loaded, but mean something else.
        if not is_trained and not report["missing_keys"]:
            initialize_again(model, _head_modules(model))
        # transformers fills in a default for a missing id. A checkpoint must not contradict its tokenizer.
        model.config.pad_token_id = context.tokenizer.pad_token_id
    compute_head_in_fp32(model)
    read_one_token(model, cls_only=cls_only)
    info = LoadingInfo(
        new_weights=tuple(sorted(report["missing_keys"])),
        head=("kept" if is_trained else "new") if new_head else None,
        other_labels=tuple(saved_labels) if same_class and saved_labels != list(labels) else (),
    )
    model.loading_info = info
    return model


def load_tagger(folder: Path, context: TaskContext, tagger: dict[str, Any] | None, *, new_head: bool) -> Model:
    """Load a model with one output per label for every token.

    Args:
        folder: Model folder.
        context: Task context, whose labels are in the order of the outputs.
        tagger: Layers, tagger and size of a head over a frozen encoder; None to train the encoder with a linear layer.
        new_head: Whether the head may be untrained; if not, the checkpoint's settings replace `tagger`.

    Raises:
        ModelError: If `load_pretrained` raises it.
    """
    if not new_head:
        tagger = tagger_head(read_config(folder))
    head: str | Callable[[type], type[Model]] = "AutoModelForTokenClassification"
    if tagger is not None:
        from bertkit.modeling.heads.taggers import tagger_class

        head = tagger_class
    return load_pretrained(head, folder, context, labels=context.labels, new_head=new_head, tagger=tagger)


def load_for_pretraining(head: type[Model], folder: Path | None, config: Config) -> Model:
    """Load a checkpoint to continue pretraining, or build a new model with weights from torch's generator.

    The checkpoint must have all weights of the encoder; `get_loading_info` the model names those that its heads lack.

    Args:
        head: One of transformers' classes, such as AutoModelForMaskedLM.
        folder: Model folder, or None for a new model.
        config: Config of the model.

    Raises:
        ModelError: If weights do not fit the config or are not finite, or the model reads from left to right.
    """
    from bertkit.modeling.attention import preserve_sliding_window

    if folder is None:
        # Auto classes build a model of a config by a method, and all others by their constructor.
        model: Model = getattr(head, "from_config", head)(config)
    else:
        if is_causal(config) and head.__name__ != "AutoModelForCausalLM":
            raise ModelError("its tokens see only those before them", "name an encoder of both sides", file=folder)
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
        decoders: Whether the model may be a decoder.

    Returns:
        the model, and transformers' loading info: names of weights that were missing, unexpected or of another shape.

    Raises:
        ModelError: If a file of weights is damaged or could run code, weights do not fit the config or are not finite,
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
        # transformers would read the pickle. It is checked first: it may hold weights only, and none of it is run.
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
        raise ModelError(f"the checkpoint does not load: {first_line(error)}", file=folder) from None
    check_fit(model, report, folder)
    check_finite(model.named_parameters(), folder)
    # transformers leaves weights in the mapped file. If that is overwritten later, the model's answers would change, or
    # the process would end. Several weights may also be slices of one in the file, and each would keep the whole.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    if config.model_type not in ARCHITECTURES:
        check_encoder(model, folder, decoders=decoders or is_causal(config))
    return model, report


def check_encoder(model: Model, folder: Path, *, decoders: bool) -> None:
    """Check by what a model computes that it is an encoder.

    The first token's state has to depend on the last token, and no state or logit on masked padding. Nothing is drawn
    from torch's generator, and the model is not changed.

    Args:
        model: Model on the CPU.
        folder: Its folder.
        decoders: Whether states may depend on earlier tokens only.

    Raises:
        ModelError: If the model fails the check, or needs more inputs than token ids and their mask.
    """
    import torch

    # The copy has the same weights. Some models change in a forward pass: BigBird switches to full attention for good
    # when it gets a short text.
    model_type = model.config.model_type
    model = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
    padding = max(getattr(model.config, "pad_token_id", None) or 0, 0)
    model.config.pad_token_id = padding
    # Two texts that differ in their last token: (2, _PADDED). No token has the id of the padding.
    ids = torch.arange(1, _PADDED + 1).repeat(2, 1) + (padding if padding < _PADDED else 0)
    ids[1, _TEXT - 1] += 1
    mask = (torch.arange(_PADDED) < _TEXT).long().repeat(2, 1)
    ids = ids.where(mask.bool(), padding)
    # A head for texts may read the state of the last token, which can be padding.
    head = model if type(model).__name__.endswith("ForSequenceClassification") else model.base_model
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            states = model.base_model(ids[:, :_TEXT], attention_mask=mask[:, :_TEXT])[0]
            alone, padded = (
                head(ids[:, :width], attention_mask=mask[:, :width])[0][:, :_TEXT] for width in (_TEXT, _PADDED)
            )
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_memory_error(error):
            raise
        reason = f"it cannot read token ids and a mask alone ({first_line(error)})"
        raise not_an_encoder(model_type, folder, reason) from None
    if _difference(alone, padded) > _ROUNDING:
        problem = (
            f"a model of type {model_type!r} reads the padding of a batch, so its scores would depend on the batches"
        )
        raise ModelError(problem, "use an encoder with an attention mask, such as BERT", file=folder)
    if not decoders and _difference(states[0, 0], states[1, 0]) < _EFFECT:
        raise not_an_encoder(model_type, folder, "its first token does not depend on the last token")


def _difference(states: torch.Tensor, computed: torch.Tensor) -> float:
    """Return the mean absolute difference of two tensors, relative to the mean absolute value of the first."""
    return float((states - computed).abs().mean() / states.abs().mean())


def check_fit(model: Model, report: dict[str, Any], folder: Path) -> None:
    """Raise ModelError if weights of the encoder are missing, unexpected or of another shape than the config has."""
    prefix = f"{model.base_model_prefix}."
    modules = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    # Heads and the pooler may be new or left over. But a weight that the encoder lacks would start at random, and
    # scores would be bad without any error.
    def in_encoder(name: str) -> bool:
        inner = name.removeprefix(prefix)
        return inner.split(".")[0] in modules and not inner.endswith(_BUFFERS)

    if any(_ADAPTED_LAYER in name for name in report["unexpected_keys"]):
        problem = "a checkpoint of a training with adapters (training.lora), which are not merged into its weights"
        raise ModelError(problem, "name the finished run, whose model has them merged", file=folder)
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"]]
    for mismatch, names in (
        ("lacks", report["missing_keys"]),
        ("has no place for", report["unexpected_keys"]),
        ("has another shape for", mismatched),
    ):
        wrong = sorted(filter(in_encoder, names))
        if wrong:
            if hasattr(model.config, "auto_map"):
                raise custom_code_error(model.config.to_dict(), folder)
            side = "the checkpoint lacks" if mismatch == "lacks" else f"its config.json {mismatch}"
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            problem = f"weights and config do not fit: {side} {wrong[0]}{more}"
            raise ModelError(problem, "fetch both from one source", file=folder)


def check_finite(parameters: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Raise ModelError if a weight is NaN or infinite."""
    for name, parameter in parameters:
        if not parameter.isfinite().all():
            raise ModelError(f"the weight {name} is not finite (NaN or infinity)", FETCH_AGAIN, file=folder)


def initialize_again(model: Model, modules: Iterable[nn.Module]) -> None:
    """Draw the weights of some of a model's modules again, from torch's generator."""
    for module in modules:
        # transformers marks loaded weights, and would not draw them.
        for weights in module.parameters():
            weights._is_hf_initialized = False  # type: ignore[attr-defined]
        for submodule in module.modules():
            submodule._is_hf_initialized = False  # type: ignore[assignment]
        module.apply(model._init_weights)


def _head_modules(model: Model) -> list[nn.Module]:
    """List the modules of a model that are not the encoder."""
    return [module for name, module in model.named_children() if name != model.base_model_prefix]


def compute_head_in_fp32(model: Model) -> None:
    """Compute the linear layers of the head, and of the pooler before it, in float32 under autocast too.

    They cost next to nothing. In bf16, two logits that differ by less than a hundredth would be equal, and the pooler
    alone would make the scores of MiniLM on STS-B 2.6 times as inexact as the encoder makes them.
    """
    import torch

    def in_fp32(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            return torch.nn.functional.linear(inputs.float(), layer.weight, layer.bias)

    poolers = [module for name, module in model.base_model.named_children() if name == "pooler"]
    for module in [*_head_modules(model), *poolers]:
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = partial(in_fp32, layer)  # type: ignore[method-assign]


def weights_to_save(model: Model) -> dict[str, Any] | None:
    """Return the weights of a model on the CPU, or None if the model can save its own.

    It cannot if its weights have no storage on the device, or each process holds a share of them. All processes call
    this together. A tensor that has two names stays one.
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
        ModelError: If names or shapes differ.
    """
    from safetensors.torch import load_file

    from bertkit.modeling.sharding import scatter_like

    saved = model.base_model if getattr(model, "is_saved_as_encoder", False) else model
    try:
        # safetensors' own `load_model` recognizes tied weights by their storage. On XLA no tensor has one, and on a GPU
        # all weights of an LSTM share one.
        weights, names = load_file(file), saved.state_dict(keep_vars=True)
        loaded = {id(names[name]) for name in weights if name in names}
        missing = [name for name, value in names.items() if id(value) not in loaded]
        weights = {name: scatter_like(value, names.get(name, value)) for name, value in weights.items()}
        _, unexpected = saved.load_state_dict(weights, strict=False)
        if missing or unexpected:
            raise RuntimeError(f"missing: {', '.join(missing)}; unexpected: {', '.join(unexpected)}")
        # Devices that compile a graph get one for all weights, and not one per shape when these are first read.
        Device(model.device.type).end_graph()
        # A model for late interaction keeps its projection in a separate file.
        if restore := getattr(model, "restore_projection", None):
            restore(file.parent)
    except RuntimeError as error:
        problem = f"the weights do not fit the model: {first_line(error)}"
        raise ModelError(problem, "--restart starts over", file=file) from None


def load_pickle(file: Path, device: str = "cpu") -> dict[str, Any]:
    """Load a file of weights in torch's format, and run nothing of it; on the device ``meta``, only check it.

    Raises:
        ModelError: If it is missing or damaged, or holds anything else.
    """
    import torch

    try:
        with file.open("rb") as stream:
            is_zip = stream.read(2) == b"PK"
        # To check such a file, torch can leave it on disk and read only its index.
        content = torch.load(file, map_location=device, weights_only=True, mmap=is_zip and device == "meta")
    except UnpicklingError:
        raise ModelError(NOT_ONLY_WEIGHTS, "get the checkpoint as model.safetensors", file=file) from None
    except Exception as error:  # torch's reader raises any error for a damaged file
        if is_memory_error(error):
            raise
        raise ModelError(f"the weights are damaged: {type(error).__name__}", FETCH_AGAIN, file=file) from error
    are_weights = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    )
    if not are_weights:
        raise ModelError("it holds something other than weights", FETCH_AGAIN, file=file)
    return dict(content)
