"""Model folders in the formats of sentence-transformers: the files next to the encoder.

``modules.json`` lists the modules in the order in which they run. The first module is the encoder, with the usual files
of a model folder. The other modules depend on the class that loads the folder:

* `SentenceTransformer`: a pooling of token states into one vector per text, then transforms of this vector.
* `SparseEncoder`: `SpladePooling` after the head of a masked language model. If queries need no inference, a `Router`
  has these modules for documents, and a table with a weight per token for queries.
* `MultiVectorEncoder`: a projection of token states, a mask of tokens, and a normalization.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, UsageError, did_you_mean
from bertkit.modeling.checkpoint import read_json_object
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import leaves_folder

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
ENCODER_SETTINGS = "sentence_bert_config.json"
# In older folders, the name of this file contains the model type.
_ANY_ENCODER_SETTINGS = "sentence_*_config.json"
_ARGUMENTS = ("model_args", "model_kwargs", "config_args", "config_kwargs", "tokenizer_args", "processor_kwargs")
_HARMLESS = {"trust_remote_code", "torch_dtype", "dtype", "attn_implementation"}
"""Arguments of the encoder that change no vector, only how weights are loaded and multiplied."""
_VECTOR_NAME = "sentence_embedding"
"""Name in sentence-transformers of the vector that modules read and write."""

POOLING_MODES = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Methods to combine the states of a text's tokens into one vector, under their names in sentence-transformers."""

OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys that older versions and other servers read -> pooling mode that the key turns on."""
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize", "Dense", "Dropout")
"""Modules of a folder whose texts have one dense vector each."""

_OTHER_FORMATS = {
    "SpladePooling": ("its vectors are sparse", "use the recipe sparse, or SparseEncoder of sentence-transformers"),
    "MultiVectorMask": ("it makes a vector per token", "use the recipe late-interaction, or `search query --rerank`"),
}
"""Modules of other formats -> problem and remedy."""

DENSE, SPARSE, LATE = "SentenceTransformer", "SparseEncoder", "MultiVectorEncoder"
"""Formats: the class of sentence-transformers that loads a folder."""

QUERY_TABLE = "SparseStaticEmbedding"
"""Module that stores a weight per token; the vector of a query has the weights of its tokens."""
ROUTER = "router_config.json"
WEIGHTS = "model.safetensors"

PROJECTION = "1_Dense"
"""Folder of the projection in a model folder that bertkit writes."""

_FORMAT_MODULES = {
    SPARSE: ["Transformer", "SpladePooling"],
    LATE: ["Transformer", "Dense", "MultiVectorMask", "Normalize"],
}
_EXPECTED_CONFIGS: dict[str, dict[str, Any]] = {
    "SpladePooling": {"pooling_strategy": "max", "activation_function": "relu"},
    "MultiVectorMask": {"skiplist_words": [], "keep_only_token_ids": None},
}
"""Module -> values in its config that bertkit supports; a missing key has the supported value."""
_UNSUPPORTED_SETTINGS = ("query_length", "document_length", "query_expansion", "processing_kwargs")
"""Settings of the encoder that change which tokens it reads."""
_MASKED_LM = {
    "transformer_task": "fill-mask",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "token_embeddings",
}
# Class names that work in releases before and after 6.
_CLASSES = {
    **{name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize", "Dense")},
    **{name: f"sentence_transformers.sparse_encoder.models.{name}" for name in ("SpladePooling", QUERY_TABLE)},
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
}


@dataclass(frozen=True)
class Dense:
    """Linear layer with an activation; its weights are in a subfolder."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


@dataclass(frozen=True)
class Normalize:
    """Division of a vector by its length."""


@dataclass(frozen=True)
class SentenceModules:
    """Modules and settings that turn an encoder's token states into vectors."""

    pooling: tuple[str, ...] = ("mean",)
    """Names in `POOLING_MODES`; the vectors of several modes are concatenated."""
    include_prompt: bool = True
    """Whether the pooling includes the tokens of a prompt."""
    transforms: tuple[Dense | Normalize, ...] = ()
    """Modules that transform the pooled vector, in order."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name of a prompt, such as ``query`` -> prefix of the texts."""
    default_prompt: str | None = None
    """Name of the prompt for texts without an explicit prompt."""
    max_length: int | None = None
    """Maximum number of tokens, or None for the tokenizer's maximum."""
    lowercase: bool = False
    dimension: int | None = None
    """Number of first components to keep (Matryoshka), or None to keep all."""
    similarity: str = "cosine"
    """cosine, dot, euclidean or manhattan."""
    subfolder: str = ""
    """Subfolder with the encoder's files; in old folders, ``0_Transformer``."""
    query_table: Path | None = None
    """Folder with a weight per token for queries, if queries need no inference."""

    @property
    def is_normalized(self) -> bool:
        """Whether vectors have length 1."""
        return any(isinstance(module, Normalize) for module in self.transforms)


def is_sentence_folder(folder: Path) -> bool:
    """Return whether a model folder has modules of sentence-transformers."""
    return (folder / MODULES).is_file()


def read_modules(folder: Path) -> SentenceModules:
    """Read the modules of a sentence-transformers folder; for any other model folder, return mean pooling.

    Raises:
        ModelError: If a file is damaged, or a module is not supported.
    """
    if not is_sentence_folder(folder):
        return SentenceModules()
    if unsupported := find_unsupported_modules(folder):
        remedy = "bertkit supports Transformer, Pooling, Dense and Normalize, in this order"
        raise ModelError(f"unsupported modules: {', '.join(unsupported)}", remedy, file=folder / MODULES)
    (_, subfolder), (_, pooling_path), *transforms = [(name, path) for _, name, path in read_entries(folder / MODULES)]
    pooling_file = folder / pooling_path / "config.json"
    pooling = read_optional(pooling_file)
    encoder = read_encoder_settings(folder / subfolder)
    # Older configs have one key per pooling mode.
    old_modes = [mode for key, mode in OLD_MODES.items() if pooling.get(key)]
    modes = pooling.get("pooling_mode") or old_modes or "mean"
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        if mode not in POOLING_MODES:
            remedy = f"one of {', '.join(POOLING_MODES)}"
            raise ModelError(f"pooling mode {mode!r} is not known", remedy, file=pooling_file)
    return replace(
        read_settings(folder),
        pooling=modes,
        include_prompt=bool(pooling.get("include_prompt", True)),
        transforms=tuple(read_transform(folder, name, path) for name, path in transforms if name != "Dropout"),
        max_length=encoder.get("max_seq_length"),
        lowercase=bool(encoder.get("do_lower_case", False)),
        subfolder=subfolder,
    )


def with_options(
    modules: SentenceModules, *, pooling: str | None, normalize: bool | None, prompt: str | None
) -> SentenceModules:
    """Return modules with another pooling mode, normalization or default prompt; None keeps the setting.

    Raises:
        UsageError: If the pooling mode is unknown, or the model has no prompt with this name.
    """
    if pooling is not None:
        if pooling not in POOLING_MODES:
            raise UsageError(f"pooling {pooling!r} is not known", did_you_mean(pooling, POOLING_MODES))
        modules = replace(modules, pooling=(pooling,))
    if normalize is not None:
        transforms = tuple(module for module in modules.transforms if not isinstance(module, Normalize))
        modules = replace(modules, transforms=(*transforms, Normalize()) if normalize else transforms)
    if prompt is None:
        return modules
    if prompt not in modules.prompts:
        remedy = did_you_mean(prompt, modules.prompts) if modules.prompts else "write it out: --prompt-text"
        raise UsageError(f"the model has no prompt {prompt!r}", remedy)
    return replace(modules, default_prompt=prompt)


def read_settings(folder: Path) -> SentenceModules:
    """Read the prompts, the dimension and the similarity of a folder, also if bertkit cannot run its modules."""
    settings = read_optional(folder / SETTINGS)
    return SentenceModules(
        pooling=(),
        prompts={name: text or "" for name, text in (settings.get("prompts") or {}).items()},
        default_prompt=settings.get("default_prompt_name"),
        dimension=settings.get("truncate_dim"),
        similarity=settings.get("similarity_fn_name") or "cosine",
    )


def find_unsupported_modules(folder: Path) -> list[str]:
    """Return the modules and settings of a folder that only sentence-transformers can compute.

    Raises:
        ModelError: If a file is damaged, a module needs custom code, or a text does not get one dense vector.
    """
    entries = read_entries(folder / MODULES)
    for module, name, _ in entries:
        if not module.startswith("sentence_transformers."):
            remedy = "bertkit never does that; use a model with the modules of sentence-transformers"
            raise ModelError(f"the module {name} needs to run its own code", remedy, file=folder / MODULES)
    names = [name for _, name, _ in entries]
    for name, (problem, remedy) in _OTHER_FORMATS.items():
        if name in names:
            raise ModelError(problem, remedy, file=folder / MODULES)
    unsupported = [name for name in names if name not in _KNOWN_MODULES]
    if names[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(names[2:]):
        unsupported = unsupported or [f"modules in the order {', '.join(names)}"]
    for _, name, path in entries[2:]:
        config = read_optional(folder / path / "config.json") if path else {}
        values = {config.get(key) for key in ("module_input_name", "module_output_name")} - {None, _VECTOR_NAME}
        unsupported += [f"{name} of {value}" for value in sorted(map(str, values))]
    if names[0] == "Transformer":
        settings = read_encoder_settings(folder / entries[0][2])
        arguments = {name: set(settings.get(name) or {}) - _HARMLESS for name in _ARGUMENTS}
        unsupported += [f"{name} {', '.join(sorted(keys))}" for name, keys in arguments.items() if keys]
        reads_states = {"method": "forward", "method_output_name": "last_hidden_state"}
        if settings.get("processing_kwargs"):
            unsupported.append("processing_kwargs")
        if (settings.get("modality_config") or {}).get("text", reads_states) != reads_states:
            unsupported.append("modality_config")
    return unsupported


def read_entries(file: Path) -> list[tuple[str, str, str]]:
    """Read each module's class, class name and folder; a router is replaced by its modules."""
    try:
        entries = [(entry["type"], entry["path"]) for entry in json.loads(file.read_text(encoding="utf-8"))]
        if entries and entries[0][0].endswith(".Router"):
            types = read_json_object(file.with_name(ROUTER))["types"]
            entries = [(module, "" if path == "." else path) for path, module in types.items()]
        if any(leaves_folder(path) for _, path in entries) or not entries:
            raise ValueError
        return [(module, module.rpartition(".")[2], path) for module, path in entries]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise ModelError("not a list of modules", "fetch the model again", file=file) from None


def read_optional(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file, or return an empty object if the file does not exist."""
    return read_json_object(file) if file.is_file() else {}


def read_encoder_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of the encoder from the first file that exists, under the current name or an older name."""
    old_names = sorted(file.name for file in folder.glob(_ANY_ENCODER_SETTINGS))
    return next(filter(None, (read_optional(folder / name) for name in (ENCODER_SETTINGS, *old_names))), {})


def read_transform(folder: Path, name: str, path: str) -> Dense | Normalize:
    """Read a module after the pooling.

    Raises:
        ModelError: If its config is damaged.
    """
    if name == "Normalize":
        return Normalize()
    file = folder / path / "config.json"
    config = read_json_object(file)
    if not all(isinstance(config.get(key), int) for key in ("in_features", "out_features")):
        raise ModelError("no in_features and out_features", "fetch the model again", file=file)
    return Dense(
        folder / path,
        config["in_features"],
        config["out_features"],
        config.get("bias", True),
        config.get("activation_function", Dense.activation),
        bool(config.get("use_residual")),
    )


def write_modules(folder: Path, modules: SentenceModules, width: int) -> None:
    """Write the files that ``SentenceTransformer(folder)`` needs to load a model folder.

    Args:
        folder: Folder that has config, weights and tokenizer of the encoder.
        modules: Modules without dense layers.
        width: Hidden size of the encoder.
    """
    mode = modules.pooling[0] if len(modules.pooling) == 1 else list(modules.pooling)
    # text-embeddings-inference, vLLM and older versions read the old keys. vLLM uses the first key with the value true,
    # so `include_prompt` must be the last.
    switches = {key: name in modules.pooling for key, name in OLD_MODES.items()}
    pooling = {"word_embedding_dimension": width, **switches, "pooling_mode": mode}
    pooling["include_prompt"] = modules.include_prompt
    transforms = [(type(module).__name__, dict[str, Any]()) for module in modules.transforms]
    write_folder(folder, modules, [("Pooling", pooling), *transforms], model_type="SentenceTransformer", encoder={})


def write_folder(
    folder: Path,
    modules: SentenceModules,
    stages: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    model_type: str,
    encoder: Mapping[str, Any],
) -> None:
    """Write the files of sentence-transformers next to the files of an encoder.

    Args:
        folder: Folder that has config, weights and tokenizer of the encoder.
        modules: Maximum length, prompts and similarity.
        stages: Name and config of each module after the encoder. Module N is in the folder ``N_NAME``.
        model_type: Class of sentence-transformers that loads the folder.
        encoder: Additional settings of the encoder.
    """
    names = ["Transformer", *(name for name, _ in stages)]
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(names[1:], start=1))]
    for path, (_, content) in zip(paths[1:], stages, strict=True):
        (folder / path).mkdir(exist_ok=True)
        write_json(folder / path / "config.json", content)
    lengths = {"max_seq_length": modules.max_length, "do_lower_case": modules.lowercase}
    write_json(folder / ENCODER_SETTINGS, {**encoder, **lengths})
    settings = {
        "model_type": model_type,
        "prompts": {"query": "", "document": "", **modules.prompts},
        "default_prompt_name": modules.default_prompt,
        "similarity_fn_name": modules.similarity,
        **({} if modules.dimension is None else {"truncate_dim": modules.dimension}),
    }
    write_json(folder / SETTINGS, settings)
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": _CLASSES[name]}
        for index, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    if QUERY_TABLE in names:
        types = {path or ".": _CLASSES[name] for name, path in zip(names, paths, strict=True)}
        *document, table = types
        routes = {"structure": {"query": [table], "document": document}, "parameters": {"default_route": "document"}}
        write_json(folder / ROUTER, {"types": types, **routes})
        entries = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    # Write this file last: without it, the folder is an ordinary model folder.
    write_json(folder / MODULES, entries)


def find_format(folder: Path) -> str | None:
    """Return the class of sentence-transformers that loads a folder, or None for an ordinary model folder.

    Raises:
        ModelError: If ``modules.json`` is damaged.
    """
    if not is_sentence_folder(folder):
        return None
    names = {name for _, name, _ in read_entries(folder / MODULES)}
    return SPARSE if "SpladePooling" in names else LATE if "MultiVectorMask" in names else DENSE


def read_format(folder: Path, model_format: str) -> SentenceModules:
    """Read the modules of a folder in a format, or of another encoder to train for the format.

    Sparse and late-interaction models use only the prompts, maximum length and lower-casing of a folder in the dense
    format.

    Raises:
        ModelError: If a file is damaged, or the folder has another format or unsupported settings.
    """
    saved_as = find_format(folder)
    if saved_as in (None, DENSE) or model_format == DENSE:
        modules = read_modules(folder)
        return modules if model_format == DENSE else replace(modules, pooling=(), transforms=(), dimension=None)
    if saved_as != model_format:
        raise ModelError(f"it is a {saved_as}, not a {model_format}", "start from another model", file=folder)
    all_entries = [(name, path) for _, name, path in read_entries(folder / MODULES)]
    entries = [(name, path) for name, path in all_entries if name != QUERY_TABLE]
    settings = read_encoder_settings(folder)
    unsupported = [name for name in _UNSUPPORTED_SETTINGS if settings.get(name)]
    if [name for name, _ in entries] != _FORMAT_MODULES[model_format]:
        unsupported = [f"modules in the order {', '.join(name for name, _ in entries)}"]
    for name, path in entries:
        config = read_optional(folder / path / "config.json") if name in _EXPECTED_CONFIGS else {}
        expected = _EXPECTED_CONFIGS.get(name, {}).items()
        unsupported += [f"{key} {config[key]!r}"[:80] for key, value in expected if config.get(key, value) != value]
    if unsupported or entries[0][1]:
        names = ", ".join(unsupported) or "an encoder in a subfolder"
        raise ModelError(f"unsupported settings: {names}", "load it with sentence-transformers", file=folder)
    return replace(
        read_settings(folder),
        query_table=next((folder / path for name, path in all_entries if name == QUERY_TABLE), None),
        transforms=(_read_projection(folder, entries[1][1]),) if model_format == LATE else (),
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case", False)),
    )


def _read_projection(folder: Path, path: str) -> Dense:
    projection = read_transform(folder, "Dense", path)
    assert isinstance(projection, Dense)
    if projection.bias or projection.use_residual or not projection.activation.endswith(".Identity"):
        message = "its projection has a bias, an activation or a residual connection, which bertkit does not support"
        raise ModelError(message, "load it with sentence-transformers", file=folder / path)
    return projection


def write_sparse(folder: Path, modules: SentenceModules, vocabulary: int, *, has_table: bool = False) -> Path:
    """Write the files that ``SparseEncoder(folder)`` needs to load the folder of a masked language model.

    Returns:
        the folder for the query table and its tokenizer, if `has_table`.
    """
    pooling = {**_EXPECTED_CONFIGS["SpladePooling"], "embedding_dimension": vocabulary}
    table = [(QUERY_TABLE, {"frozen": True})] if has_table else []
    stages = [("SpladePooling", pooling), *table]
    write_folder(folder, replace(modules, similarity="dot"), stages, model_type=SPARSE, encoder=_MASKED_LM)
    return folder / f"2_{QUERY_TABLE}"


def write_late(folder: Path, modules: SentenceModules, width: int, dimension: int) -> None:
    """Write the files that ``MultiVectorEncoder(folder)`` needs to load a model folder, except the projection.

    Args:
        folder: Folder that has config, weights and tokenizer of the encoder.
        modules: Maximum length and prompts.
        width: Hidden size of the encoder.
        dimension: Dimension of the token vectors.
    """
    token_names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    identity = "torch.nn.modules.linear.Identity"
    projection = {"in_features": width, "out_features": dimension, "bias": False, "activation_function": identity}
    mask = {**_EXPECTED_CONFIGS["MultiVectorMask"], "skiplist_tasks": ["document"]}
    stages = [("Dense", {**projection, **token_names}), ("MultiVectorMask", mask), ("Normalize", token_names)]
    write_folder(folder, replace(modules, similarity="maxsim"), stages, model_type=LATE, encoder={})
