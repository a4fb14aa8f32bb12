"""Trim the vocabulary of a tokenizer and its model to the tokens of rows and files, whose texts keep their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.architectures import first_position
from bertkit.modeling.info import Model
from bertkit.modeling.sentence.folder import read_encoder_settings
from bertkit.modeling.tokenizer import read_tokenizer
from bertkit.pretraining.documents import find_corpus, has_validation, plain_text, read_documents
from bertkit.recipe.records import CorpusConfig
from bertkit.tokens.feature_cache import encode_split, get_used_token_ids
from bertkit.tokens.features import Features, Tokenizer, join_ids
from bertkit.tokens.trim import check_unchanged, collect_tokens, trim_files


@dataclass(frozen=True)
class TokenCorpus:
    """Texts whose tokens are kept."""

    source: Path
    checkpoint: Checkpoint | None
    """Checkpoint whose tokenizer encodes the rows, or None if `splits` is empty."""
    splits: tuple[Split, ...]
    files: tuple[str, ...]

    def read_texts(self) -> Iterator[str]:
        """Yield the strings of rows and the documents of files; if the model lowers text, also in lower case."""
        lowers = bool(read_encoder_settings(self.source).get("do_lower_case"))
        for text in self._read_as_written():
            yield text
            if lowers:
                yield text.lower()

    def collect_encoded(self) -> set[int]:
        """Return the ids of all tokens in the encoded rows, including special tokens and prompts."""
        if self.checkpoint is None:
            return set()
        context, encode = self.checkpoint.context, self.checkpoint.task.encode
        encoded = (encode_split(split, context, encode) for split in self.splits)
        return {int(token) for features in encoded for token in get_used_token_ids(features)}

    def _read_as_written(self) -> Iterator[str]:
        for split in self.splits if self.checkpoint else ():
            columns = self.checkpoint.task.COLUMNS  # type: ignore[union-attr]
            for row in split.rows:
                for name in (*columns.inputs, *columns.optional):
                    yield from _find_strings(row.get(name))
        for name in self.files:
            source = find_corpus(CorpusConfig(source=name))
            for part in ("train", "validation") if has_validation(source) else ("train",):
                yield from map(plain_text, read_documents(source, part))


def check_files(names: Iterable[str]) -> None:
    """Check that files and folders of text exist.

    Raises:
        DataError: If a file or folder does not exist, or has an unknown type.
    """
    for name in names:
        find_corpus(CorpusConfig(source=name))


def trim_vocabulary(model: Model, tokenizer: Tokenizer, corpus: TokenCorpus, folder: Path) -> tuple[list[int], int]:
    """Trim a model and its tokenizer on disk to the tokens of a corpus, and check that its texts keep their tokens.

    Args:
        model: Model whose embeddings are changed in place.
        tokenizer: Tokenizer of the model with the complete vocabulary; it is not changed.
        corpus: Texts whose tokens are kept.
        folder: Folder with the saved tokenizer.

    Returns:
        The kept ids, in the order of the new ids, and the number of texts that were checked.

    Raises:
        ModelError: If this type of tokenizer cannot be trimmed.
    """
    from bertkit.modeling.students.narrow import keep_tokens

    # 1. Collect the tokens. The encoded rows add tokens that no text contains, such as the prompts of a task.
    used_tokens = collect_tokens(tokenizer, corpus.read_texts()) | corpus.collect_encoded()

    # 2. Trim the files of the tokenizer, and tokenize all texts again: their tokens must not change, only the ids.
    ids = trim_files(folder, tokenizer, used_tokens, first_position(model.config))
    texts = check_unchanged(tokenizer, read_tokenizer(folder), ids, corpus.read_texts())

    # 3. Keep the rows of these tokens in the embeddings and in the layers that are tied to them.
    keep_tokens(model, ids)
    return ids, texts


def count_changed_rows(old_features: Features, new_features: Features, tokens: Sequence[int]) -> int:
    """Count the rows whose tokens have changed; `tokens` has the original id of each new id."""
    # If `tokens` is [0, 5, 9], the new ids [1, 2] are equal to the original ids [5, 9].
    original_ids, changed_rows = np.array(tokens), set()
    for old, new in zip(old_features, new_features, strict=False):
        if not np.array_equal(join_ids(old), original_ids[join_ids(new)]):
            changed_rows.add(int(old["row"]))
    return len(changed_rows)


def _find_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _find_strings(item)
