"""Folders with sparse vectors or one vector per token: found, read, and refused where they say something else."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ModelError
from bertkit.modeling.sentence.formats import (
    DENSE,
    LATE,
    PROJECTION,
    SPARSE,
    find_format,
    read_format,
    write_late,
    write_sparse,
)
from bertkit.modeling.sentence.modules import Dense, Normalize, SentenceModules, read_modules
from bertkit.modeling.sentence.writing import write_modules

MODULES = SentenceModules(pooling=(), prompts={"query": "query: ", "document": ""}, max_length=64, lowercase=True)


@pytest.fixture
def folders(tmp_path):
    """One folder of each format."""
    made = {name: tmp_path / name for name in (DENSE, SPARSE, LATE, "plain")}
    for folder in made.values():
        folder.mkdir()
    write_modules(made[DENSE], SentenceModules(pooling=("cls",), after=(Normalize(),), max_length=32), width=8)
    write_sparse(made[SPARSE], MODULES, vocabulary=100)
    write_late(made[LATE], MODULES, width=8, dimension=4)
    return made


def test_each_format_is_found_and_what_is_written_is_read(folders):
    assert [find_format(folder) for folder in folders.values()] == [DENSE, SPARSE, LATE, None]
    sparse, late = (read_format(folders[name], name) for name in (SPARSE, LATE))
    assert (sparse.prompts, sparse.max_length, sparse.lowercase) == (MODULES.prompts, 64, True)
    assert (sparse.similarity, late.similarity, sparse.after) == ("dot", "maxsim", ())
    assert late.after == (Dense(folders[LATE] / PROJECTION, 8, 4, False, "torch.nn.modules.linear.Identity"),)


def test_any_encoder_may_be_trained_for_another_format(folders):
    found = read_format(folders[DENSE], SPARSE)
    assert (found.pooling, found.after, found.max_length) == ((), (), 32)
    assert read_format(folders["plain"], LATE) == SentenceModules(pooling=())
    assert read_format(folders[DENSE], DENSE) == read_modules(folders[DENSE])


def test_folders_of_another_format_are_refused(folders):
    with pytest.raises(ModelError, match="it is a SparseEncoder, not a MultiVectorEncoder"):
        read_format(folders[SPARSE], LATE)
    for name, message in ((SPARSE, "its vectors are sparse"), (LATE, "it makes a vector per token")):
        with pytest.raises(ModelError, match=message):
            read_format(folders[name], DENSE)


@pytest.mark.parametrize(
    ("model_format", "file", "change", "message"),
    [
        (SPARSE, "1_SpladePooling/config.json", {"pooling_strategy": "sum"}, "does not know: pooling_strategy 'sum'"),
        (LATE, "2_MultiVectorMask/config.json", {"skiplist_words": ["."]}, "does not know: skiplist_words"),
        (LATE, "sentence_bert_config.json", {"query_length": 32}, "does not know: query_length"),
        (LATE, "1_Dense/config.json", {"bias": True}, "its projection has a bias, an activation or"),
        (LATE, "1_Dense/config.json", {"in_features": "8"}, "no in_features and out_features"),
    ],
)
def test_what_bertkit_does_not_compute_is_refused(folders, model_format, file, change, message):
    file = folders[model_format] / file
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        read_format(folders[model_format], model_format)


def test_other_modules_are_refused(folders):
    listed = json.loads((folders[LATE] / "modules.json").read_text())
    (folders[LATE] / "modules.json").write_text(json.dumps(listed[:3]))
    with pytest.raises(ModelError, match="modules in the order Transformer, Dense, MultiVectorMask"):
        read_format(folders[LATE], LATE)
