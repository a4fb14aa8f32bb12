"""Checkpoints and tokenizers: loaded completely, or refused with a reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from logging import DEBUG
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.labels import placeholder_names
from bertkit.errors import ModelError, UnavailableError, pip_install
from bertkit.modeling.architectures import first_position, is_causal
from bertkit.modeling.cls_only import read_one_token
from bertkit.modeling.info import Config, Model, info_of, set_tagger_head, tagger_head
from bertkit.modeling.weights import (
    check_config,
    first_line,
    initialize_anew,
    load_config,
    load_weights,
    loaded_bytes,
    read_json_object,
    refuse_non_finite,
    refuse_other_types,
)
from bertkit.progress import log
from bertkit.storage.checkpoints import newest_model
from bertkit.storage.exports import refuse_exported
from bertkit.storage.fingerprints import feed_file
from bertkit.storage.hub import WEIGHTS, bytes_left_out
from bertkit.tokens.features import Tokenizer, keep_extra_tokens
from bertkit.tokens.vocabulary import refuse_foreign

if TYPE_CHECKING:
    import torch

_WEIGHT_ENDINGS = (".safetensors", ".bin")
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_PRETRAINING_CLASSES = ("ForMaskedLM", "ForPreTraining", "ForCausalLM")
_FINE_TUNE = "fine-tune it first, or name another checkpoint"


def read_config(folder: Path, *, decoders: bool = False) -> dict[str, Any]:
    """Read a model folder's ``config.json`` after checking that the folder holds a model and a tokenizer.

    With `decoders`, it may be a decoder. Needs neither torch nor transformers for the model types that bertkit knows.

    Raises:
        ModelError: a missing or broken config, no weights, no tokenizer, or a model that is no encoder.
    """
    file = folder / "config.json"
    if not file.is_file():
        newest, remedy = newest_model(folder), "name a folder with config.json, weights and tokenizer"
        raise ModelError("no config.json", f"name its newest checkpoint: {newest}" if newest else remedy, file=folder)
    config = read_json_object(file)
    check_config(config, file)
    refuse_exported(folder)
    if not any((folder / name).is_file() for name in WEIGHTS) and bytes_left_out(folder) is None:
        raise ModelError("no weights", f"expected one of {', '.join(WEIGHTS)}", file=folder)
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        remedy = "copy tokenizer.json and tokenizer_config.json of the model it was made from"
        raise ModelError("no tokenizer files", remedy, file=folder)
    # what brings its own code is refused by name, once transformers has read its config
    if "auto_map" not in config and not decoders:
        refuse_other_types(config["model_type"], folder)
    return config


def check_head(config: dict[str, Any], folder: Path) -> None:
    """Check, without loading weights, that a checkpoint was fine-tuned for any task.

    Raises:
        ModelError: it is a plain encoder or a pretraining model.
    """
    model_class = (config.get("architectures") or [""])[0]
    if "For" not in model_class or model_class.endswith(_PRETRAINING_CLASSES):
        what = f"no trained head for this task (it is a {model_class or 'model of an unknown class'})"
        raise ModelError(what, _FINE_TUNE, file=folder)


def label_names(config: dict[str, Any]) -> list[str] | None:
    """Return a checkpoint's label names in the order of its outputs; None where they are placeholders.

    >>> label_names({"id2label": {"1": "good", "0": "bad"}}), label_names({"id2label": {"0": "LABEL_0"}})
    (['bad', 'good'], None)
    """
    names = config.get("id2label") or {}
    ordered = [str(names[key]) for key in sorted(names, key=int)]
    return None if not ordered or ordered == placeholder_names(len(ordered)) else ordered


def fingerprint(folder: Path, *, weights: bool = True) -> str:
    """Compute a SHA-256 over a model folder's config, weights and vocabulary; without weights, of a tokenizer."""
    digest = hashlib.sha256()
    names = {"config.json", *_VOCABULARIES}
    for file in sorted(folder.iterdir()):
        if file.name in names or (weights and file.suffix in _WEIGHT_ENDINGS):
            digest.update(file.name.encode())
            feed_file(digest, file)
    return digest.hexdigest()


def weight_bytes(folder: Path) -> int:
    """Return the size of a model folder's weights on disk or, where only these were left on the hub, there."""
    return bytes_left_out(folder) or sum(file.stat().st_size for file in _weight_files(folder))


def loaded_weight_bytes(folder: Path) -> int:
    """Return the size of a model folder's weights once they are loaded, whatever their precision on disk."""
    return bytes_left_out(folder) or sum(map(loaded_bytes, _weight_files(folder)))


def _weight_files(folder: Path) -> list[Path]:
    """List the files of a model folder that hold weights; a pickle beside safetensors is not read."""
    files = [file for file in folder.iterdir() if file.suffix in _WEIGHT_ENDINGS and file.name != "training_args.bin"]
    has_safetensors = any(file.suffix == ".safetensors" for file in files)
    return [file for file in files if not (has_safetensors and file.name.startswith("pytorch_model"))]


def quiet_transformers() -> None:
    """Silence the libraries' warnings and progress bars: bertkit logs what matters, unless all is asked for."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if log.isEnabledFor(DEBUG):
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_tokenizer(folder: Path, *, decoders: bool = False) -> Tokenizer:
    """Load a fast tokenizer with a padding token, and let it make what the model can read.

    With `decoders`, the model need not be an encoder.

    Raises:
        ModelError: it cannot be loaded, is a slow one, has no padding token, or belongs to another model.
        UnavailableError: it needs a package that is not installed.
    """
    quiet_transformers()
    config = load_config(folder, decoders=decoders)
    tokenizer = read_tokenizer(folder)
    saved = read_json_object(folder / "config.json")
    # its type's default tells where positions begin
    if "pad_token_id" not in saved and first_position(config):
        saved["pad_token_id"] = config.pad_token_id
    refuse_foreign(tokenizer, config, saved, folder)
    fit_tokenizer(tokenizer, config)
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Load a fast tokenizer with a padding token, with or without a model beside it; raises as `load_tokenizer`."""
    quiet_transformers()
    from transformers import AutoTokenizer

    for name in _TOKENIZER_SETTINGS:
        if (folder / name).is_file():
            read_json_object(folder / name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        # whether it has the token for what its vocabulary lacks shows only when it needs it
        if tokenizer.is_fast:
            template = set(tokenizer.special_tokens_map.values())
            tokenizer._tokenizer = keep_extra_tokens(tokenizer.backend_tokenizer, template)
            tokenizer.backend_tokenizer.encode("\u2603 \ua66e")
    except ImportError:
        what = "this tokenizer needs SentencePiece"
        raise UnavailableError(what, f"`{pip_install('sentencepiece')}`", file=folder) from None
    except Exception as error:  # a tokenizer's reader raises whatever a damaged file makes it stumble over
        raise ModelError(f"the tokenizer does not load: {first_line(error)}", file=folder) from error
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise ModelError("model_max_length is not a number", "correct it", file=folder / "tokenizer_config.json")
    if not tokenizer.is_fast:
        raise ModelError("the tokenizer has no fast version", "save it as tokenizer.json", file=folder)
    if tokenizer.pad_token_id is None:
        remedy = "name one as pad_token in tokenizer_config.json"
        raise ModelError("the tokenizer has no padding token", remedy, file=folder)
    return tokenizer


def fit_tokenizer(tokenizer: Tokenizer, config: Config) -> None:
    """Bound a tokenizer's maximal length by a model's positions; it makes no token types for a model with only one."""
    positions = getattr(config, "max_position_embeddings", None) or 512
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions - first_position(config))
    # RoBERTa's, which a tokenizer may not know: BERT's has two
    if getattr(config, "type_vocab_size", None) == 1:
        leave_out_token_types(tokenizer)


def leave_out_token_types(tokenizer: Tokenizer) -> None:
    """Let a tokenizer make no token types, also once it is saved."""
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    # the tokenizer writes `init_kwargs` to its folder
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


def load_to_pretrain(model_class: type[Model], folder: Path | None, config: Config) -> Model:
    """Load a checkpoint to continue pretraining, or build a new model with weights from torch's generator.

    The checkpoint must have all of the encoder's weights; `info_of(model).new_weights` names those that its heads lack.

    Args:
        model_class: one of transformers' classes, such as AutoModelForMaskedLM.
        folder: the checkpoint; None for a new model.
        config: of the model.

    Raises:
        ModelError: weights that do not fit the config, or that are not finite.
    """
    quiet_transformers()
    from bertkit.modeling.attention import keep_windows

    if folder is None:
        model: Model = getattr(model_class, "from_config", model_class)(config)
    else:
        if is_causal(config) and model_class.__name__ != "AutoModelForCausalLM":
            raise ModelError("its tokens see only those before them", "name an encoder of both sides", file=folder)
        model, report = load_weights(model_class, folder, config)
        refuse_non_finite(model.named_parameters(), folder)
        info_of(model).new_weights = sorted(report["missing_keys"])
    keep_windows(model)
    return model


def load_model(
    auto_class: str | Callable[[Any], Any],
    folder: Path,
    labels: Sequence[str],
    *,
    new_head: bool,
    problem_type: str | None = None,
    head: dict[str, Any] | None = None,
    cls_only: bool = False,
) -> Model:
    """Load a checkpoint in float32, with a head for a task.

    The checkpoint must have all of the encoder's weights. Its head is kept where it is of the same class, with the same
    labels and settings. Otherwise the head is initialized anew, which only `new_head` allows;
    `info_of(model)` tells which, and why.

    Args:
        auto_class: one of transformers' Auto classes, or a function from a config's class to a model's.
        folder: the checkpoint.
        labels: names in the order of the model's outputs.
        new_head: whether the head may be untrained.
        problem_type: what labels are, in transformers' words.
        head: settings of a tagger over a frozen encoder, for the config.
        cls_only: whether the head reads the first token only, so that the last layer needs to compute no other.

    Raises:
        ModelError: not an encoder, weights that do not fit the config or are not finite, or (without `new_head`) an
            untrained head.
    """
    quiet_transformers()
    from bertkit.modeling.heads import text

    config = load_config(folder)
    saved_labels = label_names(config.to_dict()) or placeholder_names(config.num_labels)
    saved_problem, saved_class = config.problem_type, (config.architectures or [""])[0]
    config.id2label, config.label2id = dict(enumerate(labels)), {name: number for number, name in enumerate(labels)}
    config.problem_type = problem_type
    find_class = partial(text.model_class, auto_class) if isinstance(auto_class, str) else auto_class
    saved_head = tagger_head(config)
    set_tagger_head(config, head)
    model, report = load_weights(find_class(type(config)), folder, config)
    same_class = saved_class == type(model).__name__
    if not new_head and saved_problem not in (None, problem_type):
        untrained = f"it is a {saved_class} for {saved_problem}"
        raise ModelError(f"no trained head for this task ({untrained})", _FINE_TUNE, file=folder)
    trained = same_class and not report["missing_keys"] and not report["mismatched_keys"]
    if not trained and not new_head:
        missing = ", ".join(sorted(report["missing_keys"])[:3]) or "it was trained for something else"
        raise ModelError(f"no trained head for this task ({missing})", _FINE_TUNE, file=folder)
    trained = trained and not (new_head and (saved_labels != list(labels) or saved_head != head))
    if not trained and not report["missing_keys"]:
        initialize_anew(model, (head for name, head in model.named_children() if name != model.base_model_prefix))
    refuse_non_finite(model.named_parameters(), folder)
    compute_head_in_fp32(model)
    read_one_token(model, cls_only=cls_only)
    info = info_of(model)
    info.has_new_head, info.keeps_head = not trained, trained and new_head
    info.other_labels = tuple(saved_labels) if same_class and saved_labels != list(labels) else ()
    return model


def compute_head_in_fp32(model: Model) -> None:
    """Compute the linear layers of the head, and of the pooler before it, in float32 under autocast too.

    They cost next to nothing. In bf16, two logits that differ by less than a hundredth would be equal, and the pooler
    alone would make the scores of MiniLM on STS-B 2.6 times as inexact as the encoder makes them.
    """
    import torch

    def in_fp32(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            return torch.nn.functional.linear(inputs.float(), layer.weight, layer.bias)

    modules = [module for name, module in model.named_children() if name != model.base_model_prefix]
    modules += [module for name, module in model.base_model.named_children() if name == "pooler"]
    for module in modules:
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = partial(in_fp32, layer)  # type: ignore[method-assign]
