"""Tokenized corpus: long memory-mapped arrays that all pretraining objectives read.

The arrays are prepared once per combination of text, tokenizer and settings. The complete text is never in memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.errors import DataError, ResourceError
from bertkit.hardware.process import available_threads
from bertkit.hardware.workers import KeyedMap, worker_pool
from bertkit.pretraining.deduplicate import DeduplicationPass, DuplicateFilter, compare_digests, source_splits
from bertkit.pretraining.documents import CorpusSource, SourceFile, Text, list_source_files
from bertkit.pretraining.shards import (
    CHUNK,
    DocumentTokenizer,
    TokenizedDocuments,
    TokenShard,
    split_into_chunks,
)
from bertkit.progress import log, stage
from bertkit.recipe.records import CorpusConfig
from bertkit.storage.cache import cache_folder, delete_unused
from bertkit.storage.disk import ArrayWriter, map_arrays, map_or_write
from bertkit.storage.fingerprints import (
    cached_checksum,
    json_fingerprint,
    package_fingerprint,
    tokenizer_content,
)
from bertkit.tokens.features import Tokenizer

_SCHEMA = 3  # version of the files
_SPLITS = ("train", "validation")
_Shards = list[tuple[TokenShard, SourceFile]]
_ARRAYS = ("tokens", "word_starts", "sentences", "documents")
_COUNTS = ("documents", "duplicates", "sentences", "tokens", "unknown", "bytes")
_AT_ONCE = 1 << 22  # tokens per call of `bincount`


@dataclass(frozen=True)
class TokenizedCorpus:
    """Tokens of one split, document after document, without special tokens.

    Sentence s is ``tokens[sentences[s] : sentences[s + 1]]``; document d has the sentences ``documents[d]`` up to,
    but not including, ``documents[d + 1]``.

    This corpus has four tokens in three sentences, in two documents:

    >>> sentences, documents = np.array([0, 2, 3, 4]), np.array([0, 2, 3])
    >>> corpus = TokenizedCorpus(np.array([5, 6, 7, 8]), np.ones(4, bool), sentences, documents, counts={})
    >>> corpus.document_edges().tolist()
    [0, 3, 4]
    """

    tokens: np.ndarray
    """(tokens,) ids, uint16 or uint32."""
    word_starts: np.ndarray
    """(tokens,) bool: whether a token begins a word."""
    sentences: np.ndarray
    """(sentences + 1,) int64 offsets in `tokens`."""
    documents: np.ndarray
    """(documents + 1,) int64 offsets in `sentences`."""
    counts: Mapping[str, Any]
    """Numbers of documents, duplicates, sentences, tokens, unknown tokens, and bytes (of UTF-8 text, or of ids)."""
    fingerprint: str = ""
    """SHA-256 of the arrays."""

    def document_edges(self) -> np.ndarray:
        """Return the offsets of documents in `tokens`, shape (documents + 1,)."""
        edges: np.ndarray = np.asarray(self.sentences)[np.asarray(self.documents)]
        return edges


def read_corpus(source: CorpusSource, tokenizer: Tokenizer) -> dict[str, TokenizedCorpus]:
    """Map the tokens of ``train`` and ``validation`` into memory, and prepare them first if they are not in the cache.

    Duplicate documents are dropped. If the source has no validation split, the documents with the lowest digests are
    held out. If the preparation is killed, the next one resumes after the last chunk of text.

    Raises:
        DataError: If the text does not match the recipe, is too short, or has no tokens.
        ResourceError: If the cache folder cannot be written, a file cannot be read, or a worker process has ended.
        UnavailableError: If the Hub cannot be reached.
    """
    start_time = time.monotonic()
    shards = _find_shards(source, tokenizer)
    folder = cache_folder("corpora") / _corpus_key(source.data, shards)[:32]
    try:
        arrays = map_arrays(folder)
        if arrays is None:
            splits = {split: shards[split] for split in source_splits(source)}
            _write_shards(source, splits, tokenizer)
            # `map_or_write` checks again under the lock: another process may have prepared the corpus in the meantime.
            arrays = map_or_write(folder, lambda: _join_shards(folder, source.data, splits, tokenizer, start_time))
            delete_unused(cache_folder("tokens"))
    except OSError as error:
        message = f"the corpus cannot be prepared: {error.strerror or error}"
        raise ResourceError(message, "set BERTKIT_CACHE to use another folder", file=folder) from None
    return {split: _build_split(split, *arrays) for split in _SPLITS}


def content_key(source: CorpusSource, tokenizer: Tokenizer) -> str:
    """Compute a SHA-256 of everything that the tokens depend on: text, tokenizer, settings and code.

    For a dataset of the Hub, it covers the name, configuration and revision instead of the text.
    """
    return _corpus_key(source.data, _find_shards(source, tokenizer))


def _corpus_key(data: CorpusConfig, shards: Mapping[str, _Shards]) -> str:
    names = {split: [(shard.folder.name, file.weight) for shard, file in pairs] for split, pairs in shards.items()}
    return json_fingerprint([names, data.deduplicate, data.validation_fraction])


def _find_shards(source: CorpusSource, tokenizer: Tokenizer) -> dict[str, _Shards]:
    """Return the shard of each file per split; its folder's name is a hash of everything that the tokens depend on."""
    data, version = source.data, metadata.version("tokenizers")
    code = [_SCHEMA, bertkit.__version__, package_fingerprint(), version, tokenizer_content(tokenizer)]
    settings = data.model_dump(include={"column", "documents", "encoding", "limit"})
    location = None if source.files else data.model_dump(include={"source", "config", "revision", "splits"})
    shards: dict[str, _Shards] = {}
    for split in _SPLITS:
        shards[split] = []
        for file in list_source_files(source, split):
            text = [_fingerprint(path) for path in file.paths]
            key = json_fingerprint([*code, settings, text or [split, location]])
            shards[split].append((TokenShard(cache_folder("tokens") / key[:32]), file))
    return shards


def compute_unigram_loss(train: TokenizedCorpus, held_out: TokenizedCorpus, vocabulary: int) -> float:
    """Compute the cross-entropy of held-out tokens, in nats, under the token frequencies in the training text.

    `vocabulary` is the number of tokens in the vocabulary. One is added to each count, so that no token has the
    probability 0. Every objective has to beat this baseline.
    """
    counts, held_out_counts = (_count_tokens(corpus.tokens, vocabulary) for corpus in (train, held_out))
    probabilities = (counts + 1) / (counts.sum() + vocabulary)
    return float(-(held_out_counts * np.log(probabilities)).sum() / held_out_counts.sum())


def _build_split(split: str, arrays: Mapping[str, np.ndarray], counts: Mapping[str, Any]) -> TokenizedCorpus:
    tokens, word_starts, sentences, documents = (arrays[f"{split}.{name}"] for name in _ARRAYS)
    digests = "".join(counts["sha256"][f"{split}.{name}"] for name in _ARRAYS)
    fingerprint = hashlib.sha256(digests.encode()).hexdigest()
    return TokenizedCorpus(tokens, word_starts, sentences, documents, counts[split], fingerprint)


def _count_tokens(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """Count the occurrences of each token id, chunk by chunk, because `bincount` copies its input to int64."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for start in range(0, len(tokens), _AT_ONCE):
        counts += np.bincount(tokens[start : start + _AT_ONCE], minlength=vocabulary)
    return counts


def _fingerprint(file: Path) -> list[str]:
    """Return the suffixes and the SHA-256 of a file, because tokens do not depend on its folder and name."""
    try:
        return [*(suffix.lower() for suffix in file.suffixes[-2:]), cached_checksum(file)]
    except PermissionError:
        raise ResourceError("no permission to read", "check its permissions", file=file) from None


def _write_shards(source: CorpusSource, shards: Mapping[str, _Shards], tokenizer: Tokenizer) -> None:
    """Tokenize all files that are not in the cache; files that another process tokenizes come last."""
    sizes = {split: sum(file.bytes for _, file in files) for split, files in shards.items()}
    processes = _count_processes()
    if source.files is not None:
        # All workers start at once, so start at most one per chunk of text.
        processes = min(processes, math.ceil(sum(sizes.values()) / CHUNK))
    with worker_pool(DocumentTokenizer(tokenizer).tokenize, processes) as compute:
        for split, files in shards.items():
            with stage(f"tokenizing {split}", sizes[split]) as advance:
                # A process does not wait while it holds locks, so two processes cannot wait for each other.
                for busy_file in _write_files(files, len(tokenizer), compute, advance, wait=False):
                    _write_files([busy_file], len(tokenizer), compute, advance, wait=True)


def _write_files(
    files: _Shards, vocabulary: int, compute: KeyedMap, advance: Callable[[int], None], *, wait: bool
) -> _Shards:
    """Tokenize files chunk by chunk; workers can start the next file before the last chunks of a file are done.

    Returns:
        The files that another process tokenizes, or an empty list with `wait`.
    """
    busy_files: _Shards = []
    with ExitStack() as locks:

        def read_chunks() -> Iterator[tuple[tuple[TokenShard, int, ExitStack | None], list[Text]]]:
            for shard, file in files:
                lock = locks.enter_context(ExitStack())
                try:
                    lock.enter_context(shard.lock(wait=wait))
                except ResourceError:
                    busy_files.append((shard, file))
                    continue
                if shard.is_complete():
                    lock.close()
                    advance(file.bytes)
                    continue
                chunks = num_cached = 0
                for chunk in split_into_chunks(_check_texts(file, vocabulary)):
                    if shard.has_documents(chunks, chunk):
                        num_cached += 1
                    else:
                        yield (shard, chunks, None), chunk
                    chunks += 1
                if num_cached:
                    log.info(f"resuming: {num_cached} of {chunks} chunks of text are already tokenized")
                # An empty chunk with the lock, and with the number of chunks as its index, marks the end of the file.
                yield (shard, chunks, lock), []

        # Results come in the order of the chunks, so the mark arrives after all chunks of the shard are saved.
        for (shard, chunk_index, lock), tokens in compute(read_chunks()):
            if lock is None:
                shard.save(chunk_index, tokens)
                advance(int(tokens.bytes.sum()))
            else:
                shard.finish(chunk_index)
                lock.close()
    return busy_files


def _check_texts(file: SourceFile, vocabulary: int) -> Iterator[Text]:
    """Yield the texts or token ids of a file, and check the ids against the size of the vocabulary.

    Raises:
        DataError: If an id is not in the vocabulary, or only some documents are token ids.
    """
    first_text: Text | None = None
    for text, source, line in file.read():
        first_text = first_text or text
        if type(text) is not type(first_text):
            raise DataError("text and token ids in one column", "use only one of them", file=source, row=line)
        if isinstance(text, bytes) and (highest := int(np.frombuffer(text, "<u4").max())) >= vocabulary:
            message = f"token id {highest:,}, but the tokenizer has {vocabulary:,} tokens"
            raise DataError(message, "name the tokenizer of the ids: --tokenizer", file=source, row=line)
        yield text


def _count_processes() -> int:
    """Return the maximum number of worker processes: this process's share of the available threads."""
    return available_threads().number // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _join_shards(
    folder: Path, data: CorpusConfig, shards: Mapping[str, _Shards], tokenizer: Tokenizer, start_time: float
) -> None:
    """Write the arrays of a corpus from the tokens of its files, without duplicates."""
    first_pass = compare_digests(
        data,
        {split: (chunk.digests for shard, _ in files for chunk in shard.read()) for split, files in shards.items()},
    )
    duplicate_filter, counts = DuplicateFilter(first_pass), {split: dict.fromkeys(_COUNTS, 0) for split in _SPLITS}
    with ArrayWriter(folder, _dtypes(tokenizer)) as writer:
        # Offsets start with 0, so there is one more offset than there are sentences or documents.
        for split in _SPLITS:
            writer.append(f"{split}.sentences", np.zeros(1))
            writer.append(f"{split}.documents", np.zeros(1))
        for source_split, files in shards.items():
            for turn, weight, chunk, is_duplicate in _read_turns(files, duplicate_filter):
                is_held_out = (chunk.digests < first_pass.held_out) | (source_split == "validation")
                # In turn 2 of a file with weight 2.5, select the documents whose draw is below 2.5 - 2 = 0.5.
                members = {"train": ~is_held_out & (_draw(chunk.digests, turn) < weight - turn)}
                if turn == 0:
                    members["validation"] = is_held_out
                for split, is_member in members.items():
                    documents = chunk.select(is_member & ~is_duplicate & (chunk.documents > 0))
                    _append_tokens(writer, split, counts[split], documents, tokenizer.unk_token_id)
                    counts[split]["duplicates"] += int((is_member & is_duplicate).sum()) if turn == 0 else 0
        _check_tokens(counts, data)
        writer.finish(counts)
    _log_counts(counts, first_pass, time.monotonic() - start_time)


def _read_turns(
    files: _Shards, duplicate_filter: DuplicateFilter
) -> Iterator[tuple[int, float, TokenizedDocuments, np.ndarray]]:
    """Yield the turn, the weight of the file, a chunk of documents, and whether each document is a duplicate.

    A file with weight 2.5 has three turns: all documents, all again, and half of them. Each turn reads all files,
    because a document that is written twice in a row would be twice in the same block.
    """
    initial_flags = duplicate_filter.seen.copy()
    for turn in range(math.ceil(max(file.weight for _, file in files))):
        duplicate_filter.seen[:] = initial_flags
        for shard, file in files:
            for chunk in shard.read():
                yield turn, file.weight, chunk, duplicate_filter.find_duplicates(chunk.digests)


def _draw(digests: np.ndarray, turn: int) -> np.ndarray:
    """Return a number in [0, 1) per document that depends only on its digest and the turn. Shape: (documents,)."""
    # The factor comes from Fibonacci hashing: 2^64 divided by the golden ratio. The product keeps its lower 64 bits,
    # and the upper 53 of these become the digits of a float64.
    mixed = (digests + np.uint64(turn + 1)) * np.uint64(0x9E3779B97F4A7C15)
    draws: np.ndarray = (mixed >> np.uint64(11)) / 2.0**53
    return draws


def _dtypes(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the dtype of each array of a corpus."""
    dtypes = (DocumentTokenizer(tokenizer).dtype, "?", "<i8", "<i8")
    return {f"{split}.{name}": dtype for split in _SPLITS for name, dtype in zip(_ARRAYS, dtypes, strict=True)}


def _append_tokens(
    writer: ArrayWriter, split: str, counts: dict[str, int], documents: TokenizedDocuments, unknown: int | None
) -> None:
    """Write the tokens of some documents and count them."""
    writer.append(f"{split}.tokens", documents.tokens)
    writer.append(f"{split}.word_starts", documents.word_starts)
    # Numbers per sentence and document become offsets in the complete arrays; `counts` covers the earlier shards.
    writer.append(f"{split}.sentences", counts["tokens"] + np.cumsum(documents.sentences))
    writer.append(f"{split}.documents", counts["sentences"] + np.cumsum(documents.documents))
    counts["documents"] += len(documents.documents)
    counts["sentences"] += len(documents.sentences)
    counts["tokens"] += len(documents.tokens)
    counts["unknown"] += 0 if unknown is None else int((documents.tokens == unknown).sum())
    counts["bytes"] += int(documents.bytes.sum())


def _check_tokens(counts: Mapping[str, Mapping[str, int]], data: CorpusConfig) -> None:
    for split in _SPLITS:
        if not counts[split]["tokens"]:
            message = f"the text of the {split} split has no tokens"
            raise DataError(message, "give other text, or another tokenizer", file=data.source or None)


def _log_counts(counts: Mapping[str, Mapping[str, int]], first_pass: DeduplicationPass, seconds: float) -> None:
    """Log the size of each split, and the time of the preparation."""
    if first_pass.held_out:
        total = sum(counts[split]["documents"] for split in _SPLITS)
        log.info(f"no validation split: {counts['validation']['documents']:,} of {total:,} documents are held out")
    for split in _SPLITS:
        split_counts = counts[split]
        log.info(
            f"{split}: {split_counts['documents']:,} documents ({split_counts['duplicates']:,} duplicates dropped), "
            f"{split_counts['sentences']:,} sentences, {split_counts['tokens']:,} tokens "
            f"({split_counts['unknown'] / split_counts['tokens']:.2%} unknown), {split_counts['bytes']:,} bytes"
        )
    log.info(f"the corpus was prepared in {seconds:.1f} s")
