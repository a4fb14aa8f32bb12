"""A model of bertkit is used only as it was written: what is missing or changed is named, whatever the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertkit.errors import ModelError
from bertkit.storage import checkpoints, runs
from bertkit.storage.fingerprints import list_files
from bertkit.storage.hub import models
from bertkit.storage.hub.models import check_model


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(f"{name} of {folder.name}")


@pytest.fixture
def finished(tmp_path) -> Path:
    """A finished run with a checkpoint and a generator."""
    folder = tmp_path / "run"
    for model in (folder, folder / "generator", folder / "checkpoint-5"):
        write_model(model)
    (folder / "recipe.yaml").write_text("name: x\n")
    (folder / "checkpoint-5" / "optimizer.pt").write_text("moments")
    checkpoints.commit(folder / "checkpoint-5", {"step": 5})
    published = [f"{place}{name}" for place in ("", "generator/") for name in ("config.json", "model.safetensors")]
    files = list_files(folder, [*published, "recipe.yaml"])
    runs.write_record(
        folder, {"status": "finished", "best_checkpoint": "checkpoint-5", "tuned": {"x": 0.5}} | {"files": files}
    )
    return folder


def test_what_is_as_it_was_written_passes(finished, monkeypatch):
    (finished / "notes.txt").write_text("mine")
    (finished / "mine").mkdir()
    for folder in (finished, finished / "generator", finished / "checkpoint-5", finished / "mine"):
        check_model(folder)
    monkeypatch.chdir(finished / "generator")
    check_model(Path())
    flip(Path("model.safetensors"))
    with pytest.raises(ModelError, match=r"model.safetensors"):
        check_model(Path())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "recipe.yaml"])
def test_a_changed_file_is_named_with_what_can_be_used_instead(finished, name):
    flip(finished / name)
    with pytest.raises(ModelError) as raised:
        check_model(finished)
    assert str(raised.value) == (
        f"the file does not match its checksum ({finished / name}) - name {finished}/checkpoint-5 instead, or remove "
        f"{finished}/run.json to use the model unchecked"
    )
    shutil.rmtree(finished / "checkpoint-5")
    with pytest.raises(ModelError, match=" - restore it, or remove"):
        check_model(finished)
    (finished / "run.json").unlink()
    check_model(finished)


def test_a_missing_file_is_named(finished):
    (finished / "config.json").unlink()
    with pytest.raises(ModelError, match=r"the file is missing \(.*run/config.json\)"):
        check_model(finished)


def test_a_download_has_only_what_is_read(finished):
    for name in ("recipe.yaml", "config.json"):
        (finished / name).unlink()
    shutil.rmtree(finished / "generator")
    check_model(finished)
    flip(finished / "model.safetensors")
    with pytest.raises(ModelError, match="does not match its checksum"):
        check_model(finished)


def test_a_model_in_a_subfolder_has_its_checksums_in_the_run(finished):
    flip(finished / "generator" / "model.safetensors")
    check_model(finished)
    with pytest.raises(ModelError, match=r"does not match its checksum .*generator/model.safetensors"):
        check_model(finished / "generator")


def test_a_checkpoint_is_checked_but_for_what_only_a_resume_needs(finished):
    checkpoint = finished / "checkpoint-5"
    (checkpoint / "optimizer.pt").unlink()
    check_model(checkpoint)
    flip(checkpoint / "model.safetensors")
    with pytest.raises(ModelError, match=r"does not match its checksum .*checkpoint-5/model.safetensors"):
        check_model(checkpoint)
    (checkpoint / checkpoints.MANIFEST).write_text('{"files": [1]}')
    with pytest.raises(ModelError, match=r"bertkit-manifest.json is damaged"):
        check_model(checkpoint)
    (checkpoint / checkpoints.MANIFEST).unlink()
    with pytest.raises(ModelError, match="the checkpoint was not finished"):
        check_model(checkpoint)


@pytest.mark.parametrize("status", ["running", "stopped", "failed", "diverged"])
def test_a_run_that_is_not_finished_is_refused(finished, status):
    runs.write_record(finished, {"status": status})
    with pytest.raises(ModelError, match=f"the run is not finished .{status}.") as caught:
        check_model(finished)
    assert caught.value.remedy.endswith(f"or name its newest checkpoint: {finished / 'checkpoint-5'}")
    check_model(finished / "checkpoint-5")


def test_a_folder_of_others_passes(tmp_path):
    write_model(tmp_path)
    check_model(tmp_path)


def test_one_bit_in_the_record_is_noticed(finished):
    record = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**record, "tuned": {"x": 0.25}}))
    with pytest.raises(ModelError, match=r"the record of the run is damaged .*run.json\) - restore it, or remove"):
        check_model(finished)


COMMANDS = {
    "eval": ["eval", "classify", "--data", "{data}", "--model", "{damaged}"],
    "predict": ["predict", "classify", "--text", "a good film", "--model", "{damaged}"],
    "finetune": ["finetune", "classify", "--data", "{data}", "--model", "{damaged}"],
    "distill": ["distill", "classify", "--data", "{data}", "--model", "{tiny}", "--teacher", "{damaged}"],
    "layers": ["distill", "classify", "--data", "{data}", "--student-layers", "1", "--teacher", "{damaged}"],
    "bench": ["bench", "classify", "--data", "{data}", "--model", "{damaged}"],
    "fill-mask": ["fill-mask", "a [MASK] film", "--model", "{damaged}"],
    "pretrain": ["pretrain", "mlm", "--data", "demo", "--model", "{damaged}"],
    "tokenizer": ["pretrain", "mlm", "--data", "demo", "--size", "tiny", "--tokenizer", "{damaged}"],
    "distilbert": ["distill", "distilbert", "--data", "demo", "--teacher", "{damaged}"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("part", ["", "checkpoint"])
def test_every_command_names_one_flipped_bit(run, trained, tiny_model, toy_data, tmp_path, command, part):
    folder = Path(shutil.copytree(trained, tmp_path / "moved"))
    damaged = next(folder.glob("checkpoint-*")) if part else folder
    flip(damaged / "model.safetensors")
    words = [word.format(damaged=damaged, data=toy_data, tiny=tiny_model) for word in COMMANDS[command]]
    ended = run(*words)
    assert (ended.code, ended.out) == (4, ""), ended.err
    assert ended.last.startswith(f"error: the file does not match its checksum ({damaged}/model.safetensors) - ")
    assert list(Path().iterdir()) == []


def test_python_names_it_too(trained, tmp_path):
    import bertkit

    folder = Path(shutil.copytree(trained, tmp_path / "moved"))
    flip(folder / "tokenizer.json")
    with pytest.raises(ModelError, match=r"the file does not match its checksum .*tokenizer.json"):
        next(bertkit.predict(bertkit.load_recipe("classify", {"model": str(folder)}), row={"text": "x"}))


def test_one_bit_of_any_published_file_is_noticed(run, trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "moved"))
    listed = json.loads((trained / "run.json").read_text())["files"]
    model = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert model | {"recipe.yaml", "training_rows.npy"} == set(listed)
    for name in listed:
        flip(folder / name)
        ended = run("predict", "classify", "--text", "x", "--model", folder)
        assert (ended.code, ended.out) == (4, "")
        assert f"({folder / name})" in ended.last
        shutil.copyfile(trained / name, folder / name)
    assert run("predict", "classify", "--text", "x", "--model", folder).code == 0


def test_a_model_from_the_hub_is_checked_too(finished, monkeypatch):
    monkeypatch.setattr(models, "_find_on_hub", lambda name: finished)
    assert models.find_model("me/x") == finished
    flip(finished / "config.json")
    with pytest.raises(ModelError, match=r"does not match its checksum .*config\.json"):
        models.find_model("me/x")
