"""Train a tokenizer on text, and measure how it splits the words of held-out text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from bertkit.modeling.checkpoint import quiet_transformers
from bertkit.pretraining.deduplicate import find_duplicates, split_documents
from bertkit.pretraining.documents import find_corpus
from bertkit.progress import log
from bertkit.recipe.records import CorpusConfig
from bertkit.recipe.sections import expand_path
from bertkit.storage.files import disk_errors
from bertkit.storage.outputs import check_empty, lock_output_folder, stage_folder
from bertkit.tokens.splitting import Splitting
from bertkit.tokens.train import TokenizerSpec, train_from_texts

_BATCH = 256  # documents per call of the tokenizer
# Fraction of unknown tokens, above which there is a warning.
_MAX_UNKNOWN_RATE = 0.001


@dataclass(frozen=True)
class TokenizerReport:
    """New tokenizer, and measurements on held-out documents."""

    folder: str
    type: str
    lowercase: bool
    vocabulary_size: int
    documents: int
    """Number of documents, including duplicates and held-out documents."""
    held_out: int
    """Number of held-out documents."""
    words: int
    fertility: float
    """Tokens per word."""
    coverage: float
    """Fraction of words that are one token."""
    unknown_rate: float
    """Fraction of tokens that are the unknown token."""
    tokens_per_document: float
    unseen_share: float
    """Fraction of the vocabulary that does not occur in held-out text."""
    warnings: list[str] = field(default_factory=list)


def train_tokenizer(data: CorpusConfig, spec: TokenizerSpec, *, output: str | Path) -> TokenizerReport:
    """Train a tokenizer on the training documents of pretraining, write it, and measure it on held-out documents.

    Raises:
        UsageError: If the output folder is not empty.
        ResourceError: If another process is writing the folder, or if the folder cannot be written.
        DataError: If there is no text, or not enough.
    """
    folder = expand_path(output)
    check_empty(folder)
    with lock_output_folder(folder):
        # 1. Find duplicates and held-out documents as pretraining does, so that held-out text stays unseen.
        source = find_corpus(data)
        first_pass = find_duplicates(source)

        def read_texts(split: str) -> Iterator[str]:
            documents = split_documents(source, first_pass)
            return (document.text for document in documents if document.split == split and not document.is_duplicate)

        # 2. Train. Read the texts again, because they may not fit into memory.
        log.info(f"training a {spec.type} tokenizer of {spec.vocabulary_size:,} tokens")
        quiet_transformers()
        tokenizer = train_from_texts(spec, lambda: read_texts("train"))

        # 3. Count the tokens and words of held-out texts.
        texts = read_texts("validation")
        splitting = Splitting()
        while batch := list(islice(texts, _BATCH)):
            encoded = tokenizer(batch, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            for text, ids, offsets in zip(batch, encoded["input_ids"], encoded["offset_mapping"], strict=True):
                splitting.add(text, ids, offsets, tokenizer.unk_token_id)

        # 4. Write the tokenizer. The folder appears when it is complete.
        with disk_errors(folder), stage_folder(folder) as staging:
            tokenizer.save_pretrained(staging)
        return TokenizerReport(
            folder=str(folder),
            type=spec.type,
            lowercase=spec.lowercase,
            vocabulary_size=len(tokenizer),
            documents=sum(first_pass.documents.values()),
            held_out=splitting.texts,
            **splitting.figures(),
            tokens_per_document=splitting.tokens / max(splitting.texts, 1),
            unseen_share=1 - len(splitting.seen) / len(tokenizer),
            warnings=_find_warnings(spec, len(tokenizer), splitting),
        )


def _find_warnings(spec: TokenizerSpec, size: int, splitting: Splitting) -> list[str]:
    warnings = []
    if size < spec.vocabulary_size:
        warnings.append(
            f"the vocabulary has only {size:,} tokens, not {spec.vocabulary_size:,}, because the text is too short: "
            "use more text, or a lower --min-frequency"
        )
    if splitting.unknown_rate > _MAX_UNKNOWN_RATE:
        examples = ", ".join(repr(text) for text, _ in splitting.frequent_unknown())
        warnings.append(
            f"{splitting.unknown_rate:.2%} of the tokens are unknown (most often {examples}): their letters are rare "
            "or missing in the training text; use more text, or --type bpe, which has no unknown tokens"
        )
    return warnings
