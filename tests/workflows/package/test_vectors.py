"""Vectors of a packaged model: what is no text is refused; that they equal the run's is tested per family."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.workflows.package import vectors as module
from bertkit.workflows.package.vectors import PackagedVectors


@pytest.fixture
def model(tmp_path, monkeypatch):
    made = PackagedVectors.__new__(PackagedVectors)
    made.setup = SimpleNamespace(tokenizer=SimpleNamespace(name_or_path=str(tmp_path)))
    made.forward = lambda features: [{"vectors": np.array([[float(len(one)), 2.0]])} for one in features]
    monkeypatch.setattr(module, "encode_rows", lambda rows, setup, roles: [text for (text,) in rows])
    return made


def test_texts_have_a_vector_each(model, tmp_path):
    assert model.embed(["ab", "c"]).tolist() == [[2.0, 2.0], [1.0, 2.0]]
    assert model.embed("ab").shape == (1, 2) and model.embed([]).shape == (0, 0)


def test_what_is_no_text_or_prompt_is_refused(model):
    with pytest.raises(DataError, match=r"5 is not text \(row:2\) - texts must be strings"):
        model.embed(["a", 5])
    with pytest.raises(DataError, match="half of a surrogate pair"):
        model.embed(["\ud800"])
    with pytest.raises(UsageError, match="the model has no prompt 'query'"):
        model.embed(["a"], prompt="query")
