"""Scoring: the same numbers as in training, of the rows that were held out or of any others."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.scoring import score_ensemble, score_split
from bertkit.recipe import load_recipe, write_yaml
from bertkit.storage import runs
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.junit import read_junit


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_csv(tmp_path / "rows.csv", toy_rows(60, seed=4))


def scores(ended) -> dict:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["results"][0]


def test_eval_gives_the_numbers_of_training(run, trained, rows):
    ours = scores(run("eval", "classify", "--model", trained, "--data", rows, "--json"))
    theirs = json.loads((trained / "run.json").read_text())["results"][0]
    assert ours["scores"] == theirs["scores"]
    assert ours["intervals"] == theirs["intervals"]
    assert ours["baselines"] == theirs["baselines"] != {}
    assert (ours["split"], ours["rows"]) == ("all", 60)


@pytest.mark.parametrize(("frequent", "labels"), [("good", None), ("bad", None), ("good", "[good, bad]")])
def test_the_label_of_f1_is_named_and_doubted_if_most_rows_have_it(run, trained, tmp_path, frequent, labels):
    by_frequency = sorted(toy_rows(90, seed=5), key=lambda row: row["label"] != frequent)
    rows = write_csv(tmp_path / "rows.csv", by_frequency[:55])
    options = ["--data", rows, "--set", "metrics=[accuracy, f1]", *(["--set", f"labels={labels}"] if labels else [])]
    ended = run("eval", trained, *options)
    positive = "bad" if labels else "good"
    assert ended.code == 0 and f"f1: computed for {positive!r}, the second label." in ended.out
    is_doubted = (frequent, labels) == ("good", None)
    assert ("--set 'labels=[good, bad]' computes them for 'bad'" in ended.out) == is_doubted
    assert scores(run("eval", trained, *options, "--json"))["positive_label"] == positive
    assert "computed for" not in run("eval", trained, "--data", rows).out


@pytest.mark.parametrize("recipe", ["similarity-pairs", "late-interaction", "sparse"])
def test_an_encoder_before_training_is_scored_on_the_rows_of_the_run_and_is_its_baseline(
    run, tiny_model, tmp_path, recipe
):
    words = [row["text"] for row in toy_rows(80, seed=5)]
    rows = write_csv(tmp_path / "pairs.csv", [{"anchor": text, "positive": text[::-1]} for text in words])
    options = ["--data", rows, "--set", "training.precision=fp32", "--json"]
    assert run("finetune", recipe, "--model", tiny_model, "--epochs", 1, "-o", "base", *options).code == 0
    for name in ("run.json", "recipe.yaml", runs.TRAINING_ROWS):
        Path("base", name).unlink()
    trained = scores(run("finetune", recipe, "--model", "base", "--epochs", 1, "-o", "run", *options))
    ended = run("eval", recipe, "--model", "base", *options)
    assert scores(ended)["rows"] == trained["rows"] < 80
    assert trained["baselines"]["encoder before training"] == pytest.approx(scores(ended)["scores"])
    assert "--split all scores every row" in ended.err
    assert "all: 80 rows" in run("eval", recipe, "--model", "base", *options[:-1], "--split", "all").out


def test_a_run_is_scored_by_its_own_recipe(run, trained, rows):
    by_run = scores(run("eval", trained, "--data", rows, "--json"))
    by_recipe = scores(run("eval", "classify", "--model", trained, "--data", rows, "--json"))
    assert by_run.pop("seconds") and by_recipe.pop("seconds") and by_run == by_recipe
    ended = run("eval", trained, "--model", trained)
    assert (ended.code, ended.last) == (
        2,
        f"error: --model {trained} cannot replace the model of the run {trained} - leave --model out, "
        f"or name the recipe instead: {trained}/recipe.yaml",
    )


def test_a_score_that_is_required_and_not_reached_ends_with_its_own_code(run, trained, rows):
    command = ("eval", trained, "--data", rows)
    ended = run(*command, "--require", "accuracy=.1", "--require", "size_mb=100", "--require", "ece=1")
    assert ended.code == 0 and ended.out.count("gate passed: all, ") == 3
    ended = run(*command, "--require", "accuracy=1.01", "--report", "r.xml", "--json")
    assert ended.code == 8 and ended.last.startswith("error: a gate was not passed: all, accuracy: ")
    found = json.loads(ended.out)
    assert found["error"]["code"] == 8
    assert [case["outcome"] for case in found["results"][0]["gates"]] == ["failed"]
    cases = {name: outcome for (_, name), outcome in read_junit("r.xml").items()}
    assert cases.keys() == found["results"][0]["scores"].keys()
    assert [name for name, outcome in cases.items() if outcome != "passed"] == ["accuracy"]
    ended = run(*command, "--require", "accuracy=1", "--use-interval")  # no interval of a share of few rows begins at 1
    assert ended.code == 8
    for asked, message in (
        ("accuracy", "--require accuracy is not METRIC=VALUE - write e.g. --require accuracy=0.9"),
        ("acuracy=1", "a gate is about 'acuracy', which is not among the metrics - did you mean accuracy?"),
        ("accuracy=nan", "gates.accuracy = nan is wrong"),
    ):
        ended = run(*command, "--require", asked)
        assert (ended.code, message in ended.last) == (2, True), ended.last


def test_gates_of_a_recipe_are_no_part_of_the_run(run, tiny_model, toy_data):
    write_yaml({"extends": "classify", "gates": {"accuracy": 0.0}}, Path("mine.yaml"))
    command = ("finetune", "mine.yaml", "--model", tiny_model, "--data", toy_data, "--epochs", 1, "-o", "one")
    ended = run(*command)
    assert ended.code == 0 and "gate passed: validation, accuracy: " in ended.out
    ended = run(*command, "--set", "gates.accuracy=1.01")  # the run is finished, and its gate another one
    assert ended.code == 8 and "was not passed: validation, accuracy: " in ended.last
    assert run("eval", "one").code == 0
    assert run("eval", "one", "--set", "gates.accuracy=1.01").code == 8
    assert run("prune", "one", "-o", "small", "--layers", "0,", "--set", "gates.accuracy=1.01").code == 8
    assert run("eval", "small", "--require", "accuracy=0").code == 0  # what was made is kept


def test_eval_agrees_with_a_plain_loop(run, trained, rows):
    model = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    right = 0
    for row in toy_rows(60, seed=4):
        with torch.inference_mode():
            answer = int(model(**tokenizer(row["text"], return_tensors="pt")).logits.argmax())
        right += model.config.id2label[answer] == row["label"]
    assert (
        scores(run("eval", "classify", "--model", trained, "--data", rows, "--json"))["scores"]["accuracy"]
        == right / 60
    )


def test_a_file_that_a_run_was_trained_on_is_scored_on_what_it_held_out(run, tiny_model, tmp_path):
    file = write_csv(tmp_path / "all.csv", toy_rows(80, seed=6))
    assert run("finetune", "classify", "--model", tiny_model, "--data", file, "--epochs", 1).code == 0
    command = ("eval", "classify", "--model", "runs/classify", "--json", "--data", file)
    held_out = scores(run(*command))
    assert (held_out["rows"], held_out["training_rows"]) == (8, 0)
    assert (scores(run(*command, "--limit", 5))["training_rows"]) == 0  # the first ones of those
    whole = scores(run(*command, "--split", "all", "--on-overlap", "mark", "--output", "scored"))
    assert (whole["rows"], whole["training_rows"]) == (80, 72)
    written = Path("scored/predictions_all.jsonl").read_text().splitlines()
    marks = [json.loads(line)["is_training_row"] for line in written]
    assert (len(marks), sum(marks)) == (80, 72)
    rows = toy_rows(80, seed=6)
    random.Random(1).shuffle(rows)
    more = write_csv(tmp_path / "more.csv", rows + toy_rows(20, seed=7))
    for other in (
        ("--split", "all"),
        ("--split", "train"),
        ("--set", "data.validation_fraction=0.3"),
        ("--data", more),
        ("--data", more, "--limit", 30),
    ):
        ended = run(*command, *other)
        assert (ended.code, "rows to score are training rows of the model (" in ended.last) == (3, True), other
    fresh = scores(run(*command, "--data", more, "--on-overlap", "drop"))
    assert (fresh["rows"], fresh["training_rows"]) == (28, 0)
    best = next(Path("runs/classify").glob("checkpoint-*"))
    assert run("eval", "classify", "--model", best, "--data", file, "--split", "all").code == 3


@pytest.mark.slow
def test_a_run_keeps_its_draw(run, tiny_model, tmp_path):
    """Resumed, scored, compared, sliced and repeated: its held-out rows are those of its record, whatever is asked."""
    rows = [{**row, "genre": "abc"[n % 3]} for n, row in enumerate(toy_rows(80, seed=6))]
    file = write_csv(tmp_path / "all.csv", rows)
    command = ("finetune", "classify", "--model", tiny_model, "--data", file, "--epochs", 1)
    assert run(*command, "--set", "data.hold_out=by_label", "--output", "old").code == 0
    assert run(*command, "--output", "new").code == 0
    recipe = Path("old/recipe.yaml").read_text()
    assert "hold_out: by_label" in recipe and "hold_out" not in Path("new/recipe.yaml").read_text()
    record = runs.read_record(Path("old"))
    assert record["identity"]["hold_out"] == "by_label"
    assert "hold_out" not in record["identity"]["recipe"]["data"]
    record["files"].pop("recipe.yaml")
    Path("old/recipe.yaml").write_text(recipe.replace("  hold_out: by_label\n", ""))
    runs.write_record(Path("old"), record)
    held_out = [json.loads(line)["text"] for line in Path("old/predictions.jsonl").read_text().splitlines()]
    assert held_out != [json.loads(line)["text"] for line in Path("new/predictions.jsonl").read_text().splitlines()]
    ended = run(*command, "--output", "old", "--json")
    assert (ended.code, json.loads(ended.out)["results"][0]["rows"]) == (0, len(held_out))  # as a finished run
    scored = scores(run("eval", "old/recipe.yaml", "--model", "old", "--output", "scored", "--json"))
    assert (scored["rows"], scored["training_rows"]) == (len(held_out), 0)
    assert [json.loads(line)["text"] for line in Path("scored/predictions.jsonl").read_text().splitlines()] == held_out
    for ended in (
        run("errors", "old", "--group-by", "genre", "--json"),
        run("compare", "old", "scored", "--group-by", "genre"),
    ):
        assert ended.code == 0, ended.err
    again = run("rerun", "old", "--json")
    assert (again.code, json.loads(again.out)["scores_agree"]) == (0, True), again.err
    fresh = run(*command, "--output", "old", "--restart", "--json")
    assert "hold_out" not in Path("old/recipe.yaml").read_text(), fresh.err


def test_a_file_that_has_grown_has_its_new_held_out_rows_beside_the_old_ones(run, tiny_model, tmp_path):
    file = write_csv(tmp_path / "all.csv", toy_rows(80, seed=6))
    assert run("finetune", "classify", "--model", tiny_model, "--data", file, "--epochs", 1).code == 0
    write_csv(file, [*toy_rows(80, seed=8), *toy_rows(80, seed=6)])
    ended = run("eval", "classify", "--model", "runs/classify", "--data", file, "--split", "validation", "--json")
    assert ended.code == 0, ended.err
    assert scores(ended)["rows"] > 8 and scores(ended)["training_rows"] == 0


def test_a_label_that_the_model_lacks_is_told_and_counts_as_wrong(run, trained, rows):
    plain = scores(run("eval", "classify", "--model", trained, "--data", rows, "--json"))["scores"]
    write_csv(rows, [*toy_rows(60, seed=4), *({"text": text, "label": "mixed"} for text in ("good", "a bad film"))])
    command = ("eval", "classify", "--model", trained, "--data", rows)
    found = scores(run(*command, "--output", "scored", "--json"))
    assert found["scores"]["accuracy"] == pytest.approx(plain["accuracy"] * 60 / 62)
    told = "The model lacks the label 'mixed', which 2 of 62 (3.2%) rows have. It counts as missed."
    assert told in found["warnings"]
    last = json.loads(Path("scored/predictions_all.jsonl").read_text().splitlines()[-1])
    assert (last["label"], last["prediction"], last["probabilities"]["mixed"] < 1e-200) == ("mixed", "bad", True)
    ended = run("errors", "scored", "--recipe", "classify", "--json")
    assert (ended.code, json.loads(ended.out)["wrong"]) == (0, round(62 - 62 * found["scores"]["accuracy"]))
    ended = run(*command, "--strict-labels")
    assert (ended.code, "label 'mixed' is not one of the 2 labels (0 bad, 1 good)" in ended.last) == (3, True)
    assert run(*command, "--set", "labels=[bad, good]").code == 3  # a list that is declared is closed
    write_csv(rows, [*toy_rows(60, seed=4), {"text": "good", "label": "Good"}])
    ended = run(*command)
    assert (ended.code, ended.last.endswith("did you mean good?")) == (3, True)


def test_an_ensemble_lacks_the_labels_that_its_members_lack(trained, rows):
    split = Split("all", "rows.csv", [*toy_rows(20, seed=4), {"text": "good", "label": "mixed"}], list(range(21)))
    checkpoint = find_checkpoint(load_recipe("classify", {"model": str(trained)})).load(inference=True)
    ensemble = replace(checkpoint, members=(checkpoint, checkpoint))
    scored, members = score_ensemble(ensemble, split)
    single = score_split(checkpoint, split)
    assert single.context.labels == ("bad", "good", "mixed") and single.loss is None
    assert scored.scores == pytest.approx(single.scores) == members[0].scores
    assert single.scores["accuracy"] <= 20 / 21


def test_unlabelled_rows_cannot_be_scored(run, trained, tmp_path):
    file = tmp_path / "test.csv"
    file.write_text("text,label\ngood film,-1\nbad film,-1\n")
    ended = run("eval", "classify", "--model", trained, "--data", file)
    assert ended.code == 3
    assert "no label (also in line 3)" in ended.last


def test_a_split_that_is_not_there(run, trained, toy_data):
    ended = run("eval", "classify", "--model", trained, "--data", toy_data, "--split", "tests")
    assert ended.code == 3
    assert "no split 'tests'" in ended.last


def test_eval_writes_predictions_where_asked(run, trained):
    folder = trained.parent
    command = ("eval", "classify", "--model", trained, "--data", folder, "--split", "train", "--output", "scored")
    ended = run(*command, "--on-overlap", "mark")
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in Path("scored/predictions_train.jsonl").read_text().splitlines()]
    assert len(rows) == 400
    assert {"id", "text", "label", "prediction", "probabilities", "is_training_row"} == set(rows[0])


def test_eval_replaces_neither_the_predictions_of_a_run_nor_the_rows_to_score(run, trained, tmp_path):
    before = (trained / "predictions.jsonl").read_bytes()
    ended = run("eval", "classify", "--model", trained, "--data", trained.parent, "--output", trained)
    assert (ended.code, "the folder contains a run, whose predictions would be lost" in ended.last) == (2, True)
    assert (trained / "predictions.jsonl").read_bytes() == before
    file = write_jsonl(tmp_path / "predictions_all.jsonl", toy_rows(5, seed=1))
    ended = run("eval", "classify", "--model", trained, "--data", file, "--output", tmp_path)
    assert (ended.code, "--output is the file with the rows to score" in ended.last) == (2, True)


def test_each_language_is_scored_as_by_itself(run, trained, tmp_path):
    for seed, language in enumerate(("en", "de")):
        (tmp_path / "rows" / language).mkdir(parents=True)
        write_csv(tmp_path / "rows" / language / "validation.csv", toy_rows(30, seed=10 + seed))
    command = ("eval", "classify", "--model", trained, "--json")
    ended = run(*command, "--data", tmp_path / "rows/{language}", "--languages", "en,de", "--output", "scored")
    assert ended.code == 0, ended.err
    printed = json.loads(ended.out)
    singles = []
    for language in ("en", "de"):
        alone = scores(run(*command, "--data", tmp_path / "rows" / language, "--output", f"alone/{language}"))
        together = printed["results"][language][0]
        assert (together.pop("folder"), alone.pop("folder")) == (f"scored/{language}", f"alone/{language}")
        assert {**together, "seconds": 0} == {**alone, "seconds": 0}
        singles.append(alone["scores"]["f1_macro"])
        files = [Path(folder, language, "predictions.jsonl").read_text() for folder in ("scored", "alone")]
        assert files[0] == files[1]
    (mean,) = printed["means"]
    assert mean["score"] == pytest.approx(sum(singles) / 2)


def test_a_second_eval_into_one_folder_is_refused(run, trained):
    from bertkit.storage.outputs import lock_output

    Path("scored").mkdir()
    command = ["eval", "classify", "--model", trained, "--data", trained.parent, "--output", "scored"]
    with lock_output(Path("scored/predictions.jsonl")):
        ended = run(*command)
    assert (ended.code, "is writing this output (scored/predictions.jsonl)" in ended.last) == (6, True)
    assert run(*command).code == 0
    written = {entry.name for entry in Path("scored").iterdir()}
    assert written == {".gitignore", "predictions.jsonl", "evaluation.json", "recipe.yaml"}


def test_two_folders_of_eval_are_compared_without_a_recipe(run, trained, tiny_model, toy_data):
    command = ("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--epochs", 1, "-o", "weak")
    assert run(*command).code == 0
    write_csv(Path("test.csv"), toy_rows(80, seed=9))
    write_yaml({"extends": str(trained / "recipe.yaml"), "data": {"files": {"test": "test.csv"}}}, Path("mine.yaml"))
    for model, folder in ((trained, "good"), ("weak", "bad")):
        ended = run("eval", "mine.yaml", "--model", model, "--split", "test", "-o", folder, "--json")
        assert scores(ended)["folder"] == folder
    record = json.loads(Path("good/evaluation.json").read_text())
    assert record["model"] == str(trained) and len(record["made_by"]["model"]) == 64
    assert record["identity"]["data"].keys() == {"test"} and record["identity"]["labels"] == ["bad", "good"]
    assert record["results"][0]["intervals"] and record["versions"]["torch"]
    ended = run("compare", "good", "bad", "--fail-if-worse", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["split"], found["rows"]) == (8, "test", 80), ended.err
    assert found["folders"] == {"good": ["good"], "bad": ["bad"]}
    assert run("compare", "bad", "good", "--fail-if-worse", "--data", trained.parent / "validation.csv").code == 0
    assert json.loads(run("errors", "good", "--json").out)["split"] == "test"
    alone = run(
        "compare", "good/predictions_test.jsonl", "bad/predictions_test.jsonl", "--recipe", "classify", "--json"
    )
    assert json.loads(alone.out)["split"] == "test"


def test_the_evaluation_of_another_model_is_never_written_over(run, trained, tiny_model, toy_data):
    command = ("eval", trained, "--data", trained.parent, "-o", "scored")
    assert run(*command).code == 0
    before = {file.name: file.read_bytes() for file in Path("scored").iterdir()}
    assert run("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--epochs", 1, "-o", "weak").code == 0
    for other, message in (
        (("eval", "weak", "-o", "scored"), f"the folder has an evaluation of another model ({trained})"),
        ((*command, "--max-length", 8), "with other settings (recipe.training.max_length: 128 there, 8 requested)"),
    ):
        ended = run(*other)
        assert (ended.code, message in ended.last) == (2, True), ended.err
        assert {file.name: file.read_bytes() for file in Path("scored").iterdir()} == before
    assert run(*command, "--split", "train", "--on-overlap", "mark").code == 0  # another split stands beside it
    record = json.loads(Path("scored/evaluation.json").read_text())
    assert [result["split"] for result in record["results"]] == ["validation", "train"]
    assert record["predictions"].keys() == {"predictions.jsonl", "predictions_train.jsonl"}
    assert run("compare", trained, "scored").code == 0
    Path("scored/predictions.jsonl").write_text("{}\n")
    assert "does not match its checksum" in run("compare", trained, "scored").last
    Path("scored/evaluation.json").write_text("{}")
    assert run("compare", trained, "scored").last.startswith("error: the record of the evaluation is damaged")
    Path("scored/evaluation.json").unlink()
    assert "predictions of an unknown model" in run(*command).last


def test_eval_says_at_once_that_it_cannot_write(run, trained):
    Path("scored").write_text("a file")
    ended = run("eval", "classify", "--model", trained, "--data", trained.parent, "--output", "scored")
    assert (ended.code, ended.last) == (
        6,
        "error: not a folder to write to: File exists (scored) - choose another --output",
    )
