"""A tokenized corpus: the tokens of a plain loop over documents, also after kills, damage and full disks."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from joblib.externals.loky import ProcessPoolExecutor
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import bertkit
from bertkit.errors import DataError, RecipeError, ResourceError
from bertkit.pretraining import shards
from bertkit.pretraining import tokenized as corpus
from bertkit.pretraining.documents import find_corpus
from bertkit.pretraining.shards import DocumentTokenizer, TokenShard
from bertkit.pretraining.tokenized import TokenizedCorpus, compute_unigram_loss, content_key, read_corpus
from bertkit.progress import use_progress
from bertkit.recipe.records import CorpusConfig
from bertkit.storage import disk
from bertkit.tokens.sentences import split_sentences
from tests.conftest import WORDS, make_tokenizer
from tests.kills import slow_unless

TOKENIZER = make_tokenizer()
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Work in an empty folder, with a cache in it and small chunks, and tokenize in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shards, "CHUNK", 2000)
    monkeypatch.setattr(corpus, "_count_processes", lambda: 1)
    return tmp_path


def make_documents(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    words = [word for group in WORDS.values() for word in group] + ["unheard", "of.", "7"]
    return [
        "\n".join(" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 4)))
        for _ in range(count)
    ]


def write(name: str, documents: list[str]) -> str:
    Path(name).parent.mkdir(exist_ok=True, parents=True)
    Path(name).write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return name


def prepare(source: str, tokenizer=TOKENIZER, progress=None, **settings) -> dict[str, TokenizedCorpus]:
    with use_progress(progress):
        return read_corpus(find_corpus(CorpusConfig(source=source, **settings)), tokenizer)


def texts_of(split: TokenizedCorpus, tokenizer=TOKENIZER) -> list[list[str]]:
    """Return the tokens of each document as texts, one per sentence."""
    documents = [slice(*edges) for edges in zip(split.documents[:-1], split.documents[1:] + 1, strict=True)]
    return [
        [
            " ".join(tokenizer.convert_ids_to_tokens(split.tokens[first:last].tolist()))
            for first, last in zip(split.sentences[document][:-1], split.sentences[document][1:], strict=True)
        ]
        for document in documents
    ]


def tokenize_plainly(documents: list[str], tokenizer=TOKENIZER) -> list[list[str]]:
    return [
        [" ".join(tokenizer.tokenize(sentence, split_special_tokens=True)) for sentence in split_sentences(document)]
        for document in documents
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    names = ("corpora/*/*", "tokens/*/*")
    return {file.name: file.read_bytes() for name in names for file in sorted(folder.glob(name))}


def folder_in(here: Path) -> Path:
    """Return the folder of the only prepared corpus."""
    (folder,) = (path for path in (here / "cache" / "corpora").iterdir() if path.is_dir())
    return folder


class Spy:
    """Counts what goes through the tokenizer."""

    def __init__(self, monkeypatch) -> None:
        self.documents: list[int] = []
        tokenize = DocumentTokenizer.tokenize

        def counted(tokenizer, documents):
            self.documents.append(len(documents))
            return tokenize(tokenizer, documents)

        monkeypatch.setattr(DocumentTokenizer, "tokenize", counted)


# --- what comes out


def test_ids_of_tokens_are_taken_as_they_are_without_special_tokens():
    for split, seed in (("train", 0), ("validation", 1)):
        texts = [text.replace("\n", " ") for text in dict.fromkeys(make_documents(60, seed))]
        ids = TOKENIZER(texts)["input_ids"]
        rows = [json.dumps({"text": text, "ids": numbers}) for text, numbers in zip(texts, ids, strict=True)]
        Path(f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    of_ids, of_text = prepare("*.jsonl", column="ids"), prepare("*.jsonl")
    for split, corpus_of_ids in of_ids.items():
        assert np.array_equal(corpus_of_ids.tokens, of_text[split].tokens)
        assert np.array_equal(corpus_of_ids.word_starts, of_text[split].word_starts)
        assert np.array_equal(corpus_of_ids.document_edges(), of_text[split].document_edges())
        assert corpus_of_ids.documents.tolist() == list(range(len(corpus_of_ids.documents)))


def test_words_of_ids_begin_where_a_byte_level_vocabulary_has_a_space():
    vocabulary = {"the": 0, "Ġman": 1, "ly": 2, "Ġs": 3, "at": 4}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="the")))
    tokens = DocumentTokenizer(tokenizer).tokenize([np.array([0, 1, 2, 3, 4], "<u4").tobytes()])
    assert tokens.word_starts.tolist() == [True, True, False, True, False]


def test_text_among_ids_is_refused_by_its_row():
    rows = [{"text": [5, 6]}, {"text": None}, {"text": "a cat"}]
    Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"text and token ids in one column \(mixed.jsonl:3\) - use only one"):
        prepare("mixed.jsonl")


def test_ids_of_another_vocabulary_are_refused_by_their_row():
    write_ids = [[5, 6], [7, len(TOKENIZER)]]
    Path("ids.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in write_ids), encoding="utf-8")
    with pytest.raises(DataError, match=r"but the tokenizer has .* \(ids.jsonl:2\) - name the tokenizer"):
        prepare("ids.jsonl", column="ids")


def test_tokens_are_those_of_a_plain_loop(monkeypatch):
    monkeypatch.setattr(shards, "_BATCH_CHARS", 50)
    train, held_out = make_documents(150), make_documents(20, seed=1)
    write("d/train.txt", train)
    write("d/validation.txt", held_out)
    splits = prepare("d")
    assert texts_of(splits["train"]) == tokenize_plainly(list(dict.fromkeys(train)))
    assert texts_of(splits["validation"]) == tokenize_plainly(list(dict.fromkeys(held_out)))
    for split in splits.values():
        assert split.sentences[0] == split.documents[0] == 0
        assert split.sentences[-1] == len(split.tokens) == len(split.word_starts)
        assert split.documents[-1] == len(split.sentences) - 1
        assert split.document_edges().tolist() == [split.sentences[number] for number in split.documents]
        arrays = (split.tokens, split.word_starts, split.sentences, split.documents)
        assert [array.dtype for array in arrays] == [np.uint16, np.bool_, np.int64, np.int64]
        assert not split.tokens.flags.writeable


def test_word_starts_are_those_of_a_plain_loop():
    splits = prepare(
        write("a.txt", ["good unheard, so-so\nunheard unheard", "7 of. [MASK] badbad", *make_documents(9)])
    )
    for split in splits.values():
        expected = []
        for sentence in [sentence for document in texts_of(split) for sentence in document]:
            expected += [not token.startswith("##") for token in sentence.split()]
        assert split.word_starts.tolist() == expected


def test_facts_are_counted():
    documents = ["good film\nso good", "zoo ümläut", "good film\nso good", "so so", "good film\nso good"]
    write("d/train.txt", documents)
    write("d/validation.txt", ["a book", "so so"])
    splits = prepare("d")
    unknown = TOKENIZER.unk_token_id
    assert dict(splits["train"].counts) == {
        "documents": 2,
        "duplicates": 3,
        "sentences": 3,
        "tokens": len(splits["train"].tokens),
        "unknown": int((splits["train"].tokens == unknown).sum()),
        "bytes": len("good film\nso goodzoo ümläut".encode()),
    }
    assert splits["validation"].counts["documents"] == 2


def test_duplicates_stay_where_they_are_wanted():
    write("a.txt", ["so so", "a book", "so so"] * 4)
    kept = prepare("a.txt", deduplicate=False)
    assert sum(split.counts["documents"] for split in kept.values()) == 12
    assert sum(split.counts["duplicates"] for split in kept.values()) == 0
    assert {split.counts["documents"] for split in kept.values()} == {4, 8}  # all copies are on one side
    dropped = prepare("a.txt")
    assert sum(split.counts["duplicates"] for split in dropped.values()) == 10


def test_text_without_tokens_is_left_out():
    rows = ["a book\n\u0007\u0007\nso", "\u0007", "the film", "\u0007\n\u0007"]
    lines = [json.dumps({"text": row}) for row in rows]
    for split in ("train", "validation"):
        write(f"d/{split}.jsonl", [])
        Path(f"d/{split}.jsonl").write_text("\n".join(lines[split == "train" :]))
    splits = prepare("d", deduplicate=False)
    assert texts_of(splits["train"]) == [["the film"]]
    assert texts_of(splits["validation"]) == [["a book", "so"], ["the film"]]
    assert splits["train"].counts["documents"] == 1
    assert splits["train"].counts["bytes"] == len("the film")


def test_text_that_spells_a_special_token_is_text():
    splits = prepare(write("a.txt", ["the [SEP] film", "a book [MASK]"]))
    special = set(TOKENIZER.all_special_ids) - {TOKENIZER.unk_token_id}
    assert not special & {int(token) for split in splits.values() for token in split.tokens}


def test_long_text_is_not_truncated_whatever_the_tokenizer_did_last():
    tokenizer = make_tokenizer()
    tokenizer(["good film"] * 2, truncation=True, max_length=4, padding="max_length")
    splits = prepare(write("a.txt", ["good " * 500, "a book"]), tokenizer)
    assert sorted(len(split.tokens) for split in splits.values()) == [2, 500]
    assert tokenizer.backend_tokenizer.truncation is not None


def words_tokenizer(size: int) -> PreTrainedTokenizerFast:
    vocabulary = {f"w{number}": number for number in range(size)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0", pad_token="w1")


@pytest.mark.parametrize(
    ("size", "dtype"), [pytest.param(2**16, np.uint16, marks=pytest.mark.slow), (2**16 + 1, np.uint32)]
)
def test_tokens_take_the_bytes_they_need(size, dtype):
    splits = prepare(write("a.txt", [f"w{size - 1}", f"w{size - 1} w2"]), words_tokenizer(size))
    for split in splits.values():
        assert split.tokens.dtype == dtype
        assert split.tokens[0] == size - 1


# --- what is held out


def test_held_out_documents_stay_so_when_others_come_and_go(monkeypatch):
    monkeypatch.setattr(shards, "CHUNK", 1 << 20)
    documents = make_documents(400)
    held = {str(text) for text in texts_of(prepare(write("a.txt", documents), validation_fraction=0.1)["validation"])}
    assert 20 < len(held) < 70
    more = documents[50:] + make_documents(200, seed=5)
    random.Random(0).shuffle(more)
    others = {str(text) for text in texts_of(prepare(write("b.txt", more), validation_fraction=0.1)["validation"])}
    gone = {str(text) for text in tokenize_plainly(documents[:50])} - {str(text) for text in tokenize_plainly(more)}
    assert held - gone <= others


def test_neither_split_is_ever_empty():
    documents = ["a", "the", "good"]
    few = prepare(write("a.txt", documents), validation_fraction=1e-12)
    assert [few[split].counts["documents"] for split in ("train", "validation")] == [2, 1]
    many = prepare("a.txt", validation_fraction=0.999999999999)
    assert [many[split].counts["documents"] for split in ("train", "validation")] == [1, 2]


def test_a_held_out_document_is_dropped_from_train():
    write("d/train.txt", ["a", "good film", "the"])
    write("d/validation.txt", ["good film", "so", "so"])
    splits = prepare("d")
    assert texts_of(splits["train"]) == [["a"], ["the"]]
    assert texts_of(splits["validation"]) == [["good film"], ["so"]]
    assert [splits[split].counts["duplicates"] for split in ("train", "validation")] == [1, 1]


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (
            {"d/train.txt": ["so so"]},
            "only one document: nothing can be held out (d) - put a blank line between documents, or "
            "--set data.documents=lines if each line is a document",
        ),
        (
            {"d/train.txt": ["so", "a"], "d/dev.txt": ["a", "so"]},
            "every training document is also in validation (d) - give other text",
        ),
        (
            {"d/train.txt": ["so", "\u0007"], "d/dev.txt": ["\u0007\u0007"]},
            "the text of the validation split has no tokens (d) - give other text, or another tokenizer",
        ),
        ({"d/train.jsonl": ['{"text": " "}']}, "the train split has no documents (d) - add text"),
    ],
)
def test_too_little_text_is_told_in_one_line(files, line):
    for name, documents in files.items():
        write(name, documents)
    with pytest.raises(DataError) as caught:
        prepare("d")
    assert (str(caught.value), caught.value.exit_code) == (line, 3)


# --- cached, killed, damaged


def test_a_second_use_reads_no_document(monkeypatch, here):
    write("a.txt", make_documents(60))
    first = prepare("a.txt")
    spy = Spy(monkeypatch)
    monkeypatch.setattr(corpus, "compare_digests", None)
    Path("a.txt").rename("elsewhere.txt")
    again = prepare("elsewhere.txt")
    assert spy.documents == []
    for split, kept in first.items():
        assert again[split].counts == kept.counts
        for name in ("tokens", "word_starts", "sentences", "documents"):
            assert np.array_equal(getattr(again[split], name), getattr(kept, name))


def test_no_more_than_a_chunk_is_tokenized_at_once(monkeypatch):
    spy = Spy(monkeypatch)
    documents = make_documents(300)
    prepare(write("a.txt", documents))
    assert sum(spy.documents) == len(documents)
    assert max(spy.documents) <= shards.CHUNK // 100  # a document counts for 100 bytes more than it has


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> dict[str, bytes]:
    """The files of a preparation that nothing broke off."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("BERTKIT_CACHE", str(folder))
        patched.setattr(shards, "CHUNK", 2000)
        patched.setattr(corpus, "_count_processes", lambda: 1)
        prepare(write("a.txt", make_documents(120) + make_documents(10)))
    return files_of(folder)


STAGES = ["chunk 1", "chunk 2", "chunk 5", "manifest", "append", "finish", "joined"]


@pytest.mark.parametrize("where", slow_unless(["chunk 1", "chunk 2", "manifest", "finish", "joined"], STAGES))
def test_a_killed_preparation_continues_and_ends_in_the_same_bytes(where, prepared, here, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    documents = make_documents(120) + make_documents(10)
    write("a.txt", documents)
    monkeypatch.setenv("BERTKIT_CACHE", str(here / "killed"))
    of_stage, _, number = where.partition(" ")
    owner, name = {
        "manifest": (shards, "write_with_checksum"),
        "chunk": (shards, "save_arrays"),
        "joined": (disk, "write_with_checksum"),
    }.get(of_stage, (disk.ArrayWriter, of_stage))
    whole, calls = getattr(owner, name), []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == int(number or 1):
            raise KeyboardInterrupt
        return whole(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            prepare("a.txt")
    spy = Spy(monkeypatch)
    prepare("a.txt")
    assert files_of(here / "killed") == prepared != {}
    was_noted = where in ("chunk 2", "chunk 5", "manifest")
    assert any("chunks of text are already tokenized" in record.message for record in caplog.records) == was_noted
    if "chunk" in where:
        assert (0 < sum(spy.documents) < len(documents)) == was_noted
    else:
        assert sum(spy.documents) == 0


@pytest.mark.slow
def test_a_preparation_killed_by_a_signal_continues(here, monkeypatch):
    documents = make_documents(120)
    write("a.txt", documents)
    prepare("a.txt")
    script = (
        "import signal\nfrom tests.pretraining.test_tokenized import *\n"
        "shards.CHUNK, whole, calls = 2000, shards.save_arrays, []\n"
        "def save_arrays(*arguments):\n    calls.append(1)\n"
        "    len(calls) == 3 and os.kill(os.getpid(), signal.SIGKILL)\n    whole(*arguments)\n"
        "shards.save_arrays = save_arrays\nprepare('a.txt')"
    )
    environment = {**os.environ, "BERTKIT_CACHE": str(here / "killed"), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, cwd=here)
    assert ended.returncode == -9, ended.stderr
    monkeypatch.setenv("BERTKIT_CACHE", str(here / "killed"))
    spy = Spy(monkeypatch)
    prepare("a.txt")
    assert 0 < sum(spy.documents) < len(documents)
    assert files_of(here / "killed") == files_of(here / "cache")


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "manifest", "facts"])
def test_damage_is_noticed_and_made_good(damage, here, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    prepare(write("a.txt", make_documents(60)))
    whole = files_of(here / "cache")
    folder = folder_in(here)
    file = folder / ("manifest.json" if damage in ("manifest", "facts") else "train.tokens.npy")
    content = file.read_bytes()
    file.unlink()
    middle = len(content) // 2
    if damage == "facts":
        facts = json.loads(content)
        facts["facts"]["train"]["tokens"] += 1
        file.write_text(json.dumps(facts))
    elif damage != "gone":
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes(flipped if damage == "flipped" else content[:middle])
    caplog.clear()
    prepare("a.txt")
    assert caplog.records[0].message == f"the numbers in {folder} are damaged and are computed again"
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert files_of(here / "cache") == whole


@pytest.mark.slow
def test_two_processes_prepare_one_corpus_once(here, monkeypatch):
    write("a.txt", make_documents(150))
    script = (
        "from tests.pretraining.test_tokenized import *\nlogging.basicConfig(level=20, format='%(message)s')\n"
        "shards.CHUNK = 500\nsplits = prepare('a.txt')\nprint(texts_of(splits['train']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here)
        for _ in range(2)
    ]
    ended = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    assert ended[0][0] == ended[1][0] != ""
    assert sum("the corpus was prepared in" in errors for _, errors in ended) == 1


def test_what_nobody_used_for_a_month_goes_with_the_next_corpus(here):
    prepare(write("a.txt", make_documents(20)))
    old = folder_in(here)
    then = time.time() - 31 * 24 * 3600
    for path in (*old.iterdir(), old):
        os.utime(path, (then, then))
    prepare("a.txt")  # it is of use again
    prepare(write("b.txt", make_documents(20, seed=1)))
    assert old.is_dir()
    for path in (*old.iterdir(), old):
        os.utime(path, (then, then))
    prepare(write("c.txt", make_documents(20, seed=2)))
    assert not old.exists()


def test_a_folder_that_cannot_be_written_is_told(here, monkeypatch):
    (here / "file").touch()
    monkeypatch.setenv("BERTKIT_CACHE", str(here / "file"))
    with pytest.raises(ResourceError) as caught:
        prepare(write("a.txt", ["a", "the"]))
    assert str(caught.value).startswith("the corpus cannot be prepared: Not a directory (")
    assert str(caught.value).endswith("- set BERTKIT_CACHE to use another folder")


def test_a_full_disk_is_reported_and_the_preparation_continues(here, monkeypatch):
    documents = make_documents(120)
    write("a.txt", documents)
    save_arrays, calls = shards.save_arrays, []

    def full(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save_arrays(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(shards, "save_arrays", full)
        with pytest.raises(ResourceError, match="the corpus cannot be prepared: No space left on device") as caught:
            prepare("a.txt")
    assert caught.value.exit_code == 6
    spy = Spy(monkeypatch)
    prepare("a.txt")
    assert 0 < sum(spy.documents) < len(documents)


# --- several processes and files


def test_worker_processes_write_the_same_bytes(prepared, here, monkeypatch):
    write("a.txt", make_documents(120) + make_documents(10))
    monkeypatch.setattr(corpus, "_count_processes", lambda: 2)
    monkeypatch.setattr(corpus, "CHUNK", 2000)
    prepare("a.txt")
    assert files_of(here / "cache") == prepared


def test_worker_processes_read_special_tokens_as_text(monkeypatch):
    documents = [f"[SEP] good film {number}" for number in range(60)]
    write("a.txt", documents)
    monkeypatch.setattr(corpus, "_count_processes", lambda: 2)
    monkeypatch.setattr(corpus, "CHUNK", 2000)
    assert TOKENIZER.sep_token_id not in prepare("a.txt")["train"].tokens


def test_a_file_that_is_added_is_the_only_one_that_is_tokenized(monkeypatch):
    both = make_documents(50), make_documents(40, seed=1)
    write("d/a.txt", both[0])
    write("d/c.txt", both[1])
    prepare("d")
    spy = Spy(monkeypatch)
    added = [*make_documents(30, seed=2), both[0][7], both[1][3]]
    write("d/b.txt", added)
    splits = prepare("d")
    assert sum(spy.documents) == len(added)
    texts = [text for split in splits.values() for text in map(str, texts_of(split))]
    kept = tokenize_plainly(list(dict.fromkeys([*both[0], *added, *both[1]])))
    assert sorted(texts) == sorted(map(str, kept))


def test_a_damaged_chunk_is_tokenized_again(here, monkeypatch):
    write("a.txt", make_documents(60))
    prepare("a.txt")
    whole = files_of(here / "cache")
    file = sorted((here / "cache").glob("tokens/*/*.arrays"))[1]
    file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    next((here / "cache").glob("corpora/*/manifest.json")).unlink()
    spy = Spy(monkeypatch)
    prepare("a.txt")
    assert 0 < sum(spy.documents) < 60
    assert files_of(here / "cache") == whole


def test_the_temporary_file_of_a_killed_chunk_is_deleted(here):
    write("a.txt", make_documents(60))
    prepare("a.txt")
    expected = files_of(here / "cache")
    file = min((here / "cache").glob("tokens/*/*.arrays"))
    file.rename(file.with_name(f".{file.name}.4711.0123abcd.tmp"))
    next((here / "cache").glob("corpora/*/manifest.json")).unlink()
    prepare("a.txt")
    assert files_of(here / "cache") == expected


def test_a_file_that_another_process_tokenizes_comes_last(monkeypatch):
    for name in "abc":
        write(f"d/{name}.txt", make_documents(20, seed=ord(name)))
    expected = prepare("d")
    monkeypatch.setenv("BERTKIT_CACHE", "other")
    asked, finished = [], []
    locked, finish = TokenShard.lock, TokenShard.finish

    def busy_at_first(shard, *, wait):
        asked.append(shard.folder)
        assert wait == (len(asked) > 3)
        if len(asked) == 2:
            raise ResourceError("another process tokenizes the file")
        return locked(shard, wait=wait)

    monkeypatch.setattr(TokenShard, "lock", busy_at_first)
    monkeypatch.setattr(
        TokenShard, "finish", lambda shard, chunks: finished.append(shard.folder) or finish(shard, chunks)
    )
    splits = prepare("d")
    assert finished == [asked[0], asked[2], asked[1]]
    assert asked[3:] == [asked[1]]
    assert np.array_equal(splits["train"].tokens, expected["train"].tokens)


@pytest.mark.slow
def test_small_files_are_tokenized_at_the_same_time(here, monkeypatch):
    documents = make_documents(60)
    for number in range(20):
        write(f"d/{number:02}.txt", documents[3 * number : 3 * number + 3])
    expected = prepare("d")
    monkeypatch.setenv("BERTKIT_CACHE", str(here / "workers"))
    monkeypatch.setattr(corpus, "_count_processes", lambda: 2)
    monkeypatch.setattr(corpus, "CHUNK", 100)
    sent, submit = [], ProcessPoolExecutor.submit
    monkeypatch.setattr(
        ProcessPoolExecutor, "submit", lambda pool, call, item: sent.append(item) or submit(pool, call, item)
    )
    splits = prepare("d")
    assert np.array_equal(splits["train"].tokens, expected["train"].tokens)
    assert len(sent) == 40  # each file has a chunk and its end
    assert not list(here.glob("workers/tokens/*/.*"))


def test_the_limit_counts_documents_of_all_files(monkeypatch):
    documents = make_documents(60)
    write("d/a.txt", documents[:20])
    write("d/b.txt", documents[20:])
    splits = prepare("d", limit=30, deduplicate=False)
    assert sum(split.counts["documents"] for split in splits.values()) == 30
    spy = Spy(monkeypatch)
    prepare("d", limit=25, deduplicate=False)
    assert sum(spy.documents) == 25


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_it_is_needed():
    script = "import sys, bertkit.pretraining.tokenized; print(*{name.partition('.')[0] for name in sys.modules})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not {"torch", "transformers", "datasets", "pyarrow", "tokenizers"} & set(ended.stdout.split())


def test_progress_is_reported_and_ends(here):
    class Recorder:
        def __init__(self):
            self.calls = []

        def start(self, what, total, done=0):
            self.calls.append(("start", what, total, done))

        def update(self, done, figures):
            self.calls.append(("update", done))

        def finish(self):
            self.calls.append(("finish",))

    recorder = Recorder()
    prepare(write("a.txt", ["a", "the", "good film"]), progress=recorder)
    size = Path("a.txt").stat().st_size
    assert recorder.calls[0] == ("start", "tokenizing train", size, 0)
    assert recorder.calls[1:] == [("update", len("athegood film")), ("finish",)]


# --- the key


@pytest.mark.parametrize(
    "changes",
    [{"documents": "lines"}, {"deduplicate": False}, {"validation_fraction": 0.3}, {"limit": 5}, {"source": "b.txt"}],
    ids=str,
)
def test_text_and_settings_change_the_key(changes):
    write("a.txt", ["a", "the"])
    write("b.txt", ["a", "the."])
    assert content_key(find_corpus(CorpusConfig(source="a.txt")), TOKENIZER) != content_key(
        find_corpus(CorpusConfig(**{"source": "a.txt", **changes})), TOKENIZER
    )


def test_names_of_the_hub_change_the_key():
    data = [
        CorpusConfig(source="x/y"),
        CorpusConfig(source="x/z"),
        CorpusConfig(source="x/y", config="c"),
        CorpusConfig(source="x/y", revision="r"),
    ]
    assert len({content_key(find_corpus(corpus), TOKENIZER) for corpus in data}) == 4


def test_how_the_hub_is_read_does_not_change_the_key():
    keys = {
        content_key(find_corpus(CorpusConfig(source="x/y", streaming=streaming)), TOKENIZER)
        for streaming in (False, True)
    }
    assert len(keys) == 1


def test_tokenizer_and_code_change_the_key(monkeypatch):
    write("a.txt", ["a", "the"])
    data = CorpusConfig(source="a.txt")
    more = make_tokenizer()
    more.add_tokens(["superfilm"])
    keys = {content_key(find_corpus(data), TOKENIZER), content_key(find_corpus(data), more)}
    for owner, name in ((bertkit, "__version__"), (corpus, "_SCHEMA")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, "99")
            keys.add(content_key(find_corpus(data), TOKENIZER))
    monkeypatch.setattr(corpus, "package_fingerprint", lambda: "other")
    keys.add(content_key(find_corpus(data), TOKENIZER))
    assert len(keys) == 5


# --- the baseline


def test_the_unigram_loss_is_that_of_a_plain_loop(monkeypatch):
    monkeypatch.setattr(corpus, "_AT_ONCE", 7)
    splits = prepare(write("a.txt", make_documents(200)), validation_fraction=0.2)
    size = len(TOKENIZER)
    counts = Counter(splits["train"].tokens.tolist())
    total = sum(counts.values()) + size
    held_out = splits["validation"].tokens.tolist()
    expected = sum(-math.log((counts[token] + 1) / total) for token in held_out) / len(held_out)
    assert compute_unigram_loss(splits["train"], splits["validation"], size) == pytest.approx(expected, rel=1e-12)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    letters = {letter: 5 + number for number, letter in enumerate("theoldmn")}
    inner = Tokenizer(models.BPE({"a": 0, "Ġ": 1, "b": 2, "Ġb": 3, ".": 4, **letters}, [("Ġ", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_a_later_sentence_is_tokenized_as_in_its_document():
    tokenizer = byte_tokenizer()
    documents = DocumentTokenizer(tokenizer).tokenize(["b. b.", "b."])
    assert tokenizer.convert_ids_to_tokens(documents.tokens.tolist()) == ["b", ".", "Ġb", ".", "b", "."]
    assert documents.word_starts.tolist() == [True] * 6
    assert DocumentTokenizer(TOKENIZER)._space == ""


@pytest.mark.parametrize("batch_chars", [1, 12, 1 << 20])
def test_batches_leave_no_seam(batch_chars, monkeypatch):
    monkeypatch.setattr(shards, "_BATCH_CHARS", batch_chars)
    documents = DocumentTokenizer(TOKENIZER).tokenize(["good film\nso-so zoo", "the book"])
    tokens = TOKENIZER.convert_ids_to_tokens(documents.tokens.tolist())
    assert tokens == ["good", "film", "so", *TOKENIZER.tokenize("-"), "so", *TOKENIZER.tokenize("zoo"), "the", "book"]
    assert documents.word_starts.tolist() == [not token.startswith("##") for token in tokens]
    assert documents.sentences.tolist() == [2, len(tokens) - 4, 2]
    assert documents.documents.tolist() == [2, 1]
    assert documents.bytes.tolist() == [len("good film\nso-so zoo"), len("the book")]


def test_sentences_without_tokens_are_left_out():
    documents = DocumentTokenizer(TOKENIZER).tokenize(["good\n\u0007\nso", "\u0007", ""])
    assert (documents.sentences.tolist(), documents.documents.tolist()) == ([1, 1], [2, 0, 0])
    nothing = DocumentTokenizer(TOKENIZER).tokenize([])
    assert [len(values) for values in nothing] == [0] * 6


def test_documents_without_tokens_are_left_out():
    write("a.txt", ["good film", "\u0007", *make_documents(20)])
    splits = prepare("a.txt")
    assert sum(split.counts["documents"] for split in splits.values()) == 21
    assert all(np.diff(split.documents).min() > 0 for split in splits.values())


def test_special_tokens_are_text_and_the_tokenizer_stays_as_it_was():
    tokenizer = make_tokenizer()
    tokenizer(["good film"], truncation=True, max_length=4)
    before = tokenizer.backend_tokenizer.to_str()
    documents = DocumentTokenizer(tokenizer).tokenize(["[SEP] " + "good " * 20])
    assert tokenizer.sep_token_id not in documents.tokens
    assert documents.sentences[0] > 20
    assert tokenizer.backend_tokenizer.to_str() == before


def test_files_have_weights(here):
    pairs = [
        f"{first} {second}" for first, second in itertools.product(sorted({*WORDS["good"], *WORDS["filler"]}), repeat=2)
    ]
    documents = {name: [f"the {name} {pair}" for pair in pairs] for name in ("a", "b", "c")}
    for name, of_file in documents.items():
        write(f"text/{name}/train.txt", [*of_file, *of_file[:5]])
    write("text/validation.txt", documents["a"][:3])
    splits = prepare("text", weights={"a/*": 2.5, "text/c/*.txt": 0.5, "c/*": 7})
    counts = Counter(tuple(document) for document in texts_of(splits["train"]))
    plain = {name: [tuple(document) for document in tokenize_plainly(of_file)] for name, of_file in documents.items()}
    assert not counts.keys() & set(plain["a"][:3])
    of_a, of_b, of_c = ([counts[document] for document in plain[name]] for name in ("a", "b", "c"))
    assert set(of_a[3:]) == {2, 3} and set(of_b) == {1} and set(of_c) == {0, 1}
    assert 0.3 < np.mean(np.array(of_a[3:]) == 3) < 0.7 and 0.3 < np.mean(of_c) < 0.7
    order = [tuple(document) for document in texts_of(splits["train"])]
    assert not any(first == second for first, second in itertools.pairwise(order))
    assert texts_of(splits["validation"]) == tokenize_plainly(documents["a"][:3])
    assert splits["train"].counts["documents"] == len(order) == counts.total()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"weights": {"web/*": 2}}, DataError, "no training file matches 'web/\\*'"),
        ({"weights": {"*.txt": 2}, "limit": 3}, RecipeError, "data.weights with data.limit"),
        ({"source": "my/text", "weights": {"*": 2}}, RecipeError, "data.weights needs files"),
    ],
)
def test_weights_that_weigh_nothing_are_refused(here, settings, error, message):
    write("text/train.txt", ["a film"])
    with pytest.raises(error, match=message):
        find_corpus(CorpusConfig(**{"source": "text", **settings}))
