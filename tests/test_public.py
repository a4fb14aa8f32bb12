"""The public names: cheap to import, all typed, and enough for a program that a strict type checker accepts."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bertkit

STUB = Path(bertkit.__file__).with_suffix(".pyi")
PROGRAM = '''
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bertkit
from bertkit.errors import BertkitError, DataError

Record = dict[str, object]


class Shown:
    """A progress of one's own."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        print(name, total, done)

    def update(self, done: int, figures: dict[str, object]) -> None:
        print(done, figures)

    def record(self, entry: object) -> None:
        print(entry)

    def finish(self) -> None:
        print("done")


def heard(entry: dict[str, object]) -> None:
    print(entry.get("loss"))


def train(rows: list[dict[str, str]], folder: Path) -> bertkit.FinetuneResults:
    finetuned = bertkit.finetune(
        "classify",
        model="demo",
        data={"train": rows, "validation": rows},
        training={"epochs": 3},
        output=folder,
        events=heard,
        changes={"data.limit": 100},
        restart=True,
        progress=Shown(),
    )
    scores: dict[str, float | None] = finetuned.scores
    print(scores, finetuned.report.name, [result.split for result in finetuned])
    return finetuned


def answers(model: bertkit.LoadedModel, texts: list[str]) -> Iterator[str]:
    for record in model.predict(texts):
        yield str(record["prediction"])


def main() -> int:
    model: bertkit.LoadedModel = bertkit.load("runs/cola", changes={"options.abstain_below": 0.8})
    names: tuple[str, ...] = model.labels
    print(names, model.recipe.name, list(answers(model, ["a good film"])))
    try:
        score = model.evaluate([{"text": "a", "label": "b"}], on_overlap="mark").scores["accuracy"]
    except (DataError, BertkitError) as error:
        print(error.exit_code, error.remedy)
        return 1
    print(score, model.explain("a good film")[0].prediction, bertkit.__version__)
    recipe = bertkit.with_rows(bertkit.load_recipe("cola", {"model": "demo"}), [{"sentence": "a", "label": 1}])
    summary, diverged = bertkit.finetune_seeds(recipe, (1, 2))
    print(summary.best_seed, diverged, model({"text": ["a"]})["prediction"])
    print(bertkit.export(Path("runs/cola"), Path("onnx")), bertkit.package(Path("onnx"), "package"))
    print([result.scores for result in bertkit.finetune(recipe)], bertkit.Embedder("demo").encode(["a"]).shape)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
'''


def stub_names():
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    return {node.names[0].asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom)}


def test_every_public_name_is_there_and_typed():
    assert stub_names() == {name: f"bertkit.{module}" for name, module in bertkit._MODULES.items()}
    assert sorted(bertkit.__all__) == sorted(stub_names())
    listed = next(node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed.value) == sorted(bertkit.__all__)
    for name, module in stub_names().items():
        assert getattr(bertkit, name).__module__.startswith(module)
        assert name in dir(bertkit)
    with pytest.raises(AttributeError, match="no attribute 'finetun'"):
        _ = bertkit.finetun


def test_importing_bertkit_costs_nothing():
    script = "import sys; before = set(sys.modules); import bertkit; print(*sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(ended.stdout.split())
    assert {name for name in imported if name.startswith("bertkit")} == {"bertkit"}
    assert not imported & {"torch", "transformers", "datasets", "numpy", "pydantic"}


@pytest.mark.slow
def test_a_program_passes_a_strict_type_checker(tmp_path):
    """And a mistake in it does not."""
    (tmp_path / "program.py").write_text(PROGRAM)
    wrong = PROGRAM.replace('training={"epochs": 3}', "training=3").replace("names: tuple[str, ...]", "names: int")
    (tmp_path / "wrong.py").write_text(wrong.replace("bertkit.load_recipe", "bertkit.load_recip"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", tmp_path / "cache"]
    checked = {
        name: subprocess.run([*command, tmp_path / name], capture_output=True, text=True, cwd=tmp_path, check=False)
        for name in ("program.py", "wrong.py")
    }
    assert checked["program.py"].returncode == 0, checked["program.py"].stdout
    assert checked["wrong.py"].stdout.count("wrong.py:") == 3, checked["wrong.py"].stdout
