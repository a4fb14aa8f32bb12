"""Training on a stream: what is learned is what rows in memory teach, and no break or launch changes it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bertkit.data.demo import demo_rows
from bertkit.recipe import load_recipe
from tests.conftest import toy_rows, write_csv
from tests.kills import TRAINING_STEP, check_equal, everything, slow_unless

SETTINGS = ["data.streaming=true", "training.steps=110", "training.evaluate_every=40", "training.log_every=10"]
SETTINGS += ["training.precision=fp32", "training.batch_size=2", "training.learning_rate=1e-3", "labels=[bad, good]"]


def write_data(folder: Path, rows: list[dict]) -> Path:
    folder.mkdir(exist_ok=True)
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "validation.csv", toy_rows(30, seed=2))
    return folder


def arguments(model: Path, data: Path, *settings: str, recipe: str = "classify", all_settings=SETTINGS) -> list[str]:
    command = ["finetune", recipe, "--model", str(model), "--data", str(data), "--output", "run"]
    return command + [word for setting in (*all_settings, *settings) for word in ("--set", setting)]


@pytest.fixture(scope="module")
def command(tmp_path_factory, tiny_model) -> list[str]:
    """110 steps of 2 rows: windows of 50 steps, and a file of 85."""
    return arguments(tiny_model, write_data(tmp_path_factory.mktemp("data"), toy_rows(170, seed=1)))


@pytest.fixture(scope="module")
def unbroken(zygote, command, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    code, text = zygote.run(folder, command)
    assert code == 0, text
    return folder / "run"


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.slow
def test_a_stream_teaches_what_the_same_rows_in_memory_do(zygote, tiny_model, tmp_path):
    data = write_data(tmp_path / "data", toy_rows(100, seed=1))  # a pass is just one window
    held = ["data.streaming=false", "training.steps=null", "training.epochs=2", "training.evaluate_every=50"]
    streamed = ["training.steps=100", "training.evaluate_every=50"]
    for name, settings in (("held", held), ("streamed", streamed)):
        (tmp_path / name).mkdir()
        code, text = zygote.run(tmp_path / name, arguments(tiny_model, data, *settings))
        assert code == 0, text
    ours, theirs = losses(tmp_path / "streamed" / "run"), losses(tmp_path / "held" / "run")
    assert len(ours) == 10
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("step", slow_unless([97], [45, 97]))
def test_a_kill_changes_nothing(zygote, command, unbroken, tmp_path, step):
    assert zygote.run(tmp_path, command, {"function": TRAINING_STEP, "call": step})[0] == -9
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_a_signal_between_two_windows_changes_nothing(zygote, command, unbroken, tmp_path):
    ended, text = zygote.run(tmp_path, command, {"function": TRAINING_STEP, "call": 50, "signal": "SIGTERM"})
    assert ended == 143, text
    assert zygote.run(tmp_path, command)[0] == 0
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow  # a kill of a stream, and windows of a resumed run, are each in a quick test
def test_a_kill_changes_nothing_where_rows_make_several_windows(zygote, tmp_path_factory):
    data = tmp_path_factory.mktemp("questions")
    for split in ("train", "validation"):
        rows = demo_rows(load_recipe("squad2"), split, 30)
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["data.streaming=true", "training.steps=75", "training.evaluate_every=20", "training.precision=fp32"]
    settings += ["training.batch_size=1", "training.max_length=20", "options.overlap=2"]
    mapped = f"data.columns={{{', '.join(f'{name}: {name}' for name in rows[0])}}}"
    command = arguments(Path("demo"), data, mapped, recipe="squad2", all_settings=settings)
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    code, text = zygote.run(whole, command)
    assert code == 0, text
    manifest = json.loads((whole / "run" / "checkpoint-75" / "bertkit-manifest.json").read_text())
    assert (manifest["state"]["window"], manifest["state"]["step"]) == (0, 0)  # 50 rows make more than 75 windows
    assert zygote.run(broken, command, {"function": TRAINING_STEP, "call": 55})[0] == -9
    assert zygote.run(broken, command)[0] == 0
    check_equal(broken / "run", whole / "run")


def test_a_bad_row_stops_the_run_and_once_mended_it_goes_on(zygote, tiny_model, unbroken, tmp_path):
    rows = toy_rows(170, seed=1)
    bad = [*rows[:150], {"text": rows[150]["text"], "label": "goood"}, *rows[151:]]
    data = write_data(tmp_path / "data", bad)
    command = arguments(tiny_model, data)
    code, text = zygote.run(tmp_path, command)
    assert code == 3
    assert f"label 'goood' is not one of the 2 labels (0 bad, 1 good) ({data}/train.csv:152, column 'label')" in text
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert (tmp_path / "run" / "checkpoint-40" / "bertkit-manifest.json").is_file()
    write_csv(data / "train.csv", rows)
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    assert "resuming run" in text
    ours, theirs = everything(tmp_path / "run"), everything(unbroken)
    assert {name for name in theirs if ours[name] != theirs[name]} == {
        "recipe.yaml",
        "results",
    }  # the folder of the data


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_rows_than_those_it_was_trained_on(zygote, tiny_model, tmp_path):
    rows = toy_rows(230, seed=1)
    data = write_data(tmp_path / "data", rows)
    command = arguments(tiny_model, data, "training.evaluate_every=102")  # in the third window of 100 rows
    assert zygote.run(tmp_path, command, {"function": TRAINING_STEP, "call": 105})[0] == -9
    faults = {120: "the first 200 rows are not those that this run was trained on", 3: "another run (data.train"}
    for row, fault in faults.items():
        rows[row]["text"] += " very"
        write_csv(data / "train.csv", rows)
        code, text = zygote.run(tmp_path, command)
        assert (code, fault in text.splitlines()[-1]) == (2 if row == 3 else 3, True), text


@pytest.mark.slow
def test_two_processes_learn_the_same_as_one(zygote, still_model, tmp_path):
    data = write_data(tmp_path / "data", toy_rows(95, seed=1))
    settings = ["training.batch_size=4", "training.steps=30", "training.log_every=1"]
    one = tmp_path / "one"
    one.mkdir()
    assert zygote.run(one, arguments(still_model, data, *settings))[0] == 0
    two = tmp_path / "two"
    two.mkdir()
    codes, _, err = zygote.launch(two, arguments(still_model, data, *settings))
    assert codes == [0, 0], err
    assert losses(two / "run") == pytest.approx(losses(one / "run"), abs=1e-4)
    assert len(losses(two / "run")) == 30  # more than a pass over the rows


def test_what_a_run_leaves_says_that_its_rows_were_streamed(unbroken, tmp_path):
    results = json.loads((unbroken / "train_results.json").read_text())
    assert (results["epoch"], results["train_samples"]) == (None, None)
    assert results["train_samples_per_second"] == pytest.approx(220 / results["train_runtime"], rel=1e-2)
    assert json.loads((unbroken / "run.json").read_text())["rows"] == {"train": None, "validation": 30}
    card = (unbroken / "README.md").read_text()
    assert "| Rows of train | streamed |" in card
    assert "| steps | 110 |" in card
    assert "| epochs |" not in card
    assert "streamed (sha256" in (unbroken / "report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (["training.steps=null"], 2, "training.steps is missing: the length of a stream is unknown - --set training"),
        (["training.steps=0"], 2, "training.steps = 0 is out of range - give a whole number of at least 1"),
        (["labels=null"], 2, "labels is missing: label names are not found in a stream - --set 'labels=[no, yes]'"),
        (["training.class_weights=balanced"], 2, "training.class_weights = balanced needs all labels counted"),
        (["data.source=demo"], 2, "demo rows are not streamed - leave data.streaming out"),
        (["training.batch_size=5", "training.gradient_accumulation=2"], 2, "batch_size 5 cannot be divided"),
        (["training.extra={max_steps: 7}"], 2, "training.extra.max_steps is decided by training.steps"),
    ],
)
def test_mistakes_are_answered_in_one_line(run, tiny_model, toy_data, changes, code, message):
    ended = run(*arguments(tiny_model, toy_data, *changes))
    assert ended.code == code
    assert message in ended.last


@pytest.mark.parametrize("recipe", ["wsd-nearest", "ner-features"])
def test_methods_that_want_all_rows_at_once_refuse_a_stream(run, recipe, tmp_path):
    for split in ("train", "validation"):
        rows = demo_rows(load_recipe(recipe), split, 40)
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tags = {tag for row in rows for tag in row.get("tags", [])}
    names = sorted(tags or {f"{row['sense'].partition('_')[0]}/{row['sense']}" for row in rows})
    settings = ["data.streaming=true", "training.steps=10", f"labels={json.dumps(names)}"]
    settings += [f"data.columns={{{', '.join(f'{name}: {name}' for name in rows[0])}}}"]
    ended = run(*arguments(Path("demo"), tmp_path, recipe=recipe, all_settings=settings))
    assert ended.code == 2
    assert ended.last == "error: this method needs all training rows before training - leave data.streaming out"


def test_steps_replace_epochs_for_rows_in_memory_too(run, tiny_model, toy_data):
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, "--set", "training.steps=8"]
    command += ["--epochs", 5, "--batch-size", 16, "--set", "training.log_every=1"]
    assert "steps    8" in run(*command, "--dry-run").out
    assert run(*command, "--output", "run").code == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert [line["step"] for line in lines if "eval_accuracy" in line] == [6, 8]  # each epoch, and at the end
    results = json.loads(Path("run/train_results.json").read_text())
    assert results["epoch"] == pytest.approx(8 / 6)
    with Path(toy_data / "train.csv").open() as stream:
        assert results["train_samples"] == len(list(csv.DictReader(stream)))
