"""What could stand at a mask: as transformers' pipeline says, and more."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.storage.hub import find_model
from bertkit.workflows.fill_mask import fill_mask

TEXT = "The doctors [MASK] in the [MASK]."
WORDS = ["The", "doctor", "doctors", "sleep", "sleeps", "slept", "house", "houses", "near", "water", "and"]


def make_model(folder: Path, kind: str, family: str) -> Path:
    """A random model with a learned tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    from bertkit.tokens.train import TokenizerSpec, train_from_texts

    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=8)) for _ in range(200)]
    tokenizer = train_from_texts(TokenizerSpec(kind, 300, False, 2, (), 64), lambda: texts)
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer) + 3,  # more than the tokenizer has, as padded vocabularies have
        max_position_embeddings=66,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.5,
        **shape,
    )
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "bytes", "bpe", "roberta")


@pytest.fixture(scope="module")
def unigram_model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "unigram", "unigram", "albert")


def answers(record: dict, mask: int = 1) -> list[tuple[str, float]]:
    return [(answer["word"], answer["probability"]) for answer in record["masks"][mask - 1]["answers"]]


@pytest.mark.parametrize("name", ["demo", "byte_model", "unigram_model"])
def test_probabilities_are_those_of_the_pipeline(name, request):
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

    folder = find_model("demo") if name == "demo" else request.getfixturevalue(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    theirs = pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu", top_k=10)
    texts = [TEXT, "The doctor [MASK].", "The old [MASK] sleeps near the water and the house."]
    for text, record in zip(texts, fill_mask(str(folder), texts, top=7), strict=True):
        expected = theirs(text.replace("[MASK]", tokenizer.mask_token))
        for mask, pipeline_answers in zip(record["masks"], expected if text == TEXT else [expected], strict=True):
            best = [answer for answer in pipeline_answers if answer["token"] < len(tokenizer)][
                :7
            ]  # others are no tokens
            ours = [answer["probability"] for answer in mask["answers"]]
            assert ours == pytest.approx([answer["score"] for answer in best], rel=1e-4)
            words = [answer["word"] for answer in mask["answers"]]
            assert words == [tokenizer.decode([answer["token"]]).strip() for answer in best]


def test_each_mask_is_answered_in_its_place():
    (record,) = fill_mask("demo", [TEXT], top=2)
    assert [mask["mask"] for mask in record["masks"]] == [1, 2]
    word = record["masks"][1]["answers"][0]["word"]
    assert record["masks"][1]["answers"][0]["text"] == f"The doctors [MASK] in the {word}."


def test_many_texts_come_in_order_whatever_their_length():
    texts = [f"The {'old ' * (n % 7)}[MASK] sleeps{n % 3 * ' [MASK]'}." for n in range(200)]
    records = list(fill_mask("demo", texts, top=1))
    assert [record["text"] for record in records] == texts
    assert [len(record["masks"]) for record in records] == [1 + n % 3 for n in range(200)]
    (alone,) = fill_mask("demo", [texts[100]], top=1)
    assert answers(records[100])[0][1] == pytest.approx(answers(alone)[0][1], rel=1e-4)


def test_targets_have_the_probabilities_that_the_whole_vocabulary_gives_them():
    (record,) = fill_mask("demo", ["The doctors [MASK] in the house."], targets=["sleeps", "sleep"])
    (all_of_them,) = fill_mask("demo", ["The doctors [MASK] in the house."], top=10_000)
    probabilities = dict(answers(all_of_them))
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
    assert [word for word, _ in answers(record)] == ["sleep", "sleeps"]
    assert dict(answers(record)) == pytest.approx({word: probabilities[word] for word in ("sleep", "sleeps")}, rel=1e-4)


def test_words_and_endings_are_written_as_text(byte_model):
    vocabulary = {}
    (record,) = fill_mask(str(byte_model), ["The <mask> and"], top=400)
    for answer in record["masks"][0]["answers"]:
        vocabulary[answer["word"]] = answer["text"]
    assert vocabulary["doctors"] == "The doctors and"
    (record,) = fill_mask(str(byte_model), ["The doctor <mask> and"], targets=["sleep"])
    assert record["masks"][0]["answers"][0]["text"] == "The doctor sleep and"
    (record,) = fill_mask("demo", ["the book [MASK]."], top=10_000)
    endings = [answer for answer in record["masks"][0]["answers"] if answer["word"] == "##s"]
    assert [answer["text"] for answer in endings] == ["the books."]


def test_a_long_text_is_truncated(run):
    long = "The doctors sleep in the house. " * 30
    (record,) = fill_mask("demo", [f"The [MASK] sleeps. {long}[MASK]"], top=3)
    assert [mask["mask"] for mask in record["masks"]] == [1]
    ended = run("fill-mask", f"The [MASK] sleeps. {long}", "--model", "demo")
    assert ended.code == 0 and "tokens and is truncated to 128" in ended.err
    with pytest.raises(DataError, match="text 1 has no mask in its first 128 tokens"):
        fill_mask("demo", [f"{long}[MASK]"])


def test_another_models_mask_is_read_and_said(run, byte_model):
    ended = run("fill-mask", "The [MASK] sleeps", "--model", byte_model, "--top", "1")
    assert ended.code == 0
    said = [line for line in ended.err.splitlines() if not line.startswith("loading ")]
    assert said == ["[MASK] is read as <mask>, the mask of this model", "CPU, 1 thread (OMP_NUM_THREADS)"]
    assert ended.out.startswith("The [MASK] sleeps\n ")


def test_lines_of_a_file_and_of_standard_input(run):
    Path("texts.txt").write_text("The [MASK] sleeps.\n\nA dog [MASK].\n")
    printed = json.loads(run("fill-mask", "--model", "demo", "--file", "texts.txt", "--json").out)
    assert [record["text"] for record in printed["texts"]] == ["The [MASK] sleeps.", "A dog [MASK]."]
    assert [len(record["masks"][0]["answers"]) for record in printed["texts"]] == [5, 5]
    ended = run("fill-mask", "--model", "demo", "--file", "-", "--json", stdin=Path("texts.txt").read_text())
    assert json.loads(ended.out) == printed


def test_a_model_without_a_trained_head_is_refused(tiny_model, tmp_path):
    with pytest.raises(ModelError, match=r"no trained head for masked words .* name an encoder that was pretrained"):
        fill_mask(str(tiny_model), ["The [MASK]"])
    import shutil

    shutil.copytree(tiny_model, tmp_path / "m")
    settings = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="the tokenizer has no mask token"):
        fill_mask(str(tmp_path / "m"), ["The [MASK]"])


def test_mistakes():
    with pytest.raises(DataError, match=r"text 2 has no mask: 'The house' - write \[MASK\]"):
        fill_mask("demo", ["The [MASK]", "The house"])
    with pytest.raises(UsageError, match="'xyz' is not one token but x ##y ##z"):
        fill_mask("demo", ["The [MASK]"], targets=["xyz"])
    with pytest.raises(UsageError, match="'好' is not in the vocabulary"):
        fill_mask("demo", ["The [MASK]"], targets=["好"])


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, 'no text is given - give either a TEXT such as "The [MASK] sleeps." or --file'),
        (
            ["a [MASK]", "--file", "x"],
            2,
            'TEXT and --file are both given - give either a TEXT such as "The [MASK] sleeps." or --file',
        ),
        (["--file", "empty.txt"], 3, "the file is empty (empty.txt) - add rows"),
        (["a [MASK]", "--targets", ","], 2, "--targets has no words - write e.g. --targets cat,dog"),
        (["no mask"], 3, "text 1 has no mask: 'no mask' - write [MASK] for a word"),
    ],
)
def test_mistakes_of_the_command_end_in_one_line(run, arguments, code, expected):
    Path("empty.txt").write_text("\n\n")
    ended = run("fill-mask", *arguments, "--model", "demo")
    assert (ended.code, ended.last) == (code, f"error: {expected}")
