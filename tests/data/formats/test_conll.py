"""CoNLL columns: words and tags come out as written, and every fault names its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.formats import conll
from bertkit.errors import DataError
from tests.data.formats.contents import UTF16, check_lines, lines_of_any_content, read_content

SAME = "give every word the same columns"


def reading(content, **options):
    return read_content("conll", content, "train.conll", **options)


CONLL_2003 = ["tokens", "pos_tags", "chunk_tags", "ner_tags"]
EU = [
    (3, dict(zip(CONLL_2003, [["EU", "rejects"], ["NNP", "VBZ"], ["I-NP", "I-VP"], ["I-ORG", "O"]], strict=True))),
    (6, dict(zip(CONLL_2003, [["Peter"], ["NNP"], ["I-NP"], ["I-PER"]], strict=True))),
]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [" ", "   ", "\t", " \t"])
@pytest.mark.parametrize("blank", ["", " ", "\t ", "-DOCSTART- -X- O O", "-DOCSTART-"])
def test_the_four_columns_of_conll_2003(end, mark, blank):
    lines = ["-DOCSTART- -X- -X- O", blank, "EU NNP I-NP I-ORG", "rejects VBZ I-VP O", blank, "Peter NNP I-NP I-PER"]
    lines = [line if line == blank else line.replace(" ", mark) for line in lines]
    assert reading(end.join(lines)) == EU
    assert reading(end.join([*lines, "", blank, ""])) == EU
    assert reading("\ufeff" + end.join(lines)) == EU


def test_lines_of_json_are_not_read_as_words():
    with pytest.raises(
        DataError, match=r"JSON, not a word .* \(train.conll:2\) - read it as JSON Lines: --set data.format=jsonl"
    ):
        reading('\n{"tokens": ["Anna", "left"]}\n')
    assert reading("{ O\n")[0][1]["tokens"] == ["{"]


def test_names_of_other_numbers_of_columns():
    assert reading("a\nb\n") == [(1, {"tokens": ["a", "b"]})]
    assert reading("a O\n") == [(1, {"tokens": ["a"], "tags": ["O"]})]
    assert reading("a x y z O\n") == [
        (1, {"tokens": ["a"], "column_2": ["x"], "column_3": ["y"], "column_4": ["z"], "tags": ["O"]})
    ]


def test_names_that_the_recipe_gives():
    assert list(reading("a O\n", columns={"tokens": "words", "tags": "ner"})[0][1]) == ["words", "ner"]
    assert list(reading("a O\n", columns={"tokens": ["x", "y"], "tags": ["z"]})[0][1]) == ["tokens", "tags"]
    assert list(reading("a O B C\n", columns={"tokens": "words"})[0][1]) == CONLL_2003
    assert list(reading("a O B C\n", header=["word", "one", "two", "three"])[0][1]) == ["word", "one", "two", "three"]


def test_words_that_look_like_something_else():
    assert reading('# O\n#hash O\n-DOCSTART O\n" O\n') == [
        (1, {"tokens": ["#", "#hash", "-DOCSTART", '"'], "tags": ["O"] * 4})
    ]
    assert reading("New York\tB-LOC\na\u00a0b\tO\n")[0][1]["tokens"] == ["New York", "a\u00a0b"]
    assert reading("a\u00a0b O\n\u3000 O\n")[0][1]["tokens"] == ["a\u00a0b", "\u3000"]
    assert reading("\u00a0 O\n".encode("utf-16"), encoding="utf-16")[0][1]["tokens"] == ["\u00a0"]


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        ("", {}, "the file is empty (train.conll) - add rows"),
        ("-DOCSTART- -X- O O\n\n \n", {}, "the file is empty (train.conll) - add rows"),
        (
            "\na N O O\n\nb N O\n",
            {},
            f"3 columns, but 4 in line 2: 'b N O' (train.conll:4) - {SAME}",
        ),
        ("a O\nb\n", {}, f"1 column, but 2 in line 1: 'b' (train.conll:2) - {SAME}"),
        (
            "a N\tB-NP O\n\nb\tN\tB-NP\tO\n",
            {},
            f"4 columns, but 2 in line 1: 'b\\tN\\tB-NP\\tO' (train.conll:3) - {SAME}",
        ),
        (
            "a N B-NP O\nb N\tB-NP O\n",
            {},
            "2 columns, but 4 in line 1: 'b N\\tB-NP O' (train.conll:2)"
            " - separate columns by tabs or by spaces, not both",
        ),
        (
            "a\tN\tO\nb\t\tO\n",
            {},
            "column 2 is empty: 'b\\t\\tO' (train.conll:2) - write _ for an empty value",
        ),
        ("a\tO\t\n", {}, "column 3 is empty: 'a\\tO\\t' (train.conll:1) - write _ for an empty value"),
        (
            "\na O\n",
            {"header": ["tokens", "pos", "tags"]},
            "data.header must name the 2 columns of the file, got 3 (train.conll:2)"
            " - name all columns: --set data.header=[...]",
        ),
        (
            "a O\n",
            {"columns": {"tokens": "x", "tags": "x"}},
            "two columns have the same name (train.conll, column 'x') - name the columns: --set data.header=[...]",
        ),
        ("a O\nb\0 O\n", {}, "a NUL character (train.conll:2) - remove it"),
        ("a O\n\0b O\n".encode("utf-16-le"), {}, f"a NUL character (train.conll:1) - {UTF16}"),
        (
            "a O\né O\n".encode("cp1252"),
            {},
            "byte 0xe9 at offset 4 is not valid utf-8 (train.conll:2)"
            " - if the file is cp1252: --set data.encoding=cp1252",
        ),
    ],
)  # fmt: skip
def test_faults_of_columns(content, options, line):
    with pytest.raises(DataError) as caught:
        reading(content, **options)
    assert str(caught.value) == line


words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="\ufeff"), min_size=1)
words = words.filter(lambda word: not word.startswith(("#", conll.DOCUMENT)))  # these may begin other lines


@given(st.integers(1, 6).flatmap(lambda width: st.lists(st.lists(st.tuples(*[words] * width), min_size=1), min_size=1)))
def test_what_is_written_in_columns_is_read_back(sentences):
    for mark in (" ", "\t"):
        written = "\n\n".join("\n".join(mark.join(fields) for fields in sentence) for sentence in sentences)
        assert [list(zip(*row.values(), strict=True)) for _, row in reading(written)] == sentences


@given(lines_of_any_content)
def test_anything_ends_in_rows_or_one_line(content):
    check_lines(reading, content)


ANNA = {"tokens": ["Anna", "left"], "tags": ["B-PER", "O"]}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("# id 0 domain=en\nAnna _ _ B-PER\nleft _ _ O\n", 2),
        ("# sent_id = s0\n# text = Anna left\nAnna B-PER\nleft O\n", 3),
        ("#\thttp://x.example [2009]\nAnna\tB-PER\nleft\tO\n", 2),
        ("###MEDLINE:1\n\nAnna B-PER\nleft O\n", 3),
        ("#begin document (a); part 000\nAnna B-PER\nleft O\n\n#end document\n", 2),
        ("# Sentence-1\nAnna B-PER\nleft O\n", 2),
    ],
)
def test_comments_are_skipped_and_counted(caplog, content, line):
    with caplog.at_level("INFO", logger="bertkit"):
        ((start, row),) = reading(content)
    assert (start, row["tokens"], list(row.values())[-1]) == (line, ANNA["tokens"], ANNA["tags"])
    assert [message for message in caplog.messages if "comments that start with # are skipped" in message]


@pytest.mark.parametrize(
    "content", ["# O\nleft O\n", "left O\n# O\n", "# SYM\nleft VB\n", "# #\nleft VB\n", "#\nleft\n"]
)
def test_the_word_that_begins_comments_is_a_word(content):
    assert sorted(reading(content)[0][1]["tokens"]) == ["#", "left"]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("1\tAnna\tB-PER\n2\tleft\tO\n\n1\tHi\tO\n", ["column_1", "tokens", "tags"]),
        ("0 Anna NNP B-PER\n1 left VBD O\n", ["column_1", "tokens", "column_3", "tags"]),
        ("1\tAnna\tB-PER\t-\tann1\n2\tleft\tO\t-\tann1\n", ["column_1", "tokens", "tags", "column_4", "column_5"]),
        ("1\tAnna\tB-PER\tO\n2\tleft\tO\tO\n", ["column_1", "tokens", "column_3", "column_4"]),
        ("1 Anna NNP\n2 left VBD\n\n3 Hi UH\n", ["column_1", "tokens", "tags"]),
        ("1 Anna\n2 left\n", ["column_1", "tokens"]),
        ("1 O\n2 O\n", ["tokens", "tags"]),
        ("1900 O NN\n1905 O NN\n", ["tokens", "column_2", "tags"]),
    ],
)
def test_a_first_column_that_numbers_the_words(content, names):
    assert list(reading(content)[0][1]) == names
