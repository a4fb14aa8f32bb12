"""Tokenizer for texts, pairs and lists of words that does not need transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.tokens.fast_tokenizer import read_tokenizer_file

_FILE = "tokenizer.json"
_TOKENS = ("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "pad_token_type_id")
_SETTINGS = (*_TOKENS, "model_max_length", "model_input_names", "truncation_side", "all_special_ids")


class EncodedTexts(dict[str, Any]):
    """Model inputs by name, with a list per text or one list for a single text, and the encodings of the texts."""

    encodings: list[Any]

    def sequence_ids(self, index: int) -> list[int | None]:
        """Return the index of each token's text in an encoding, or None for special tokens."""
        return list(self.encodings[index].sequence_ids)

    def word_ids(self, index: int) -> list[int | None]:
        """Return the index of each token's word in an encoding, or None for special tokens."""
        return list(self.encodings[index].word_ids)


class PlainTokenizer:
    """Replacement for the fast tokenizers of transformers, with the arguments that bertkit uses."""

    is_fast = True
    padding_side = "right"
    model_max_length: int
    truncation_side: str
    model_input_names: list[str]

    def __init__(self, file: Path, settings: Mapping[str, Any]) -> None:
        self.backend_tokenizer = read_tokenizer_file(file)
        # The file can turn padding on, but bertkit pads batches in its collators.
        self.backend_tokenizer.no_padding()
        self.name_or_path = str(file.parent)
        self.special_tokens_map: dict[str, str] = {}
        for name in _SETTINGS:
            setattr(self, name, settings[name])

    def __call__(
        self,
        text: str | Sequence[Any],
        text_pair: str | Sequence[str] | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        **options: bool,
    ) -> EncodedTexts:
        """Encode one or more texts, or pairs of texts, or lists of words with the option `is_split_into_words`.

        Other options are `add_special_tokens`, `split_special_tokens`, `return_attention_mask`,
        `return_token_type_ids` and `return_offsets_mapping`; they have the same meaning as in transformers.
        """
        backend = self.backend_tokenizer
        backend.encode_special_tokens = options.get("split_special_tokens", False)
        if truncation:
            backend.enable_truncation(max_length or self.model_max_length, direction=self.truncation_side)
        else:
            backend.no_truncation()
        is_single = isinstance(text, str)
        texts: list[Any] = [text] if is_single else list(text)
        if text_pair is not None:
            texts = list(zip(texts, [text_pair] if is_single else text_pair, strict=True))
        encodings = backend.encode_batch(
            texts,
            is_pretokenized=options.get("is_split_into_words", False),
            add_special_tokens=options.get("add_special_tokens", True),
        )
        columns: dict[str, list[Any]] = {"input_ids": [encoding.ids for encoding in encodings]}
        if "token_type_ids" in self.model_input_names and options.get("return_token_type_ids", True):
            columns["token_type_ids"] = [encoding.type_ids for encoding in encodings]
        if "attention_mask" in self.model_input_names and options.get("return_attention_mask", True):
            columns["attention_mask"] = [encoding.attention_mask for encoding in encodings]
        if options.get("return_offsets_mapping", False):
            columns["offset_mapping"] = [encoding.offsets for encoding in encodings]
        encoded = EncodedTexts({name: values[0] if is_single else values for name, values in columns.items()})
        encoded.encodings = encodings
        return encoded

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return dict(self.backend_tokenizer.get_vocab())

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of special tokens that are added to a text, or to a pair of texts."""
        return int(self.backend_tokenizer.num_special_tokens_to_add(pair))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id, or "" for an unknown id."""
        return [self.backend_tokenizer.id_to_token(token_id) or "" for token_id in ids]


def tokenizer_settings(tokenizer: object) -> dict[str, Any]:
    """Return the settings of a transformers tokenizer that ``tokenizer.json`` does not contain."""
    return {name: getattr(tokenizer, name) for name in _SETTINGS}


def open_tokenizer(folder: Path, settings: Mapping[str, Any]) -> PlainTokenizer:
    """Load the tokenizer of an exported model, or of a run, with the settings from its record.

    Raises:
        ModelError: If the tokenizer file is damaged.
    """
    return PlainTokenizer(folder / _FILE, settings)
