"""A tokenized corpus: long memory-mapped arrays that all pretraining objectives read.

They are prepared once for the same text, tokenizer and settings. The text is never in memory as a whole.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertkit
from bertkit.errors import DataError, ResourceError
from bertkit.pretraining.deduplicate import DeduplicationPass, SplitDocument, find_duplicates, split_documents
from bertkit.pretraining.documents import CorpusSource
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.records import Corpus
from bertkit.storage.cache import cache_folder, sweep
from bertkit.storage.columns import ColumnWriter, Numbers, map_columns, map_or_write
from bertkit.storage.fingerprints import file_fingerprint, package_fingerprint, tokenizer_content
from bertkit.tokens.features import Tokenizer, split_by_size
from bertkit.tokens.light import plain
from bertkit.tokens.sentences import split_sentences

_SCHEMA = 1  # of the files
_SPLITS = ("train", "validation")
_COLUMNS = ("tokens", "word_starts", "sentences", "documents")
_SHARD = 1 << 22  # bytes of text between two commits, from which a killed preparation continues
_COUNTS = ("documents", "duplicates", "sentences", "tokens", "unknown", "bytes")
_AT_ONCE = 1 << 22  # tokens counted at once


@dataclass(frozen=True)
class TokenizedCorpus:
    """The tokens of one split, document after document, without special tokens.

    Sentence s is ``tokens[sentences[s] : sentences[s + 1]]``; document d has the sentences ``documents[d]`` up to,
    but not including, ``documents[d + 1]``.

    Four tokens in three sentences, and these in two documents:

    >>> sentences, documents = np.array([0, 2, 3, 4]), np.array([0, 2, 3])
    >>> corpus = TokenizedCorpus(np.array([5, 6, 7, 8]), np.ones(4, bool), sentences, documents, facts={})
    >>> corpus.document_edges().tolist()
    [0, 3, 4]
    """

    tokens: Numbers
    """(tokens,) ids, uint16 or uint32."""
    word_starts: Numbers
    """(tokens,) bool: whether a token begins a word."""
    sentences: Numbers
    """(sentences + 1,) int64 offsets in `tokens`."""
    documents: Numbers
    """(documents + 1,) int64 offsets in `sentences`."""
    facts: Mapping[str, Any]
    """Counts: documents, duplicates, sentences, tokens, unknown (tokens), bytes (of text in UTF-8)."""
    fingerprint: str = ""
    """A SHA-256 of the arrays."""

    def document_edges(self) -> Numbers:
        """Return the offsets in `tokens` where documents begin and end, shape (documents + 1,)."""
        edges: Numbers = np.asarray(self.sentences)[np.asarray(self.documents)]
        return edges


def read_corpus(source: CorpusSource, tokenizer: Tokenizer) -> dict[str, TokenizedCorpus]:
    """Map the tokens of ``train`` and ``validation``, and prepare them unless an earlier run has.

    Duplicate documents are dropped. If the source has no validation split, the documents with the lowest digests are
    held out. A preparation that was killed continues after its last shard.

    Raises:
        DataError: the text differs from what the recipe says, is too short, or has no tokens.
        ResourceError: the cache folder cannot be written, or a file cannot be read.
        UnavailableError: the hub cannot be reached.
    """
    key = content_key(source, tokenizer)
    folder = cache_folder("corpora") / key[:32]
    try:
        mapped = map_columns(folder)
        if mapped is None:
            # once more under the lock: another process may have prepared it while this one was waiting
            mapped = map_or_write(folder, lambda: _prepare_corpus(folder, source, tokenizer))
            sweep(folder.parent)
    except OSError as error:
        what = f"the corpus cannot be prepared: {error.strerror or error}"
        raise ResourceError(what, "set BERTKIT_CACHE to use another folder", file=folder) from None
    return {split: _build_split(split, *mapped) for split in _SPLITS}


def content_key(source: CorpusSource, tokenizer: Tokenizer) -> str:
    """Compute a SHA-256 of everything the tokens depend on: text, tokenizer, settings and code.

    A hub data set is represented by its name, configuration and revision instead of its text.
    """
    data, files = source.data, source.files
    of_hub = {"source", "config", "revision", "splits"} if files is None else set[str]()
    settings = [
        *(
            _SCHEMA,
            bertkit.__version__,
            package_fingerprint(),
            metadata.version("tokenizers"),
            tokenizer_content(tokenizer),
        ),
        data.model_dump(exclude={"source", "config", "revision", "splits", "files", "streaming"} - of_hub),
        {split: [_fingerprint(path) for path in paths] for split, paths in (files or {}).items()},
    ]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def unigram_loss(train: TokenizedCorpus, held_out: TokenizedCorpus, size: int) -> float:
    """Compute the cross-entropy of held-out tokens, in nats, under the frequencies of the `size` tokens in train.

    One is added to each count, so that no token is impossible. Every objective has to beat this baseline.
    """
    counts, held_out_counts = _count_tokens(train.tokens, size), _count_tokens(held_out.tokens, size)
    shares = (counts + 1) / (counts.sum() + size)
    return float(-(held_out_counts * np.log(shares)).sum() / held_out_counts.sum())


def _build_split(split: str, columns: Mapping[str, Numbers], facts: Mapping[str, Any]) -> TokenizedCorpus:
    tokens, word_starts, sentences, documents = (columns[f"{split}.{name}"] for name in _COLUMNS)
    digests = "".join(facts["sha256"][f"{split}.{name}"] for name in _COLUMNS)
    fingerprint = hashlib.sha256(digests.encode()).hexdigest()
    return TokenizedCorpus(tokens, word_starts, sentences, documents, facts[split], fingerprint)


def _count_tokens(tokens: Numbers, size: int) -> Numbers:
    """Count the occurrences of each token id, chunk by chunk, since `bincount` copies its input to int64."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(tokens), _AT_ONCE):
        counts += np.bincount(tokens[start : start + _AT_ONCE], minlength=size)
    return counts


def _fingerprint(file: Path) -> list[str]:
    """Return a file's suffixes and SHA-256; its folder and its name do not matter."""
    try:
        return [*(suffix.lower() for suffix in file.suffixes[-2:]), file_fingerprint(file)]
    except PermissionError:
        raise ResourceError("no permission to read", "check its permissions", file=file) from None


def _prepare_corpus(folder: Path, source: CorpusSource, tokenizer: Tokenizer) -> None:
    """Write the columns of a corpus, starting where an earlier process stopped."""
    began = time.monotonic()
    deduplication = find_duplicates(source)
    with ColumnWriter(folder, _dtypes(tokenizer), deduplication.content) as columns:
        state = columns.state or {"read": 0, "facts": {split: dict.fromkeys(_COUNTS, 0) for split in _SPLITS}}
        if state["read"]:
            log.info(f"the preparation continues after {state['read']:,} of {deduplication.documents:,} documents")
        with stage("preparing documents", deduplication.documents, state["read"]):
            _write_shards(columns, state, split_documents(source, deduplication), tokenizer)
        _check_tokens(state["facts"], source.data)
        columns.finish(state["facts"])
    _log_facts(state["facts"], deduplication, time.monotonic() - began)


def _write_shards(
    columns: ColumnWriter, state: dict[str, Any], documents: Iterator[SplitDocument], tokenizer: Tokenizer
) -> None:
    """Write the columns shard by shard; `state`, which is saved with each shard, says where to continue."""
    document_tokenizer, facts = DocumentTokenizer(tokenizer), state["facts"]
    if not state["read"]:
        for split in _SPLITS:
            columns.append(f"{split}.sentences", np.zeros(1))
            columns.append(f"{split}.documents", np.zeros(1))
    # the documents of an earlier process are read again, since they decide which later ones are duplicates
    # a shard is the only text that is in memory; 100 bytes more for each limit the number of short ones
    rest = islice(documents, state["read"], None)
    for shard in split_by_size(rest, _SHARD, lambda document: document.bytes + 100):
        for split in _SPLITS:
            texts = [document.text for document in shard if document.split == split and not document.is_duplicate]
            _append_tokens(columns, split, facts[split], document_tokenizer.tokenize(texts), tokenizer.unk_token_id)
            facts[split]["duplicates"] += sum(document.split == split and document.is_duplicate for document in shard)
        state["read"] += len(shard)
        columns.commit(state)
        get_progress().update(state["read"], {"tokens": sum(facts[split]["tokens"] for split in _SPLITS)})


def _dtypes(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the dtype of each column: two bytes per token if all ids fit, else four."""
    tokens = "<u2" if max(tokenizer.get_vocab().values()) < 2**16 else "<u4"
    dtypes = (tokens, "?", "<i8", "<i8")
    return {f"{split}.{name}": dtype for split in _SPLITS for name, dtype in zip(_COLUMNS, dtypes, strict=True)}


def _append_tokens(
    columns: ColumnWriter, split: str, facts: dict[str, int], documents: TokenizedDocuments, unknown: int | None
) -> None:
    """Write the tokens of some documents and count them."""
    columns.append(f"{split}.tokens", documents.tokens)
    columns.append(f"{split}.word_starts", documents.word_starts)
    # counts become offsets in the whole column: those of earlier shards are in `facts`
    columns.append(f"{split}.sentences", facts["tokens"] + np.cumsum(documents.sentences))
    columns.append(f"{split}.documents", facts["sentences"] + np.cumsum(documents.documents))
    facts["documents"] += len(documents.documents)
    facts["sentences"] += len(documents.sentences)
    facts["tokens"] += len(documents.tokens)
    facts["unknown"] += 0 if unknown is None else int((documents.tokens == unknown).sum())
    facts["bytes"] += documents.bytes


def _check_tokens(facts: Mapping[str, Mapping[str, int]], data: Corpus) -> None:
    for split in _SPLITS:
        if not facts[split]["tokens"]:
            what = f"the text of the {split} split has no tokens"
            raise DataError(what, "give other text, or another tokenizer", file=data.source or None)


def _log_facts(facts: Mapping[str, Mapping[str, int]], deduplication: DeduplicationPass, seconds: float) -> None:
    """Log the size of each split, and how long the preparation took."""
    if deduplication.held_out:
        kept = sum(facts[split]["documents"] for split in _SPLITS)
        log.info(f"no validation split: {facts['validation']['documents']:,} of {kept:,} documents are held out for it")
    for split in _SPLITS:
        counts = facts[split]
        log.info(
            f"{split}: {counts['documents']:,} documents ({counts['duplicates']:,} duplicates dropped), "
            f"{counts['sentences']:,} sentences, {counts['tokens']:,} tokens "
            f"({counts['unknown'] / counts['tokens']:.2%} unknown), {counts['bytes']:,} bytes of text"
        )
    log.info(f"the corpus was prepared in {seconds:.1f} s")


# characters tokenized at once: encodings take a hundred times the memory of token ids
_BATCH_CHARS = 1 << 20


class TokenizedDocuments(NamedTuple):
    """The tokens of some documents; sentences and documents without tokens are left out."""

    tokens: Numbers
    """(tokens,) ids."""
    word_starts: Numbers
    """(tokens,) whether a token begins a word."""
    sentences: Numbers
    """(sentences,) the number of tokens of each."""
    documents: Numbers
    """(documents,) the number of sentences of each."""
    bytes: int
    """The size of the documents in UTF-8."""


class DocumentTokenizer:
    """Tokenizes documents with the tokenizer's own threads, without truncation and special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = plain(copy.deepcopy(tokenizer.backend_tokenizer))
        self._space = " " if self._needs_space() else ""

    def tokenize(self, documents: Sequence[str]) -> TokenizedDocuments:
        """Split documents into sentences and these into tokens."""
        split = [split_sentences(document) for document in documents]
        texts = [self._space * (number > 0) + text for sentences in split for number, text in enumerate(sentences)]
        batches = [self._encode_texts(batch) for batch in split_by_size(texts, _BATCH_CHARS, len)] or [
            (np.zeros(0, np.int64),) * 3
        ]
        tokens, starts, lengths = (np.concatenate(column) for column in zip(*batches, strict=True))
        # (sentences,) the document of each, from which the sentences with tokens are counted per document
        owners = np.repeat(np.arange(len(split)), [len(sentences) for sentences in split])
        counts = np.bincount(owners[lengths > 0], minlength=len(split))
        size = sum(len(document.encode()) for document, count in zip(documents, counts, strict=True) if count)
        return TokenizedDocuments(tokens, starts, lengths[lengths > 0], counts[counts > 0], size)

    def _encode_texts(self, texts: list[str]) -> tuple[Numbers, Numbers, Numbers]:
        """Encode texts: (tokens,) ids and whether each begins a word, and (texts,) the number of tokens."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64, total)
        words = list(chain.from_iterable(encoding.word_ids for encoding in encodings))
        # A word begins where the word's number changes, found in one comparison instead of a loop over tokens. As a
        # float, the None of a token without a word is NaN, which differs from every number and from itself.
        numbers = np.array(words, dtype=np.float64)
        starts = np.ones(total, dtype=bool)
        starts[1:] = numbers[1:] != numbers[:-1]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return tokens, starts, lengths

    def _needs_space(self) -> bool:
        """Tell whether a word has other tokens after a space than at the start of a text (byte-level vocabularies).

        Then a space is put before each sentence that is not the first one, so that it is tokenized as in its document.
        """
        probes = self._tokenizer.encode_batch(["the old man", "man", " man"], add_special_tokens=False)
        text, alone, spaced = (list(probe.ids) for probe in probes)
        return spaced != alone and text[-len(spaced) :] == spaced
