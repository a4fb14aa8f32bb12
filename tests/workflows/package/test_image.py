"""What an image is built from: it runs where only its pinned packages can be imported, and answers as `predict`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from bertkit.evaluation.calibration import SavedCalibration, write_calibration
from bertkit.modeling.load import fingerprint
from bertkit.storage.exports import read_export, write_export
from bertkit.storage.fingerprints import list_files
from bertkit.workflows.package import package_server
from tests.runtime.hand_made import write_exported
from tests.workflows.package.families import image_program, run_server, same

ROWS = [{"text": "the movie was good"}, {"text": "bad " * 50}, {"text": "so, a film!"}]
RECIPE = """
name: made
task: text_classification
model: m
data: {source: d, columns: {text: text, label: label}}
labels: [bad, good]
metrics: [accuracy]
best_metric: accuracy
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("of_an_image") / "exported"
    write_exported(folder, ("bad", "good"))
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "training_rows.npy").write_bytes(b"digests of rows")
    names = [file.name for file in folder.iterdir() if file.name != "exported.json"]
    write_export(folder, read_export(folder), list_files(folder, names))
    facts = {"model": fingerprint(folder), "split": "all", "source": "rows", "rows": 20, "folds": [{"rows": "0" * 16}]}
    write_calibration(folder, SavedCalibration(task="text_classification", temperature=2.0, **facts))
    return folder


@pytest.fixture(scope="module")
def image(exported) -> Path:
    written = package_server(exported, exported.parent / "image", name="made")
    assert not {"torch", "transformers"} & set(written.cold_start.imported)
    return exported.parent / "image"


def test_the_server_of_an_image_answers_as_predict_does_and_imports_nothing_else(image, exported, run):
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    expected = run("predict", exported / "recipe.yaml", "rows.jsonl", "--model", exported)
    assert expected.code == 0, expected.err
    for line, found in zip(expected.out.splitlines(), run_server(image, "made", ROWS), strict=True):
        assert all(same(value, json.loads(line)[name]) for name, value in found.items()), (line, found)
    assert {entry.name for entry in image.iterdir()} == {
        *("Dockerfile", "README.md", "LICENSE", "requirements.txt", "bertkit", "models")
    }
    assert not list(image.rglob("training_rows.npy"))
    assert "temperature 2" in expected.err
    assert json.loads(next(image.rglob("calibration.json")).read_text())["folds"] == []


@pytest.mark.slow
def test_the_command_of_an_image_serves_and_ends(image):
    arguments = ["bertkit", "serve", "models/made", "--port", "0", "--drain", "0"]
    code = f"sys.argv = {arguments}\nrunpy.run_module('bertkit', run_name='__main__', alter_sys=True)"
    command = image_program(image, code)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=image) as server:
        lines = iter(server.stderr.readline, "")
        assert any(line.startswith("serving 1 model at http://127.0.0.1:") for line in lines)
        server.send_signal(signal.SIGTERM)
        rest = server.stderr.read()
    assert server.returncode == 0 and rest.endswith("stopped\n"), rest


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
    assert command[:4] == ["python", "-m", "bertkit", "serve"] and (image / command[-1]).is_dir()
    health, _, probe = last["HEALTHCHECK"].partition("CMD ")
    assert "--interval" in health and "/health" in json.loads(probe)[-1]
    compile(json.loads(probe)[-1], "probe", "exec")


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_requirements_are_pinned_to_the_tested_versions_with_hashes_for_both_platforms(backend):
    import bertkit.workflows.package as package

    root = Path(package.__file__).parent
    tested = set((Path(__file__).parents[3] / "constraints.txt").read_text().lower().replace("_", "-").splitlines())
    entries = (root / f"requirements-{backend}.txt").read_text().replace("\\\n", " ").splitlines()[1:]
    pins = {entry.split()[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}(?= |$)", entry) for entry in entries}
    assert set(pins) <= tested and all(pins.values()), "tools/make_server_requirements.py writes them again"
    named = {pin.partition("==")[0] for pin in pins}
    assert {"fastapi", "tokenizers", {"onnx": "onnxruntime"}.get(backend, backend)} <= named
    assert not {"torch", "transformers", "pyarrow", "scikit-learn", "scipy", "huggingface-hub"} & named
    assert len(next(hashes for pin, hashes in pins.items() if pin.startswith("tokenizers="))) == 2


def test_an_image_has_no_wheel_and_its_name_is_checked(tmp_path, run):
    for arguments, message in (
        (("--wheel", "1.0"), "--wheel with --serve"),
        (("--name", "../out"), "'../out' is no name for a module"),
    ):
        ended = run("package", tmp_path, "-o", "out", "--serve", *arguments)
        assert ended.code == 2 and message in ended.last, ended.last
