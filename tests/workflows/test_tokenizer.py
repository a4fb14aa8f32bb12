"""Tokenizers learned from text: they load anywhere, are the same every time, and tell what they do to words."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bertkit.pretraining.deduplicate import find_duplicates, split_documents
from bertkit.pretraining.documents import find_corpus
from bertkit.recipe import CorpusConfig
from bertkit.tokens.train import make_spec
from bertkit.workflows.tokenizer import train_tokenizer

KINDS = ("wordpiece", "bpe", "unigram")
SPECIAL = {
    "wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "bpe": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "unigram": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
}
WORDS = ["The", "old", "Doctor", "doctors", "sleep", "sleeps", "slept", "house", "houses", "near", "water", "and"]


def documents(count: int = 300) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) + f" {number}." for number in range(count)]


def write(texts: list[str], file: Path) -> CorpusConfig:
    file.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return CorpusConfig(source=str(file))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> CorpusConfig:
    return write(documents(), tmp_path_factory.mktemp("text") / "d.jsonl")


def learn(corpus: CorpusConfig, kind: str, folder: Path, size: int = 400, **options):
    from transformers import AutoTokenizer

    learned = train_tokenizer(corpus, make_spec(kind, vocabulary_size=size, **options), output=folder)
    return learned, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_loads_with_its_special_tokens_pairs_and_inputs(corpus, kind, tmp_path):
    _, tokenizer = learn(corpus, kind, tmp_path / "t", max_length=64, special=["[USER]"])
    assert tokenizer.convert_ids_to_tokens(range(6)) == [*SPECIAL[kind], "[USER]"]
    assert tokenizer.mask_token == SPECIAL[kind][4]
    assert tokenizer.model_max_length == 64
    assert tokenizer.tokenize("the [USER] sleeps").count("[USER]") == 1
    pair = tokenizer("The doctor", "old houses")
    tokens = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    first, last = tokenizer.cls_token, tokenizer.sep_token
    assert (tokens[0], tokens[-1], tokens.count(last)) == (first, last, 3 if kind == "bpe" else 2)
    assert tokenizer.model_input_names == list(pair) or set(tokenizer.model_input_names) == set(pair)
    if kind != "bpe":
        assert pair["token_type_ids"][tokens.index(last) + 1 :] == [1] * (len(tokens) - tokens.index(last) - 1)
        assert sum(pair["token_type_ids"][: tokens.index(last) + 1]) == 0
    else:
        assert "token_type_ids" not in pair


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_letters_are_kept_or_made_small_after_loading_too(corpus, kind, lowercase, tmp_path):
    _, tokenizer = learn(corpus, kind, tmp_path / "t", lowercase=lowercase)
    text = "The old Doctor sleeps near houses."
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids).strip().replace(" .", ".") == (text.lower() if lowercase else text)
    assert (tokenizer("THE")["input_ids"] == tokenizer("the")["input_ids"]) == lowercase


def test_the_space_before_a_byte_level_mask_belongs_to_its_word(corpus, tmp_path):
    _, tokenizer = learn(corpus, "bpe", tmp_path / "t")
    ids = tokenizer("The <mask> sleeps", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["The", "<mask>", "Ġsleeps"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_serves_models_of_every_family(corpus, kind, tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    _, tokenizer = learn(corpus, kind, tmp_path / "t")
    expected = tokenizer("The <mask> old [MASK] doctor", "sleeps")["input_ids"]
    for family in ("bert", "roberta", "albert", "electra", "distilbert", "modernbert", "deberta-v2"):
        AutoConfig.for_model(family).save_pretrained(tmp_path / "t")
        assert AutoTokenizer.from_pretrained(tmp_path / "t")("The <mask> old [MASK] doctor", "sleeps")["input_ids"] == (
            expected
        ), family


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_files(corpus, kind, tmp_path):
    for name in "abc":
        learn(corpus, kind, tmp_path / name, size=300)
    for file in (tmp_path / "a").iterdir():
        assert len({(tmp_path / name / file.name).read_bytes() for name in "abc"}) == 1, file.name


def test_the_figures_are_those_of_held_out_documents(tmp_path):
    held_out = [f"{text[:-1]} The doctor-house." for text in documents(330)[300:]]
    write(documents(), tmp_path / "train.jsonl")
    write([*held_out, held_out[0], documents()[0]], tmp_path / "validation.jsonl")
    learned, tokenizer = learn(CorpusConfig(source=str(tmp_path)), "wordpiece", tmp_path / "t")
    held_out.append(documents()[0])  # taken out of the text to learn from instead; copies count once
    words = [tokenizer.tokenize(word) for text in held_out for word in text.replace("-", " ").strip(".").split()]
    assert (learned.documents, learned.held_out, learned.words) == (332, 31, len(words))
    assert learned.fertility == pytest.approx(sum(map(len, words)) / len(words))
    assert 1 < learned.fertility < 4
    assert learned.coverage == pytest.approx(sum(len(word) == 1 for word in words) / len(words))
    assert 0 < learned.coverage < 1
    tokens = [token for text in held_out for token in tokenizer.tokenize(text)]
    assert learned.tokens_per_document == pytest.approx(len(tokens) / len(held_out))
    assert learned.unseen_share == pytest.approx(1 - len(set(tokens)) / len(tokenizer))
    assert learned.unknown_rate == pytest.approx(tokens.count("[UNK]") / len(tokens))
    assert learned.vocabulary_size == len(tokenizer)


def test_what_pretraining_holds_out_is_not_learned_from(tmp_path):
    texts = [f"{text} {number}" for number, text in enumerate(documents(40), start=100)]
    corpus = write([*texts, *texts], tmp_path / "d.jsonl")
    duplicates = find_duplicates(find_corpus(corpus))
    held_out = {part.text for part in split_documents(find_corpus(corpus), duplicates) if part.split == "validation"}
    learned, tokenizer = learn(corpus, "wordpiece", tmp_path / "t", min_frequency=1)
    assert learned.held_out == len(held_out) > 0
    names = {text.split()[-1] for text in texts}
    assert names - set(tokenizer.get_vocab()) == {text.split()[-1] for text in held_out}


def test_a_text_too_small_for_its_vocabulary_is_said(corpus, tmp_path):
    learned, _ = learn(corpus, "wordpiece", tmp_path / "t", size=5000)
    assert learned.vocabulary_size < 5000
    assert learned.warnings == [
        f"the vocabulary has only {learned.vocabulary_size} tokens, not 5,000, because the text is too short: "
        "use more text, or a lower --min-frequency"
    ]


def test_letters_that_were_lost_are_said(tmp_path):
    write(documents(), tmp_path / "train.jsonl")
    write(["The Ωmega sleeps.", "The old Ωmega and éa"], tmp_path / "validation.jsonl")
    learned, _ = learn(CorpusConfig(source=str(tmp_path)), "wordpiece", tmp_path / "t", lowercase=False)
    assert learned.unknown_rate == pytest.approx(3 / 9)
    assert "33.33% of the tokens are unknown (most often 'Ωmega', 'éa')" in learned.warnings[-1]
    assert "--type bpe, which has no unknown tokens" in learned.warnings[-1]
    learned, _ = learn(CorpusConfig(source=str(tmp_path)), "bpe", tmp_path / "b")
    assert learned.unknown_rate == 0


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_many_letters_take_no_more_than_their_share(kind, tmp_path):
    texts = [f"{text} {chr(0x4E00 + number % 150)}" for number, text in enumerate(documents())]
    _, tokenizer = learn(write(texts, tmp_path / "d.jsonl"), kind, tmp_path / "t", size=205)
    assert sum(len(token) == 1 for token in tokenizer.get_vocab()) == 50 + (kind == "unigram")  # its space
    assert tokenizer.tokenize("doctor")[0].strip("▁") == "doctor"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [270, 300])
def test_small_vocabularies_and_many_special_tokens(kind, size, tmp_path):
    special = [f"[{number}]" for number in range(9)]
    learned, tokenizer = learn(
        write(documents(), tmp_path / "d.jsonl"), kind, tmp_path / "t", size=size, special=special
    )
    assert learned.vocabulary_size <= size
    assert tokenizer.tokenize("the [3] sleeps").count("[3]") == 1


def test_the_command_prints_figures_and_never_writes_over_a_folder(run, tmp_path):
    options = ("pretrain", "tokenizer", "--data", "demo", "--vocabulary-size", "300", "--limit", "60", "-o", "mine")
    printed = json.loads(run(*options, "--json").out)
    assert printed["vocabulary_size"] == 300
    assert printed["fertility"] >= 1
    before = {file: file.read_bytes() for file in Path("mine").iterdir()}
    ended = run(*options, "--type", "bpe")
    assert (ended.code, ended.last) == (
        2,
        "error: the folder exists already, and bertkit does not replace it (mine) - name a new folder",
    )
    assert {file: file.read_bytes() for file in Path("mine").iterdir()} == before
    ended = run(*options[:-1], "other", "--cased")
    assert ended.out.startswith("other: wordpiece, cased, 300 tokens\n")
    assert "tokens per word (fertility)" in ended.out
    assert sorted(path.name for path in Path().iterdir()) == ["mine", "other"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "no text is named - add --data with a file, a directory or a dataset on the Hub"),
        (["--data", "demo", "--type", "word"], 2, "no type of tokenizer is called 'word' - did you mean wordpiece?"),
        (
            ["--data", "demo", "--type", "bpe", "--vocabulary-size", "200"],
            2,
            "--vocabulary-size 200 - special tokens and one per byte need at least 261",
        ),
        (
            ["--data", "demo", "--special", "[MASK]"],
            2,
            "--special '[MASK]' - give new tokens; there are: [PAD], [UNK], [CLS], [SEP], [MASK]",
        ),
        (
            ["--data", "demo", "--vocabulary-size", "8"],
            2,
            "--vocabulary-size 8 - special tokens and letters need at least 9",
        ),
        (
            ["--data", "demo", "--limit", "50", "--min-frequency", "1000000"],
            3,
            "no letter of the text is frequent enough - use more text, or a lower --min-frequency",
        ),
        (["--data", "demo", "--set", "data.colum=body"], 2, "unknown key 'data.colum' - did you mean column?"),
        (
            ["--data", "one.jsonl"],
            3,
            "only one document: nothing can be held out (one.jsonl) - put a blank line between documents, or "
            "--set data.documents=lines if each line is a document",
        ),
        (["--data", "blank.jsonl"], 3, "the train split has no documents (blank.jsonl) - add text"),
    ],
)
def test_mistakes_end_in_one_line(run, arguments, code, expected):
    Path("one.jsonl").write_text('{"text": "Only this."}\n')
    Path("blank.jsonl").write_text('{"text": " "}\n')
    ended = run("pretrain", "tokenizer", *arguments, "--output", "t")
    assert (ended.code, ended.last) == (code, f"error: {expected}")
    assert not Path("t").exists()


def test_a_full_disk_ends_in_one_line_and_leaves_nothing(run, monkeypatch):
    def refuse(*_, **__):
        raise Exception("No space left on device (os error 28)")  # as the tokenizers library says it

    with monkeypatch.context() as patched:
        patched.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", refuse)
        ended = run("pretrain", "tokenizer", "--data", "demo", "--limit", "50", "--output", "t")
    assert ended.code == 6
    assert ended.last.startswith("error: No space left on device; ") and ended.last.endswith(
        ", then repeat the command"
    )
    assert list(Path().iterdir()) == []


def test_what_a_killed_process_left_is_deleted(run):
    Path(".t.building").mkdir()
    Path(".t.building", "half.json").write_text("{")
    assert run("pretrain", "tokenizer", "--data", "demo", "--limit", "50", "--output", "t").code == 0
    assert [entry.name for entry in Path().iterdir()] == ["t"]
    assert not Path("t", "half.json").exists()


def test_sizes_are_listed(run):
    printed = json.loads(run("pretrain", "sizes", "--json").out)
    assert {row["size"]: row["parameters"] for row in printed["sizes"]}["base"] == 109_482_240
    assert "base" in run("pretrain", "sizes").out


def test_a_second_training_into_one_folder_is_refused_at_once(corpus, tmp_path, monkeypatch):
    from bertkit.errors import ResourceError
    from bertkit.storage.outputs import lock_output_folder
    from bertkit.workflows import tokenizer as workflow

    folder = tmp_path / "deep" / "t"
    with monkeypatch.context() as patched:
        patched.setattr(workflow, "find_corpus", lambda _: pytest.fail("text is read"))
        with lock_output_folder(folder), pytest.raises(ResourceError, match="is writing this output"):
            learn(corpus, "wordpiece", folder)
    (folder.parent / ".t.building").mkdir()  # a killed process left it
    (folder.parent / ".t.building" / "tokenizer.json").write_text("half of")
    learn(corpus, "wordpiece", folder)
    assert [entry.name for entry in folder.parent.iterdir()] == ["t"]
