"""Records: written with a checksum, which tells damage."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError
from bertkit.storage import runs
from bertkit.storage.records import read_object, read_signed, write_signed

DAMAGED = ResourceError("the file is damaged")


def test_what_is_signed_comes_back_and_a_change_is_noticed(tmp_path):
    file = tmp_path / "a.json"
    assert read_signed(file, DAMAGED) is None
    write_signed(file, {"runs": [{"seed": 1}], "mean": float("nan")})
    assert read_signed(file, DAMAGED) == {"runs": [{"seed": 1}], "mean": None}
    assert read_object(file, DAMAGED)["sha256"]
    for damaged in (file.read_text().replace('"seed": 1', '"seed": 2'), "{}", "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="the file is damaged"):
            read_signed(file, DAMAGED)


MACHINE = {"device": "cpu", "precision": "fp32", "threads": 1, "reason": "as asked"}


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        "NaN",
        "{",
        "{}",
        "[" * 9999,
        '{"status": "finished"}',
    ],
)
def test_a_record_without_its_checksum_is_damaged(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ResourceError, match="the record of the run is damaged"):
        runs.read_record(tmp_path)


def test_no_value_of_a_signed_file_can_become_another(tmp_path):
    file, damaged = tmp_path / "a.json", ResourceError("damaged")
    write_signed(file, {"graph": None, "rows": 3})
    file.write_text(file.read_text().replace("null", "NaN"))
    assert read_signed(file, damaged) == {"graph": None, "rows": 3}
    file.write_text(file.read_text().replace("3", "4"))
    with pytest.raises(ResourceError, match="damaged"):
        read_signed(file, damaged)
