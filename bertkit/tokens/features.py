"""Features: rows as the token ids that an encoder reads, and batches of features as padded tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from bertkit.errors import RecipeError
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row

if TYPE_CHECKING:
    import numpy as np
    import torch
    from tokenizers import Encoding
    from tokenizers import Tokenizer as BackendTokenizer
    from transformers import PreTrainedTokenizerFast

Feature = dict[str, Any]
"""One input of a forward pass, by name: ``input_ids`` and others, ``labels``, and the index of its ``row``.

Numbers come as lists from a task's ``encode``, and as arrays from `bertkit.tokens.feature_cache`.
"""

Tokenizer: TypeAlias = "PreTrainedTokenizerFast"

Features = Sequence[Feature]
Rows = Sequence[Row]

IGNORE_INDEX = -100
"""Label of a token without a label, which losses and scores skip; torch and transformers use the same number."""

_MIN_BUDGET = 4
TOKENS_AT_ONCE, TOKENS_PER_THREAD = 4096, 1024
"""Maximum padded tokens of a forward pass without gradients, and per thread; more tokens are not faster."""

ROW_MASK = "row_mask"
"""Name in a batch: (rows,), False for a row that only fills the batch; see `bertkit.tokens.static_shapes`."""

STATIC_WIDTHS: ContextVar[tuple[int, ...]] = ContextVar("STATIC_WIDTHS", default=())
"""Widths in tokens, in order, of batches of few shapes; empty if batches can have any shape."""

PADDING_STEPS = ((64, 8), (32, 4), (16, 2))
"""(tokens, step): a longer batch is padded to a multiple of the step, unless batches have few shapes."""

Item = TypeVar("Item")

Tensor: TypeAlias = "torch.Tensor"
Batch = Mapping[str, Tensor]
Tensors = dict[str, Tensor]
Collator = Callable[[Features], Tensors]


@dataclass(frozen=True)
class TaskContext:
    """Recipe, tokenizer and labels of a run; `labels` is in the order of the model's outputs."""

    recipe: Recipe
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    inference: bool = False
    """Whether the model only predicts: it is not trained, and its hidden states are not read."""
    arrays: bool = False
    """Whether batches are numpy arrays, for a model that does not run in torch."""

    @property
    def label_ids(self) -> dict[str, int]:
        """Label name -> index of its output."""
        return {name: index for index, name in enumerate(self.labels)}


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """Special tokens around one text or two, and the token types of the texts if the tokenizer has any."""

    before: list[int]
    between: list[int]
    after: list[int]
    segments: tuple[int, int] | None

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def fill(self, first: list[int], second: list[int] | None = None) -> Feature:
        """Put the special tokens around token ids: ``input_ids``, and ``token_type_ids`` if the tokenizer has them."""
        # With [CLS] = 2 and [SEP] = 3, the texts [7, 8] and [9] become [2, 7, 8, 3, 9, 3] with the types
        # [0, 0, 0, 0, 1, 1].
        start = [*self.before, *first]
        rest = [*self.between, *second, *self.after] if second is not None else self.after
        feature: Feature = {"input_ids": [*start, *rest]}
        if self.segments is not None:
            # As in BERT, [CLS], the first text and the [SEP] after it have the first token type, the second text and
            # its [SEP] the second one. A single text has the first type throughout.
            opening = len(start) + (len(self.between) if second is not None else len(rest))
            first_type, second_type = self.segments
            rest_size = len(feature["input_ids"]) - opening
            feature["token_type_ids"] = [first_type] * opening + [second_type] * rest_size
        return feature


def find_template(tokenizer: Tokenizer, *, pair: bool) -> SpecialTokenTemplate:
    """Find a tokenizer's special tokens by encoding an example; transformers has no common attribute for them."""
    encoded = tokenizer("a", "a" if pair else None)
    ids, text_ids = encoded["input_ids"], encoded.sequence_ids(0)
    # `text_ids` is 0 or 1 at the tokens of a text, and None at the special tokens before, between and after the texts.
    first = [position for position, text_id in enumerate(text_ids) if text_id == 0]
    second = [position for position, text_id in enumerate(text_ids) if text_id == 1] or first
    types = encoded.get("token_type_ids")
    return SpecialTokenTemplate(
        before=ids[: first[0]],
        between=ids[first[-1] + 1 : second[0]],
        after=ids[second[-1] + 1 :],
        segments=(types[first[0]], types[second[0]]) if types is not None else None,
    )


def tokenize_texts(tokenizer: Tokenizer, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[Encoding]:
    """Tokenize texts, or lists of words, without truncation and special tokens.

    Returns:
        An encoding per text, with ``ids``, ``offsets`` (first and last + 1 character) and ``word_ids``.
    """
    are_words = not isinstance(texts[0], str)
    encoded = tokenizer(
        list(texts),
        is_split_into_words=are_words,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    return list(encoded.encodings)


def keep_extra_tokens(tokenizer: BackendTokenizer, template: Container[str]) -> BackendTokenizer:
    """Return a tokenizer that splits the special tokens of its template, and no others, in a text.

    A checkpoint can have more of them, such as the entity markers ``[E1]`` and ``[/E1]``. With
    `encode_special_tokens`, tokenizers split all special tokens, so these become ordinary added tokens.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    if all(token.content in template for token in added if token.special):
        return tokenizer
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] &= token["content"] in template
    return type(tokenizer).from_str(json.dumps(content))


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of special tokens, except the unknown token, which represents text."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return {token_id for token_id, token in added.items() if token.special and token_id != tokenizer.unk_token_id}


def count_tokens(feature: Feature) -> int:
    """Count the tokens of a feature, including the padding of several texts (choices) to the longest."""
    lengths = text_lengths(feature)
    return len(lengths) * max(lengths)


def text_lengths(feature: Feature) -> list[int]:
    """Count the tokens of each text of a feature, which has one text or several choices.

    >>> text_lengths({"input_ids": [2, 9, 3]}), text_lengths({"input_ids": [[2, 9, 3], [2, 3]]})
    ([3], [3, 2])
    """
    ids = feature["input_ids"]
    return list(map(len, ids)) if are_several_texts(ids) else [len(ids)]


def get_max_text_length(feature: Feature) -> int:
    """Count the tokens of a feature's longest text."""
    return max(text_lengths(feature))


def split_by_length(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Split rows, longest first, into batches of at most `tokens` padded tokens (or one row).

    >>> split_by_length([3, 9, 4, 8], tokens=18)
    [[1, 3], [2, 0]]
    """
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        # The first row of a batch is its longest, so all others are padded to its length.
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def split_by_size(items: Iterable[Item], max_size: int, get_size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Split items, in order, into runs with a total size of at most `max_size`. A larger item has its own run.

    >>> list(split_by_size(["a", "bcd", "ef", "g"], 4, len))
    [['a', 'bcd'], ['ef', 'g']]
    """
    run, total = list[Item](), 0
    for item in items:
        size = get_size(item)
        if run and total + size > max_size:
            yield run
            run, total = [], 0
        run.append(item)
        total += size
    if run:
        yield run


def get_max_batch_tokens(threads: int) -> int:
    """Return the maximum number of padded tokens of a forward pass on a CPU."""
    return min(TOKENS_AT_ONCE, TOKENS_PER_THREAD * threads)


def join_ids(feature: Feature) -> np.ndarray[Any, Any]:
    """Return the token ids of all texts of a feature."""
    import numpy as np

    ids = feature["input_ids"]
    return np.concatenate([*map(np.asarray, ids)]) if are_several_texts(ids) else np.asarray(ids)


def are_several_texts(ids: Sequence[object] | np.ndarray[Any, Any]) -> bool:
    """Return whether the ``input_ids`` of a feature belong to several texts, such as choices."""
    return len(ids) > 0 and hasattr(ids[0], "__len__")


def encode_texts(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode ``text`` or the pair ``text``, ``text_pair`` of each row, truncated to `max_tokens`.

    A text that contains ``[SEP]`` or ``[MASK]`` is read as those characters, never as the special token.
    """
    texts = [row["text"] for row in rows]
    pairs = [row["text_pair"] for row in rows] if rows and "text_pair" in rows[0] else None
    encoded = context.tokenizer(
        texts,
        pairs,
        truncation=True,
        max_length=max_tokens(context),
        return_attention_mask=False,
        split_special_tokens=True,
    )
    return [{"row": index, **{name: values[index] for name, values in encoded.items()}} for index in range(len(rows))]


def max_tokens(context: TaskContext) -> int:
    """Return the maximum tokens of an input: the recipe's ``max_length``, or the model's if it is shorter."""
    return min(context.recipe.training.max_length, int(context.tokenizer.model_max_length))


def token_budget(context: TaskContext, template: SpecialTokenTemplate) -> int:
    """Return the maximum number of text tokens in an input, without the special tokens.

    Raises:
        RecipeError: If it is below four.
    """
    budget = max_tokens(context) - template.size
    if budget < _MIN_BUDGET:
        message = f"training.max_length {max_tokens(context)} leaves {max(budget, 0)} tokens for text"
        raise RecipeError(message, f"give at least {template.size + _MIN_BUDGET}")
    return budget


def padding_collator(context: TaskContext, *, label_type: str = "int64", label_per_token: bool = False) -> Collator:
    """Build the collator that pads a batch on the right to its longest row, or to a multiple of up to 8 tokens.

    A batch has ``input_ids`` and ``attention_mask`` of shape (rows, tokens), and ``token_type_ids`` if the features
    have them. If every feature has ``labels``, they have the shape (rows,) or (rows, labels), or with `label_per_token`
    the shape (rows, tokens), padded with `IGNORE_INDEX`.
    """
    import numpy as np

    limit = max_tokens(context)
    padding = {"input_ids": context.tokenizer.pad_token_id, "token_type_ids": context.tokenizer.pad_token_type_id}
    if label_per_token:
        padding["labels"] = IGNORE_INDEX

    def collate(features: Features) -> Tensors:
        batch = pad_features(features, padding, limit)
        if not label_per_token and all("labels" in feature for feature in features):
            batch["labels"] = np.array([feature["labels"] for feature in features], dtype=label_type)
        return to_batch(batch, context)

    return collate


def to_batch(arrays: Mapping[str, Any], context: TaskContext) -> Tensors:
    """Convert arrays to tensors, unless the model does not run in torch."""
    if context.arrays:
        return dict(arrays)
    import torch

    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def pad_features(features: Features, padding: Mapping[str, float], limit: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Pad features on the right to one width; return arrays (rows, tokens) and their ``attention_mask``.

    Args:
        features: Features of one text.
        padding: Key with one number per token -> number at padding, a float for float values. Keys that the features
            do not have are left out.
        limit: Maximum tokens of a feature; the width is rounded up to at most this limit, or not rounded if it is 0.
    """
    import numpy as np

    # The ids [2, 7, 3] and [2, 3] become [[2, 7, 3], [2, 3, 0]], with the mask [[1, 1, 1], [1, 1, 0]].
    # Rows are copied into arrays (rows, tokens) full of padding. The mask compares columns (tokens,) with lengths
    # (rows, 1) instead of ids, because a missing choice (see `multi_text_collator`) can have the padding id as token.
    lengths = np.array([len(feature["input_ids"]) for feature in features])
    width = _padded_width(int(lengths.max()), limit)
    batch: dict[str, np.ndarray[Any, Any]] = {}
    for name in [name for name in padding if name in features[0]]:
        dtype = np.float32 if isinstance(padding[name], float) else np.int64
        batch[name] = np.full((len(features), width), padding[name], dtype)
        for row, feature, length in zip(batch[name], features, lengths, strict=True):
            row[:length] = feature[name]
    batch["attention_mask"] = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return batch


def _padded_width(longest: int, limit: int) -> int:
    """Return the width of a batch: above 16 tokens a multiple of 2, 4 or 8, up to the limit of its rows.

    oneDNN compiles products for every shape, and never frees a part of the compiled code: 2 to 7 MB per shape and
    model. So batches should have few different lengths, especially long batches.

    >>> [_padded_width(longest, 100) for longest in (5, 17, 33, 64, 65, 97, 100)]
    [5, 18, 36, 64, 72, 100, 100]
    """
    if widths := STATIC_WIDTHS.get():
        width = static_width(longest, widths)
        return max(longest, min(width, limit or width))
    step = next((step for above, step in PADDING_STEPS if longest > above), 1)
    return max(longest, min(-(-longest // step) * step, limit))


def round_size(size: int) -> int:
    """Round a size up to one of few sizes: a power of two or 1.5 times a power of two, and at least 8.

    >>> [round_size(size) for size in (1, 9, 13, 47, 65, 128)]
    [8, 12, 16, 48, 96, 128]
    """
    power = 1 << max(size - 1, 7).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 and power > 8 else power


def static_width(longest: int, widths: Sequence[int]) -> int:
    """Return the first width of at least `longest` tokens, or `longest` if all are smaller.

    >>> [static_width(longest, (16, 64)) for longest in (5, 17, 65)]
    [16, 64, 65]
    """
    return next((width for width in widths if width >= longest), longest)


def count_items(batch: Mapping[str, Any]) -> int:
    """Count the items that a mean loss averages over: labels other than `IGNORE_INDEX`, or rows that are not filling.

    >>> import torch
    >>> count_items({"labels": torch.tensor([[3, -100], [-100, 5]])}), count_items({"input_ids": torch.zeros(4, 2)})
    (2, 4)
    """
    return int(count_on_device(batch))


def count_on_device(batch: Mapping[str, Any]) -> Tensor | int:
    """Count items like `count_items`; a count of tensor values stays on the device, so that nothing waits for it."""
    # Float labels (several labels at once, or a number to predict) belong to rows.
    labels = batch.get("labels")
    if labels is not None and not labels.is_floating_point():
        return (labels != IGNORE_INDEX).sum()  # type: ignore[no-any-return]
    if ROW_MASK in batch:
        return batch[ROW_MASK].sum()  # type: ignore[no-any-return]
    return len(next(iter(batch.values())))
