"""Pushing a run to a hub on the loopback: what is sent, what is not, and what loads it again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load, parse_eval_result_entries
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertkit
from bertkit.storage import runs
from bertkit.storage.exports import Export, check_export, read_export, write_export
from bertkit.storage.fingerprints import list_files
from bertkit.storage.hub import repositories
from tests.conftest import LEARN, toy_rows, write_csv
from tests.kills import read_lines

pytestmark = [
    pytest.mark.allow_hosts(["127.0.0.1"]),
    pytest.mark.filterwarnings("ignore:Use 'content"),  # of the client library, about how the hub's library calls it
]

MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
OF_RUN = {"README.md", "recipe.yaml", "run.json", "all_results.json", "eval_results.json", "train_results.json"}


@pytest.fixture
def hub(loopback, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between repeated requests
    return loopback


@pytest.fixture
def finished(trained, tmp_path):
    """A finished run of one's own, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "finished"))


def ask_again():
    """Forget what the hub has answered, as a new process would."""
    repositories._look_up.cache_clear()


def test_a_dry_run_lists_the_files_and_asks_nothing(hub, run, trained):
    ended = run("push", trained, "me/toy", "--dry-run", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert set(result["files"]) == MODEL | OF_RUN
    assert result["files"]["model.safetensors"] == (trained / "model.safetensors").stat().st_size
    assert (result["commit"], hub.requests) == (None, [])
    assert "has no license" in result["notes"][0]


def test_a_pushed_run_is_loaded_by_its_name(hub, run, trained, finished, tmp_path):
    calibrated = run("calibrate", finished, "--set", "data.limit=40")
    assert calibrated.code == 0, calibrated.err
    ended = run("push", finished, "me/toy", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["commit"] == hub.main["models", "me/toy"]
    sent = hub.newest("me/toy")
    assert set(sent) == MODEL | OF_RUN | {"calibration.json", ".gitattributes"}
    assert json.loads(sent["calibration.json"])["folds"] == []
    told = b" ".join(content for name, content in sent.items() if name != "model.safetensors").decode()
    assert str(tmp_path) not in told and "hf_secret" not in told
    # transformers alone, and bertkit: as the run itself
    texts = ["the film was superb", "a very dull book"]
    model, tokenizer = (kind.from_pretrained("me/toy") for kind in (AutoModelForSequenceClassification, AutoTokenizer))
    logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    expected = bertkit.load(finished).predict(texts)
    assert [model.config.id2label[int(row)] for row in logits.argmax(-1)] == [row["prediction"] for row in expected]
    ask_again()
    assert bertkit.load("me/toy").predict(texts) == expected
    assert bertkit.load(f"me/toy@{hub.main['models', 'me/toy']}").predict(texts) == expected
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ended = run("predict", "me/toy", tmp_path / "rows.jsonl", "--output", "answers.jsonl")
    assert ended.code == 0, ended.err
    assert [row["prediction"] for row in read_lines(Path("answers.jsonl"))] == [row["prediction"] for row in expected]


def test_the_card_is_what_the_hub_reads(hub, run, finished, tmp_path):
    card = (finished / "README.md").read_text().replace("# license: apache-2.0", "license: apache-2.0")
    (finished / "README.md").write_text(card.replace("# language: en", "language: en"))
    ended = run("push", finished, "me/toy")
    assert ended.code == 0, ended.err
    assert "has no" not in ended.out
    (tmp_path / "README.md").write_bytes(hub.newest("me/toy")["README.md"])
    data = metadata_load(tmp_path / "README.md")
    assert (data["license"], data["language"], data["pipeline_tag"]) == ("apache-2.0", "en", "text-classification")
    assert data["library_name"] == "transformers" and "bertkit" in data["tags"]
    scores = {
        result.metric_type: result.metric_value for result in ModelCard.load(tmp_path / "README.md").data.eval_results
    }
    official = json.loads((finished / "all_results.json").read_text())
    assert scores["accuracy"] == pytest.approx(official["eval_accuracy"], abs=1e-6)
    text = (tmp_path / "README.md").read_text()
    assert 'from_pretrained("me/toy")' in text and "bertkit predict me/toy --text" in text and "To publish" not in text


BENCHMARK = """
name: Toy benchmark
tasks:
- {id: toy/held-out, config: default, split: validation}
- {id: toy_test}
- {id: toy_other, config: other, split: validation}
"""


def test_results_on_a_benchmark_reach_its_leaderboard(hub, run, tiny_model, trained, tmp_path):
    served = tmp_path / "served"
    for seed, split in enumerate(("train", "validation", "test")):
        write_csv(served / f"{split}.csv", toy_rows(40, seed=seed))
    (served / "eval.yaml").write_text(BENCHMARK)
    commit = hub.add("datasets", "me/bench", served)
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "me/bench", *LEARN, "--output", "toy")
    assert ended.code == 0, ended.err
    ended = run("eval", "toy", "--split", "test", "--output", "toy/test", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)["results"][0]
    ended = run("push", "toy", "me/toy", "--json")
    assert ended.code == 0, ended.err
    sent = {name: yaml.safe_load(content) for name, content in hub.newest("me/toy").items() if ".eval_results" in name}
    assert set(sent) == {".eval_results/bench-toy_held-out.yaml", ".eval_results/bench-toy_test.yaml"}
    (entry,) = parse_eval_result_entries(sent[".eval_results/bench-toy_test.yaml"])
    assert (entry.dataset_id, entry.task_id, entry.dataset_revision) == ("me/bench", "toy_test", commit)
    assert entry.value == pytest.approx(result["scores"]["f1_macro"], abs=1e-6)
    assert entry.notes.startswith("f1_macro of 40 rows, by bertkit ") and entry.verify_token is None
    # The results of an earlier model do not stay with the next one.
    ask_again()
    assert run("push", trained, "me/toy").code == 0
    assert not any(".eval_results" in name for name in hub.newest("me/toy"))


@pytest.mark.parametrize(
    ("eval_yaml", "options"),
    [(None, []), (BENCHMARK, ["--limit", "30"]), ("tasks: [{config: x}]", []), ("tasks: {", [])],
)
def test_other_results_are_not_for_a_leaderboard(hub, run, trained, tmp_path, eval_yaml, options):
    write_csv(tmp_path / "served" / "validation.csv", toy_rows(40, seed=7))
    # Without this list, `datasets` would take eval.yaml for the test split.
    configs = "configs:\n- {config_name: default, data_files: [{split: validation, path: validation.csv}]}"
    (tmp_path / "served" / "README.md").write_text(f"---\n{configs}\n---\n")
    if eval_yaml:
        (tmp_path / "served" / "eval.yaml").write_text(eval_yaml)
    hub.add("datasets", "me/bench", tmp_path / "served")
    ended = run("eval", trained, "--data", "me/bench", "--output", "out", *options)
    assert ended.code == 0, ended.err
    assert not Path("out/.eval_results").exists()
    is_wrong = eval_yaml not in (None, BENCHMARK)
    assert ("eval.yaml of me/bench is not valid" in ended.err) == is_wrong


def test_another_run_comes_on_top_and_the_history_keeps_the_first(hub, run, trained, tmp_path):
    served = tmp_path / "served"
    shutil.copytree(trained, served, ignore=shutil.ignore_patterns("checkpoint-*", "model.safetensors", "run.json"))
    for name in ("pytorch_model.bin", "calibration.json", "mine.txt"):
        (served / name).write_text("of another model")
    first = hub.add("models", "me/toy", served)
    ended = run("push", trained, "me/toy", "--json")
    assert ended.code == 0, ended.err
    assert f"me/toy already contains a model; pushing a new commit (me/toy@{first} keeps the old one)" in ended.err
    result = json.loads(ended.out)
    assert (result["before"], result["deleted"]) == (first, ["calibration.json", "pytorch_model.bin"])
    assert "mine.txt" in hub.newest("me/toy") and set(hub.commits["models", "me/toy"]) >= {first, result["commit"]}
    ask_again()
    again = run("push", trained, "me/toy", "--json")
    assert json.loads(again.out)["commit"] == json.loads(again.out)["before"] == result["commit"]
    assert "another model" not in again.err


def test_an_upload_that_breaks_off_leaves_nothing_and_is_repeated(hub, run, trained):
    hub.fail("PUT /lfs/*", 503)
    ended = run("push", trained, "me/toy")
    assert (ended.code, len(ended.last.splitlines())) == (5, 1)
    assert ended.last.startswith("error: me/toy: the Hub failed (503 Service Unavailable) - try again later")
    assert set(hub.newest("me/toy")) == {".gitattributes"}
    hub.forget()
    hub.fail("POST */commit/main", cut_after=3)  # the commit is made, and nobody hears of it
    ended = run("push", trained, "me/toy")
    assert ended.code == 5 and "the connection was interrupted" in ended.last
    hub.forget()
    ask_again()
    ended = run("push", trained, "me/toy")
    assert ended.code == 0, ended.err
    assert "nothing changed since commit" in ended.out
    assert not any(request.method == "PUT" for request in hub.requests)


def test_what_cannot_be_pushed_ends_in_one_line(hub, run, trained, finished, tiny_model, monkeypatch, tmp_path):
    hub.add("models", "me/public", tiny_model)
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "exported.json").write_text("{}")

    def line(code, *arguments):
        ended = run("push", *arguments)
        assert (ended.code, len(ended.err.splitlines())) == (code, 1), ended.err
        return ended.last

    assert "'toy' is not the name of a model on the Hub - write YOUR_NAME/NAME" in line(2, trained, "toy")
    assert "no such run: nowhere" in line(4, "nowhere", "me/toy")
    assert "not a run folder with checksums" in line(4, tiny_model, "me/toy")
    assert "an exported model" in line(4, tmp_path / "exported", "me/toy")
    assert "me/public exists already, and is public" in line(2, trained, "me/public", "--private")
    hub.fail("POST /api/repos/create", 403, times=1)
    assert "me/toy: the Hub forbids it (403) - check what your token permits" in line(5, trained, "me/toy")
    card = (finished / "README.md").read_text()
    (finished / "README.md").write_text(card.replace("# license: apache-2.0", "license: Of My Own"))
    assert 'does not accept the metadata of the card (- "license" must be one of a list)' in line(4, finished, "me/toy")
    (finished / "README.md").write_text(card.replace("tags:", "tags: ["))
    assert "the metadata at the top of the card is invalid" in line(4, finished, "me/toy")
    (finished / "config.json").write_text("{}")
    assert "the file does not match its checksum" in line(4, finished, "me/toy")
    runs.write_record(finished, {**runs.read_record(finished), "status": "stopped"})
    assert "the run is not finished (stopped)" in line(4, finished, "me/toy")
    monkeypatch.delenv("HF_TOKEN")
    assert "there is no token for the Hub - log in with `hf auth login`, or set HF_TOKEN" in line(5, trained, "me/toy")
    assert ("models", "me/toy") not in hub.main or set(hub.newest("me/toy")) == {".gitattributes"}


def test_a_private_repository_is_private(hub, run, trained):
    assert run("push", trained, "me/toy", "--private").code == 0
    assert hub.private == {"me/toy"}


def test_graphs_in_the_run_are_sent_without_what_they_know_of_rows(hub, run, finished, tmp_path):
    graph = finished / "onnx"
    graph.mkdir()
    shutil.copyfile(finished / "training_rows.npy", graph / "training_rows.npy")
    (graph / "model.onnx").write_bytes(b"a graph")
    (graph / "recipe.yaml").write_text(f"data: {{source: {tmp_path}/rows.csv}}\n")
    record = json.loads((finished / "run.json").read_text())
    export = Export("onnx", "model.onnx", "text_classification", "row", (), (), {}, record=record)
    write_export(graph, export, list_files(graph, [file.name for file in graph.iterdir()]))
    ended = run("push", finished, "me/toy", "--json")
    assert ended.code == 0, ended.err
    sent = hub.newest("me/toy")
    of_graph = {name.removeprefix("onnx/") for name in sent if name.startswith("onnx/")}
    assert of_graph == {"model.onnx", "recipe.yaml", "exported.json"}
    assert sent["onnx/recipe.yaml"] == b"data: {source: rows.csv}\n"
    for name in of_graph:
        (tmp_path / name).write_bytes(sent[f"onnx/{name}"])
    check_export(tmp_path)
    assert "command" not in read_export(tmp_path).record
