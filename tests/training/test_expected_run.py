"""`--expect-run`: a run to come has what another run had, or what differs is named."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, ModelError
from bertkit.storage import runs
from bertkit.training.run import check_expected_run

MACHINE = {"device": "cpu", "precision": "fp32", "threads": 1, "reason": "as asked"}
IDENTITY = {"data": {"train": "a" * 64}, "model": "b" * 64, "recipe": {"training": {"seed": 1}}}


@pytest.fixture
def expected_run(tmp_path):
    runs.write_record(tmp_path, runs.new_record(IDENTITY, machine=MACHINE, seconds=0.0))
    return tmp_path


def test_settings_may_differ(expected_run):
    check_expected_run({**IDENTITY, "recipe": {"training": {"seed": 2}}}, expected_run)


@pytest.mark.parametrize(
    ("changed", "error", "name"),
    [
        ({"data": {"train": "c" * 64}}, DataError, "data.train: aaaa"),
        ({"model": "c" * 64}, ModelError, "model: bbbb"),
        ({"data": {"train": "c" * 64}, "model": "c" * 64}, ModelError, "data.train: aaaa"),
    ],
)
def test_what_differs_is_named_and_gives_the_exit_code(expected_run, changed, error, name):
    with pytest.raises(error) as caught:
        check_expected_run(IDENTITY | changed, expected_run)
    assert name in caught.value.message


def test_versions_are_pinned_too(expected_run, monkeypatch):
    monkeypatch.setattr(runs, "versions", lambda: {"torch": "0.1"})
    with pytest.raises(ModelError, match=r"versions\.torch: .* there, 0\.1 requested"):
        check_expected_run(IDENTITY, expected_run)


def test_a_folder_without_a_run_pins_nothing(tmp_path):
    with pytest.raises(ModelError, match="not a run folder"):
        check_expected_run(IDENTITY, tmp_path)
