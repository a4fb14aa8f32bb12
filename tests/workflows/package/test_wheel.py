"""Wheels: the record lists every file with its checksum, and versions are those that installers take."""

from __future__ import annotations

import base64
import hashlib
from zipfile import ZipFile

import pytest

from bertkit.errors import UsageError
from bertkit.workflows.package.wheel import check_version, write_wheel


def test_a_wheel_lists_its_files_and_is_the_same_every_time(tmp_path):
    files = {"made/__init__.py": "x = 1\n", "made/model/a.bin": "\0" * 9, "README.md": "# é\n", "LICENSE": "Apache\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "made/old.pyc").write_text("compiled")
    wheel = write_wheel(tmp_path, "made", "1.0", ["numpy>=2.0,<3"])
    first = wheel.read_bytes()
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read("made-1.0.dist-info/RECORD").decode().splitlines()
        assert [line.split(",")[0] for line in record] == names and record[-1] == f"{names[-1]},,"
        for line in record[:-1]:
            name, digest, size = line.split(",")
            content = archive.read(name)
            assert int(size) == len(content)
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        metadata = archive.read("made-1.0.dist-info/METADATA").decode()
    assert "Requires-Dist: numpy>=2.0,<3\n" in metadata and metadata.endswith("\n\n# é\n")
    assert "made/old.pyc" not in names and "made-1.0.dist-info/licenses/LICENSE" in names
    assert write_wheel(tmp_path, "made", "1.0", ["numpy>=2.0,<3"]).read_bytes() == first


@pytest.mark.parametrize("version", ["", "one", "1.0-x", "v1", "1..0"])
def test_what_is_no_version_is_refused(version):
    with pytest.raises(UsageError, match="is no version of a wheel - write it like"):
        check_version(version)
    check_version("2026.11.23rc1")
