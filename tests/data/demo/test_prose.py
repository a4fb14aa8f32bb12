"""The text to pretrain on is sentences, uses every writer, and holds no text of a held-out row."""

from __future__ import annotations

import re
from random import Random

import pytest

from bertkit.data.demo.prose import FIRST_TEXT, demo_text, write_paragraph
from tests.data.demo.common import rows_of
from tests.kills import slow_unless
from tools.make_demo_model import SECOND_TEXT

LINKS = {"Indeed", "So", "But", "Yet", "Similarly", "Besides", "Whereas", "Well"}


@pytest.fixture(scope="module")
def paragraphs():
    """Paragraphs in lower case, without the words that link their sentences."""
    return [re.sub(rf"\b({'|'.join(LINKS)}) ", "", text).lower() for text in demo_text(400, seed=1)]


@pytest.mark.parametrize("write", {**FIRST_TEXT, **SECOND_TEXT})
def test_a_paragraph_is_sentences(write):
    for seed in range(20):
        paragraph = write(Random(seed))
        assert paragraph.text[0].isupper()
        assert paragraph.text[-1] in ".?"
        assert not re.search(r"  | [.,?]", paragraph.text)
        words = re.findall(r"\w+", paragraph.text.lower())
        assert all(set(re.findall(r"\w+", text.lower())) <= set(words) for text in paragraph.row_texts)


def test_paragraphs_join_sentences_with_words_that_say_how_they_are_related():
    rng = Random(1)
    text = " ".join(write_paragraph(rng, FIRST_TEXT) for _ in range(500))
    assert set(text.split()) >= LINKS


@pytest.mark.parametrize("name", slow_unless(["squad"], ["mrpc", "qqp", "rte", "squad", "ner", "wsd", "swag"]))
def test_the_text_holds_no_text_of_a_held_out_row(name, paragraphs):
    sentences = {sentence for paragraph in paragraphs for sentence in re.split("(?<=[.?]) ", paragraph)}
    for split in ("validation", "test"):
        texts = [
            str(row.get("text") or row.get("context") or " ".join(row["tokens"])) for row in rows_of(name, split, 300)
        ]
        texts = [re.sub(" (?=[.,?])", "", text).lower() for text in texts]
        assert not sentences & set(texts)
        assert name != "squad" or not any(text in paragraph for text in texts for paragraph in paragraphs)
