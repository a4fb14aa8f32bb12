"""Learn a tokenizer from text, and see on held-out text what it does to words."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.corpus.deduplicate import find_duplicates, split_documents
from bertkit.errors import UsageError, closest
from bertkit.modeling.load import quiet_transformers
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Corpus
from bertkit.tokens.train import TOKENIZER_TYPES, TokenizerSpec, check_spec, train_from_texts

log = logging.getLogger("bertkit")

_BATCH = 256  # documents
_WORD = re.compile(r"\w+")
_RARELY = 0.001  # a share of unknown tokens above which people should look


@dataclass(frozen=True)
class TokenizerReport:
    """A new tokenizer, and what it does to documents it has not seen."""

    folder: str
    kind: str
    lowercase: bool
    vocabulary_size: int
    documents: int
    """In all, copies and held-out ones among them."""
    held_out: int
    """Those measured on."""
    words: int
    fertility: float
    """Tokens a word."""
    coverage: float
    """Share of words that are one token."""
    unknown_rate: float
    """Share of tokens that are the unknown token."""
    tokens_per_document: float
    unseen_share: float
    """Share of the vocabulary that does not occur in held-out text."""
    warnings: list[str] = field(default_factory=list)


def train_tokenizer(
    data: Corpus,
    kind: str,
    *,
    output: Path,
    vocabulary_size: int | None = None,
    lowercase: bool | None = None,
    min_frequency: int | None = None,
    special: Sequence[str] = (),
    max_length: int = 512,
    progress: Progress = SILENT,
) -> TokenizerReport:
    """Learn a tokenizer from the documents that pretraining trains on, write it, and measure it on those held out.

    Raises:
        UsageError: a folder that holds something, or a tokenizer that cannot be.
        DataError: no text, or too little.
    """
    if kind not in TOKENIZER_TYPES:
        raise UsageError(f"no kind of tokenizer is called {kind!r}", closest(kind, TOKENIZER_TYPES))
    _check_free(output)
    plan = TokenizerSpec(
        type=kind,
        vocabulary_size=TOKENIZER_TYPES[kind].vocabulary_size if vocabulary_size is None else vocabulary_size,
        lowercase=TOKENIZER_TYPES[kind].lowercase if lowercase is None else lowercase,
        min_frequency=2 if min_frequency is None else min_frequency,
        special=tuple(special),
        max_length=max_length,
    )
    check_spec(plan)
    survey = find_duplicates(data, progress)

    def read(split: str) -> Iterator[str]:
        parted = split_documents(data, survey)
        return (each.text for each in parted if each.split == split and not each.is_duplicate)

    log.info(f"learning {plan.vocabulary_size:,} tokens ({kind})")
    quiet_transformers()
    tokenizer = train_from_texts(plan, lambda: read("train"))
    figures, unknown = _measure(tokenizer, read("validation"))
    _save(tokenizer, output)
    return TokenizerReport(
        folder=str(output),
        kind=kind,
        lowercase=plan.lowercase,
        vocabulary_size=len(tokenizer),
        documents=survey.documents,
        **figures,
        warnings=_warnings(plan, len(tokenizer), figures["unknown_rate"], unknown),
    )


def _measure(tokenizer: Any, texts: Iterator[str]) -> tuple[dict[str, Any], Counter[str]]:
    """Count tokens of words on held-out text; a word is a run of letters and digits.

    Gives the figures of `TokenizerReport`, and what became unknown with how often.
    """
    held_out = words = tokens_of_words = whole = 0
    seen: Counter[int] = Counter()
    unknown: Counter[str] = Counter()
    while batch := list(islice(texts, _BATCH)):
        held_out += len(batch)
        encoded = tokenizer(batch, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for text, ids, offsets in zip(batch, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            counts = _tokens_per_word(text, offsets)
            words += len(counts)
            tokens_of_words += sum(counts)
            whole += counts.count(1)
            seen.update(ids)
            unknown.update(text[a:b] for (a, b), n in zip(offsets, ids, strict=True) if n == tokenizer.unk_token_id)
    figures = {
        "held_out": held_out,
        "words": words,
        "fertility": tokens_of_words / max(words, 1),
        "coverage": whole / max(words, 1),
        "unknown_rate": unknown.total() / max(seen.total(), 1),
        "tokens_per_document": seen.total() / max(held_out, 1),
        "unseen_share": 1 - len(seen) / len(tokenizer),
    }
    return figures, unknown


def _tokens_per_word(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Count for each word the tokens that cover some of it.

    >>> _tokens_per_word("an owl.", [(0, 2), (3, 5), (5, 6), (6, 7)])
    [1, 2]
    """
    import numpy as np

    words = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
    tokens = np.array([span for span in offsets if span[0] < span[1]], dtype=np.int64).reshape(-1, 2)
    before = np.searchsorted(tokens[:, 1], words[:, 0], side="right")
    counts: list[int] = (np.searchsorted(tokens[:, 0], words[:, 1], side="left") - before).tolist()
    return counts


def _warnings(plan: TokenizerSpec, size: int, unknown_rate: float, unknown: Counter[str]) -> list[str]:
    found = []
    if size < plan.vocabulary_size:
        found.append(
            f"the text has only {size:,} of the {plan.vocabulary_size:,} tokens asked for: it is small for them; "
            "give more text, or a lower --min-frequency"
        )
    if unknown_rate > _RARELY:
        examples = ", ".join(repr(text) for text, _ in sorted(unknown.most_common(), key=lambda e: (-e[1], e[0]))[:5])
        found.append(
            f"{unknown_rate:.2%} of the tokens are unknown (most often {examples}): their letters are rare or missing "
            "in the text; give more text, or --type bpe, which knows every letter"
        )
    return found


def _check_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} holds something already", "nothing was written; choose another --output")


def _save(tokenizer: Any, folder: Path) -> None:
    """Write the folder whole or not at all."""
    beside = folder.parent / f".{folder.name}.{os.getpid()}"
    beside.mkdir(parents=True)
    try:
        tokenizer.save_pretrained(beside)
        _check_free(folder)
        beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
