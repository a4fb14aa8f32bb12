"""What the files of a stranger cannot do: the tests behind docs/security.md, and those that no module mirrors."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bertkit.data.files import read_records
from bertkit.errors import BertkitError, DataError, ModelError, RecipeError, UsageError
from bertkit.evaluation.splits import read_digests
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.load import load_weights
from bertkit.recipe import DataConfig, load_recipe
from bertkit.storage import files, runs
from bertkit.storage.disk import load_arrays, map_npy
from bertkit.storage.exports import read_export, write_export
from bertkit.storage.fingerprints import list_files, with_digest
from bertkit.storage.hub.models import check_model
from bertkit.vectors.search.index import MANIFEST, Index, Manifest
from bertkit.workflows.push import push
from tests.runtime.hand_made import make_export, write_exported
from tests.test_habits import CODE, ROOT
from tests.vectors.search.test_index import chunks_of, make_vectors

HELD = {
    "A checkpoint cannot run code.": (
        "modeling/test_load.py::test_a_pickle_that_is_no_file_of_weights_is_refused_and_not_run",
        "modeling/test_load.py::test_code_in_a_checkpoint_is_never_run",
        "modeling/sentence/test_folder.py::test_modules_with_code_of_their_own_are_refused",
        "training/test_fit.py::test_code_in_a_checkpoint_is_never_run",
        "test_security.py::test_a_kernel_that_a_config_names_is_not_fetched",
    ),
    "A data file cannot run code.": (
        "data/test_files.py::test_files_of_other_formats_are_recognized",
        "test_security.py::test_an_arrow_type_that_is_a_pickle_is_not_loaded",
        "test_security.py::test_objects_in_a_file_of_numbers_are_not_loaded",
    ),
    "A recipe that comes with a model cannot run code": (
        "recipe/test_plugins.py::test_a_recipe_that_came_with_a_model_runs_no_module",
        "recipe/test_plugins.py::test_a_recipe_that_came_with_a_model_runs_no_script_as_a_metric",
    ),
    "A recipe cannot read your environment.": ("test_security.py::test_a_recipe_is_plain_text",),
    "A text cannot become a script of a page.": (
        "reports/test_html.py::test_text_of_the_data_is_escaped",
        "reports/test_errors.py::test_the_page_is_whole_and_safe",
        "server/test_page.py::test_the_page_is_whole_in_itself",
    ),
    "A text cannot give orders to your terminal.": (
        "cli/test_output.py::test_nothing_that_a_terminal_obeys_is_printed",
    ),
    "A manifest cannot name files outside of its folder.": (
        "test_security.py::test_an_index_names_no_files_elsewhere",
        "test_security.py::test_an_export_names_no_files_elsewhere",
        "modeling/sentence/test_folder.py::test_modules_are_inside_the_folder",
        "test_security.py::test_a_graph_reads_no_weights_elsewhere",
        "test_security.py::test_a_run_names_no_files_elsewhere",
    ),
    "A link cannot lead what bertkit writes or publishes to another place.": (
        "test_security.py::test_a_link_in_the_place_of_a_temporary_file_is_replaced",
        "test_security.py::test_a_lock_that_is_a_link_is_not_written",
        "test_security.py::test_a_run_with_a_link_is_neither_resumed_nor_pushed",
        "test_security.py::test_nothing_is_added_to_an_index_with_a_link",
        "storage/test_run_list.py::test_what_is_no_run_is_refused",
    ),
    "An archive cannot place files on your disk": ("test_security.py::test_no_archive_is_unpacked",),
    "A request cannot learn a path of the server": (
        "server/test_access.py::test_errors_of_an_input_are_explained_and_others_are_not",
        "server/test_access.py::test_a_fault_of_bertkit_shows_no_traceback",
    ),
    "With a key, a request without it cannot": ("server/test_access.py::test_a_key_is_asked_for_where_there_is_one",),
    "A page of another website cannot read an answer": (
        "server/test_app.py::test_other_websites_are_let_in_only_by_name",
    ),
    "The log cannot show a text": ("server/test_access.py::test_the_log_has_figures_and_no_texts",),
}
"""How a sentence of the page begins -> the tests that hold it."""


def test_every_cannot_of_the_page_has_its_tests():
    page = " ".join((ROOT / "docs/security.md").read_text(encoding="utf-8").split())
    claims = re.findall(r"\*\*([^*]*\bcannot\b[^*]*)\*\*", page)
    assert len(claims) == len(HELD)
    assert [claim for claim in claims if not claim.startswith(tuple(HELD))] == []
    for test in (test for tests in HELD.values() for test in tests):
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


class Harm:
    """A pickle of it makes a folder where it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("kernel", ["kernels-community/flash-attn2", "flash_attention_2"])
def test_a_kernel_that_a_config_names_is_not_fetched(tiny_model, tmp_path, kernel):
    from transformers import AutoModel

    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attn_implementation": kernel}))
    model, _ = load_weights(AutoModel, folder, load_config(folder))
    assert model.config._attn_implementation == "sdpa"


def save_objects(file):
    np.save(file, np.array([Harm()]), allow_pickle=True)


def save_archive(file):
    np.savez(content := io.BytesIO(), a=np.array([Harm()]))
    file.write_bytes(with_digest(content.getvalue()))


@pytest.mark.parametrize(
    ("write", "name", "read"),
    [
        (save_objects, "vectors.npy", map_npy),
        (save_objects, runs.TRAINING_ROWS, lambda file: read_digests(file.parent)),
        (save_archive, "numbers.npz", load_arrays),
    ],
)
def test_objects_in_a_file_of_numbers_are_not_loaded(here, write, name, read):
    write(here / name)
    with pytest.raises((ValueError, BertkitError)):
        read(here / name)
    assert not (here / "harm").exists()


def test_an_arrow_type_that_is_a_pickle_is_not_loaded(here):
    marks = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Harm())}
    field = pa.field("text", pa.string(), metadata=marks)
    table = pa.table([pa.array(["a"])], schema=pa.schema([field]))
    parquet.write_table(table, here / "rows.parquet")
    with pa.OSFile(str(here / "rows.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("rows.parquet", "rows.arrow"):
        assert [row["text"] for _, row in read_records(here / name, DataConfig())] == ["a"]
    assert not (here / "harm").exists()


def test_a_recipe_is_plain_text(here, monkeypatch):
    monkeypatch.setenv("SECRET", "leaked")
    recipe = here / "mine.yaml"
    for text in ("${SECRET}", "$SECRET", "'{{ SECRET }}'"):
        recipe.write_text(f"extends: classify\nabout: {text}\n")
        assert load_recipe(str(recipe)).about == text.strip("'")
    for tag in ("!!python/object/apply:os.mkdir [harm]", "!ENV ${SECRET}", "!include /etc/hostname"):
        recipe.write_text(f"extends: classify\nabout: {tag}\n")
        with pytest.raises(RecipeError, match=r"the tag .* is not supported"):
            load_recipe(str(recipe))
    assert not (here / "harm").exists()


def rewrite_manifest(index, **changes):
    """Change the manifest of an index as one who knows its checksum would."""
    from bertkit.storage.fingerprints import CHECKSUM, write_with_checksum

    content = json.loads((index / MANIFEST).read_text())
    del content[CHECKSUM]
    write_with_checksum(index / MANIFEST, {**content, **changes})


@pytest.mark.parametrize("place", ["../../../secret", "ABSOLUTE"])
def test_an_index_names_no_files_elsewhere(tmp_path, place):
    index = Index.create(tmp_path / "index", Manifest(16), chunks_of(make_vectors(4))).folder
    secret = tmp_path / "secret"
    secret.write_text("secret")
    place = place.replace("ABSOLUTE", str(secret))
    rewrite_manifest(index, words={place: {"size": 6, "sha256": ""}})
    with pytest.raises(DataError, match="the manifest of the index is damaged"):
        Index.open(index)


def test_an_export_names_no_files_elsewhere(tmp_path):
    folder, secret = tmp_path / "model", tmp_path / "secret.onnx"
    write_exported(folder, ("bad", "good"))
    shutil.copy(folder / "model.onnx", secret)
    write_export(folder, make_export(file="../secret.onnx"), {})
    with pytest.raises(ModelError, match="the manifest of the export is damaged"):
        read_export(folder)
    write_export(folder, make_export(), {"../secret.onnx": list_files(tmp_path, ["secret.onnx"])["secret.onnx"]})
    with pytest.raises(ModelError, match="the file is missing"):
        check_model(folder)


@pytest.mark.parametrize("place", ["../secret", "ABSOLUTE", "link"])
def test_a_graph_reads_no_weights_elsewhere(tmp_path, place):
    import onnx

    from bertkit.runtime.model import open_exported

    folder, secret = tmp_path / "model", tmp_path / "secret"
    write_exported(folder, ("bad", "good"))
    graph = onnx.load(folder / "model.onnx")
    onnx.save(graph, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=100)
    open_exported(folder)
    (folder / "weights").rename(secret)
    (folder / "link").symlink_to(secret)
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place.replace("ABSOLUTE", str(secret))
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ModelError):
        open_exported(folder)


def test_a_run_names_no_files_elsewhere(trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    (tmp_path / "secret").write_text("secret")
    record = runs.read_record(folder)
    record["files"] |= {"../secret": list_files(tmp_path, ["secret"])["secret"]}
    runs.write_record(folder, record)
    with pytest.raises(ModelError, match="the file is missing"):
        push(folder, "me/toy", dry_run=True)


def test_a_link_in_the_place_of_a_temporary_file_is_replaced(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "run.json"
    files.get_temporary_path(file).symlink_to(precious)
    files.write_json(file, {"a": 1})
    assert (precious.read_text(), json.loads(file.read_text()), file.is_symlink()) == ("mine", {"a": 1}, False)


def test_a_lock_that_is_a_link_is_not_written(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError), files.hold_lock(tmp_path / "lock"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_run_with_a_link_is_neither_resumed_nor_pushed(trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    (tmp_path / "secret").write_text("secret")
    (folder / "eval_results.json").unlink()
    (folder / "eval_results.json").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match=r"a link to a file elsewhere \(.*eval_results.json\)"):
        push(folder, "me/toy", dry_run=True)
    with pytest.raises(UsageError, match=r"a link to a file elsewhere \(.*eval_results.json\)"):
        runs.prepare_run_folder(folder, runs.read_record(folder)["identity"], restart=False)


def test_nothing_is_added_to_an_index_with_a_link(tmp_path):
    index = Index.create(tmp_path / "index", Manifest(16), chunks_of(make_vectors(4)))
    (tmp_path / "elsewhere").mkdir()
    (index.folder / "bm25" / "2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"a link to a file elsewhere \(.*bm25/2\)"):
        index.add(chunks_of(make_vectors(4)))
    assert not any((tmp_path / "elsewhere").iterdir())


def test_no_archive_is_unpacked():
    for file in CODE:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\b(tarfile|unpack_archive|extractall|\.extract\()", text), file
