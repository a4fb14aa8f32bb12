"""Folders of exported models: the manifest that makes one count, and the checksums that it is used by.

runs/cola-onnx/
├── model.onnx, model.onnx.data     the graph and its weights (model.xml and model.bin for OpenVINO)
├── tokenizer.json, config.json     what reads texts, and what the model was
├── recipe.yaml                     task, metrics and settings, as in the run
├── calibration.json                temperature and thresholds, where the run has some
├── training_rows.npy               digests of the rows that it was trained on
├── parity.json                     how it compares with the model that it was made from
└── exported.json                   the manifest, written last
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import file_fingerprint, json_fingerprint

MANIFEST = "exported.json"
_FORMAT = 1
_CHECKSUM = "sha256"
_AGAIN = "export it again"
_SMALL = 1 << 22  # bytes, whose checksum takes a few milliseconds


VECTORS = ("sentence_embedding", "token_embeddings", "vectors")
"""Names of outputs that are vectors: those that other programs look for; the last is of sparse and earlier exports."""


@dataclass(frozen=True)
class Export:
    """What an exported folder holds, as its manifest says."""

    backend: str
    """``onnx`` or ``openvino``."""
    file: str
    """The graph, which names or has its weights."""
    task: str
    """The task family whose outputs the graph computes."""
    reads: str
    """What a row is to the graph; see `bertkit.runtime.model`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Of the graph; see `VECTORS` for those that are vectors."""
    tokenizer: Mapping[str, Any]
    """What `tokenizer.json` does not say; see `bertkit.runtime.tokenizer`."""
    precision: str = "fp32"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the recipe."""
    probabilities: bool = False
    """Whether scores are probabilities, and not logits."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """That of the run, without its checksums; empty for a plain checkpoint."""
    versions: Mapping[str, str] = field(default_factory=dict)


def is_exported(folder: Path) -> bool:
    """Tell whether a folder holds an exported model."""
    return (folder / MANIFEST).is_file()


def write_export(folder: Path, export: Export, files: Mapping[str, Any]) -> None:
    """Write the manifest, which makes a folder an exported model; `files` are those of `list_files`."""
    content = {"format": _FORMAT, **asdict(export), "files": files}
    write_json(folder / MANIFEST, {**content, _CHECKSUM: json_fingerprint(content)})


def read_export(folder: Path) -> Export:
    """Read the manifest of an exported model.

    Raises:
        ModelError: it is damaged, or a newer bertkit wrote it.
    """
    content = _read(folder)
    try:
        known = {name: content[name] for name in Export.__dataclass_fields__}
        return Export(**{**known, "inputs": tuple(known["inputs"]), "outputs": tuple(known["outputs"])})
    except (KeyError, TypeError):
        raise _damaged(folder) from None


def listed_files(folder: Path) -> dict[str, Any]:
    """Return size and SHA-256 of each file of an exported model, as its manifest has them."""
    return dict(_read(folder)["files"])


def read_checksum(folder: Path) -> str:
    """Return the SHA-256 of an exported model: that of its manifest, which has those of all its files.

    Raises:
        ModelError: the manifest is damaged.
    """
    return json_fingerprint(_read(folder))


def check_export(folder: Path, *, contents: bool = True) -> None:
    """Compare the files of an exported model with their checksums; without `contents`, of large ones only the sizes.

    Raises:
        ModelError: one is missing or has changed, or the manifest is damaged.
    """
    for name, entry in listed_files(folder).items():
        file = folder / name
        if not file.is_file():
            raise ModelError("the file is missing", _AGAIN, file=file)
        is_whole, is_hashed = entry["size"] == file.stat().st_size, contents or entry["size"] <= _SMALL
        if not is_whole or (is_hashed and entry["sha256"] != file_fingerprint(file)):
            raise ModelError("the file does not match its checksum", _AGAIN, file=file)


def refuse_exported(folder: Path) -> None:
    """Raise ModelError where a folder is an exported model, and weights are needed that torch can load."""
    if is_exported(folder):
        what = "an exported model, which predicts and is scored but has no weights for torch"
        raise ModelError(what, "name the run that it was exported from", file=folder)


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        written = content.pop(_CHECKSUM)
        form, files = content["format"], content["files"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise _damaged(folder) from None
    if form != _FORMAT:
        what = f"an export of format {form}, where this bertkit reads {_FORMAT}"
        raise ModelError(what, "use the bertkit that wrote it, or export it again", file=folder)
    if written != json_fingerprint(content) or not isinstance(files, dict):
        raise _damaged(folder)
    return dict(content)


def _damaged(folder: Path) -> ModelError:
    return ModelError("the manifest of the export is damaged", _AGAIN, file=folder / MANIFEST)
