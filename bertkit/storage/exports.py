"""Folders of exported models: the manifest that makes one count, and the checksums that it is used by.

runs/cola-onnx/
├── onnx/model.onnx                 the graph with its weights; in int8 model_quantized.onnx, and openvino/ for OpenVINO
├── tokenizer.json, config.json     what reads texts, and what the model was
├── recipe.yaml                     task, metrics and settings, as in the run
├── calibration.json                temperature and thresholds, where the run has some
├── training_rows.npy               digests of the rows that it was trained on
├── parity.json                     how it compares with the model that it was made from
└── exported.json                   the manifest, written last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.storage.fingerprints import file_fingerprint, leaves_folder, read_signed, write_signed
from bertkit.storage.runs import RunRecord

MANIFEST = "exported.json"
_FORMAT = 1
_AGAIN = "export it again"


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
    """Names of what the graph returns; see `VECTORS` for those that are vectors."""
    tokenizer: Mapping[str, Any]
    """What `tokenizer.json` does not say; see `bertkit.runtime.tokenizer`."""
    precision: str = "fp32"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the recipe."""
    probabilities: bool = False
    """Whether scores are probabilities, and not logits."""
    record: RunRecord = field(default_factory=lambda: RunRecord())
    """The record of the run, without its checksums; empty for a plain checkpoint."""
    versions: Mapping[str, str] = field(default_factory=dict)


def is_exported(folder: Path) -> bool:
    """Tell whether a folder holds an exported model."""
    return (folder / MANIFEST).is_file()


def write_export(folder: Path, export: Export, files: Mapping[str, Any]) -> None:
    """Write the manifest, which makes a folder an exported model; `files` are those of `list_files`."""
    write_signed(folder / MANIFEST, {"format": _FORMAT, **asdict(export), "files": files})


def read_export(folder: Path) -> Export:
    """Read the manifest of an exported model.

    Raises:
        ModelError: it is damaged, or a newer bertkit wrote it.
    """
    content = _read_manifest(folder)
    try:
        known = {name: content[name] for name in Export.__dataclass_fields__}
        if leaves_folder(known["file"]):
            raise _damaged(folder)
        return Export(**{**known, "inputs": tuple(known["inputs"]), "outputs": tuple(known["outputs"])})
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


def refuse_exported(folder: Path) -> None:
    """Raise ModelError where a folder is an exported model, and weights are needed that torch can load."""
    if is_exported(folder):
        what = "an exported model, which predicts and is scored but has no weights for torch"
        raise ModelError(what, "name the run that it was exported from", file=folder)


def _read_manifest(folder: Path) -> dict[str, Any]:
    content = read_signed(folder / MANIFEST, _damaged(folder), form=("an export", _FORMAT))
    if content is None or not isinstance(content.get("files"), dict):
        raise _damaged(folder)
    return content


def _damaged(folder: Path) -> ModelError:
    return ModelError("the manifest of the export is damaged", _AGAIN, file=folder / MANIFEST)
