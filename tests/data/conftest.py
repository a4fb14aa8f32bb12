import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder, so that errors show short paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
