"""A corpus as tokens: long arrays on disk, mapped into memory, that all pretraining objectives read.

They are prepared once for the same text, tokenizer and settings. Text is never in memory as a whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.corpus.deduplicate import DeduplicationPass, SplitDocument, find_duplicates, split_documents
from bertkit.corpus.documents import corpus_files
from bertkit.corpus.tokenize import DocumentTokenizer, TokenizedDocuments
from bertkit.errors import DataError, ResourceError
from bertkit.progress import Progress
from bertkit.recipe.pretraining import Corpus
from bertkit.storage.cache import cache_folder, sweep
from bertkit.storage.columns import ColumnWriter, locked, map_columns
from bertkit.storage.fingerprints import file_fingerprint, package_fingerprint, tokenizer_content

log = logging.getLogger("bertkit")

Numbers = np.ndarray[Any, Any]

_SCHEMA = 1  # of the files
_SPLITS = ("train", "validation")
_COLUMNS = ("tokens", "word_starts", "sentences", "documents")
_SHARD = 1 << 22  # bytes of text between two notes of how far the preparation is
_COUNTS = ("documents", "duplicates", "sentences", "tokens", "unknown", "bytes")
_AT_ONCE = 1 << 22  # tokens that are counted at once


@dataclass(frozen=True)
class TokenizedCorpus:
    """The tokens of one split, documents one after the other; nothing special is among them.

    Sentence number s is ``tokens[sentences[s] : sentences[s + 1]]``; document number d is the sentences
    ``documents[d]`` to ``documents[d + 1]``.
    """

    tokens: Numbers
    """(tokens,) ids, uint16 or uint32."""
    word_starts: Numbers
    """(tokens,) bool: whether a token begins a word."""
    sentences: Numbers
    """(sentences + 1,) int64 places in `tokens`."""
    documents: Numbers
    """(documents + 1,) int64 places in `sentences`."""
    facts: Mapping[str, Any]
    """What was counted: documents, duplicates, sentences, tokens, unknown, bytes."""
    fingerprint: str = ""
    """A SHA-256 over all of it."""

    def document_edges(self) -> Numbers:
        """Give the (documents + 1,) places in `tokens` where documents begin and end."""
        edges: Numbers = np.asarray(self.sentences)[np.asarray(self.documents)]
        return edges


def read_corpus(data: Corpus, tokenizer: Any, progress: Progress) -> dict[str, TokenizedCorpus]:
    """Give the tokens of ``train`` and ``validation``, prepared now or by an earlier run.

    Documents that occurred before are dropped; where the source has no validation split, the documents with the
    lowest digests are held out for it. A preparation that was killed goes on from its last shard.

    Raises:
        DataError: text that is not as the recipe says, too little of it, or none that has tokens.
        ResourceError: the folder of kept files cannot be written, or a file cannot be read.
        UnavailableError: a hub data set that cannot be reached.
    """
    key = content_key(data, tokenizer)
    folder = cache_folder("corpora") / key[:32]
    try:
        found = map_columns(folder)
        if found is None:
            with locked(folder):
                found = map_columns(folder) or _prepare(folder, data, tokenizer, progress)
            sweep(folder.parent)
    except OSError as error:
        what = f"the corpus cannot be prepared: {error.strerror or error}"
        raise ResourceError(what, "BERTKIT_CACHE names another folder", file=folder) from None
    return {split: _of_split(split, *found) for split in _SPLITS}


def content_key(data: Corpus, tokenizer: Any) -> str:
    """Give a SHA-256 over all that the tokens can depend on: text, tokenizer, settings and code.

    Of a hub data set it is the name, configuration and revision.
    """
    files = corpus_files(data)
    named = {"source", "config", "revision", "splits"} if files is None else set[str]()
    settings = [
        *(
            _SCHEMA,
            bertkit.__version__,
            package_fingerprint(),
            metadata.version("tokenizers"),
            tokenizer_content(tokenizer),
        ),
        data.model_dump(exclude={"source", "config", "revision", "splits", "files", "streaming"} - named),
        {split: [_of_file(file) for file in held] for split, held in (files or {}).items()},
    ]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def unigram_loss(train: TokenizedCorpus, held_out: TokenizedCorpus, size: int) -> float:
    """Give the nats a held-out token costs whoever knows only how often each of `size` tokens occurs in train.

    One is added to each count, so no token is impossible. Every objective has to do better.
    """
    counts, wanted = _count(train.tokens, size), _count(held_out.tokens, size)
    shares = (counts + 1) / (counts.sum() + size)
    return float(-(wanted * np.log(shares)).sum() / wanted.sum())


def _of_split(split: str, columns: Mapping[str, Numbers], facts: Mapping[str, Any]) -> TokenizedCorpus:
    tokens, word_starts, sentences, documents = (columns[f"{split}.{name}"] for name in _COLUMNS)
    digests = "".join(facts["sha256"][f"{split}.{name}"] for name in _COLUMNS)
    fingerprint = hashlib.sha256(digests.encode()).hexdigest()
    return TokenizedCorpus(tokens, word_starts, sentences, documents, facts[split], fingerprint)


def _count(tokens: Numbers, size: int) -> Numbers:
    """Count each token, a part of the array at a time: counting makes wider numbers of all it is given."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(tokens), _AT_ONCE):
        counts += np.bincount(tokens[start : start + _AT_ONCE], minlength=size)
    return counts


def _of_file(file: Path) -> list[str]:
    """Give a file's ending and SHA-256: where it lies does not matter."""
    try:
        return [*(suffix.lower() for suffix in file.suffixes[-2:]), file_fingerprint(file)]
    except PermissionError:
        raise ResourceError("no permission to read", "see its permissions", file=file) from None


def _prepare(
    folder: Path, data: Corpus, tokenizer: Any, progress: Progress
) -> tuple[dict[str, Numbers], dict[str, Any]]:
    """Write the columns of a corpus, from where an earlier process left off, and map them."""
    began = time.monotonic()
    survey = find_duplicates(data, progress)
    with ColumnWriter(folder, _kinds(tokenizer), survey.content) as columns:
        state = columns.state or {"read": 0, "facts": {split: dict.fromkeys(_COUNTS, 0) for split in _SPLITS}}
        if state["read"]:
            log.info(f"the preparation goes on after {state['read']:,} of {survey.documents:,} documents")
        progress.start("preparing documents", survey.documents, state["read"])
        try:
            _write(columns, state, split_documents(data, survey), tokenizer, progress)
        finally:
            progress.finish()
        _check(state["facts"], data)
        columns.finish(state["facts"])
    _tell(state["facts"], survey, time.monotonic() - began)
    found = map_columns(folder)
    if found is None:
        raise ResourceError("what was written is not what is read", "check the disk", file=folder)
    return found


def _write(
    columns: ColumnWriter, state: dict[str, Any], documents: Iterator[SplitDocument], tokenizer: Any, progress: Progress
) -> None:
    """Write the columns shard by shard; `state`, of which each shard takes note, says where to go on."""
    cutter, facts = DocumentTokenizer(tokenizer), state["facts"]
    if not state["read"]:
        for split in _SPLITS:
            columns.append(f"{split}.sentences", np.zeros(1))
            columns.append(f"{split}.documents", np.zeros(1))
    # what an earlier process has written is read once more: which documents are duplicates depends on it
    for shard in _shards(islice(documents, state["read"], None)):
        for split in _SPLITS:
            texts = [document.text for document in shard if document.split == split and not document.is_duplicate]
            _append(columns, split, facts[split], cutter.cut(texts), tokenizer.unk_token_id)
            facts[split]["duplicates"] += sum(each.split == split and each.is_duplicate for each in shard)
        state["read"] += len(shard)
        columns.commit(state)
        progress.update(state["read"], {"tokens": sum(facts[split]["tokens"] for split in _SPLITS)})


def _kinds(tokenizer: Any) -> dict[str, str]:
    """Give the type of each column; the smaller one for tokens where all ids fit."""
    tokens = "<u2" if max(tokenizer.get_vocab().values()) < 2**16 else "<u4"
    kinds = (tokens, "?", "<i8", "<i8")
    return {f"{split}.{name}": kind for split in _SPLITS for name, kind in zip(_COLUMNS, kinds, strict=True)}


def _shards(documents: Iterator[SplitDocument]) -> Iterator[list[SplitDocument]]:
    """Give documents in lists of so many bytes, and their texts are all that is in memory of a corpus."""
    shard, size = list[SplitDocument](), 0
    for document in documents:
        shard.append(document)
        size += document.bytes + 100  # what a short one weighs, too
        if size >= _SHARD:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _append(
    columns: ColumnWriter, split: str, facts: dict[str, int], cut: TokenizedDocuments, unknown: int | None
) -> None:
    """Write the tokens of some documents and count them."""
    columns.append(f"{split}.tokens", cut.tokens)
    columns.append(f"{split}.word_starts", cut.word_starts)
    columns.append(f"{split}.sentences", facts["tokens"] + np.cumsum(cut.sentences))
    columns.append(f"{split}.documents", facts["sentences"] + np.cumsum(cut.documents))
    facts["documents"] += len(cut.documents)
    facts["sentences"] += len(cut.sentences)
    facts["tokens"] += len(cut.tokens)
    facts["unknown"] += 0 if unknown is None else int((cut.tokens == unknown).sum())
    facts["bytes"] += cut.bytes


def _check(facts: Mapping[str, Mapping[str, int]], data: Corpus) -> None:
    for split in _SPLITS:
        if not facts[split]["tokens"]:
            what = f"the tokenizer makes no tokens of the text of the {split} split"
            raise DataError(what, "give other text, or another tokenizer", file=data.source or None)


def _tell(facts: Mapping[str, Mapping[str, int]], survey: DeduplicationPass, seconds: float) -> None:
    """Say what a corpus is made of."""
    if survey.held_out:
        kept = sum(facts[split]["documents"] for split in _SPLITS)
        log.info(f"no validation split: {facts['validation']['documents']:,} of {kept:,} documents are held out for it")
    for split in _SPLITS:
        counted = facts[split]
        log.info(
            f"{split}: {counted['documents']:,} documents ({counted['duplicates']:,} duplicates dropped), "
            f"{counted['sentences']:,} sentences, {counted['tokens']:,} tokens "
            f"({counted['unknown'] / counted['tokens']:.2%} unknown), {counted['bytes']:,} bytes of text"
        )
    log.info(f"the corpus was prepared in {seconds:.1f} s")
