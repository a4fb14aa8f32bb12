"""The demo's rows are the same everywhere, its splits share nothing, and its model knows the grammar's words."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from functools import cache
from itertools import chain, pairwise
from operator import eq
from pathlib import Path
from random import Random

import pytest
import torch

import bertkit
from bertkit.demo.grammar import BREAKS, TRANSITIVE, minimal_pair, past_of, with_s
from bertkit.demo.rows import DEMO_KINDS, SIZES, demo_rows, demo_text
from bertkit.errors import DataError
from bertkit.recipe import load_recipe, recipe_names

MODEL = Path(bertkit.__file__).parent / "demo" / "model"


TEXTS = ("classify", "cola", "mnli", "mrpc", "qnli", "qqp", "regress", "rte", "sst2", "stsb", "wnli")
NAMES, QUESTIONS, CHOICES = ("ner", "ner-features", "tag"), ("squad", "qa", "squad2"), ("swag", "choose")
SENSES = ("wsd", "wsd-nearest")
COLUMNS = (
    dict.fromkeys((*NAMES, "pos"), "tokens tags")
    | dict.fromkeys(QUESTIONS, "id context question answers")
    | {"swag": "context stem choices label", "choose": "context choices label"}
    | dict.fromkeys(SENSES, "tokens target word sense")
)
CLASSES = "ADJ ADP ADV AUX CCONJ DET NOUN NUM PART PRON PROPN PUNCT SCONJ VERB"
VERBS = {form: verb for verb in TRANSITIVE for form in (verb, with_s(verb), past_of(verb))}
cached_rows = cache(demo_rows)


def told(row):
    """Give all texts of a row as one."""
    parts = [row.get("text", ""), row.get("context", ""), row.get("question", "")]
    return " ".join([*parts, *row.get("choices", []), *row.get("tokens", [])])


def test_every_recipe_has_demo_data():
    assert set(recipe_names()) <= set(DEMO_KINDS)
    assert set(DEMO_KINDS) == {*TEXTS, *COLUMNS}


@pytest.mark.parametrize(("kinds", "digest"), [(TEXTS, "8eaaa596f7b7ec5f"), (tuple(COLUMNS), "08d718e088eaf926")])
def test_rows_are_the_same_in_every_process(kinds, digest):
    rows = [demo_rows(kind, "validation", 20) for kind in kinds]
    assert hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("kind", DEMO_KINDS)
def test_splits_share_no_text(kind):
    first = {
        split: [row.get("text") or row.get("context") or told(row) for row in cached_rows(kind, split)]
        for split in SIZES
    }
    assert {split: len(set(texts)) for split, texts in first.items()} == SIZES
    everything = [told(row) for split in SIZES for row in cached_rows(kind, split)]
    assert len(set(everything)) == sum(SIZES.values())
    assert not set(first["train"]) & {*first["validation"], *first["test"]}
    assert not set(first["validation"]) & set(first["test"])


@pytest.mark.parametrize("kind", TEXTS)
def test_the_splits_hold_every_label(kind):
    labels = load_recipe(kind).labels
    if labels:
        counts = Counter(row["label"] for row in cached_rows(kind, "train"))
        assert set(counts) == set(labels)
        assert min(counts.values()) > 0.25 * SIZES["train"]


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_have_the_columns_of_their_task(kind):
    assert all([*row] == COLUMNS[kind].split() for split in SIZES for row in cached_rows(kind, split))


@pytest.mark.parametrize("kind", NAMES)
def test_names_are_tagged_in_iob2(kind):
    names = Counter()
    for row in cached_rows(kind, "train"):
        assert len(row["tokens"]) == len(row["tags"])
        for before, tag in pairwise(["O", *row["tags"]]):
            assert re.fullmatch("O|[BI]-(PER|ORG|LOC|MISC)", tag)
            assert not tag.startswith("I-") or before[1:] == tag[1:], row
        names[sum(tag.startswith("B-") for tag in row["tags"])] += 1
    assert sorted(names) == [0, 1, 2, 3, 4]


def test_words_have_universal_classes():
    rows = cached_rows("pos", "train")
    assert sorted({tag for row in rows for tag in row["tags"]}) == CLASSES.split()
    assert all(len(row["tokens"]) == len(row["tags"]) for row in rows)


def most_frequent_tags(kind):
    """Tag each word of validation as training does most often; give (gold, tagged)."""
    counts = defaultdict(Counter)
    for row in cached_rows(kind, "train"):
        for word, tag in zip(row["tokens"], row["tags"], strict=True):
            counts[word.lower()][tag] += 1
    rows = cached_rows(kind, "validation")
    found = [[max(counts[w.lower()] or ["O"], key=counts[w.lower()].get) for w in row["tokens"]] for row in rows]
    return [row["tags"] for row in rows], found


def test_a_list_of_words_does_not_solve_pos():
    gold, found = (list(chain(*tags)) for tags in most_frequent_tags("pos"))
    assert 0.7 < sum(map(eq, gold, found)) / len(gold) < 0.95


def test_a_list_of_names_does_not_solve_ner():
    from seqeval.metrics import f1_score

    assert 0.2 < f1_score(*most_frequent_tags("ner")) < 0.7


@pytest.mark.parametrize("split", SIZES)
@pytest.mark.parametrize("kind", QUESTIONS)
def test_answers_stand_where_they_say(kind, split):
    rows = cached_rows(kind, split)
    counts = Counter(len(row["answers"]["text"]) for row in rows)
    for row in rows:
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        assert len(texts) == len(starts) == len(set(texts))
        assert all(row["context"][start:].startswith(text) for text, start in zip(texts, starts, strict=True))
        assert 2 <= row["context"].count(".") <= 5
        assert row["question"].endswith("?")
    assert len({row["id"] for row in rows}) == len(rows)
    assert set(counts) - {0} == ({1} if split == "train" else {1, 2, 3})
    assert counts[0] / len(rows) == pytest.approx(1 / 3 if kind == "squad2" else 0, abs=0.065)


def read_clause(text):
    """Give a clause's or a question's subject, verb, object and place; what is asked for is missing."""
    verb, place = "|".join(sorted(VERBS)), r"(?: (?P<place>(?:in|near|behind) the \w+))?[.?]"
    forms = [
        rf"(?P<object>.+) (?:is|are|was|were) (?P<verb>{verb}) by (?P<subject>.+?){place}",
        rf"where (?:do|does|did) (?P<subject>.+) (?P<verb>{verb}) (?P<object>.+?){place}",
        rf"(?:who|what) (?:do|does|did) (?P<subject>.+) (?P<verb>{verb}){place}",
        rf"(?:who|what) (?P<verb>{verb}) (?P<object>.+?){place}",
        rf"(?P<subject>.+?) (?P<verb>{verb}) (?P<object>.+?){place}",
    ]
    found = next(found for found in (re.fullmatch(form, text.lower()) for form in forms) if found).groupdict()
    return found | {"verb": VERBS[found["verb"]]}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_one_clause_of_the_context_answers_the_question(kind):
    for row in cached_rows(kind, "train"):
        asked = read_clause(row["question"])
        missing = next(part for part in ("subject", "object", "place") if not asked.get(part))
        known = [part for part in ("subject", "verb", "object") if part != missing]
        told = [read_clause(text) for text in re.findall(r"[^.]+\.", row["context"])]
        answers = [clause[missing].strip() for clause in told if all(clause[p].strip() == asked[p] for p in known)]
        assert answers == [text.lower() for text in row["answers"]["text"]], row


@pytest.mark.parametrize("kind", CHOICES)
def test_labels_of_choices_are_balanced(kind):
    rows = cached_rows(kind, "train")
    sizes = {len(row["choices"]) for row in rows}
    assert sizes == ({4} if kind == "swag" else {2, 3, 4, 5})
    assert all(len(set(row["choices"])) == len(row["choices"]) for row in rows)
    for size in sizes:
        labels = Counter(row["label"] for row in rows if len(row["choices"]) == size)
        assert sorted(labels) == list(range(size))
        assert min(labels.values()) > 0.75 * labels.total() / size


@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize(
    "guess",
    [lambda choices: choices[0], lambda choices: max(choices, key=len), lambda choices: min(choices, key=len)],
    ids=["first", "longest", "shortest"],
)
def test_a_guess_at_a_choice_is_near_chance(kind, guess):
    rows = cached_rows(kind, "train")
    chance = sum(1 / len(row["choices"]) for row in rows)
    right = sum(guess(row["choices"]) == row["choices"][row["label"]] for row in rows)
    assert abs(right - chance) / len(rows) < 0.06


@pytest.mark.parametrize("kind", SENSES)
def test_targets_are_forms_of_their_word(kind):
    senses = Counter()
    for row in cached_rows(kind, "train"):
        assert row["tokens"][row["target"]].lower() in (row["word"], row["word"] + "s")
        assert row["sense"].startswith(row["word"] + "_")
        senses[row["sense"]] += 1
    assert len(senses) == 11
    assert min(senses.values()) > 0.04 * SIZES["train"]
    assert {row["sense"] for row in cached_rows(kind, "validation")} == set(senses)


def test_the_mismatched_split_is_about_something_else():
    matched, mismatched = (demo_rows("mnli", f"validation{suffix}") for suffix in ("", "_mismatched"))
    assert not {row["text"] for row in matched} & {row["text"] for row in mismatched}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_sentence_differs_little_from_a_good_one(name):
    for seed in range(20):
        good, broken = minimal_pair(Random(seed), name)
        assert good != broken
        words = [re.findall(r"\w+", text) for text in (good, broken)]
        assert SequenceMatcher(None, *words).ratio() > 0.5, (good, broken)


def test_what_there_is_not_is_refused():
    with pytest.raises(DataError, match="no demo data is called 'colla' - did you mean cola"):
        demo_rows("colla", "train")
    with pytest.raises(DataError, match="has no split 'dev'"):
        demo_rows("cola", "dev")


@pytest.fixture(scope="module")
def tokenizer():
    from bertkit.modeling.load import load_tokenizer

    return load_tokenizer(MODEL)


def test_the_model_is_small_and_says_what_it_is():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 2_000_000
    assert "cannot be compared" in (MODEL / "README.md").read_text()


def test_any_english_text_has_tokens(tokenizer):
    text = 'Zebras juggle quickly; 42 bytes of "Naïve" e-mail cost $5 (or more)!'
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_row_fits_into_the_model(kind, tokenizer):
    rows = cached_rows(kind, "validation")
    texts = [
        " ".join([row.get("question", ""), row.get("context", ""), row.get("stem", ""), *row.get("tokens", ())])
        for row in rows
    ]
    longest = [max(row.get("choices", [""]), key=len) for row in rows]
    assert max(map(len, tokenizer(texts, longest)["input_ids"])) <= tokenizer.model_max_length


def test_the_model_knows_more_than_frequencies(tokenizer):
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    rng = Random(0)
    right = total = 0
    frequent = Counter()
    for text in demo_text(200, seed=99):
        ids = torch.tensor(tokenizer(text)["input_ids"])
        position = rng.randrange(1, len(ids) - 1)
        masked = ids.clone()
        masked[position] = tokenizer.mask_token_id
        with torch.inference_mode():
            guess = int(model(masked[None]).logits[0, position].argmax())
        right, total = right + (guess == int(ids[position])), total + 1
        frequent.update(ids[1:-1].tolist())
    most = frequent.most_common(1)[0][1] / frequent.total()
    assert right / total > 2 * most


@pytest.mark.slow
def test_the_demo_learns_to_tell_good_sentences_from_broken_ones(run):
    ended = run("finetune", "cola", "--model", "demo", "--data", "demo", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["matthews_correlation"] > 0.6
