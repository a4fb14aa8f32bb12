"""A fault at any file operation, then the same command: it ends as an unbroken one does, and no fault goes unsaid.

CONTRIBUTING.md says how much of the grid is run when, and how all of it is.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil

import pytest

from tests.conftest import toy_rows, write_csv
from tests.faults import EXTENT, FAULTS, Grid, read_built, read_folder, read_run

SETTINGS = "precision=fp32", "batch_size=8", "evaluate_every=2", "log_every=1", "epochs=1"
FINETUNE = " ".join(f"--set training.{setting}" for setting in SETTINGS) + " --output run"
PRETRAIN = "--steps 4 --max-length 128 --batch-size 4 --limit 200 --set training.evaluate_every=2 --output run"
PRETRAIN += " --set training.precision=fp32"
DEMO, NEW = "--model demo --data demo", "--tokenizer demo --size tiny --data demo"

FAMILIES = "cola", "stsb", "ner", "swag", "squad2", "wsd", "ner-features", "wsd-nearest", "rerank", "similarity-triples"
OBJECTIVES = {
    "mlm": DEMO,
    "span": DEMO,
    "bert": f"{DEMO} --set training.short_length=null --set data.validation_fraction=0.1",
    "albert": NEW,
    "electra": "--tokenizer demo --data demo --size electra-small --set options.generator_size=0.5 "
    "--set model_options.num_hidden_layers=2 --set model_options.embedding_size=16 --set model_options.hidden_size=32",
    "distilbert": f"{DEMO} --set training.short_length=null",
    "tinybert": f"{DEMO} --set options.student_layers=1",
}
COMMANDS = {
    **{name: f"finetune {name} {DEMO} --limit 32 {FINETUNE}" for name in FAMILIES},
    "features": f"finetune cola {DEMO} {FINETUNE} --set training.steps=4",
    "distill": f"distill classify --teacher TRAINED --student-layers 1 --data ROWS {FINETUNE}",
    **{name: f"pretrain {name} {model} {PRETRAIN}" for name, model in OBJECTIVES.items()},
    "tokenizer": "pretrain tokenizer --data demo --limit 200 --vocabulary-size 300 --output made/tok",
    **{
        f"predict-{ending}": f"predict classify ROWS/train.csv --model TRAINED -o made/out.{ending}"
        for ending in ("jsonl", "csv", "parquet")
    },
    "eval": "eval classify --model TRAINED --data ROWS --output made",
    "prune": "prune TRAINED --data ROWS --layers 1 --sample 8 -o made/pruned",
    "export": "export TRAINED --data ROWS -o made/exported",
}
OTHERS = {
    **dict.fromkeys(("tokenizer", "predict-jsonl", "predict-csv", "predict-parquet", "eval"), read_folder),
    **dict.fromkeys(("prune", "export"), read_built),
}
"""Commands that make no run -> how what they made is read."""

# Of a small fine-tuning run: opening, saving and publishing.
SAMPLE = [
    pytest.param("kill", "fsync /run/.run.json.tmp", marks=pytest.mark.slow),
    pytest.param("kill", "rename /run/checkpoint-4/bertkit-manifest.json", marks=pytest.mark.slow),
    pytest.param("kill", "rename /run/model.safetensors", marks=pytest.mark.slow),  # test_resume.py kills too
    ("full", "write /run/checkpoint-4/optimizer.pt"),
    pytest.param("quota", "write /run/.export/tokenizer.json", marks=pytest.mark.slow),
    ("eio", "fsync /run/checkpoint-2/optimizer.pt"),
    ("read-only", "open /run/checkpoint-4/trainer_state.json"),
]


@pytest.fixture(scope="module")
def make_grid(zygote, tmp_path_factory, request):
    """Build the grid of a command, with folders of its own."""
    if not zygote.has_faults:
        pytest.skip("there is no C compiler")
    rows = tmp_path_factory.mktemp("rows")
    for seed, (name, count) in enumerate({"train": 48, "validation": 24}.items()):
        write_csv(rows / f"{name}.csv", toy_rows(count, seed))

    def make(command: str, outcome=read_run, index=None) -> Grid:
        parent, numbers = tmp_path_factory.mktemp("faults"), itertools.count()

        def make_folder():
            folder = parent / str(next(numbers))
            (folder / "made").mkdir(parents=True)
            if index is not None:
                shutil.copytree(index, folder / "made" / "index")
            return folder

        if "TRAINED" in command:
            command = command.replace("TRAINED", str(request.getfixturevalue("trained")))
        return Grid(zygote, shlex.split(command.replace("ROWS", str(rows))), outcome, make_folder)

    return make


@pytest.fixture(scope="module")
def small(make_grid, tiny_model):
    return make_grid(f"finetune classify --model {tiny_model} --data ROWS --limit 32 {FINETUNE}")


@pytest.mark.parametrize(("fault", "operation"), SAMPLE)
def test_a_fault_at_an_operation_is_told_and_the_same_command_goes_on(small, fault, operation):
    number = next(n for n, done in enumerate(small.operations, 1) if done.startswith(operation))
    assert small.strike(number, FAULTS[fault]) is None


def test_a_disk_that_is_full_is_named_and_the_half_checkpoint_makes_room(small):
    number = next(n for n, done in enumerate(small.operations, 1) if "checkpoint-4/optimizer.pt" in done) + 1
    folder = small.make_folder()
    code, text = small.run(folder, number, FAULTS["full"])
    last = text.strip().splitlines()[-1]
    assert code == 6
    assert re.fullmatch(
        r"error: No space left on device; [\d,.]+ MB are free, [\d,.]+ MB are needed \(run\) - "
        r"free some space, then repeat the command",
        last,
    )
    assert [file.name for file in (folder / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    shutil.rmtree(folder)


def test_the_record_says_how_a_run_ended_where_it_can_be_written(small):
    number = next(n for n, done in enumerate(small.operations, 1) if done.startswith("fsync /run/checkpoint-2/opt"))
    folder = small.make_folder()
    assert small.run(folder, number, FAULTS["eio"])[0] == 6
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["error"].startswith("Input/output error (") and "check the disk" in record["error"]
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS if EXTENT else ["kill", "full"])
@pytest.mark.parametrize("name", COMMANDS if EXTENT else ["cola", "mlm", "features", *OTHERS])
def test_a_fault_at_any_operation_changes_nothing(make_grid, record_testsuite_property, name, fault):
    grid = make_grid(COMMANDS[name], OTHERS.get(name, read_run))
    numbers = grid.places()
    if name == "features":  # the rest is that of cola
        numbers = [number for number in numbers if "/cache/" in grid.operations[number - 1]]
        assert numbers
    if fault == "kill" and EXTENT == "all":
        wrong = grid.kill_at_all()
    else:
        wrong = [found for number in numbers if (found := grid.strike(number, FAULTS[fault]))]
    counts = f"{len(grid.operations)} operations, {len(numbers)} cases, {dict(grid.counts)}"
    record_testsuite_property(f"faults {name}-{fault}", counts)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "full"])
@pytest.mark.parametrize("change", ["build", "add", "delete"])
def test_a_fault_leaves_an_index_that_the_same_command_completes(make_grid, tiny_model, change, fault):
    pytest.importorskip("bm25s")
    build = f"search build ROWS/train.csv --model {tiny_model} --precision fp32 -o made/index"
    if change == "build":
        grid = make_grid(build, read_folder)
    else:
        built = make_grid(build, read_folder)
        index = built.make_folder()
        assert built.run(index)[0] == 0
        commands = {"add": "search add made/index ROWS/validation.csv", "delete": "search delete made/index --id 3"}
        grid = make_grid(commands[change], read_folder, index / "made" / "index")
    numbers = [number for number in grid.places() if "index" in grid.operations[number - 1]]
    assert len(numbers) >= (4 if change == "delete" else 20)
    assert [found for number in numbers if (found := grid.strike(number, FAULTS[fault]))] == []
