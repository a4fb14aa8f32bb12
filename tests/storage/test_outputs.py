"""Files that a user names for output: not an input, written by one process, and nothing else left beside them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage.outputs import check_not_inputs, create_folder_atomically, lock_output, lock_output_folder


@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
def test_an_output_that_is_an_input_is_refused(here, link):
    (here / "in.csv").write_text("text\n")
    output = Path("in.csv" if link is None else "out.csv")
    if link is not None:
        getattr(output, link)(here / "in.csv")
    with pytest.raises(UsageError, match=rf"--output is the file to predict \({output}\) - nothing was written"):
        check_not_inputs(output, [("something else", Path("nowhere.csv")), ("the file to predict", Path("./in.csv"))])
    check_not_inputs(Path("new.csv"), [("the file to predict", Path("in.csv"))])


def test_a_second_process_is_refused_by_the_name_of_the_first(here):
    Path("other.csv").symlink_to(here / "out.csv")
    holder = rf"process {os.getpid()} on \S+ is writing this output"
    for same in ("out.csv", "other.csv"):
        with lock_output(Path("out.csv")), pytest.raises(ResourceError, match=rf"{holder} \({same}\) - wait for it"):  # noqa: SIM117
            with lock_output(Path(same)):
                pass
    with lock_output(Path("out.csv")), lock_output(Path("else.csv")):
        pass


def test_nothing_is_left_beside_an_output(here):
    with pytest.raises(ValueError, match="broken"), lock_output(Path("out.csv")):
        assert [entry.name for entry in here.iterdir()] == [".out.csv.lock"]
        raise ValueError("broken")
    assert list(here.iterdir()) == []


def test_a_lock_that_cannot_be_deleted_does_not_fail_what_is_written(here, monkeypatch):
    def make_error(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", make_error)
        with lock_output(Path("out.csv")):
            Path("out.csv").write_text("done")
    with lock_output(Path("out.csv")):  # it holds nothing any more
        pass
    assert [entry.name for entry in here.iterdir()] == ["out.csv"]


def test_what_cannot_be_written_is_refused_at_once(here):
    with (
        pytest.raises(ResourceError, match="cannot be written: No such file or directory"),
        lock_output(Path("no/a.csv")),
    ):
        pass
    (here / "a.csv").mkdir()
    with pytest.raises(UsageError, match=r"a folder, not a file \(a.csv\)"), lock_output(Path("a.csv")):
        pass
    os.mkfifo("b.csv")
    with pytest.raises(UsageError, match="a pipe or device, not a file"), lock_output(Path("b.csv")):
        pass


def test_a_file_that_its_owner_protects_is_not_replaced(here, monkeypatch):
    (here / "a.csv").write_text("mine")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write any file
    with pytest.raises(ResourceError, match="the file is write-protected"), lock_output(Path("a.csv")):
        pass


def test_a_folder_is_claimed_before_it_is_there(here):
    with lock_output_folder(Path("a/b")), pytest.raises(ResourceError, match="is writing this output"):  # noqa: SIM117
        with lock_output_folder(Path("a/b")):
            pass
    assert [str(entry) for entry in Path().rglob("*")] == ["a"]
    (here / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be written: Not a directory"), lock_output_folder(Path("file/b/c")):
        pass


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "folder"
    with pytest.raises(ValueError, match="broken"), create_folder_atomically(target) as staging:
        (staging / "file").write_text("half")
        raise ValueError("broken")
    assert list(target.parent.iterdir()) == []
    with create_folder_atomically(target) as staging:
        (staging / "file").write_text("whole")
    assert [entry.name for entry in target.parent.iterdir()] == ["folder"]
