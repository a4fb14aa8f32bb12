"""A page of a text begins where it is told to, and overwrites nothing that is read."""

from __future__ import annotations

import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.workflows.attention import show
from bertkit.workflows.attention.show import check_output


def test_a_page_begins_with_a_head(tmp_path, tiny_model):
    show("a film", str(tiny_model), at=(1, 1), output=tmp_path / "text.html")
    assert '"layer":1,"head":1}' in (tmp_path / "text.html").read_text()
    with pytest.raises(UsageError, match="the model has 2 layers of 2 heads"):
        show("a film", str(tiny_model), at=(2, 0))
    with pytest.raises(ModelError, match="no such directory"):
        show("a", "./none")


def test_a_file_of_the_model_is_not_overwritten(tmp_path):
    (tmp_path / "readme.html").write_text("kept")
    with pytest.raises(UsageError, match="--output is a file of the model folder"):
        check_output(tmp_path / "readme.html", str(tmp_path), {})
