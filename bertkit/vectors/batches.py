"""Batches of texts without labels, as padded tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

from bertkit.errors import UsageError
from bertkit.storage.cache import log_once
from bertkit.tokens.features import Collator, Feature, Features, Tensor, Tokenizer, find_template, pad_features

_CHARACTERS = 2**19  # per group of texts that are tokenized and sorted together


def split_texts(texts: Sequence[Sized], max_size: int = _CHARACTERS) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of consecutive groups of texts.

    A group has at most `max_size` characters or tokens, or consists of one text.

    >>> list(split_texts(["abcd", "ef", "g", "hi"], max_size=3))
    [(0, 1), (1, 3), (3, 4)]
    """
    start, total = 0, 0
    for index, text in enumerate(texts):
        total += len(text)
        if total > max_size and index > start:
            yield start, index
            start, total = index, len(text)
    if texts:
        yield start, len(texts)


def text_collator(tokenizer: Tokenizer, prompt_tokens: int = 0) -> Collator:
    """Build the collator that pads texts on the right, as `bertkit.tokens.features.padding_collator` does.

    Args:
        tokenizer: Tokenizer with the padding to use.
        prompt_tokens: Number of first tokens of each text that belong to a prompt and are not pooled.
    """
    import torch

    padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    limit = int(tokenizer.model_max_length)

    def collate(features: Features) -> dict[str, Tensor]:
        arrays = pad_features(features, padding, limit)
        batch = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return batch | {"prompt_tokens": torch.tensor(prompt_tokens)} if prompt_tokens else batch

    return collate


def tokenize(texts: Sequence[str], tokenizer: Tokenizer) -> list[Feature]:
    """Tokenize and truncate texts; the first truncation in a process is logged."""
    # A text that spells [SEP] must not end the input there, so special tokens in texts are split into characters.
    encoded = tokenizer(list(texts), truncation=True, return_attention_mask=False, split_special_tokens=True)
    limit = tokenizer.model_max_length
    if any(len(encoding.ids) >= limit and encoding.overflowing for encoding in encoded.encodings):
        log_once(f"texts of more than {limit:,} tokens are truncated")
    return [{name: values[index] for name, values in encoded.items()} for index in range(len(texts))]


def count_prompt_tokens(tokenizer: Tokenizer, prompt: str) -> int:
    """Count the tokens up to the end of a prompt, including special tokens before it; 0 without a prompt.

    Raises:
        UsageError: If the prompt leaves no token for a text.
    """
    if not prompt:
        return 0
    template = find_template(tokenizer, pair=False)
    count = len(tokenizer(prompt, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    if count + template.size >= tokenizer.model_max_length:
        message = f"the prompt has {count:,} of {tokenizer.model_max_length:,} tokens and leaves none for a text"
        raise UsageError(message, "give a longer --max-length")
    return len(template.before) + count
