"""Checkpoints that count only once they are complete."""

from __future__ import annotations

import os

import pytest

from bertkit.storage import checkpoints
from bertkit.storage.fingerprints import write_with_checksum


def write(run, step, content="weights"):
    folder = checkpoints.checkpoint_folder(run, step)
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_text(content)
    (folder / "deep" / "state.json").write_text("{}")
    checkpoints.commit(folder, {"step": step})
    return folder


def test_a_committed_checkpoint_is_complete(tmp_path):
    folder = write(tmp_path, 7)
    assert checkpoints.find_defect(folder) is None
    manifest = checkpoints.read_manifest(folder)
    assert manifest["step"] == 7
    assert set(manifest["files"]) == {"model.safetensors", "deep/state.json"}


def damage_manifest(folder):
    (folder / checkpoints.MANIFEST).write_text("{")


def raise_schema(folder):
    values = checkpoints.read_manifest(folder)
    write_with_checksum(folder / checkpoints.MANIFEST, {**values, "schema_version": 2})


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda folder: (folder / checkpoints.MANIFEST).unlink(), "it was not finished"),
        (damage_manifest, f"{checkpoints.MANIFEST} is damaged"),
        (raise_schema, f"{checkpoints.MANIFEST} has schema 2, this bertkit reads 1"),
        (lambda folder: (folder / "deep" / "state.json").unlink(), "deep/state.json is missing"),
        (lambda folder: (folder / "model.safetensors").write_text("weighty"), "model.safetensors does not match"),
        (lambda folder: (folder / "model.safetensors").write_text(""), "model.safetensors does not match"),
    ],
)
def test_a_fault_is_found_and_the_checkpoint_before_is_used(tmp_path, harm, fault):
    earlier, folder = write(tmp_path, 9), write(tmp_path, 10)
    harm(folder)
    assert checkpoints.find_defect(folder).startswith(fault)
    newest, skipped = checkpoints.get_last_checkpoint(tmp_path)
    assert newest == earlier
    assert len(skipped) == 1 and skipped[0].startswith(f"skipping checkpoint-10: {fault}")


def test_only_some_steps_are_kept_and_remains_are_deleted(tmp_path):
    for step in (2, 10, 20):
        write(tmp_path, step)
    (tmp_path / ".discarded-checkpoint-1").mkdir()
    checkpoints.keep_only(tmp_path, [10, 20])
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-20"]


def test_what_a_signal_saved_goes_but_for_the_last(tmp_path):
    for step, by_signal in ((2, False), (3, True), (4, False), (5, True)):
        folder = write(tmp_path, step)
        checkpoints.commit(folder, {checkpoints.BY_SIGNAL: by_signal})
    (write(tmp_path, 1) / checkpoints.MANIFEST).write_text("{")
    checkpoints.discard_signalled(tmp_path, 5)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [f"checkpoint-{step}" for step in (1, 2, 4, 5)]


def test_a_folder_to_write_is_cleared_first(tmp_path):
    folder = write(tmp_path, 3)
    checkpoints.clear(folder)
    checkpoints.clear(folder)  # nothing there is fine
    assert list(tmp_path.iterdir()) == []
    assert checkpoints.get_last_checkpoint(tmp_path) == (None, [])


def test_an_unfinished_checkpoint_is_discarded(tmp_path):
    whole, half = write(tmp_path, 3), write(tmp_path, 4)
    (half / checkpoints.MANIFEST).unlink()
    checkpoints.discard_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [whole]


@pytest.mark.parametrize(("saves", "most"), [(0, 0), (1, 16), (2, 28), (3, 36), (9, 36)])
def test_a_run_has_up_to_three_checkpoints_at_a_time_and_at_the_end_two_and_the_weights(saves, most):
    assert checkpoints.max_disk_usage(4, 12, saves, min(saves, 2)) == most


def test_a_run_that_keeps_all_checkpoints_needs_room_for_them_and_the_weights():
    assert checkpoints.max_disk_usage(4, 12, 9, 9) == 9 * 12 + 4


def test_the_newest_whole_checkpoint_is_that_of_the_most_steps(tmp_path):
    folders = {step: write(tmp_path, step) for step in (10, 2, 30)}
    (folders[30] / checkpoints.MANIFEST).unlink()
    assert checkpoints.get_last_checkpoint(tmp_path)[0] == folders[10]


def test_what_is_written_already_is_counted(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert checkpoints.written_bytes(tmp_path) == 0
    manifest = (write(tmp_path, 3) / checkpoints.MANIFEST).stat().st_size
    assert checkpoints.written_bytes(tmp_path) == len("weights{}") + manifest
    assert checkpoints.written_bytes(tmp_path / "none") == 0


def test_one_bit_anywhere_in_a_manifest_is_noticed(tmp_path):
    folder = write(tmp_path, 10)
    manifest = folder / checkpoints.MANIFEST
    whole, values = manifest.read_bytes(), checkpoints.read_manifest(folder)
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 2
        manifest.write_bytes(content)
        if checkpoints.find_defect(folder) is None:  # spaces between values, and the name of the checksum
            assert values.items() <= checkpoints.read_manifest(folder).items()
    manifest.write_bytes(whole)
    assert checkpoints.find_defect(folder) is None


def test_the_step_says_which_checkpoint_is_the_newest_whatever_the_clock_says(tmp_path):
    folders = [write(tmp_path, step) for step in (9, 10, 100)]
    for hours, folder in enumerate(reversed(folders)):
        os.utime(folder, (hours * 3600, hours * 3600))
    assert checkpoints.get_last_checkpoint(tmp_path) == (folders[-1], [])


def test_a_symbolic_link_is_no_file_of_a_checkpoint(tmp_path):
    folder = write(tmp_path, 10)
    file = folder / "model.safetensors"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert checkpoints.find_defect(folder) == "model.safetensors is missing"


def write_with_optimizer(run, step, **facts):
    folder = checkpoints.checkpoint_folder(run, step)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("weights")
    (folder / checkpoints.OPTIMIZER).write_text("moments")
    checkpoints.commit(folder, {"step": step, **facts})
    return folder


def test_a_trimmed_checkpoint_is_whole_and_training_goes_on_from_none_but_the_last(tmp_path):
    best, last = write_with_optimizer(tmp_path, 5), write_with_optimizer(tmp_path, 10, finished=True)
    assert checkpoints.get_last_checkpoint(tmp_path, to_train=True) == (last, [])
    assert checkpoints.delete_optimizer_states(tmp_path) == 2 * len("moments")
    assert checkpoints.delete_optimizer_states(tmp_path) == 0
    assert [checkpoints.find_defect(folder) for folder in (best, last)] == [None, None]
    assert sorted(file.name for file in best.iterdir()) == [checkpoints.MANIFEST, "model.safetensors"]
    assert checkpoints.read_manifest(last)["finished"]
    assert checkpoints.get_last_checkpoint(tmp_path, to_train=True) == (last, [])
    (last / "model.safetensors").write_text("of another")
    assert checkpoints.get_last_checkpoint(tmp_path)[0] == best
    skipped = ["checkpoint-10: model.safetensors does not match its checksum", "checkpoint-5: its optimizer states"]
    newest, lines = checkpoints.get_last_checkpoint(tmp_path, to_train=True)
    assert newest is None and [line.startswith(f"skipping {name}") for line, name in zip(lines, skipped, strict=True)]


def test_a_kill_while_a_checkpoint_is_trimmed_leaves_it_whole(tmp_path, monkeypatch):
    folder = write_with_optimizer(tmp_path, 5)

    def kill(*_, **__):
        raise KeyboardInterrupt

    for broken, what in ((checkpoints, "write_with_checksum"), (checkpoints.Path, "unlink")):
        with monkeypatch.context() as patch:
            patch.setattr(broken, what, kill)
            with pytest.raises(KeyboardInterrupt):
                checkpoints.delete_optimizer_states(tmp_path)
        assert checkpoints.find_defect(folder) is None
        assert (folder / checkpoints.OPTIMIZER).exists()
    assert checkpoints.delete_optimizer_states(tmp_path) == len("moments")
    assert not (folder / checkpoints.OPTIMIZER).exists()


def test_trimming_neither_touches_nor_mends_what_is_no_whole_checkpoint(tmp_path):
    damaged, half = write_with_optimizer(tmp_path, 5), write_with_optimizer(tmp_path, 6)
    (damaged / "model.safetensors").write_text("of another")
    (half / checkpoints.MANIFEST).unlink()
    checkpoints.delete_optimizer_states(tmp_path)
    assert checkpoints.find_defect(damaged) == "model.safetensors does not match its checksum"
    assert (half / checkpoints.OPTIMIZER).exists()
