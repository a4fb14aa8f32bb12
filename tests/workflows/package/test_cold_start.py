"""The cold start of a package: what its process takes and imports, or the reason why it does not run."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, ModelError
from bertkit.workflows.package.cold_start import measure_cold_start

CODE = """
class Model:
    def predict(self, rows):
        if rows[0]["text"] == "wrong":
            raise type("Wrong", (Exception,), {"exit_code": 3})("wrong row")
        return [{"prediction": len(rows[0]["text"])}]
"""


@pytest.fixture
def package(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made/__init__.py").write_text(CODE)
    return tmp_path


def test_an_answer_comes_with_its_cost(package):
    start = measure_cold_start(package, "made", {"text": "abc"})
    assert start.answer == {"prediction": 3} and start.imported == ()
    assert 0 < start.seconds < 60 and 1e6 < start.memory < 1e9
    assert [entry.name for entry in (package / "made").iterdir()] == ["__init__.py"]  # nothing is compiled there


def test_a_row_that_cannot_be_answered_and_a_package_that_does_not_run_differ(package):
    with pytest.raises(DataError, match="wrong row"):
        measure_cold_start(package, "made", {"text": "wrong"})
    with pytest.raises(ModelError, match=r"the package does not run: .*no_such"):
        measure_cold_start(package, "no_such", {})
