"""`predict`, `embed` and `serve` of an exported folder need neither torch nor transformers, and answer the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.hand_made import write_exported, write_token_graph, write_vectors
from tests.runtime.without_torch import bertkit_command, python_command, run_process, serve

TEXTS = [{"text": "the movie was good"}, {"text": "bad " * 50}, {"text": "so, a film!"}]
WORDS = [{"tokens": row["text"].split()} for row in TEXTS]
TAGS = ("O", "B-PER", "I-PER")
RECIPES = {
    "classifier": "task: text_classification\ndata: {source: d, columns: {text: text, label: label}}\n"
    "labels: [bad, good]\nmetrics: [accuracy]\nbest_metric: accuracy\n",
    "tagger": "task: token_classification\ndata: {source: d, columns: {tokens: tokens, tags: tags}}\n"
    f"labels: [{', '.join(TAGS)}]\nmetrics: [f1]\nbest_metric: f1\noptions: {{word_split: whitespace}}\n",
    "embedding": "task: similarity\ndata: {source: d, columns: {text: text, text_pair: text_pair, label: label}}\n"
    "metrics: [spearmanr]\nbest_metric: spearmanr\n",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, Path]:
    """An exported classifier, tagger and embedding model."""
    folder = tmp_path_factory.mktemp("exported")
    write_exported(folder / "classifier", ("bad", "good"))
    write_exported(folder / "tagger", TAGS, write_token_graph, task="token_classification")
    write_vectors(folder / "embedding")
    for name, recipe in RECIPES.items():
        (folder / name / "recipe.yaml").write_text(f"name: {name}\nmodel: m\n{recipe}")
    return {name: folder / name for name in RECIPES}


def to_lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["classifier", pytest.param("tagger", marks=pytest.mark.slow)])
def test_predict_needs_no_torch(name, exported, run_here):
    Path("rows.jsonl").write_text(to_lines(WORDS if name == "tagger" else TEXTS))
    expected = run_here("predict", exported[name], "rows.jsonl")
    answers = run_process(bertkit_command("predict", exported[name], Path("rows.jsonl").resolve()))
    assert answers == expected.out and len(answers.splitlines()) == 3


@pytest.mark.slow
def test_predict_reads_and_writes_tables_without_pandas(exported, run_here):
    Path("rows.csv").write_text("text,comment\n" + "".join(f'"{row["text"]}",x\n' for row in TEXTS))
    for output in ("full.csv", "light.csv"):
        arguments = ("predict", exported["classifier"], Path("rows.csv").resolve(), "-o", Path(output).resolve())
        run_here(*arguments) if output == "full.csv" else run_process(bertkit_command(*arguments))
    assert Path("light.csv").read_bytes() == Path("full.csv").read_bytes() and Path("light.csv").stat().st_size


@pytest.mark.slow
def test_embed_needs_no_torch(exported, run_here):
    Path("rows.jsonl").write_text(to_lines(TEXTS))
    arguments = ("embed", Path("rows.jsonl").resolve(), "--model", exported["embedding"], "--prompt", "query")
    assert run_process(bertkit_command(*arguments)) == run_here(*arguments).out


@pytest.mark.slow
def test_models_are_loaded_in_python_without_torch(exported):
    code = "import bertkit, json\n"
    code += f"print(json.dumps(bertkit.load({str(exported['classifier'])!r}).predict(['good'])))\n"
    code += f"print(bertkit.Embedder({str(exported['embedding'])!r}).encode(['good', 'bad']).shape)"
    answers, shape = run_process(python_command(code)).splitlines()
    assert json.loads(answers)[0]["prediction"] in ("bad", "good") and shape == "(2, 4)"


@pytest.mark.slow
@pytest.mark.enable_socket
@pytest.mark.parametrize("name", ["classifier", "tagger"])
def test_serve_needs_no_torch(name, exported, run_here):
    rows = WORDS if name == "tagger" else TEXTS
    Path("rows.jsonl").write_text(to_lines(rows))
    expected = map(json.loads, run_here("predict", exported[name], "rows.jsonl").out.splitlines())
    with serve(exported[name]) as post:
        answers = post(f"/v1/models/{name}:predict", {"instances": rows})["predictions"]
    for answer, record in zip(answers, expected, strict=True):
        assert answer["prediction"] == record["prediction"]
        assert answer == {key: record[key] for key in answer}


@pytest.mark.slow
@pytest.mark.enable_socket
def test_vectors_are_served_without_torch(exported, run_here):
    Path("rows.jsonl").write_text(to_lines(TEXTS))
    expected = run_here("embed", "rows.jsonl", "--model", exported["embedding"]).out.splitlines()
    with serve(exported["embedding"]) as post:
        vectors = post("/embed", {"inputs": [row["text"] for row in TEXTS], "normalize": False})
    for vector, line in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(json.loads(line)["embedding"], rel=1e-6)


@pytest.fixture
def run_here(run):
    """Run a command in this process, where every package can be imported, and require that it succeeds."""

    def run_command(*arguments: object):
        ended = run(*arguments, "--threads", 1)
        assert ended.code == 0, ended.err
        return ended

    return run_command
