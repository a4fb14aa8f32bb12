"""Folders of exported models: the manifest, without which a folder does not count, and its checksums.

runs/cola-onnx/
├── onnx/model.onnx                 the graph with its weights; in int8 model_quantized.onnx, and openvino/ for OpenVINO
├── tokenizer.json, config.json     the tokenizer, and the config of the original model
├── recipe.yaml                     task, metrics and settings, as in the run
├── calibration.json                temperature and thresholds, if the run has any
├── training_rows.npy               digests of the rows that it was trained on
├── parity.json                     comparison of the outputs with the original model
└── exported.json                   the manifest, written last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.storage.fingerprints import file_fingerprint, leaves_folder, read_with_checksum, write_with_checksum
from bertkit.storage.runs import RunRecord

MANIFEST = "exported.json"
_VERSION = 1
_AGAIN = "export it again"


VECTORS = ("sentence_embedding", "token_embeddings", "vectors")
"""Names of outputs that are vectors; other programs expect the first two, sparse and earlier exports have the last."""


@dataclass(frozen=True)
class Export:
    """Manifest of an exported folder."""

    backend: str
    """``onnx`` or ``openvino``."""
    file: str
    """File of the graph, which contains its weights or their file name."""
    task: str
    """Task family whose outputs the graph computes."""
    reads: str
    """Form of a row; see `bertkit.runtime.model`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names of outputs; see `VECTORS` for the names of vectors."""
    tokenizer: Mapping[str, Any]
    """Settings that `tokenizer.json` lacks; see `bertkit.runtime.tokenizer`."""
    precision: str = "fp32"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the recipe."""
    probabilities: bool = False
    """Whether scores are probabilities rather than logits."""
    record: RunRecord = field(default_factory=lambda: RunRecord())
    """Record of the run without its checksums; empty for a plain checkpoint."""
    versions: Mapping[str, str] = field(default_factory=dict)


def is_exported(folder: Path) -> bool:
    """Return whether a folder contains an exported model."""
    return (folder / MANIFEST).is_file()


def write_export(folder: Path, export: Export, files: Mapping[str, Any]) -> None:
    """Write the manifest, which makes a folder an exported model; `files` is the result of `list_files`."""
    write_with_checksum(folder / MANIFEST, {"format": _VERSION, **asdict(export), "files": files})


def read_export(folder: Path) -> Export:
    """Read the manifest of an exported model.

    Raises:
        ModelError: If it is damaged, or a newer bertkit wrote it.
    """
    content = _read_manifest(folder)
    try:
        fields = {name: content[name] for name in Export.__dataclass_fields__}
        # The manifest may come from a download, which must not name a file elsewhere on this machine.
        if leaves_folder(fields["file"]):
            raise _damaged(folder)
        return Export(**{**fields, "inputs": tuple(fields["inputs"]), "outputs": tuple(fields["outputs"])})
    except (KeyError, TypeError):
        raise _damaged(folder) from None


def listed_files(folder: Path) -> dict[str, Any]:
    """Return size and SHA-256 of each file of an exported model, as its manifest has them."""
    return dict(_read_manifest(folder)["files"])


def check_export(folder: Path) -> None:
    """Compare the files of an exported model with their checksums.

    Raises:
        ModelError: If a file is missing or has changed, or the manifest is damaged.
    """
    compare_files(folder, listed_files(folder), _AGAIN)


def compare_files(folder: Path, listed: Mapping[str, Any], remedy: str) -> None:
    """Compare files with the sizes and checksums that were listed.

    Raises:
        ModelError: If a file is missing or differs.
    """
    for name, entry in listed.items():
        file = folder / name
        if leaves_folder(name) or not file.is_file():
            raise ModelError("the file is missing", remedy, file=file)
        if entry["size"] != file.stat().st_size or entry["sha256"] != file_fingerprint(file):
            raise ModelError("the file does not match its checksum", remedy, file=file)


def check_not_exported(folder: Path) -> None:
    """Check that a folder has weights for torch.

    Raises:
        ModelError: If it is an exported model.
    """
    if is_exported(folder):
        message = "an exported model, which predicts and is scored but has no weights for torch"
        raise ModelError(message, "name the run that it was exported from", file=folder)


def _read_manifest(folder: Path) -> dict[str, Any]:
    content = read_with_checksum(folder / MANIFEST, _damaged(folder), form=("an export", _VERSION))
    if content is None or not isinstance(content.get("files"), dict):
        raise _damaged(folder)
    return content


def _damaged(folder: Path) -> ModelError:
    return ModelError("the manifest of the export is damaged", _AGAIN, file=folder / MANIFEST)
