"""CoNLL-U: sentences with their comments, syntactic words only, and every fault at its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError
from tests.data.formats.contents import check_lines, lines_of_any_content, read_content

NUMBER = "number the words of a sentence from 1, with a blank line after the last"
NOT_TEN = "separate columns by tabs; if the file is not CoNLL-U: --set data.format=conll"


def reading(content, **options):
    return read_content("conllu", content, "train.conllu", **options)


def word(number, form, **columns):
    names = ["lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]
    return "\t".join([str(number), form, *(columns.get(name, "_") for name in names)]) + "\n"


UD = (
    "# newdoc\n# sent_id = d-1\n# text = Don't go to #1.\n1-2\tDon't"
    + "\t_" * 8
    + "\n"
    + word(1, "Do", lemma="do", upos="AUX", xpos="VB", feats="Mood=Imp", head="3", deprel="aux")
    + word(2, "n't", lemma="not", upos="PART", misc="SpaceAfter=No", deps="3:advmod")
    + word(3, "go", head="0", deprel="root")
    + word("3.1", "you")
)


def test_conllu():
    content = UD + "\n#comment\n\n  \n# text_en = no\n" + word(1, "New York") + "#\n" + word(2, "#") + "\n# text = x\n"
    first, second = reading(content)
    assert first == (
        5,
        {
            "id": "d-1",
            "text": "Don't go to #1.",
            "tokens": ["Do", "n't", "go"],
            "lemmas": ["do", "not", "_"],
            "upos": ["AUX", "PART", "_"],
            "xpos": ["VB", "_", "_"],
            "feats": ["Mood=Imp", "_", "_"],
            "head": ["3", "_", "0"],
            "deprel": ["aux", "_", "root"],
            "deps": ["_", "3:advmod", "_"],
            "misc": ["_", "SpaceAfter=No", "_"],
        },
    )
    line, row = second
    assert (line, row["id"], row["text"], row["tokens"]) == (14, "2", "New York #", ["New York", "#"])
    assert list(row) == list(first[1])
    assert reading(content.replace("\n", "\r\n")) == [first, second]


def test_conllu_without_a_blank_line_at_its_end_and_with_empty_comments():
    assert reading(UD) == reading(UD + "\n\n") == reading("\ufeff" + UD)
    row = reading("# sent_id =\n# text = \n" + word(1, "a") + word(2, "b"))[0][1]
    assert (row["id"], row["text"]) == ("1", "a b")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty (train.conllu) - add rows"),
        ("# text = x\n\n", "the file is empty (train.conllu) - add rows"),
        (
            word(1, "a") + "2\tb\tO\n",
            f"3 columns instead of 10: '2\\tb\\tO' (train.conllu:2) - {NOT_TEN}",
        ),
        ("a\n", f"1 column instead of 10: 'a' (train.conllu:1) - {NOT_TEN}"),
        (
            "1 a b c d e f g h i\n",
            f"1 column instead of 10: '1 a b c d e f g h i' (train.conllu:1) - {NOT_TEN}",
        ),
        (word("x", "a"), f"id 'x' instead of 1 (train.conllu:1) - {NUMBER}"),
        (word("1-", "a"), f"id '1-' instead of 1 (train.conllu:1) - {NUMBER}"),
        (word(1, "a") + word(1, "b"), f"id '1' instead of 2 (train.conllu:2) - {NUMBER}"),
        (
            word(1, ""),
            "column 2 is empty: '1\\t\\t_\\t_\\t_\\t_\\t_\\t_\\t_\\t_' (train.conllu:1) - write _ for an empty value",
        ),
        (word(1, "a\0"), "a NUL character (train.conllu:1) - remove it"),
        ("# text = \0\n" + word(1, "a"), "a NUL character (train.conllu:1) - remove it"),
    ],
)
def test_faults_of_conllu(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


forms = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


@given(st.lists(st.lists(forms, min_size=1), min_size=1))
def test_what_is_written_as_conllu_is_read_back(sentences):
    written = "\n".join("".join(word(n, form) for n, form in enumerate(forms, 1)) for forms in sentences)
    read = [row for _, row in reading(written)]
    assert [row["tokens"] for row in read] == sentences
    assert [row["id"] for row in read] == [str(number) for number in range(1, len(sentences) + 1)]


@given(lines_of_any_content)
def test_anything_ends_in_rows_or_one_line(content):
    check_lines(reading, content)
