"""TSV is CSV with tabs, also where the name does not end in .tsv."""

from __future__ import annotations

import pytest

from bertkit.data.files import read_records
from bertkit.recipe import DataConfig
from tests.data.formats.contents import read_content


@pytest.mark.parametrize("name", ["a.tsv", "a.txt"])
def test_tabs_separate_columns(name):
    content = "text, all\tlabel\none, two\t1\n"
    assert read_content("tsv", content, name) == [(2, {"text, all": "one, two", "label": "1"})]
    assert read_content("tsv", "a|b\n1|2\n", name, delimiter="|") == read_content("csv", "a|b\n1|2\n", "a.csv")


def test_a_txt_file_is_read_as_tsv_where_the_recipe_says_so(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("text\tlabel\nfine\t1\n")
    assert list(read_records(file, DataConfig(format="tsv"))) == [(2, {"text": "fine", "label": "1"})]
