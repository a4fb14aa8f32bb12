"""Kill -9 at any moment, then the same command: every file of the end equals that of an unbroken run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.kills import (
    COMMIT,
    EVALUATE,
    EXPORT_MODEL,
    FINISH,
    KEEP_ONLY,
    SAVE_MODEL,
    SAVE_PRETRAINED,
    SAVE_STATE,
    TRAINER,
    TRAINING_STEP,
    UNPAD,
    WRITE_MANIFEST,
    WRITE_PREDICTIONS,
    WRITE_REPORT,
    check_equal,
    everything,
    slow_unless,
    weights_of,
)

HALF_SAVED = [
    {"function": SAVE_PRETRAINED, "when": "after"},
    {"function": f"{TRAINER}._save_optimizer_and_scheduler", "when": "after"},
    {"function": COMMIT, "when": "before"},
    {"function": COMMIT, "when": "after"},
]
SAVE_STAGES = [
    *HALF_SAVED,
    {"function": f"{TRAINER}._save_checkpoint", "when": "before"},
    {"function": SAVE_MODEL, "when": "after"},
    {"function": f"{TRAINER}._save_optimizer_and_scheduler", "when": "before"},
    {"function": f"{TRAINER}._save_rng_state", "when": "after"},
    {"function": SAVE_STATE, "when": "after"},
    {"function": WRITE_MANIFEST, "when": "before"},
    {"function": KEEP_ONLY, "when": "after"},
]
PUBLISH_STAGES = [
    {"function": EXPORT_MODEL, "when": "before"},
    {"function": EXPORT_MODEL, "when": "after"},
    {"function": WRITE_PREDICTIONS, "when": "after"},
    {"function": WRITE_REPORT, "when": "after"},
]
# `make test` kills at these stages, `make test-all` at every one.
QUICK = [*({**stage, "call": 2} for stage in HALF_SAVED[2:3]), PUBLISH_STAGES[2]]


@pytest.fixture(scope="module")
def command(tmp_path_factory, tiny_model) -> list[str]:
    from tests.conftest import toy_rows, write_csv

    folder = tmp_path_factory.mktemp("resume-data")
    write_csv(folder / "train.csv", toy_rows(96, seed=1))
    write_csv(folder / "validation.csv", toy_rows(40, seed=2))
    settings = ["training.evaluate_every=5", "training.log_every=2", "training.precision=fp32"]
    settings += ["training.keep_optimizer=true"]  # so that it is compared too
    arguments = ["finetune", "classify", "--model", str(tiny_model), "--data", str(folder), "--output", "run"]
    arguments += ["--batch-size", "16", "--epochs", "3", "--learning-rate", "1e-3"]
    return arguments + [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="module")
def unbroken(zygote, command, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    code, text = zygote.run(folder, command)
    assert code == 0, text
    return folder / "run"


@pytest.fixture(scope="module")
def killed(zygote, command, tmp_path_factory) -> Path:
    """A run that was killed at its twelfth step of 18, after a checkpoint at the tenth; tests copy it."""
    folder = tmp_path_factory.mktemp("killed")
    assert zygote.run(folder, command, {"function": TRAINING_STEP, "call": 12})[0] == -9
    return folder / "run"


def _name(fault: dict) -> str:
    return f"{fault['function'].rpartition('.')[2]}-{fault['when']}-{fault.get('call', 1)}"


@pytest.mark.parametrize(
    "fault",
    slow_unless(QUICK, [*({**stage, "call": call} for call in (2, 1) for stage in SAVE_STAGES), *PUBLISH_STAGES]),
    ids=_name,
)
def test_a_kill_at_any_stage_of_a_save_changes_nothing(zygote, command, unbroken, tmp_path, fault):
    code, text = zygote.run(tmp_path, command, fault)
    assert code == -9, text
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow  # a quick test moves such a run before it goes on
@pytest.mark.parametrize("step", [1, 4, 7, 13])
def test_a_kill_between_steps_changes_nothing(zygote, command, unbroken, tmp_path, step):
    fault = {"function": TRAINING_STEP, "call": step}
    assert zygote.run(tmp_path, command, fault)[0] == -9
    assert zygote.run(tmp_path, command)[0] == 0
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_a_kill_changes_nothing_where_batches_are_computed_without_padding(zygote, command, tmp_path):
    from tests.conftest import write_csv

    rows = [{"text": "good bad " * (1 + number % 9), "label": "ab"[number % 2]} for number in range(80)]
    for name in ("data", "whole"):
        (tmp_path / name).mkdir()
    for name in ("train", "validation"):
        write_csv(tmp_path / "data" / f"{name}.csv", rows)
    command = [*command, "--data", str(tmp_path / "data"), "--set", "training.batching=random"]
    assert zygote.run(tmp_path / "whole", command)[0] == 0
    fault = {"function": UNPAD, "call": 8}
    assert zygote.run(tmp_path, command, fault)[0] == -9
    assert zygote.run(tmp_path, command)[0] == 0
    check_equal(tmp_path / "run", tmp_path / "whole" / "run")


@pytest.mark.parametrize("name", slow_unless(["SIGTERM"], ["SIGTERM", "SIGINT", "SIGHUP"]))
def test_a_signal_saves_at_the_step_and_the_same_command_goes_on(zygote, command, unbroken, tmp_path, name):
    fault = {"function": TRAINING_STEP, "call": 8, "signal": name}
    ended, text = zygote.run(tmp_path, command, fault)
    assert ended == {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}[name], text
    assert "all is saved - the same command resumes" in text
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"
    assert (tmp_path / "run" / "checkpoint-8" / "bertkit-manifest.json").is_file()
    assert zygote.run(tmp_path, command)[0] == 0
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("function", [COMMIT, EVALUATE])
def test_a_signal_while_nothing_is_trained_waits_for_the_next_step(zygote, command, unbroken, tmp_path, function):
    """A checkpoint or an evaluation that has begun is finished; the step after it is the last."""
    code, text = zygote.run(tmp_path, command, {"function": function, "call": 2, "signal": "SIGTERM"})
    assert (code, "all is saved - the same command resumes" in text) == (143, True), text
    assert (tmp_path / "run" / "checkpoint-11" / "bertkit-manifest.json").is_file()
    assert zygote.run(tmp_path, command)[0] == 0
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "fsdp"), [(0, "false"), (1, "false"), (0, "true"), (1, "true")])
def test_a_launch_goes_on_after_one_of_its_processes_was_killed(zygote, command, tmp_path_factory, rank, fsdp):
    def launch(folder: Path, fault: dict | None = None) -> list[int]:
        printed = str(folder / "out.txt")
        arguments = [*command, "--set", f"training.fsdp={fsdp}"]
        return zygote.answer(folder, arguments, processes=2, fault=fault, out=printed, err=printed)

    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    assert launch(whole) == [0, 0]
    codes = launch(broken, {"function": TRAINING_STEP, "call": 8, "rank": str(rank)})
    assert codes[rank] == -9 and 0 not in codes
    assert launch(broken) == [0, 0]
    check_equal(broken / "run", whole / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("fsdp", "processes"), [("false", 1), ("true", 4)])
def test_a_launch_goes_on_with_another_number_of_processes(zygote, command, tmp_path_factory, fsdp, processes):
    def launch(folder: Path, processes: int, fault: dict | None = None) -> list[int]:
        printed = str(folder / "out.txt")
        arguments = [*command, "--set", f"training.fsdp={fsdp}", "--set", "training.fast_dropout=false"]
        return zygote.answer(folder, arguments, processes=processes, fault=fault, out=printed, err=printed)

    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    assert launch(whole, 2) == [0, 0]
    assert 0 not in launch(broken, 2, {"function": TRAINING_STEP, "call": 8, "rank": "1"})
    assert launch(broken, processes) == [0] * processes, (broken / "out.txt").read_text()
    assert "resum" in (broken / "out.txt").read_text()
    expected, weights = weights_of(whole / "run"), weights_of(broken / "run")
    assert expected.keys() == weights.keys()
    for name in expected:
        np.testing.assert_allclose(weights[name], expected[name], atol=2e-4, err_msg=name)


OPTIONS = {  # reading texts twice, for one
    "ner-features": ["options.tagger_size=8"],
    "rerank": ["options.loss=listwise", "training.batch_size=2"],
    "similarity-pairs": ["options.mini_batch=5"],
    "sparse": ["options.inference_free=true"],
    "similarity-triples": ["options.mini_batch=5", "options.loss=TripletLoss"],
}
FAMILIES = [
    "ner",
    "squad2",
    "choose",
    "wsd",
    "similarity",
    "similarity-texts",
    "few-shot",
    *OPTIONS,
]
FAMILIES += ["late-interaction"]


@pytest.mark.parametrize("recipe", slow_unless([], FAMILIES))
def test_a_kill_changes_nothing_for_any_family(zygote, tmp_path_factory, recipe):
    arguments = ["finetune", recipe, "--model", "demo", "--data", "demo", "--limit", "40", "--output", "run"]
    settings = ["training.batch_size=8", "training.epochs=2", "training.evaluate_every=3", "training.precision=fp32"]
    settings += OPTIONS.get(recipe, [])
    arguments += [part for setting in settings for part in ("--set", setting)]
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    code, text = zygote.run(whole, arguments)
    assert code == 0, text
    assert zygote.run(broken, arguments, {"function": TRAINING_STEP, "call": 8})[0] == -9
    code, text = zygote.run(broken, arguments)
    assert code == 0, text
    assert "resuming run" in text
    check_equal(broken / "run", whole / "run")


@pytest.mark.slow
def test_a_kill_while_nothing_is_trained_changes_nothing(zygote, tmp_path_factory):
    arguments = ["finetune", "wsd-nearest", "--model", "demo", "--data", "demo", "--limit", "60", "--output", "run"]
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    assert zygote.run(whole, arguments)[0] == 0
    fault = {"function": WRITE_PREDICTIONS, "when": "after"}
    assert zygote.run(broken, arguments, fault)[0] == -9
    code, text = zygote.run(broken, arguments)
    assert code == 0, text
    check_equal(broken / "run", whole / "run")


@pytest.mark.slow
def test_killed_twice_then_finished(zygote, command, unbroken, tmp_path):
    step = {"function": TRAINING_STEP}
    assert zygote.run(tmp_path, command, {**step, "call": 7})[0] == -9
    assert zygote.run(tmp_path, command, {**step, "call": 6})[0] == -9
    assert zygote.run(tmp_path, command)[0] == 0
    check_equal(tmp_path / "run", unbroken)


def test_an_unfinished_run_may_be_moved(zygote, command, unbroken, killed, tmp_path):
    shutil.copytree(killed, tmp_path / "moved")
    code, text = zygote.run(tmp_path, [*command, "--output", str(tmp_path / "moved")])
    assert code == 0, text
    assert "resuming" in text
    check_equal(tmp_path / "moved", unbroken)
    assert not (tmp_path / "run").exists()


def names_in(run: Path) -> set[str]:
    return {str(file.relative_to(run)) for file in run.rglob("*")}


# Every stage after the last step, where the next process has nothing left to train.
LATE = [
    {"function": COMMIT, "when": "after", "call": 4},
    {"function": KEEP_ONLY, "when": "before", "call": 4},
    {"function": EXPORT_MODEL, "when": "after"},
    {"function": FINISH, "when": "before"},
]


@pytest.mark.parametrize("fault", slow_unless([LATE[1]], LATE), ids=_name)
def test_a_kill_near_the_end_leaves_nothing_behind(zygote, command, unbroken, tmp_path, fault):
    assert zygote.run(tmp_path, command, fault)[0] == -9
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    assert names_in(tmp_path / "run") == names_in(unbroken)
    check_equal(tmp_path / "run", unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("is_damaged", slow_unless([False], [False, True]))
def test_a_kill_while_optimizer_states_are_deleted_leaves_a_run_that_ends_alike(
    zygote, command, unbroken, tmp_path, is_damaged
):
    command = [part.replace("keep_optimizer=true", "keep_optimizer=false") for part in command]
    fault = {"function": WRITE_MANIFEST, "when": "after", "call": 5}  # the manifests of four checkpoints come first
    assert zygote.run(tmp_path, command, fault)[0] == -9
    _best, last = sorted((tmp_path / "run").glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    if is_damaged:
        (last / "model.safetensors").write_bytes(b"")
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    assert (f"skipping {last.name}: model.safetensors does not match" in text) is is_damaged
    assert ("its optimizer states were deleted" in text) is is_damaged  # those of the best: all is trained anew
    ours, theirs = everything(tmp_path / "run"), everything(unbroken)
    ours["recipe.yaml"] = theirs["recipe.yaml"]  # which say whether they are kept
    assert ours == {name: content for name, content in theirs.items() if not name.endswith("optimizer.pt")}


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(2, 22))
def test_a_kill_at_a_random_moment_changes_nothing(zygote, command, unbroken, tmp_path, moment):
    zygote.run(tmp_path, command, {"seconds": moment / 20})  # such a run takes about a second
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    check_equal(tmp_path / "run", unbroken)


DAMAGES = [
    ("model.safetensors", "flip"),
    ("optimizer.pt", "flip"),
    ("optimizer.pt", "delete"),
    ("rng_state.pth", "delete"),
    ("trainer_state.json", "truncate"),
]


@pytest.mark.parametrize("damaged", slow_unless([DAMAGES[0]], DAMAGES), ids="-".join)
def test_a_damaged_checkpoint_is_passed_over_and_named(zygote, command, unbroken, killed, tmp_path, damaged):
    file, damage = damaged
    shutil.copytree(killed, tmp_path / "run")
    victim = tmp_path / "run" / "checkpoint-10" / file
    content = bytearray(victim.read_bytes())
    if damage == "delete":
        victim.unlink()
    else:
        content[len(content) // 2] ^= 1
        victim.write_bytes(bytes(content) if damage == "flip" else bytes(content[: len(content) // 2]))
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    reason = "is missing" if damage == "delete" else "does not match its checksum"
    assert f"skipping checkpoint-10: {file} {reason}" in text
    check_equal(tmp_path / "run", unbroken)
