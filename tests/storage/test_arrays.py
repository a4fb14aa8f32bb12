"""Arrays in files: whole or computed anew, and of a user refused where they are damaged."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from bertkit.storage.columns import map_npy, read_arrays, write_arrays


@pytest.mark.parametrize("damage", ["flipped", "half", "empty"])
def test_cached_arrays_are_read_whole_or_not_at_all(damage, tmp_path, caplog):
    caplog.set_level("INFO", "bertkit")
    file = tmp_path / "new" / "kept.arrays"
    assert read_arrays(file) is None
    write_arrays(file, {"vectors": np.arange(6.0).reshape(2, 3)})
    assert read_arrays(file)["vectors"].tolist() == [[0, 1, 2], [3, 4, 5]]
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        flipped = bytes([*content[:place], content[place] ^ 1, *content[place + 1 :]])
        file.write_bytes({"flipped": flipped, "half": content[:place], "empty": b""}[damage])
        assert read_arrays(file) is None
    assert "is damaged, so its numbers are computed anew" in caplog.text


def test_a_damaged_npy_file_is_mapped_or_refused(tmp_path):
    np.save(file := tmp_path / "a.npy", np.eye(3))
    content = file.read_bytes()
    assert (map_npy(file) == np.eye(3)).all()
    for place in range(130):
        for bit in (1, 4, 64):
            file.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            with contextlib.suppress(ValueError):
                map_npy(file)
    for damaged in (b"", content[:100], content[:-1], b"PK\x03\x04"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="not an npy file"):
            map_npy(file)
