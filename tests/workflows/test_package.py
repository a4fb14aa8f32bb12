"""A package answers as `predict` does, from its own copy of bertkit and with its pinned requirements alone."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.errors import ModelError
from bertkit.evaluation.calibration import SavedCalibration, write_calibration
from bertkit.modeling.checkpoint import fingerprint
from bertkit.recipe import load_recipe
from bertkit.storage.exports import read_export, write_export
from bertkit.storage.fingerprints import list_files
from bertkit.tasks import load_task
from bertkit.workflows.package import package
from tests.runtime.hand_made import write_exported, write_vectors
from tests.runtime.test_without_torch import RECIPES, TEXTS, to_lines
from tests.runtime.without_torch import BLOCKED, bertkit_command, python_command, run_process, serve

ROOT = Path(__file__).parents[2]
ROWS = [{**row, "id": name} for row, name in zip(TEXTS, "abc", strict=True)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """An exported classifier with a temperature and digests of its training rows."""
    folder = tmp_path_factory.mktemp("to_package") / "Sentiment v2"
    write_exported(folder, ("bad", "good"))
    (folder / "recipe.yaml").write_text(f"name: made\nmodel: m\n{RECIPES['classifier']}")
    (folder / "training_rows.npy").write_bytes(b"digests of rows")
    names = [file.name for file in folder.iterdir() if file.name != "exported.json"]
    write_export(folder, read_export(folder), list_files(folder, names))
    facts = {"model": fingerprint(folder), "split": "all", "source": "rows", "rows": 20, "folds": [{"rows": "0" * 16}]}
    write_calibration(folder, SavedCalibration(task="text_classification", temperature=2.0, **facts))
    return folder


@pytest.fixture(scope="module")
def packaged(exported) -> Path:
    return Path(package(exported, exported.parent / "packaged").folder)


@pytest.fixture(scope="module")
def image(exported) -> Path:
    return Path(package(exported, exported.parent / "image", serve=True).folder)


def test_a_package_answers_as_predict_does(packaged, exported, run):
    Path("rows.jsonl").write_text(to_lines(ROWS))
    expected = run("predict", exported, "rows.jsonl", "--threads", 1)
    assert expected.code == 0 and "temperature 2" in expected.err, expected.err
    arguments = ("predict", packaged / "model", Path("rows.jsonl").resolve())
    assert run_process(bertkit_command(*arguments, root=packaged)) == expected.out
    assert {entry.name for entry in packaged.iterdir()} == {
        *("README.md", "LICENSE", "requirements.txt", "bertkit", "model")
    }
    assert not [*packaged.rglob("*.safetensors"), *packaged.rglob("training_rows.npy"), *packaged.rglob("__pycache__")]
    assert json.loads((packaged / "model/calibration.json").read_text())["folds"] == []


def test_requirements_pin_every_package_that_is_imported(packaged):
    pins = dict(line.split("==") for line in (packaged / "requirements.txt").read_text().splitlines())
    assert all(metadata.version(name) == version for name, version in pins.items())
    assert not {"torch", "transformers", "huggingface-hub"} & set(pins)
    code = f"import os\nos.chdir({str(packaged)!r})\nat_start = {{*sys.modules, *sys.stdlib_module_names}}\n"
    code += "import bertkit\nanswers = bertkit.load('model').predict(['good'])\n"
    code += "print(bertkit.__file__, *{name.partition('.')[0] for name in sys.modules} - at_start)"
    used, *imported = run_process(python_command(code, root=packaged)).split()
    assert Path(used).parent.parent == packaged
    owners = {name: metadata.packages_distributions().get(name, []) for name in imported}
    owners = {name: {owner.lower().replace("_", "-") for owner in found} for name, found in owners.items() if found}
    assert {name for name, found in owners.items() if not found & set(pins)} <= {"bertkit"}
    assert {"numpy", "onnxruntime", "tokenizers"} <= set(owners)


def test_the_readme_names_the_columns_of_a_file(packaged):
    text = (packaged / "README.md").read_text()
    assert text.startswith("# sentiment-v2\n") and "unknown; ask the author of the model" in text
    assert "| graph | onnx, fp32 |" in text and "columns of the training data, text;" in text
    assert '\npython -m bertkit predict model --text "..."\n' in text


def test_what_cannot_be_packaged_is_refused_before_anything_is_written(exported, run):
    Path("there").mkdir()
    Path("there", "mine").touch()
    for arguments, code, message in (
        (("-o", "there"), 2, "exists already, and bertkit does not replace it"),
        (("-o", "out", "--to", "openvino"), 2, "--to openvino, but the model is exported to onnx already"),
        (("-o", "out", "--recipe", "squad"), 4, "the model was exported for text_classification"),
    ):
        ended = run("package", exported, *arguments)
        assert (ended.code, message in ended.last) == (code, True), ended.last
    assert not Path("out").exists()
    assert run("package", "nowhere/run", "-o", "out").code in (4, 5)


def test_families_that_need_more_are_refused_before_an_export(monkeypatch, tmp_path):
    recipe = load_recipe("sparse", {"model": "demo", "data.source": "demo"})
    for task, message in (
        (load_task(recipe), "need the package scipy, which packages do not require"),
        (SimpleNamespace(__name__="mine"), "packages do not copy the code of your task family"),
    ):
        saved = SimpleNamespace(recipe=recipe, task=task, folder=tmp_path)
        monkeypatch.setattr("bertkit.workflows.package.open_trained", lambda *_, saved=saved: saved)
        with pytest.raises(ModelError, match=message):
            package("run", tmp_path / "out")


@pytest.mark.slow
def test_a_package_embeds(tmp_path, run):
    write_vectors(tmp_path / "vectors")
    (tmp_path / "vectors/recipe.yaml").write_text(f"name: made\nmodel: m\n{RECIPES['embedding']}")
    packaged = tmp_path / "packaged"
    package(tmp_path / "vectors", packaged)
    Path("rows.jsonl").write_text(to_lines(ROWS))
    options = (Path("rows.jsonl").resolve(), "--threads", 1, "--model")
    expected = run("embed", *options, tmp_path / "vectors")
    assert run_process(bertkit_command("embed", *options, packaged / "model", root=packaged)) == expected.out
    assert expected.code == 0


@pytest.mark.slow
def test_a_run_is_exported_and_packaged(trained, run):
    ended = run("package", trained, "-o", "out", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["parity"]["largest"] < 1e-4 and result["bytes"] > 1e6
    expected = run("predict", trained, "--text", "a good film", "--threads", 1)
    answer = run_process(bertkit_command("predict", "out/model", "--text", "a good film", root=Path("out").resolve()))
    assert json.loads(answer)["prediction"] == json.loads(expected.out)["prediction"]


@pytest.mark.slow
@pytest.mark.enable_socket
def test_a_package_serves(image, exported, run):
    Path("rows.jsonl").write_text(to_lines(ROWS))
    expected = run("predict", exported, "rows.jsonl", "--threads", 1).out.splitlines()
    with serve(f"made={image / 'model'}", root=image) as post:
        answers = post("/v1/models/made:predict", {"instances": TEXTS})["predictions"]
    for answer, line in zip(answers, expected, strict=True):
        assert answer == {name: json.loads(line)[name] for name in answer}


def read_instructions(file: Path) -> list[tuple[str, str]]:
    """Read a Dockerfile: each instruction with its arguments, where lines that end in a backslash go on."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_image_runs_as_nobody_on_a_file_system_that_it_does_not_write(image):
    instructions = read_instructions(image / "Dockerfile")
    names = [name for name, _ in instructions]
    last = dict(instructions)
    assert names[0] == "FROM" and names[-2:] == ["ENTRYPOINT", "CMD"] and last["USER"] == "10001:10001"
    assert names.index("USER") > max(number for number, name in enumerate(names) if name in ("RUN", "COPY"))
    for sources in (given.split()[:-1] for name, given in instructions if name == "COPY"):
        assert all((image / source).exists() for source in sources), sources
    install = next(given for name, given in instructions if name == "RUN")
    assert "--require-hashes" in install and "--no-deps" in install
    command = [*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])]
    assert command[:4] == ["python", "-m", "bertkit", "serve"] and command[-1] == "sentiment-v2=model"
    health, _, probe = last["HEALTHCHECK"].partition("CMD ")
    assert "--interval" in health and "/health" in json.loads(probe)[-1]
    compile(json.loads(probe)[-1], "probe", "exec")


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_requirements_of_images_are_the_tested_versions_with_hashes_for_both_platforms(backend, image):
    tested = set((ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines())
    text = (ROOT / f"bertkit/server/requirements-{backend}.txt").read_text()
    entries = text.replace("\\\n", " ").splitlines()[1:]
    pins = {entry.split()[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}(?= |$)", entry) for entry in entries}
    assert set(pins) <= tested and all(pins.values()), "tools/make_server_requirements.py writes them again"
    named = {pin.partition("==")[0] for pin in pins}
    assert {"fastapi", "tokenizers", {"onnx": "onnxruntime"}.get(backend, backend)} <= named
    assert not {name.replace("_", "-") for name in BLOCKED} & named
    assert len(next(hashes for pin, hashes in pins.items() if pin.startswith("tokenizers="))) == 2
    if backend == "onnx":
        assert (image / "requirements.txt").read_text() == text
