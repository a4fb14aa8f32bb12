"""Checks that a tokenizer belongs to a model and knows the language of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.progress import log
from bertkit.tokens.features import Features, Tokenizer, join_ids, special_ids

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SPECIAL = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
# Published vocabularies are padded to a multiple of 128 at most, or reserve up to 1 % of their tokens. Half of BERT's
# vocabularies differ by 5%.
_PADDED, _MISSING = 128, 0.04
_ROWS = 100
_MANY_UNKNOWN, _MANY_LETTERS = 0.2, 0.6


def refuse_foreign(tokenizer: Tokenizer, config: PretrainedConfig, saved: Mapping[str, Any], folder: Path) -> None:
    """Reject a tokenizer that cannot be the model's, and log a warning if it is far smaller than the vocabulary.

    Args:
        tokenizer: Tokenizer from the model's folder.
        config: Config of the model.
        saved: Content of its ``config.json``, without values filled in from defaults.
        folder: Folder of the model.

    Raises:
        ModelError: If there are more tokens than embeddings, or special tokens with other ids than in the config.
    """
    known = max(tokenizer.get_vocab().values()) + 1
    if known > config.vocab_size:
        what = f"the tokenizer knows {known - config.vocab_size:,} more tokens than the model"
        raise ModelError(what, "take both from one source", file=folder)
    for name in _SPECIAL:
        expected, found = saved.get(name), getattr(tokenizer, name)
        if isinstance(expected, int) and found not in (None, expected):
            what = f"{name} is {found} for the tokenizer and {expected} for the model"
            raise ModelError(what, "take both from one source, or correct config.json", file=folder)
    missing = config.vocab_size - known
    if missing >= _PADDED and missing > _MISSING * config.vocab_size:
        log.warning(
            f"the tokenizer may not be the model's: it has {known:,} tokens for {config.vocab_size:,} embeddings"
        )


def report_tokens(tokenizer: Tokenizer, features: Features, rows: str = "rows") -> None:
    """Log a warning where the first features hold many unknown tokens, or little but single letters."""
    first = [features[number] for number in range(min(_ROWS, len(features)))]
    counts = Counter(number for feature in first for number in join_ids(feature).tolist())
    special = special_ids(tokenizer)
    counts = Counter({number: count for number, count in counts.items() if number not in special})
    total = counts.total()
    if not total:
        return
    unknown = counts[tokenizer.unk_token_id] / total if tokenizer.unk_token_id is not None else 0.0
    tokens = tokenizer.convert_ids_to_tokens(list(counts))
    letters = sum(count for token, count in zip(tokens, counts.values(), strict=True) if _is_letter(token)) / total
    for share, most, what in ((unknown, _MANY_UNKNOWN, "unknown"), (letters, _MANY_LETTERS, "single letters")):
        if share > most:
            log.warning(
                f"{share:.0%} of the tokens of the first {len(first)} {rows} are {what}: is this the model's "
                "tokenizer, and does it know this language?"
            )
            return


def _is_letter(token: str) -> bool:
    """Tell whether a token is a single letter; of Chinese, Japanese and Korean, a character says as much as a word.

    >>> [_is_letter(token) for token in ("##e", "Ġt", "▁a", "the", ".", "語")]
    [True, True, True, False, False, False]
    """
    text = _text_of(token)
    return len(text) == 1 and text.isalpha() and ord(text) < 0x2E80


def _text_of(token: str) -> str:
    return token.removeprefix("##").lstrip("Ġ▁").removesuffix("</w>")
