import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.formats.conll import read_columns, read_conllu, read_text_lines, read_txt
from bertkit.errors import BertkitError, DataError
from bertkit.recipe.records import Data

SAME = "give every word the same columns"
NUMBER = "number the words of a sentence from 1, with a blank line after the last"
PARTED = "part them by tabs; if it is not CoNLL-U, --set data.format=conll"
UTF16 = "the file looks like utf-16-le: --set data.encoding=utf-16-le"


def reading(read, content, name, **options):
    raw = content.encode() if isinstance(content, str) else content
    return list(read(io.BytesIO(raw), Data(**options), name))


def conll(content, **options):
    return reading(read_columns, content, "train.conll", **options)


def conllu(content, **options):
    return reading(read_conllu, content, "train.conllu", **options)


def texts(content, **options):
    return reading(read_text_lines, content, "a.txt", **options)


def txt(content, **options):
    return reading(read_txt, content, "a.txt", **options)


def word(number, form, **columns):
    names = ["lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]
    return "\t".join([str(number), form, *(columns.get(name, "_") for name in names)]) + "\n"


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
    assert conll(end.join(lines)) == EU
    assert conll(end.join([*lines, "", blank, ""])) == EU
    assert conll("\ufeff" + end.join(lines)) == EU


def test_names_of_other_numbers_of_columns():
    assert conll("a\nb\n") == [(1, {"tokens": ["a", "b"]})]
    assert conll("a O\n") == [(1, {"tokens": ["a"], "tags": ["O"]})]
    assert conll("a x y z O\n") == [
        (1, {"tokens": ["a"], "column_2": ["x"], "column_3": ["y"], "column_4": ["z"], "tags": ["O"]})
    ]


def test_names_that_the_recipe_gives():
    assert list(conll("a O\n", columns={"tokens": "words", "tags": "ner"})[0][1]) == ["words", "ner"]
    assert list(conll("a O\n", columns={"tokens": ["x", "y"], "tags": ["z"]})[0][1]) == ["tokens", "tags"]
    assert list(conll("a O B C\n", columns={"tokens": "words"})[0][1]) == CONLL_2003
    assert list(conll("a O B C\n", header=["word", "one", "two", "three"])[0][1]) == ["word", "one", "two", "three"]


def test_words_that_look_like_something_else():
    assert conll('# O\n#hash O\n-DOCSTART O\n" O\n') == [
        (1, {"tokens": ["#", "#hash", "-DOCSTART", '"'], "tags": ["O"] * 4})
    ]
    assert conll("New York\tB-LOC\na\u00a0b\tO\n")[0][1]["tokens"] == ["New York", "a\u00a0b"]
    assert conll("a\u00a0b O\n\u3000 O\n")[0][1]["tokens"] == ["a\u00a0b", "\u3000"]
    assert conll("\u00a0 O\n".encode("utf-16"), encoding="utf-16")[0][1]["tokens"] == ["\u00a0"]


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        ("", {}, "the file is empty (train.conll) - give it rows"),
        ("-DOCSTART- -X- O O\n\n \n", {}, "the file is empty (train.conll) - give it rows"),
        (
            "\na N O O\n\nb N O\n",
            {},
            f"3 columns here, 4 in line 2: 'b N O' (train.conll:4) - {SAME}",
        ),
        ("a O\nb\n", {}, f"1 column here, 2 in line 1: 'b' (train.conll:2) - {SAME}"),
        (
            "a N\tB-NP O\n\nb\tN\tB-NP\tO\n",
            {},
            f"4 columns here, 2 in line 1: 'b\\tN\\tB-NP\\tO' (train.conll:3) - {SAME}",
        ),
        (
            "a N B-NP O\nb N\tB-NP O\n",
            {},
            "2 columns here, 4 in line 1: 'b N\\tB-NP O' (train.conll:2)"
            " - part columns by tabs or by spaces, not both",
        ),
        (
            "a\tN\tO\nb\t\tO\n",
            {},
            "column 2 is empty: 'b\\t\\tO' (train.conll:2) - write _ where there is nothing",
        ),
        ("a\tO\t\n", {}, "column 3 is empty: 'a\\tO\\t' (train.conll:1) - write _ where there is nothing"),
        (
            "\na O\n",
            {"header": ["tokens", "pos", "tags"]},
            "data.header has 3 names, the file 2 columns (train.conll:2) - name them all: --set data.header=[...]",
        ),
        (
            "a O\n",
            {"columns": {"tokens": "x", "tags": "x"}},
            "two columns have one name (train.conll, column 'x') - --set data.header=[...]",
        ),
        ("a O\nb\0 O\n", {}, "a NUL character (train.conll:2) - remove it"),
        ("a O\n\0b O\n".encode("utf-16-le"), {}, f"a NUL character (train.conll:1) - {UTF16}"),
        (
            "a O\né O\n".encode("cp1252"),
            {},
            "byte 0xe9 at offset 4 is not utf-8 (train.conll:2)"
            " - if the file is cp1252, --set data.encoding=cp1252",
        ),
    ],
)  # fmt: skip
def test_faults_of_columns(content, options, line):
    with pytest.raises(DataError) as caught:
        conll(content, **options)
    assert str(caught.value) == line


words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="\ufeff"), min_size=1)


@given(st.integers(1, 6).flatmap(lambda width: st.lists(st.lists(st.tuples(*[words] * width), min_size=1), min_size=1)))
def test_what_is_written_in_columns_is_read_back(sentences):
    for mark in (" ", "\t"):
        written = "\n\n".join("\n".join(mark.join(fields) for fields in sentence) for sentence in sentences)
        assert [list(zip(*row.values(), strict=True)) for _, row in conll(written)] == sentences


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
    first, second = conllu(content)
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
    assert conllu(content.replace("\n", "\r\n")) == [first, second]


def test_conllu_without_a_blank_line_at_its_end_and_with_empty_comments():
    assert conllu(UD) == conllu(UD + "\n\n") == conllu("\ufeff" + UD)
    row = conllu("# sent_id =\n# text = \n" + word(1, "a") + word(2, "b"))[0][1]
    assert (row["id"], row["text"]) == ("1", "a b")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty (train.conllu) - give it rows"),
        ("# text = x\n\n", "the file is empty (train.conllu) - give it rows"),
        (
            word(1, "a") + "2\tb\tO\n",
            f"3 columns instead of 10: '2\\tb\\tO' (train.conllu:2) - {PARTED}",
        ),
        ("a\n", f"1 column instead of 10: 'a' (train.conllu:1) - {PARTED}"),
        (
            "1 a b c d e f g h i\n",
            f"1 column instead of 10: '1 a b c d e f g h i' (train.conllu:1) - {PARTED}",
        ),
        (word("x", "a"), f"id 'x' where 1 belongs (train.conllu:1) - {NUMBER}"),
        (word("1-", "a"), f"id '1-' where 1 belongs (train.conllu:1) - {NUMBER}"),
        (word(1, "a") + word(1, "b"), f"id '1' where 2 belongs (train.conllu:2) - {NUMBER}"),
        (
            word(1, ""),
            "column 2 is empty: '1\\t\\t_\\t_\\t_\\t_\\t_\\t_\\t_\\t_' (train.conllu:1)"
            " - write _ where there is nothing",
        ),
        (word(1, "a\0"), "a NUL character (train.conllu:1) - remove it"),
        ("# text = \0\n" + word(1, "a"), "a NUL character (train.conllu:1) - remove it"),
    ],
)
def test_faults_of_conllu(content, line):
    with pytest.raises(DataError) as caught:
        conllu(content)
    assert str(caught.value) == line


forms = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


@given(st.lists(st.lists(forms, min_size=1), min_size=1))
def test_what_is_written_as_conllu_is_read_back(sentences):
    written = "\n".join("".join(word(n, form) for n, form in enumerate(forms, 1)) for forms in sentences)
    read = [row for _, row in conllu(written)]
    assert [row["tokens"] for row in read] == sentences
    assert [row["id"] for row in read] == [str(number) for number in range(1, len(sentences) + 1)]


def test_one_text_a_line():
    assert texts("\ufeffone text\r\n\n  two, \"texts\"\t\n \nx") == [
        (1, {"text": "one text"}),
        (2, {"text": ""}),
        (3, {"text": '  two, "texts"\t'}),
        (4, {"text": " "}),
        (5, {"text": "x"}),
    ]  # fmt: skip
    assert texts("a\n\nb\n\n") == texts("a\n\nb\n \n\n") == texts("a\n\nb")
    assert texts("a\n", columns={"text": "sentence"}) == [(1, {"sentence": "a"})]
    assert texts("a\n", columns={"text": ["one", "two"]}) == [(1, {"text": "a"})]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty (a.txt) - give it rows"),
        ("\n \n", "the file is empty (a.txt) - give it rows"),
        ("a\nb\0\n", "a NUL character (a.txt:2) - remove it"),
        ("a text\n".encode("utf-16-le"), f"a NUL character (a.txt:1) - {UTF16}"),
        ("a\n" * 300 + "\0", "a NUL character (a.txt:301) - remove it"),
    ],
)
def test_faults_of_text_lines(content, line):
    for read in (texts, txt):
        with pytest.raises(DataError) as caught:
            read(content)
        assert str(caught.value) == line


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"))))
def test_texts_are_read_back(written):
    written.append("the last")
    assert texts("\n".join(written)) == [(row, {"text": text}) for row, text in enumerate(written, 1)]


@pytest.mark.parametrize(
    ("content", "read", "kind"),
    [
        ("# newdoc\n\n" + UD, conllu, "CoNLL-U"),
        ("-DOCSTART-\n\na\nb\n", conll, "CoNLL columns"),
        (
            "\n-DOCSTART- -X- O\nEU I-ORG\n \nU.S.\tS-LOC \n" + "say O\n" * 500,
            conll,
            "CoNLL columns",
        ),
        ("EU B-ORG\nsays O\nthat\n", texts, None),
        ("EU ORG\nsays O\n", texts, None),
        ("O\nB-ORG\n", texts, None),
        ("one\ntwo words\n", texts, None),
        ("1\ta\tb\n", texts, None),
        ("# only a heading\n", texts, None),
    ],
)
def test_what_a_txt_file_holds(caplog, content, read, kind):
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert txt(content) == read(content)
    assert caplog.messages == [f"a.txt is read as {kind}; if it is text, --set data.format=lines"] * bool(kind)


def test_only_the_first_fifty_lines_tell():
    tagged = "\n".join(["EU B-ORG"] * 50) + "\nthat\n"
    with pytest.raises(DataError, match="1 column here, 2 in line 1"):
        txt(tagged)
    assert txt("a\n" + tagged) == texts("a\n" + tagged)


@given(st.binary() | st.text().map(str.encode) | st.text("a1 \t\n#-O.").map(str.encode))
def test_anything_ends_in_rows_or_one_line(content):
    for read in (conll, conllu, texts, txt):
        try:
            records = read(content)
        except BertkitError as error:
            assert "\n" not in str(error)
        else:
            assert all(list(row) == list(records[0][1]) for _, row in records)
            assert sorted({line for line, _ in records}) == [line for line, _ in records]
