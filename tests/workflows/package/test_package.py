"""A package of an exported folder says what `predict` says, without what it was made with."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.errors import ModelError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.workflows.export import find_license
from bertkit.workflows.package import package, refuse_family
from tests.runtime.hand_made import write_exported
from tests.workflows.package.families import run_package, same

ROWS = [{"text": "the movie was good", "id": "a"}, {"text": "bad " * 50, "id": "b"}, {"text": "so, a film!", "id": "c"}]


@pytest.fixture
def exported(tmp_path):
    folder = tmp_path / "exported"
    write_exported(folder, ("bad", "good"))
    recipe = "extends: classify\noptions: {temperature: 2.0, abstain_below: 0.9}\n"
    (folder / "recipe.yaml").write_text(recipe)
    return folder


def test_a_package_answers_as_predict_does_and_imports_nothing_else(exported, run):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    Path("rows.jsonl").write_text(lines)
    expected = run("predict", exported / "recipe.yaml", "rows.jsonl", "--model", exported)
    assert expected.code == 0, expected.err
    ended = run("package", exported, "-o", "out/made", "--name", "made", "--wheel", "1.2", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["cold_start"]["imported"] == ["numpy", "onnxruntime", "tokenizers"]
    assert result["parity"] is None and result["lines"] < 2500
    found = run_package(Path("out/made").resolve(), "made", "--check", stdin=lines)
    assert found.returncode == 0, found.stderr
    for one, other in zip(expected.out.splitlines(), found.stdout.splitlines(), strict=True):
        assert same(json.loads(one), json.loads(other)), (one, other)
    assert {"README.md", "LICENSE", "requirements.txt", "made", "made-1.2-py3-none-any.whl"} == {
        entry.name for entry in Path("out/made").iterdir()
    }
    assert not {"training_rows.npy", "recipe.yaml"} & {entry.name for entry in Path("out/made/made/model").iterdir()}
    with zipfile.ZipFile("out/made/made-1.2-py3-none-any.whl") as wheel:
        assert wheel.read("made/model/settings.json") == Path("out/made/made/model/settings.json").read_bytes()
    refuse_damage(Path("out/made").resolve())


def refuse_damage(folder: Path) -> None:
    settings = folder / "made/model/settings.json"
    settings.write_text(settings.read_text().replace("0.9", "0.8"))
    ended = run_package(folder, "made", "--check", "a")
    assert ended.returncode == 4 and ended.stderr.startswith("error: the file does not match its checksum"), (
        ended.stderr
    )
    assert ended.stderr.count("\n") == 1


def test_what_cannot_be_packaged_is_refused_before_anything_is_written(exported, run):
    Path("there").mkdir()
    Path("there", "mine").touch()
    for arguments, code, message in (
        (("-o", "there"), 2, "exists already, and is kept as it is"),
        (("-o", "out", "--name", "numpy"), 2, "there is a module numpy already"),
        (("-o", "out", "--wheel", "one"), 2, "'one' is no version of a wheel"),
        (("-o", "out", "--to", "openvino"), 2, "--to openvino, and the model is exported to onnx already"),
        (("-o", "out", "--recipe", "squad"), 4, "it was exported for text_classification"),
    ):
        ended = run("package", exported, *arguments)
        assert (ended.code, message in ended.last) == (code, True), ended.last
    assert not Path("out").exists()
    assert run("package", "nowhere/run", "-o", "out").code in (4, 5)


def test_a_family_that_needs_more_is_refused_before_a_run_of_it_is_exported():
    recipe = load_recipe("sparse", {"model": "demo", "data.source": "demo"})
    with pytest.raises(ModelError, match="need the package scipy, which packages do not have"):
        refuse_family(SimpleNamespace(recipe=recipe, task=load_task(recipe)))


def test_a_tagger_of_subwords_is_refused(monkeypatch, tmp_path):
    saved = SimpleNamespace(recipe=load_recipe("tag", {"options.word_split": "subwords"}))
    monkeypatch.setattr("bertkit.workflows.package.open_trained", lambda *_: saved)
    with pytest.raises(ModelError, match="packages do not split texts into subwords"):
        package("run", tmp_path / "out")


@pytest.mark.slow
def test_a_calibrated_run_is_packaged_with_its_temperature(trained, run, tmp_path):
    from tests.conftest import toy_rows, write_csv

    rows = write_csv(tmp_path / "rows.csv", toy_rows(60, seed=4))
    ended = run("export", trained, "-o", "exported")
    assert ended.code == 0, ended.err
    assert run("calibrate", "exported/recipe.yaml", "--model", "exported", "--data", rows).code == 0
    ended = run("package", "exported", "-o", "out")
    assert ended.code == 0 and "from start to first answer" in ended.out, ended.err
    settings = json.loads(Path("out/exported_model/model/settings.json").read_text())
    assert settings["recipe"]["options"]["temperature"] != 1.0
    expected = run("predict", "exported/recipe.yaml", "--model", "exported", "--text", "a good film")
    found = run_package(Path("out").resolve(), "exported_model", "a good film")
    assert same(json.loads(found.stdout)["probabilities"], json.loads(expected.out)["probabilities"])


@pytest.mark.parametrize(
    ("card", "recipe", "expected"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# A\n", None, "mit"),
        ("---\nlicense: 'cc-by-4.0'\n---\n", "extends: cola\nmodel: google-bert/bert-base-uncased\n", "cc-by-4.0"),
        (
            "---\ntags: [a]\n---\nlicense: mit\n",
            "model: google-bert/bert-base-uncased\n",
            "that of google-bert/bert-base-uncased, which it was trained from: Apache-2.0",
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
