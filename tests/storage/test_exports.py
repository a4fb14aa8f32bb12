"""An exported folder counts by its manifest, and is used as it was written."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ModelError
from bertkit.storage.exports import MANIFEST, check_not_exported, is_exported, read_export
from bertkit.storage.hub import find_model
from tests.runtime.hand_made import make_export, write_exported


@pytest.fixture
def folder(tmp_path):
    write_exported(tmp_path / "model", ("bad", "good"), task="text_classification")
    return tmp_path / "model"


def test_the_manifest_comes_back_as_it_was_written(folder):
    export = read_export(folder)
    assert is_exported(folder)
    assert (export.inputs, export.outputs, export.precision) == (("input_ids", "attention_mask"), ("logits",), "fp32")
    assert export.tokenizer["model_max_length"] == 32
    assert read_export(find_model(str(folder))) == export


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_changed_or_missing_file_is_named(folder, name):
    file = folder / name
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match=rf"does not match its checksum \(.*{name}\) - export it again"):
        find_model(str(folder))
    file.unlink()
    with pytest.raises(ModelError, match=rf"the file is missing \(.*{name}\)"):
        find_model(str(folder))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": 1, "files": {}, "sha256": "0"}'])
def test_a_damaged_manifest_is_named(folder, content):
    (folder / MANIFEST).write_text(content)
    with pytest.raises(ModelError, match="the manifest of the export is damaged"):
        find_model(str(folder))


def test_a_manifest_of_another_release_is_refused(folder):
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(ModelError, match="an export of format 2, where this bertkit reads 1"):
        read_export(folder)


def test_it_is_refused_where_weights_are_needed(folder, tmp_path):
    with pytest.raises(ModelError, match="has no weights for torch"):
        check_not_exported(folder)
    check_not_exported(tmp_path)
    assert make_export().record == {}
