"""What `bertkit bench` measures, by hand where a hand can count it, and what it leaves behind: nothing."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from bertkit.errors import RecipeError, StoppedError
from bertkit.progress import Silent
from bertkit.recipe import load_recipe
from bertkit.training.batching import plan_epoch
from bertkit.workflows import bench as workflow
from bertkit.workflows.bench import bench
from tests.conftest import write_csv
from tests.kills import slow_unless

LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]  # tokens, [CLS] and [SEP] included
WARM = 3


def write_rows(folder: Path) -> Path:
    """Write twelve training rows of known lengths, and six validation rows."""
    folder.mkdir()
    written = [{"text": " ".join(["film"] * (n - 2)), "label": ["good", "bad"][n % 2]} for n in LENGTHS]
    write_csv(folder / "train.csv", written)
    write_csv(folder / "validation.csv", written[:6])
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows")


def recipe_of(model: Path, rows: Path, **training):
    changes = {f"training.{name}": value for name, value in {"batch_size": 4, "precision": "fp32", **training}.items()}
    return load_recipe("classify", {"model": str(model), "data.source": str(rows), **changes})


def timed_batches(recipe, steps: int) -> list[list[int]]:
    """Return the lengths of the rows of each timed step, from the plan of the epochs."""
    plans = (plan_epoch(LENGTHS, recipe.training.batch_size, recipe.training.seed, epoch) for epoch in range(9))
    batches = [[LENGTHS[row] for row in batch] for plan in plans for batch in plan]
    return batches[WARM : WARM + steps]


def test_tokens_and_padding_are_those_of_the_batches_of_a_training(tiny_model, rows):
    recipe = recipe_of(tiny_model, rows)
    report = bench([recipe], steps=5)
    (speed,) = report.speeds
    batches = timed_batches(recipe, 5)
    assert (report.rows, report.tokens, report.epochs) == (12, sum(LENGTHS), 20)  # `auto` of few rows
    assert speed.steps == 5
    tokens, padded = sum(map(sum, batches)), sum(len(batch) * max(batch) for batch in batches)
    assert speed.padding_share == pytest.approx(1 - tokens / padded)
    assert speed.rows_per_second == pytest.approx(speed.tokens_per_second * 20 / tokens)
    assert speed.epoch_seconds == pytest.approx(sum(LENGTHS) / speed.tokens_per_second)
    evaluation = 6 / speed.evaluation_rows_per_second  # one, at the end
    preparing = speed.recipe_seconds - (20 * speed.epoch_seconds + evaluation)
    assert 0 < preparing < 60


def test_the_figures_are_medians_of_the_steps(tiny_model, rows, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr("bertkit.hardware.device.time.perf_counter", lambda: 0.5 * next(clock))
    recipe = recipe_of(tiny_model, rows)
    (speed,) = bench([recipe], steps=3).speeds
    batches = timed_batches(recipe, 3)
    # Other code reads the clock too, so each step takes the same multiple of half a second.
    seconds = sorted(map(sum, batches))[1] / speed.tokens_per_second
    assert seconds % 0.5 == pytest.approx(0.0) or seconds % 0.5 == pytest.approx(0.5)


@pytest.mark.slow
def test_each_precision_and_batch_size_has_a_line_and_one_is_the_fastest(run, tiny_model, rows):
    options = ("--precision", "fp32", "--precision", "bf16", "--batch-size", 4, "--batch-size", 6, "--steps", 2)
    ended = run("bench", "classify", "--model", tiny_model, "--data", rows, *options)
    assert ended.code == 0, ended.err
    first, over, head, *lines, last = ended.out.splitlines()
    assert first == f"classify, {tiny_model}: 12 rows of 102 tokens, 20 epochs"
    assert over == "  training speed, measured over 2 steps"
    assert head.split()[:3] == ["precision", "batch", "tokens/s"]
    assert [line.split()[:2] for line in lines[:4]] == [["fp32", "4"], ["bf16", "4"], ["fp32", "6"], ["bf16", "6"]]
    assert sum(line.endswith("fastest") for line in lines) == 1
    assert last.startswith("  The training time includes evaluation")
    assert "CPU, 1 thread (OMP_NUM_THREADS): fp32\n" in ended.err
    assert list(Path.cwd().iterdir()) == []


def test_json_has_every_figure(run, tiny_model, rows):
    options = ("--precision", "fp32", "--batch-size", 4, "--steps", 2, "--json")
    printed = json.loads(run("bench", "classify", "--model", tiny_model, "--data", rows, *options).out)
    (speed,) = printed["speeds"]
    assert printed["status"] == "done"
    assert {name: printed[name] for name in ("recipe", "device", "threads", "rows", "tokens")} == {
        "recipe": "classify",
        "device": "cpu",
        "threads": 1,
        "rows": 12,
        "tokens": 102,
    }
    assert set(speed) == set(asdict(workflow.Speed("fp32", 4)))
    assert all(value is not None for value in speed.values())
    assert speed["peak_memory_bytes"] > 1e7


@pytest.mark.parametrize("quick", slow_unless([True], [True, False]))
def test_auto_is_each_precision_that_the_machine_is_quick_in(quick, tiny_model, rows, monkeypatch):
    monkeypatch.setattr("bertkit.hardware.precision._measure_gain", lambda device, dtype, widths: 2.0 if quick else 1.0)
    report = bench([recipe_of(tiny_model, rows, precision="auto")], steps=1)
    assert [speed.precision for speed in report.speeds] == (["fp32", "bf16"] if quick else ["fp32"])


@pytest.mark.parametrize(
    "name",
    slow_unless([], ["stsb", "ner", "squad", "swag", "wsd", "rerank", "similarity", "similarity-triples"]),
)
def test_every_family_is_measured_on_demo_rows(name, tiny_model):
    changes = {"model": str(tiny_model), "data.source": "demo", "data.limit": 60, "training.precision": "fp32"}
    changes |= {"training.batch_size": 4, "training.max_length": 64, "options": {}}
    (speed,) = bench([load_recipe(name, changes)], steps=2).speeds
    assert speed.tokens_per_second > 0
    assert 0 <= speed.padding_share < 1
    assert speed.notes == ()


def test_a_recipe_that_trains_nothing_says_so(run, tiny_model, temporary):
    ended = run("bench", "wsd-nearest", "--model", tiny_model, "--data", "demo", "--limit", 40, "--precision", "fp32")
    assert ended.code == 0, ended.err
    assert "wsd-nearest trains nothing: it only prepares and evaluates" in ended.out
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_hidden_states_are_not_kept(run, tiny_model, temporary, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    options = ("--data", "demo", "--limit", 40, "--precision", "fp32", "--steps", 2, "--set", "options.layers=last")
    sizes = ("--batch-size", 4, "--batch-size", 8)
    ended = run("bench", "ner", "--model", tiny_model, *options, *sizes, "--json")
    assert ended.code == 0, ended.err
    for speed in json.loads(ended.out)["speeds"]:
        assert speed["tokens_per_second"] > 0
    assert not (tmp_path / "cache").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_what_does_not_fit_has_a_line_too(run, tiny_model, rows, monkeypatch):
    import bertkit.training.timing as timing

    def fail_once(*arguments, **keywords):
        monkeypatch.setattr(timing, "time_steps", kept)
        raise torch.OutOfMemoryError("too much")

    kept = timing.time_steps
    monkeypatch.setattr(timing, "time_steps", fail_once)
    options = ("--precision", "fp32", "--batch-size", 6, "--batch-size", 4, "--steps", 1, "--json")
    first, second = json.loads(run("bench", "classify", "--model", tiny_model, "--data", rows, *options).out)["speeds"]
    assert first["notes"] == ["fp32, batch 6: out of memory"]
    assert first["tokens_per_second"] is None
    assert second["tokens_per_second"] > 0


MISTAKES = {
    "recipe": (("colla",), 2, "error: no recipe is called 'colla' - did you mean cola"),
    "precision": (
        ("cola", "--precision", "fp16"),
        2,
        "error: training.precision = 'fp16' is wrong: must be 'auto', 'fp32' or 'bf16' - did you mean bf16?",
    ),
    "batch size": (
        ("cola", "--batch-size", "0"),
        2,
        "error: training.batch_size = 0 is out of range - give an integer",
    ),
    "batch larger than rows": (
        ("cola", "--data", "demo", "--limit", "20", "--batch-size", "21"),
        2,
        "error: a batch of 21 is larger than all 20 training rows - give --batch-size at most 20",
    ),
    "steps": (("cola", "--data", "demo", "--steps", "0"), 2, "error: --steps 0 - give at least 1"),
    "model": (("cola", "--model", "nowhere"), 5, "error: 'nowhere' is neither a directory nor in the cache"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake, run, tiny_model):
    arguments, code, line = MISTAKES[mistake]
    model = () if mistake == "model" else ("--model", tiny_model)
    ended = run("bench", *arguments, *model)
    assert ended.code == code, ended.err
    assert ended.last.startswith(line)
    assert [line for line in ended.err.splitlines() if not line.endswith(" ...")] == [ended.last]
    assert ended.out == ""


def test_a_setting_that_training_refuses_is_told_as_there(tiny_model, rows):
    class Balanced:
        opened = 0

        def start(self, name: str, total: int, done: int = 0) -> None:
            self.opened += 1

        def update(self, done: int, figures: dict) -> None:
            assert self.opened > 0

        def record(self, entry: dict) -> None:
            pass

        def finish(self) -> None:
            assert self.opened > 0
            self.opened -= 1

    progress = Balanced()
    with pytest.raises(RecipeError, match=r"training\.extra\.learning_rate is decided by training\.learning_rate"):
        bench([recipe_of(tiny_model, rows, extra={"learning_rate": 1})], progress=progress)
    bench([recipe_of(tiny_model, rows)], steps=1, progress=progress)
    assert progress.opened == 0


@pytest.mark.parametrize("step", [1, 4])
def test_a_signal_ends_it_and_leaves_nothing(step, tiny_model, rows, temporary):
    class Killer(Silent):
        def update(self, done: int, figures: dict) -> None:
            if done == step:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError) as ended:
        bench([recipe_of(tiny_model, rows)], progress=Killer())
    assert (ended.value.exit_code, str(ended.value)) == (143, "stopped; nothing is left behind")
    assert list(temporary.iterdir()) == []


def test_several_processes_are_refused(run, tiny_model, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "bench measures one process" in run("bench", "--model", tiny_model, "--data", "demo").err
