"""The demo files hold what `tools/demo` writes, and its sentences, pairs and paragraphs are what they should be."""

from __future__ import annotations

import doctest
import gzip
import hashlib
import re
from difflib import SequenceMatcher
from itertools import islice, product
from random import Random

import pytest

from tests.kills import slow_unless
from tools.demo import grammar, rows, texts
from tools.demo.grammar import CATEGORY_OF, TRANSITIVE, minimal_pair, past_of, pick_clause, sentence, templates, with_s
from tools.demo.make import FOLDER, demo_files, write_lines
from tools.demo.prose import FIRST_TEXT, demo_text, write_paragraph

LINKS = {"Indeed", "So", "But", "Yet", "Similarly", "Besides", "Whereas", "Well"}


def read_lines(file):
    return gzip.decompress((FOLDER / file).read_bytes()).decode().splitlines()


# --- Files ---


@pytest.mark.parametrize("file", demo_files(), ids=str)
def test_a_file_begins_with_what_the_tool_writes(file):
    assert read_lines(file)[:20] == list(islice(demo_files()[file], 20))


def test_there_are_no_other_files():
    assert {file.relative_to(FOLDER) for file in FOLDER.rglob("*.gz")} == set(demo_files())


def test_a_file_has_the_same_bytes_whenever_and_wherever_it_is_written(tmp_path):
    write_lines(tmp_path / "a.gz", ["one", "two"])
    write_lines(tmp_path / "folder" / "b.gz", ["one", "two"])
    content = (tmp_path / "a.gz").read_bytes()
    assert content == (tmp_path / "folder" / "b.gz").read_bytes()
    assert content[3:8] == bytes(5)  # neither a name nor a time
    assert gzip.decompress(content) == b"one\ntwo\n"


# --- Sentences ---


@pytest.mark.parametrize("module", [grammar, rows])
def test_examples_hold(module):
    assert doctest.testmod(module) == (0, doctest.testmod(module).attempted)


@pytest.mark.parametrize("name", templates()["breaks"])
def test_a_broken_sentence_differs_little_from_a_good_one(name):
    for seed in range(20):
        good, broken = minimal_pair(Random(seed), name)
        assert good != broken
        words = [re.findall(r"\w+", text) for text in (good, broken)]
        assert SequenceMatcher(None, *words).ratio() > 0.5, (good, broken)


def test_a_clause_asks_for_each_of_its_parts():
    clause = pick_clause(Random(3))
    questions = [sentence(clause.question_about(part)) for part in ("subject", "object", "location")]
    assert len(set(questions)) == 3
    assert all(question.endswith("?") for question in questions)


@pytest.mark.parametrize("write", [texts.write_paraphrase, texts.write_duplicate])
def test_an_equal_pair_has_the_same_nouns(write):
    for seed in range(50):
        first, second = (
            {word.rstrip(".?s").lower() for word in text.split()} & set(CATEGORY_OF)
            for text in write(Random(seed), "equivalent")
        )
        assert first == second


def test_a_review_has_words_of_its_own_polarity():
    praise = [texts.write_review(Random(seed), "positive")[0] for seed in range(50)]
    blame = [texts.write_review(Random(seed), "negative")[0] for seed in range(50)]
    assert not set(praise) & set(blame)


VERBS = {form: verb for verb in TRANSITIVE for form in (verb, with_s(verb), past_of(verb))}


def read_clause(text):
    """Read a clause's or a question's subject, verb, object and location; the part in question is missing."""
    verb, location = "|".join(sorted(VERBS)), r"(?: (?P<location>(?:in|near|behind) the \w+))?[.?]"
    forms = [
        rf"(?P<object>.+) (?:is|are|was|were) (?P<verb>{verb}) by (?P<subject>.+?){location}",
        rf"where (?:do|does|did) (?P<subject>.+) (?P<verb>{verb}) (?P<object>.+?){location}",
        rf"(?:who|what) (?:do|does|did) (?P<subject>.+) (?P<verb>{verb}){location}",
        rf"(?:who|what) (?P<verb>{verb}) (?P<object>.+?){location}",
        rf"(?P<subject>.+?) (?P<verb>{verb}) (?P<object>.+?){location}",
    ]
    parts = next(match for match in (re.fullmatch(form, text.lower()) for form in forms) if match).groupdict()
    return parts | {"verb": VERBS[parts["verb"]]}


@pytest.mark.parametrize("unanswerable", [0.0, 1 / 3])
def test_one_clause_of_the_context_answers_the_question(unanswerable):
    rng = Random(0)
    for _ in range(400):
        row = rows.write_question(rng, "train", unanswerable)
        question = read_clause(row["question"])
        missing = next(part for part in ("subject", "object", "location") if not question.get(part))
        given = [part for part in ("subject", "verb", "object") if part != missing]
        clauses = [read_clause(text) for text in re.findall(r"[^.]+\.", row["context"])]
        answers = [
            clause[missing].strip() for clause in clauses if all(clause[p].strip() == question[p] for p in given)
        ]
        assert answers == [text.lower() for text in row["answers"]["text"]], row


# --- Text to pretrain on ---


def test_text_to_pretrain_on_is_the_same_in_every_process():
    text = "\n".join(demo_text(500, seed=1))
    # The demo model was trained on this text: run `make demo-model` if it changes.
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "1eee59ce69a35566"


def test_paragraphs_are_sentences():
    from tools.demo.make_model import SECOND_TEXT

    for write, seed in product({**FIRST_TEXT, **SECOND_TEXT}, range(20)):
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
def test_the_text_holds_no_text_of_a_held_out_row(name):
    from tests.data.demo.test_rows import rows_of

    text = "\n".join(read_lines("text/train.txt.gz")[:400])
    paragraphs = re.sub(rf"\b({'|'.join(LINKS)}) ", "", text).lower().split("\n")
    sentences = {sentence for paragraph in paragraphs for sentence in re.split("(?<=[.?]) ", paragraph)}
    for split in ("validation", "test"):
        held_out = [
            str(row.get("text") or row.get("context") or " ".join(row["tokens"])) for row in rows_of(name, split, 300)
        ]
        held_out = [re.sub(" (?=[.,?])", "", text).lower() for text in held_out]
        assert not sentences & set(held_out)
        assert name != "squad" or not any(text in paragraph for text in held_out for paragraph in paragraphs)


# --- The demo model ---


@pytest.mark.slow
def test_the_model_is_made_anew_with_the_same_bytes(tmp_path, monkeypatch):
    from tools.demo import make_model

    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    written = []
    for name in ("first", "second"):
        (tmp_path / name / "model").mkdir(parents=True)
        make_model.pretrain(tmp_path / name, (400, 300))
        make_model.publish(tmp_path / name / "run", tmp_path / name / "tokenizer", tmp_path / name / "model")
        files = sorted((tmp_path / name / "model").iterdir())
        written.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
    assert written[0] == written[1]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(written[0])
