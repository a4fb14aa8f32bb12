"""Tokenizers that are loaded without transformers, so that texts are split without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError, shorten
from bertkit.storage.fingerprints import read_object
from bertkit.tokens.features import keep_extra_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_DEFAULTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>", "<s>", "</s>", "<mask>")


def read_fast_tokenizer(folder: Path) -> Tokenizer | None:
    """Read ``tokenizer.json`` as transformers would use it, without truncation, padding and special tokens in texts.

    Returns:
        Tokenizer, or None if the folder has no such file or its settings change the tokenizer.

    Raises:
        ModelError: If the file is damaged.
    """
    file = folder / _FILE
    if not file.is_file() or not _settings_agree(file, read_json(folder / _SETTINGS)):
        return None
    return configure_for_plain_text(read_tokenizer_file(file))


def read_tokenizer_file(file: Path) -> Tokenizer:
    """Open ``tokenizer.json``; only the special tokens that the settings next to it name can be split.

    Raises:
        ModelError: If the file is damaged.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises plain Exception.
        raise ModelError(f"the tokenizer does not load: {shorten(str(error))}", file=file) from error
    special_tokens = [value for key, value in read_json(file.with_name(_SETTINGS)).items() if key.endswith("_token")]
    # The file alone does not state which special tokens the template uses. Others, such as entity markers, are text.
    names = {token["content"] if isinstance(token, dict) else token for token in special_tokens}
    return keep_extra_tokens(tokenizer, names.union(_DEFAULTS))


def configure_for_plain_text(tokenizer: Tokenizer) -> Tokenizer:
    """Set a tokenizer to read complete texts, and ``[SEP]`` in a text as characters; return the tokenizer."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if the file does not exist.

    Raises:
        ModelError: If the file has no JSON object.
    """
    return read_object(file, ModelError("not a JSON object", "restore the file", file=file)) or {}


def lowercases(content: Mapping[str, Any]) -> bool:
    """Return whether the content of ``tokenizer.json`` lowercases texts.

    >>> lowercases({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]}})
    True
    """
    normalizer = content.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(bool(step.get("lowercase")) or step.get("type") == "Lowercase" for step in steps)


def _settings_agree(file: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether settings agree with the tokenizer file; if not, transformers uses the settings."""
    # Without this key, transformers leaves the normalizer of the file alone; other types do not read it.
    do_lower_case = settings.get("do_lower_case")
    if do_lower_case is None or "Bert" not in str(settings.get("tokenizer_class")):
        return True
    return lowercases(read_json(file)) == bool(do_lower_case)
