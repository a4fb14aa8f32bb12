"""What stands beside a graph: the tokenizer, the recipe, and of the run what scoring needs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bertkit.evaluation.calibration import SavedCalibration, read_calibration, write_calibration
from bertkit.evaluation.checkpoint import open_checkpoint
from bertkit.modeling.checkpoint import fingerprint
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.recipe import load_recipe
from bertkit.storage.exports import listed_files
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.export import describe_export, find_license, write_manifest, write_supporting_files


def test_a_run_leaves_what_its_answers_depend_on(trained, tmp_path):
    recipe = load_recipe(str(trained / "recipe.yaml"), {"model": str(trained), "options.abstain_below": 0.6})
    saved = open_checkpoint(recipe, load_task(recipe), trained)
    calibration = SavedCalibration(fingerprint(trained), recipe.task, "validation", "rows", 20, 1.5)
    write_calibration(trained, calibration)
    try:
        before = SimpleNamespace(context=TaskContext(recipe, load_tokenizer(trained), saved.labels))
        converted = SimpleNamespace(reads="text", inputs=(), outputs=(), probabilities=False)
        write_supporting_files(tmp_path, saved, before)
        described = describe_export(saved, before, converted, "model.onnx", backend="onnx", precision="fp32")
        write_manifest(tmp_path, described)
    finally:
        (trained / "calibration.json").unlink()
    assert set(listed_files(tmp_path)) >= {"config.json", "recipe.yaml", "tokenizer.json", "training_rows.npy"}
    assert not {"calibration.json", "baselines.json"} & set(listed_files(tmp_path))
    assert read_calibration(tmp_path, recipe.task).temperature == 1.5
    exported = open_checkpoint(recipe, load_task(recipe), tmp_path)
    assert (exported.labels, exported.record["identity"]) == (saved.labels, saved.record["identity"])
    assert "files" not in exported.record


def test_words_of_training_rows_are_copied_on_request_only(trained, tmp_path):
    recipe = load_recipe(str(trained / "recipe.yaml"), {"model": str(trained)})
    saved = open_checkpoint(recipe, load_task(recipe), trained)
    before = SimpleNamespace(context=TaskContext(recipe, load_tokenizer(trained), saved.labels))
    learned = (trained / "baselines.json").read_bytes()
    for with_baselines in (False, True):
        folder = tmp_path / str(with_baselines)
        write_supporting_files(folder, saved, before, *["baselines.json"] * with_baselines)
        assert [file.read_bytes() for file in folder.glob("baselines.json")] == [learned] * with_baselines


@pytest.mark.parametrize(
    ("card", "recipe", "expected"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# A\n", None, "mit"),
        ("---\nlicense: 'cc-by-4.0'\n---\n", "extends: cola\nmodel: google-bert/bert-base-uncased\n", "cc-by-4.0"),
        (
            "---\ntags: [a]\n---\nlicense: mit\n",
            "model: google-bert/bert-base-uncased\n",
            "the license of google-bert/bert-base-uncased, from which it was trained: Apache-2.0",
        ),
        (None, "model: own/model\n", None),
        ("no front matter", ": [", None),
        (None, None, None),
    ],
    ids=["card", "card first", "encoder", "unknown", "damaged", "nothing"],
)
def test_a_license_is_that_of_the_card_or_of_the_encoder(card, recipe, expected, tmp_path):
    for name, text in (("README.md", card), ("recipe.yaml", recipe)):
        if text is not None:
            (tmp_path / name).write_text(text)
    found = find_license(tmp_path)
    assert (found or "").lower() == (expected or "").lower()
