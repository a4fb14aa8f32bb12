"""Runs with a planted fault each, which the doctor names with its figures, and healthy runs, of which it says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.errors import BertkitError, DivergedError, ModelError, UsageError
from bertkit.recipe import load_recipe
from bertkit.storage import runs
from bertkit.storage.exports import Export, write_export
from bertkit.storage.fingerprints import list_files
from bertkit.storage.run_sets import SEEDS, write_summary
from bertkit.vectors.search.index import Index, Manifest
from bertkit.workflows.doctor import Diagnosis, examine_folder, judge
from bertkit.workflows.finetune import finetune
from tests.conftest import toy_rows, write_csv
from tests.vectors.search.test_index import chunks_of, make_vectors
from tests.workflows.test_doctor_curve import FALLING, FLAT, log_of

LEAD = {"baseline": "most frequent label", "metric": "accuracy", "is_clear": False}


@pytest.fixture
def healthy(trained, tmp_path) -> Path:
    """A copy of a run that has learned its task, with a lead over its baselines, which know as much of toy rows."""
    folder = shutil.copytree(trained, tmp_path / "run")
    return change_result(folder, lead={**LEAD, "is_clear": True})


def change(folder: Path, **fields) -> Path:
    """Change the record of a run, which stays whole."""
    runs.write_record(folder, {**runs.read_record(folder), **fields})
    return folder


def change_result(folder: Path, **fields) -> Path:
    (result,) = runs.read_record(folder)["results"]
    return change(folder, results=[{**result, **fields}])


def write_log(folder: Path, entries) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def write_predictions(folder: Path, answers) -> Path:
    lines = [json.dumps({"id": number, "prediction": answer}) + "\n" for number, answer in enumerate(answers)]
    (folder / "predictions.jsonl").write_text("".join(lines))
    return change(folder, predictions=list_files(folder, ["predictions.jsonl"]))


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def diverge(folder: Path) -> Path:
    error = "the loss or a weight is not finite at step 12; the last good checkpoint is none - try a smaller rate"
    return change(folder, status="diverged", error=error)


def no_better(folder: Path) -> Path:
    return change_result(folder, lead=LEAD, warnings=["The accuracy of 0.5000 is no better than the 0.5500. Try more."])


FAULTS = {
    "diverged": (diverge, "not finite at step 12"),
    "single_answer": (lambda run: write_predictions(run, 60 * ["good"]), "all 60 predictions of predictions.jsonl"),
    "high_learning_rate": (lambda run: write_log(run, log_of(FALLING[::-1])), "rises from 0.0"),
    "low_learning_rate": (lambda run: no_better(write_log(run, log_of(FLAT))), "goes from 0.697 to 0.693"),
    "overfitting": (
        lambda run: change(write_log(run, log_of(FALLING, [0.4, 0.3, 0.5, 0.7])), best_step=150),
        "since epoch 1.5",
    ),
    "best_is_last": (
        lambda run: change(write_log(run, log_of(FALLING, [0.4, 0.3, 0.2])), best_step=300),
        "from 0.3 to 0.2 - train longer: --set training.steps=600",
    ),
    "no_better_than_baseline": (no_better, "0.5000 is no better than the 0.5500. Try more."),
    "truncated_training_rows": (
        lambda run: change(run, truncated={"training_rows": 100, "max_tokens": 16}),
        "100 of 400 (25.0%) train rows reach the maximum of 16 tokens",
    ),
    "truncated_lost_gold": (
        lambda run: change(run, truncated={"lost_gold": 6, "max_tokens": 16}),
        "6 of 60 (10.0%) validation rows have gold values beyond the maximum of 16 tokens",
    ),
    "damaged_file": (cut_weights, "model.safetensors"),
    "stopped": (lambda run: change(run, status="running"), "resume it: "),
    "failed": (lambda run: change(run, status="failed", error="out of memory - use less"), "out of memory - use less"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_figures(name, healthy):
    plant, figures = FAULTS[name]
    plant(healthy)
    named = {finding.name: finding for finding in examine_folder(healthy)}
    assert name in named
    assert named.keys() <= {name, "no_better_than_baseline"}
    assert figures in named[name].text
    assert named[name].level == ("fail" if name in ("diverged", "damaged_file", "failed") else "warn")
    assert " - " in named[name].text or name == "no_better_than_baseline"  # which ends in the words of the report


def test_a_healthy_run_gets_one_line(healthy):
    (finding,) = examine_folder(healthy)
    assert (finding.level, finding.name) == ("good", "healthy")
    assert "nothing is wrong" in finding.text
    assert Diagnosis("run", [finding]).error is None


def test_a_missing_and_a_damaged_file_are_both_named(healthy):
    cut_weights(healthy)
    (healthy / "tokenizer.json").unlink()
    texts = [finding.text for finding in examine_folder(healthy)]
    assert len(texts) == 2
    assert "model.safetensors" in texts[0]
    assert "missing" in texts[1]
    assert isinstance(Diagnosis("run", examine_folder(healthy)).error, ModelError)


def test_predictions_in_a_format_of_others_are_not_read(healthy):
    (healthy / "predictions.squad.json").write_text("{\n}")
    change(healthy, predictions=list_files(healthy, ["predictions.jsonl", "predictions.squad.json"]))
    assert [finding.name for finding in examine_folder(healthy)] == ["healthy"]


def test_predictions_that_were_changed_are_damaged_and_not_read(healthy):
    (healthy / "predictions.jsonl").write_text("[]\nnonsense")
    assert [finding.name for finding in examine_folder(healthy)] == ["damaged_file"]


def test_a_damaged_record_and_a_damaged_checkpoint_are_named(healthy):
    manifest = next(healthy.glob("checkpoint-*")) / "bertkit-manifest.json"
    manifest.write_text("{}")
    assert [finding.name for finding in examine_folder(healthy)] == ["damaged_checkpoint"]
    (healthy / "run.json").write_text("{")
    (finding,) = examine_folder(healthy)
    assert (finding.name, finding.level) == ("damaged_file", "fail")


def test_a_run_that_diverged_and_one_that_failed_end_in_their_errors(healthy):
    assert isinstance(Diagnosis("run", examine_folder(diverge(healthy))).error, DivergedError)
    change(healthy, status="failed", error="no room")
    assert isinstance(Diagnosis("run", examine_folder(healthy)).error, ModelError)


def test_each_run_of_a_folder_is_examined_and_its_summary_is_checked(healthy, tmp_path):
    folder = tmp_path / "seeds"
    for seed in (1, 2):
        shutil.copytree(healthy, folder / f"seed-{seed}")
    write_summary(folder / SEEDS, {"runs": []})
    cut_weights(folder / "seed-1")
    damaged, whole = examine_folder(folder)
    assert damaged.name == "damaged_file" and damaged.text.startswith("seed-1: ")
    assert whole.text.startswith("seed-2: nothing is wrong")
    (folder / "seeds.json").write_text("{}")
    assert "seeds.json" in examine_folder(folder)[0].text


def write_exported(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    export = Export("onnx", "model.onnx", "text_classification", "texts", (), (), {})
    write_export(folder, export, list_files(folder, ["model.onnx"]))
    return folder / "model.onnx"


def write_index(folder: Path) -> Path:
    Index.create(folder, Manifest(16), chunks_of(make_vectors(2)))
    return folder / "rows.jsonl"


@pytest.mark.parametrize("what", ["exported", "package", "index"])
def test_other_folders_are_checked_for_whole_files(what, tmp_path):
    folder = tmp_path / what
    write = write_index if what == "index" else write_exported
    file = write(folder / "model" if what == "package" else folder)
    (finding,) = examine_folder(folder)
    assert (finding.level, finding.name) == ("good", "healthy")
    file.write_bytes(file.read_bytes()[::-1])
    (finding,) = examine_folder(folder)
    assert (finding.level, finding.name) == ("fail", "damaged_file")
    assert file.name in finding.text


@pytest.mark.parametrize(
    ("make", "remedy"), [(Path.mkdir, "runs list"), (Path.touch, "bertkit check"), (lambda folder: None, "runs list")]
)
def test_what_is_no_run_is_refused(make, remedy, tmp_path):
    make(tmp_path / "other")
    with pytest.raises(UsageError, match=remedy):
        examine_folder(tmp_path / "other")


def test_a_run_is_read_without_torch(healthy):
    code = "import sys; from pathlib import Path; from bertkit.workflows.doctor import examine_folder\n"
    code += "examine_folder(Path(sys.argv[1])); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, healthy]).returncode == 0


# --- Real runs ---


def test_a_run_stores_what_is_lost_by_truncation_and_how_its_time_was_spent(tmp_path, tiny_model):
    for split, seed in (("train", 1), ("validation", 2)):
        write_csv(tmp_path / "data" / f"{split}.csv", toy_rows(40, seed=seed))
    changes = {"training.max_length": 8, "training.epochs": 1, "training.precision": "fp32"}
    recipe = load_recipe("classify", {"model": str(tiny_model), "data.source": str(tmp_path / "data"), **changes})
    finetune(recipe, output=tmp_path / "run")
    record = runs.read_record(tmp_path / "run")
    words = [len(row["text"].split()) for row in toy_rows(40, seed=1)]
    reach = sum(count + 2 >= 8 for count in words)  # each word is a token, and two are special
    assert record["truncated"] == {"max_tokens": 8, "lost_gold": 0, "training_rows": reach}
    times = record["step_times"]
    assert 0 < times["loading_seconds"] < times["seconds"] < record["seconds"]
    assert 0 <= times["waiting_share"] <= 1
    text = next(finding.text for finding in examine_folder(tmp_path / "run") if "truncated" in finding.name)
    assert f"{reach} of 40" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["cola", "sst2", "stsb", "mnli", "ner", "pos", "swag", "rerank", "wsd", "similarity-pairs", "squad2"],
)
def test_a_real_run_that_learned_its_task_raises_no_alarm(name, tmp_path):
    finetune(load_recipe(name, {"model": "demo", "data.source": "demo"}), output=tmp_path / "run")
    (finding,) = examine_folder(tmp_path / "run")
    assert finding.level == "good", finding.text


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "name"), [(1e-6, "low_learning_rate"), (0.05, "high_learning_rate")])
def test_a_real_run_with_a_wrong_learning_rate_is_told(rate, name, tmp_path):
    changes = {"training.learning_rate": rate, "training.epochs": 2, "training.precision": "fp32"}
    finetune(load_recipe("sst2", {"model": "demo", "data.source": "demo", **changes}), output=tmp_path / "run")
    named = {finding.name for finding in examine_folder(tmp_path / "run")}
    assert {name, "single_answer", "no_better_than_baseline"} <= named


def test_the_error_of_several_faults_counts_them():
    with pytest.raises(BertkitError, match="and 1 more"):
        raise Diagnosis("run", [judge("files", name, name, fail="restore it") for name in "ab"]).error
