"""Fast tokenizers of checkpoints, checked against the model and the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError, UnavailableError, install_command
from bertkit.modeling.architectures import first_position
from bertkit.modeling.checkpoint import load_config, quiet_transformers, read_config, read_json_object, shorten_error
from bertkit.modeling.info import Config
from bertkit.progress import log
from bertkit.tokens.features import Features, Tokenizer, join_ids, keep_extra_tokens, special_ids

if TYPE_CHECKING:
    from bertkit.modeling.sentence.folder import SentenceModules

_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_SPECIAL = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
# Published models pad their embeddings to a multiple of at most 128, or reserve up to 1% of them. The vocabulary sizes
# of half of the BERT models differ by 5% or more.
_MAX_PADDING, _MAX_MISSING_FRACTION = 128, 0.04
_ROWS_TO_CHECK = 100
_MAX_UNKNOWN, _MAX_LETTERS = 0.2, 0.6  # fractions of the tokens


def load_tokenizer(folder: Path, *, decoders: bool = False, max_length: int | None = None) -> Tokenizer:
    """Load the fast tokenizer of a model; its ``model_max_length`` never exceeds the model's positions.

    Args:
        folder: Model folder.
        decoders: Whether decoders are allowed.
        max_length: Maximum number of tokens per text, which replaces the tokenizer's setting.

    Raises:
        ModelError: If the tokenizer does not load, is slow, has no padding token, or belongs to another model.
        UnavailableError: If it needs a package that is not installed.
    """
    config = load_config(folder, decoders=decoders)
    tokenizer = read_tokenizer(folder)
    check_vocabulary(tokenizer, config, folder)
    if max_length is not None:
        tokenizer.model_max_length = max_length
    fit_tokenizer(tokenizer, config)
    return tokenizer


def load_sentence_tokenizer(folder: Path, modules: SentenceModules, *, decoders: bool) -> Tokenizer:
    """Load the tokenizer of a sentence encoder, with the maximum length and the lower-casing of its modules.

    Raises:
        ModelError: If `read_config` or `load_tokenizer` raises it.
    """
    from tokenizers import normalizers

    read_config(folder, decoders=decoders)
    tokenizer = load_tokenizer(folder, decoders=decoders, max_length=modules.max_length)
    if modules.lowercase:
        backend = tokenizer.backend_tokenizer
        normalizer = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *normalizer])
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Load a fast tokenizer with a padding token, with or without a model next to it.

    Raises:
        ModelError: If the tokenizer does not load, is slow or has no padding token.
        UnavailableError: If it needs a package that is not installed.
    """
    quiet_transformers()
    from transformers import AutoTokenizer

    for name in _SETTINGS:
        if (folder / name).is_file():
            read_json_object(folder / name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if tokenizer.is_fast:
            template = set(tokenizer.special_tokens_map.values())
            tokenizer._tokenizer = keep_extra_tokens(tokenizer.backend_tokenizer, template)
            # A tokenizer without an unknown token fails only when it reads an unknown character.
            tokenizer.backend_tokenizer.encode("\u2603 \ua66e")
    except ImportError:
        problem = "this tokenizer needs SentencePiece"
        raise UnavailableError(problem, f"`{install_command('sentencepiece')}`", file=folder) from None
    except Exception as error:  # a damaged file can raise any error
        raise ModelError(f"the tokenizer does not load: {shorten_error(error)}", file=folder) from error
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise ModelError("model_max_length is not a number", "correct it", file=folder / "tokenizer_config.json")
    if not tokenizer.is_fast:
        raise ModelError("the tokenizer has no fast version", "save it as tokenizer.json", file=folder)
    if tokenizer.pad_token_id is None:
        remedy = "name one as pad_token in tokenizer_config.json"
        raise ModelError("the tokenizer has no padding token", remedy, file=folder)
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, config: Config, folder: Path) -> None:
    """Check that a tokenizer can belong to a model, and log a warning if the model has many more embeddings.

    Args:
        tokenizer: Tokenizer from the model's folder.
        config: Config of the model.
        folder: Folder of the model.

    Raises:
        ModelError: If there are more tokens than embeddings, or special tokens with other ids than in ``config.json``.
    """
    # Ignore ids that transformers filled in, except a padding id that determines all positions.
    content: Mapping[str, Any] = read_json_object(folder / "config.json")
    if "pad_token_id" not in content and first_position(config):
        content = {**content, "pad_token_id": config.pad_token_id}
    size = max(tokenizer.get_vocab().values()) + 1
    if size > config.vocab_size:
        problem = f"the tokenizer knows {size - config.vocab_size:,} more tokens than the model"
        raise ModelError(problem, "take both from one source", file=folder)
    for name in _SPECIAL:
        expected, actual = content.get(name), getattr(tokenizer, name)
        if isinstance(expected, int) and actual not in (None, expected):
            problem = f"{name} is {actual} for the tokenizer and {expected} for the model"
            raise ModelError(problem, "take both from one source, or correct config.json", file=folder)
    missing = config.vocab_size - size
    if missing >= _MAX_PADDING and missing > _MAX_MISSING_FRACTION * config.vocab_size:
        log.warning(
            f"the tokenizer may not be the model's: it has {size:,} tokens for {config.vocab_size:,} embeddings"
        )


def fit_tokenizer(tokenizer: Tokenizer, config: Config) -> None:
    """Limit a tokenizer's maximum length to a model's positions, and drop token types if the model has only one."""
    # XLNet has no limit, and the value -1.
    positions = max(getattr(config, "max_position_embeddings", None) or 0, 0) or 512
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions - first_position(config))
    # RoBERTa has one token type, but a tokenizer of BERT's class returns two.
    if getattr(config, "type_vocab_size", None) == 1:
        drop_token_types(tokenizer)


def drop_token_types(tokenizer: Tokenizer) -> None:
    """Make a tokenizer return no token types, also after it was saved and loaded."""
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    # `save_pretrained` writes `init_kwargs`.
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


def warn_about_tokens(tokenizer: Tokenizer, features: Features, rows: str = "rows") -> None:
    """Log a warning if many tokens of the first 100 features are unknown, or are single letters.

    Args:
        tokenizer: Tokenizer of the features.
        features: Features to check.
        rows: Noun for features in the message, such as "blocks".
    """
    first_features = [features[index] for index in range(min(_ROWS_TO_CHECK, len(features)))]
    counts = Counter(token_id for feature in first_features for token_id in join_ids(feature).tolist())
    special = special_ids(tokenizer)
    counts = Counter({token_id: count for token_id, count in counts.items() if token_id not in special})
    total = counts.total()
    if not total:
        return
    num_unknown = 0 if tokenizer.unk_token_id is None else counts[tokenizer.unk_token_id]
    tokens = tokenizer.convert_ids_to_tokens(list(counts))
    num_letters = sum(count for token, count in zip(tokens, counts.values(), strict=True) if _is_letter(token))
    for count, limit, kind in ((num_unknown, _MAX_UNKNOWN, "unknown"), (num_letters, _MAX_LETTERS, "single letters")):
        if count / total > limit:
            log.warning(
                f"{count / total:.0%} of the tokens of the first {len(first_features)} {rows} are {kind}: is this the "
                "model's tokenizer, and does it know this language?"
            )
            return


def _is_letter(token: str) -> bool:
    """Return whether a token is a single letter; a Chinese, Japanese or Korean character counts as a word.

    >>> [_is_letter(token) for token in ("##e", "Ġt", "▁a", "the", ".", "語")]
    [True, True, True, False, False, False]
    """
    text = token.removeprefix("##").lstrip("Ġ▁").removesuffix("</w>")
    return len(text) == 1 and text.isalpha() and ord(text) < 0x2E80
