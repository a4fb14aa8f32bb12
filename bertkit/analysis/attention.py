"""Attention of an encoder: in one text, or measured for every head over the rows of a file.

The patterns of heads follow Clark et al. 2019 (section 3), and rare tokens Voita et al. 2019 (section 5.2). Patterns
overlap: the next token can be punctuation. All measurements are means over the tokens of texts. Attention to special
tokens counts, attention from special tokens does not.

Syntactic relations are measured as by Clark et al. 2019 (section 4). Attention between tokens becomes attention between
words: the sum over the tokens that are attended to, and the mean over the tokens that attend. An attention head then
predicts the syntactic head of each word: the other word that gets most attention from the word, or the other word that
attends to the word most. Special tokens are not candidates. The best of many heads looks good by chance. So heads, and
the fixed offsets that they are compared with, are selected on one half of the rows, and scored on the other half.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from tokenizers import Encoding
from transformers import AutoModel

from bertkit.analysis.syntax import ParsedRow
from bertkit.errors import DataError, UsageError
from bertkit.evaluation.forward import sorted_batches
from bertkit.hardware.precision import detect_device
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.modeling.attention import compute_attention_weights
from bertkit.modeling.checkpoint import load_config, read_config
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.sentence.folder import is_sentence_folder, read_modules
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import stage
from bertkit.tokens.features import Feature, Features, Tensor, Tokenizer, find_template, pad_features, tokenize_texts
from bertkit.tokens.words import tokenize_words


@dataclass(frozen=True)
class AttentionModel:
    """Encoder whose attention weights are computed."""

    name: str
    model: Model
    tokenizer: Tokenizer

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of an input."""
        return int(self.tokenizer.model_max_length)

    def compute_weights(self, features: Features) -> list[Tensor]:
        """Compute the attention weights of each layer, padded on the right. Shape: (rows, heads, tokens, tokens).

        Raises:
            ModelError: If the model has no weights between all tokens.
        """
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": self.tokenizer.pad_token_type_id}
        arrays = pad_features(features, padding, max(len(feature["input_ids"]) for feature in features))
        batch = {name: torch.from_numpy(values).to(self.model.device) for name, values in arrays.items()}
        return compute_attention_weights(self.model, batch)


def load_attention_model(folder: Path, name: str) -> AttentionModel:
    """Load the encoder of a run or of any other checkpoint, in float32.

    Raises:
        ModelError: If it is damaged, or not an encoder.
    """
    if is_sentence_folder(folder):
        folder = folder / read_modules(folder).subfolder
    read_config(folder)
    model = load_for_pretraining(AutoModel, folder, load_config(folder))
    return AttentionModel(name, model.eval().to(detect_device()), load_tokenizer(folder))


# --- One text ---


@dataclass(frozen=True)
class AttendedToken:
    """A token of a text or of a pair."""

    token: str
    """Spelling in the vocabulary."""
    text: str
    """Characters of the text, after ``##`` if the token continues a word; the spelling of a special token."""
    segment: int | None
    """0 in the first text, 1 in the second, or None if the token is special."""


@dataclass(frozen=True)
class AttendedText:
    """Attention of all heads of an encoder in one text, or in a pair of texts."""

    model: str
    tokens: list[AttendedToken]
    weights: np.ndarray
    """Weights in float32, which sum to 1 over the last axis. Shape: (layers, heads, tokens, tokens)."""

    @cached_property
    def rollout(self) -> np.ndarray:
        """Attention rollout up to each layer; see `roll_out`."""
        return roll_out(self.weights)

    @cached_property
    def entropy(self) -> np.ndarray:
        """Mean entropy of each head over all tokens, in nats. Shape: (layers, heads)."""
        # A weight can be 0 after rounding; 0 * log(tiny) is 0, but 0 * log(0) would be NaN.
        logs = np.log(np.maximum(self.weights, np.finfo(np.float32).tiny))
        return np.asarray(-(self.weights * logs).sum(axis=-1).mean(axis=-1))


def attend(model: AttentionModel, text: str, pair: str | None = None, *, max_tokens: int) -> AttendedText:
    """Compute the attention of an encoder in a text, or in a pair of texts.

    Raises:
        UsageError: If a text has no tokens, or the input is longer than `max_tokens` or than the model reads.
        ModelError: If the model has no weights to show.
    """
    # Texts are tokenized as in training: "[SEP]" in a text is not a special token.
    texts = [text] if pair is None else [text, pair]
    encodings = [tokenize_texts(model.tokenizer, [segment_text])[0] for segment_text in texts]
    if not all(encoding.ids for encoding in encodings):
        raise UsageError("a text without tokens", "write something in it")
    template = find_template(model.tokenizer, pair=pair is not None)
    feature = template.fill(*(encoding.ids for encoding in encodings))

    # Describe all tokens as special tokens, then replace the tokens of the texts.
    tokens = [AttendedToken(name, name, None) for name in model.tokenizer.convert_ids_to_tokens(feature["input_ids"])]
    start = len(template.before)
    for segment, (encoding, segment_text) in enumerate(zip(encodings, texts, strict=True)):
        tokens[start : start + len(encoding.ids)] = _describe_tokens(encoding, segment_text, segment)
        start += len(encoding.ids) + len(template.between)
    if len(tokens) > model.max_tokens:
        raise UsageError(f"{len(tokens):,} tokens, and the model reads {model.max_tokens:,}", "give a shorter text")
    if len(tokens) > max_tokens:
        remedy = "give a shorter text, or a larger --max-length; the size of the output is its square"
        raise UsageError(f"{len(tokens):,} tokens, more than --max-length {max_tokens:,}", remedy)
    weights = np.stack([layer[0].float().cpu().numpy() for layer in model.compute_weights([feature])])
    return AttendedText(model.name, tokens, weights)


def _describe_tokens(encoding: Encoding, text: str, segment: int) -> list[AttendedToken]:
    tokens, previous_word = [], None
    for token, (start, end), word in zip(encoding.tokens, encoding.offsets, encoding.word_ids, strict=True):
        characters = text[start:end].strip() or token
        # "##" marks the continuation of a word for all tokenizers, so that figures of different models look alike.
        tokens.append(AttendedToken(token, f"##{characters}" if word == previous_word else characters, segment))
        previous_word = word
    return tokens


def roll_out(weights: np.ndarray) -> np.ndarray:
    """Compute the attention rollout up to each layer (Abnar and Zuidema 2020, section 3).

    The matrix of a layer is the mean over its heads, averaged with the identity matrix, which stands for the residual
    connection. The matrices of all layers are multiplied. Values, feed-forward layers and norms are ignored.

    Args:
        weights: Attention weights, (layers, heads, tokens, tokens).

    Returns:
        Fraction of each input token at each position, (layers, tokens, tokens), which sum to 1 over the last axis.

    Examples:
        The second token attends to both tokens alike in layer 1. Both tokens attend to the second only in layer 2, but
        the residual connection keeps half of the first token at its position.

        >>> weights = np.array([[[[1, 0], [0.5, 0.5]]], [[[0, 1], [0, 1]]]])
        >>> roll_out(weights).tolist()
        [[[1.0, 0.0], [0.25, 0.75]], [[0.625, 0.375], [0.25, 0.75]]]
    """
    means = weights.mean(axis=1, dtype=np.float64)
    matrices = (means + np.eye(weights.shape[-1])) / 2
    # Weights in half precision do not sum to 1, and the error would grow with each product.
    matrices /= matrices.sum(axis=-1, keepdims=True)
    return np.stack(list(accumulate(matrices, lambda rollout, matrix: matrix @ rollout)))


# --- Rows of a file ---


@dataclass(frozen=True)
class EncodedRow:
    """Tokens of a row, with the syntactic heads of its words."""

    feature: Feature
    text: slice
    """Tokens that are not special."""
    word_spans: Sequence[tuple[int, int]]
    """First token and last token + 1 of each word."""
    heads: Sequence[int]
    relations: Sequence[str]

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.feature["input_ids"])


def encode_rows(rows: Sequence[ParsedRow], tokenizer: Tokenizer, max_tokens: int) -> list[EncodedRow]:
    """Tokenize rows, without rows that have no tokens or, including special tokens, more than `max_tokens`."""
    template = find_template(tokenizer, pair=False)
    # Tokenizing many texts at once is much faster than one by one.
    texts = [row.content for row in rows if isinstance(row.content, str)]
    text_tokens = iter(tokenize_texts(tokenizer, texts) if texts else [])
    lists = [row.content for row in rows if not isinstance(row.content, str)]
    word_tokens = iter(tokenize_words(tokenizer, lists, max_tokens))
    encoded = []
    for row in rows:
        words = [next(text_tokens).ids] if isinstance(row.content, str) else next(word_tokens)
        ids = [token for word in words for token in word]
        if ids and len(ids) + template.size <= max_tokens:
            # The words [5] and [6, 7] after [CLS] have the spans (1, 2) and (2, 4).
            bounds = np.cumsum([len(template.before), *map(len, words)]).tolist()
            text = slice(bounds[0], bounds[-1])
            encoded.append(EncodedRow(template.fill(ids), text, list(pairwise(bounds)), row.heads, row.relations))
    return encoded


# --- Patterns ---

PATTERNS = {
    "itself": "the token itself",
    "previous": "the token before it",
    "next": "the token after it",
    "same": "the same token elsewhere in the text",
    "first": "the special token at the beginning, such as [CLS]",
    "separator": "the other special tokens, such as [SEP]",
    "punctuation": "punctuation marks",
    "rare": "the tokens of the text that are rarest in the file",
}
"""Name -> tokens that are attended to."""

_MIN_PATTERN_SHARE = 0.5  # fraction of a head's attention
_BROAD_ENTROPY = 0.9  # minimum normalized entropy of a broad head
# Prefixes of tokens: WordPiece (continuation of a word), byte-level BPE and SentencePiece (beginning of a word).
_WORD_PREFIXES = ("##", "Ġ", "▁")


@dataclass(frozen=True)
class MeasuredHead:
    """Average attention of one head; layers and heads count from 0."""

    layer: int
    head: int
    described_as: str
    """A name of `PATTERNS`, ``broad`` or ``mixed``."""
    shares: dict[str, float]
    """Pattern -> fraction of attention."""
    entropy: float
    """Entropy in nats."""
    normalized_entropy: float
    """Entropy divided by the entropy of uniform attention, from 0 (all attention to one token) to 1."""


class PatternCounter:
    """Running totals of patterns over batches; attention weights are not kept in memory."""

    def __init__(self, rows: Sequence[EncodedRow], tokenizer: Tokenizer) -> None:
        # Frequency and punctuation flag of each token id, up to the largest id that occurs.
        ids = np.concatenate([row.feature["input_ids"][row.text] for row in rows])
        size = 1 + max(max(row.feature["input_ids"]) for row in rows)
        self.counts = np.bincount(ids, minlength=size)
        self.is_punctuation = np.zeros(size, dtype=bool)
        for token in np.flatnonzero(self.counts).tolist():
            self.is_punctuation[token] = is_punctuation(tokenizer.convert_ids_to_tokens(token))
        self.token_count = 0
        self.uniform_sums = np.zeros(len(PATTERNS))
        # One array (heads, patterns + 2) per layer; the last two columns are entropies.
        self.sums: list[np.ndarray] = []

    def add(self, rows: Sequence[EncodedRow], weights: Sequence[Tensor]) -> None:
        """Add a batch.

        Args:
            rows: Rows of the batch.
            weights: Weights of each layer, (rows, heads, tokens, tokens), padded on the right.
        """
        device, width = weights[0].device, weights[0].shape[-1]
        masks, is_text, lengths = self._build_masks(rows, width)
        self.token_count += int(is_text.sum())
        self.uniform_sums += (masks.sum(-1) / lengths[:, None]).sum((1, 2))
        pattern_masks = torch.from_numpy(masks).to(device, torch.float32)
        text_mask = torch.from_numpy(is_text).to(device, torch.float32)
        # Entropy divided by its maximum over n tokens, log(n), is comparable between texts of different lengths.
        normalizers = text_mask / torch.from_numpy(np.log(lengths)).float().to(device)[:, None]
        sums = []
        for layer in weights:
            # r row, h head, i token that attends, j token that is attended to, p pattern.
            shares = torch.einsum("rhij,prij->hp", layer.float(), pattern_masks)
            entropy = -torch.xlogy(layer, layer).float().sum(-1)
            entropies = [torch.einsum("rhi,ri->h", entropy, factors) for factors in (text_mask, normalizers)]
            sums.append(torch.cat([shares, torch.stack(entropies, dim=1)], dim=1).cpu().double().numpy())
        self.sums = [old + new for old, new in zip(self.sums, sums, strict=True)] if self.sums else sums

    def compute_uniform(self) -> dict[str, float]:
        """Return the shares of a head that attends to all tokens equally."""
        return dict(zip(PATTERNS, (self.uniform_sums / self.token_count).tolist(), strict=True))

    def measure_heads(self) -> list[MeasuredHead]:
        """Return the mean shares and entropies of each head over all tokens that were added."""
        means = np.stack(self.sums) / self.token_count
        heads = []
        for layer, head in np.ndindex(*means.shape[:2]):
            *shares, entropy, normalized = means[layer, head].tolist()
            by_pattern = dict(zip(PATTERNS, shares, strict=True))
            description = describe_head(by_pattern, normalized)
            heads.append(MeasuredHead(layer, head, description, by_pattern, entropy, normalized))
        return heads

    def _build_masks(self, rows: Sequence[EncodedRow], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mask of each pattern, the mask of text tokens, and the lengths of the rows of a batch.

        Shapes: (patterns, rows, tokens, tokens), (rows, tokens) and (rows,).
        """
        ids = np.zeros((len(rows), width), dtype=np.int64)
        is_text, is_first, is_separator = (np.zeros(ids.shape, dtype=bool) for _ in range(3))
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row.feature["input_ids"]
            is_text[index, row.text] = True
            is_first[index, : row.text.start] = True
            is_separator[index, row.text.stop : len(row)] = True
        # Special tokens get the highest possible count, so they are never the rarest token of a row.
        counts = np.where(is_text, self.counts[ids], np.iinfo(np.int64).max)
        is_rare = is_text & (counts == counts.min(axis=1, keepdims=True))
        # offsets[i, j] is j - i, the distance from token i, which attends, to token j.
        offsets = np.arange(width) - np.arange(width)[:, None]
        to_text = is_text[:, None, :]
        by_name = {
            "itself": to_text & (offsets == 0),
            "previous": to_text & (offsets == -1),
            "next": to_text & (offsets == 1),
            "same": to_text & (offsets != 0) & (ids[:, None, :] == ids[:, :, None]),
            "first": is_first[:, None, :],
            "separator": is_separator[:, None, :],
            "punctuation": (is_text & self.is_punctuation[ids])[:, None, :],
            "rare": is_rare[:, None, :],
        }
        masks = np.stack([np.broadcast_to(by_name[name], (len(rows), width, width)) for name in PATTERNS])
        return masks & is_text[:, :, None], is_text, np.array(list(map(len, rows)))


def describe_head(shares: dict[str, float], normalized_entropy: float) -> str:
    """Return the pattern that gets at least half of a head's attention, or else ``broad`` or ``mixed``."""
    pattern = max(shares, key=lambda name: shares[name])
    if shares[pattern] >= _MIN_PATTERN_SHARE:
        return pattern
    return "broad" if normalized_entropy >= _BROAD_ENTROPY else "mixed"


def is_punctuation(token: str) -> bool:
    """Return whether a token of a vocabulary is punctuation or a symbol.

    >>> [is_punctuation(token) for token in (".", "##!", "Ġ--", "$", "a.", "▁")]
    [True, True, True, True, False, False]
    """
    for prefix in _WORD_PREFIXES:
        token = token.removeprefix(prefix)
    return bool(token) and all(unicodedata.category(character)[0] in "PS" for character in token)


# --- Relations ---

ALL = "all"
"""Name of all relations except punctuation."""
DIRECTIONS = ("dependent to head", "head to dependent")
_MIN_WORDS = 30  # for each relation, in each half of the rows
_OFFSETS = tuple(offset for distance in range(1, 11) for offset in (-distance, distance))


@dataclass(frozen=True)
class RelationScore:
    """Accuracy of the best attention head for a relation, and of the best fixed offset. Intervals are over rows."""

    relation: str
    words: int
    """Number of words with this relation in the scored half of the rows."""
    layer: int
    head: int
    direction: str
    """Direction of attention, one of `DIRECTIONS`."""
    accuracy: float
    """Fraction of words whose syntactic head is predicted."""
    interval: Interval
    offset: int
    """The best fixed offset: -1 for the word before."""
    offset_accuracy: float
    offset_interval: Interval
    difference: float
    """Accuracy of the head minus the accuracy of the offset."""
    difference_interval: Interval


class RelationCounter:
    """Records, over batches, of the attention heads that predict the syntactic head of each word."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.relations: list[str] = []
        self.distances: list[int] = []  # from a word to its syntactic head, in words
        self.correct: list[np.ndarray] = []  # one array (words, layers, heads, directions) per row

    def add(self, indices: Sequence[int], rows: Sequence[EncodedRow], weights: Sequence[Tensor]) -> None:
        """Add the rows of a batch.

        Args:
            indices: Index of each row in the file.
            rows: Rows of the batch; rows without relations are skipped.
            weights: Weights of each layer, (rows, heads, tokens, tokens), padded on the right.
        """
        for position, (index, row) in enumerate(zip(indices, rows, strict=True)):
            # A word without tokens, such as control characters, is not scored, and neither are its dependents.
            has_tokens = [start < end for start, end in row.word_spans]
            words = [word for word, head in enumerate(row.heads) if head and has_tokens[word] and has_tokens[head - 1]]
            if words:
                heads = [row.heads[word] - 1 for word in words]
                attention = get_word_attention(torch.stack([layer[position] for layer in weights]), row.word_spans)
                self.correct.append(find_correct_heads(attention, words, heads))
                self.rows += [index] * len(words)
                self.relations += [row.relations[word] for word in words]
                self.distances += [head - word for word, head in zip(words, heads, strict=True)]

    def compute_scores(self, seed: int = 0) -> list[RelationScore]:
        """Return the score of the best head for all relations, and for each relation."""
        if not self.correct:
            return []
        rows, distances, correct = np.array(self.rows), np.array(self.distances), np.concatenate(self.correct)
        # 1. Split by rows, not by words, because the words of a sentence are not independent.
        row_indices = np.unique(rows)
        half = np.random.default_rng(seed).permutation(row_indices)[: len(row_indices) // 2]
        is_selecting = np.isin(rows, half)
        names = np.array(self.relations)
        masks = {ALL: names != "punct"}
        masks |= {name: names == name for name, _ in Counter(sorted(self.relations)).most_common()}
        scores = []
        for name, mask in masks.items():
            selection, scoring = mask & is_selecting, mask & ~is_selecting
            if min(selection.sum(), scoring.sum()) < _MIN_WORDS:
                continue
            # 2. Select the head and the offset on one half, and score them on the other.
            best_index = np.unravel_index(correct[selection].sum(axis=0).argmax(), correct.shape[1:])
            layer, head, direction = map(int, best_index)
            offset = max(_OFFSETS, key=lambda offset: int((distances[selection] == offset).sum()))
            head_correct, offset_correct = correct[scoring, layer, head, direction], distances[scoring] == offset
            values, intervals = _score_head(head_correct, offset_correct, rows[scoring])
            score = RelationScore(
                relation=name,
                words=int(scoring.sum()),
                layer=layer,
                head=head,
                direction=DIRECTIONS[direction],
                accuracy=values["head"],
                interval=intervals["head"],
                offset=offset,
                offset_accuracy=values["offset"],
                offset_interval=intervals["offset"],
                difference=values["difference"],
                difference_interval=intervals["difference"],
            )
            scores.append(score)
        return scores


def get_word_attention(weights: Tensor, word_spans: Sequence[tuple[int, int]]) -> Tensor:
    """Convert attention between tokens (..., tokens, tokens) into attention between words (..., words, words).

    The attention from a word is the mean over its tokens, and the attention to a word is the sum over its tokens (Clark
    et al. 2019, section 4.1).

    >>> weights = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.2, 0.2, 0.4, 0.2], [0.4, 0.2, 0.2, 0.2], [0.1, 0.1, 0.3, 0.5]])
    >>> get_word_attention(weights, [(0, 1), (1, 3), (3, 4)])  # the second word has two tokens
    tensor([[0.7000, 0.2000, 0.1000],
            [0.3000, 0.5000, 0.2000],
            [0.1000, 0.4000, 0.5000]])
    """
    # Shape (words, tokens); in the example [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]].
    is_in_word = torch.zeros(len(word_spans), weights.shape[-1], device=weights.device)
    for word, (start, end) in enumerate(word_spans):
        is_in_word[word, start:end] = 1
    means = is_in_word / is_in_word.sum(1, keepdim=True).clamp_min(1)
    return means @ weights.float() @ is_in_word.T


def find_correct_heads(attention: Tensor, words: Sequence[int], heads: Sequence[int]) -> np.ndarray:
    """Return whether each attention head predicts the syntactic head of each word.

    Args:
        attention: Attention between words, (layers, heads, words, words).
        words: Indices of the words that have a syntactic head.
        heads: Index of the syntactic head of each of these words.

    Returns:
        Booleans of shape (words, layers, heads, directions); see `DIRECTIONS`.
    """
    # A word is not a candidate for itself, so its weight becomes -1, which is below any attention.
    candidates = attention.clone()
    candidates.diagonal(dim1=-2, dim2=-1).fill_(-1)
    # (layers, heads, words, 2): the word that each word attends to most, and the word that attends to it most.
    predicted = torch.stack([candidates.argmax(dim=-1), candidates.argmax(dim=-2)], dim=-1)
    correct = predicted[:, :, list(words)] == torch.tensor(heads, device=attention.device)[:, None]
    return np.asarray(correct.permute(2, 0, 1, 3).cpu().numpy())


def _score_head(
    head_correct: np.ndarray, offset_correct: np.ndarray, rows: np.ndarray
) -> tuple[dict[str, float], dict[str, Interval]]:
    """Return the accuracies of a head and an offset, their difference, and the interval of each.

    All arguments have one value per word; `rows` are row indices.
    """
    row_ids, positions = np.unique(rows, return_inverse=True)
    # Sums per row make resampling fast.
    totals, head_sums, offset_sums = (
        np.bincount(positions, values, len(row_ids)) for values in (np.ones(len(rows)), head_correct, offset_correct)
    )

    def score(sampled_rows: np.ndarray) -> dict[str, float]:
        total = totals[sampled_rows].sum()
        head, offset = head_sums[sampled_rows].sum() / total, offset_sums[sampled_rows].sum() / total
        return {"head": head, "offset": offset, "difference": head - offset}

    return score(np.arange(len(row_ids))), bootstrap_intervals(score, len(row_ids))


# --- All heads ---

_BATCH_TOKENS = 1024  # padded tokens; the attention weights of a batch are in memory at once


@dataclass(frozen=True)
class MeasuredHeads:
    """All heads of an encoder, measured over the rows of a file."""

    model: str
    file: str
    layers: int
    heads: int
    """Number of heads per layer."""
    rows: int
    left_out: int
    """Number of rows without tokens, or with more tokens than the limit."""
    max_tokens: int
    tokens: int
    """Number of tokens without special tokens."""
    uniform: dict[str, float]
    """Pattern -> share of a head that attends to all tokens equally."""
    measured: list[MeasuredHead]
    relations: list[RelationScore] = field(default_factory=list)
    """Scores of relations, if rows have syntactic heads."""


def measure_heads(model: AttentionModel, rows: Sequence[ParsedRow], file: str, *, max_tokens: int) -> MeasuredHeads:
    """Measure what every head of an encoder attends to, batch by batch.

    Args:
        model: Encoder whose heads are measured.
        rows: Texts, or words with or without their syntactic heads.
        file: Name of their file.
        max_tokens: Maximum tokens of a row; longer rows are left out.

    Raises:
        DataError: If no row is left.
        ModelError: If the model has no weights to measure.
    """
    limit = min(max_tokens, model.max_tokens)
    encoded = encode_rows(rows, model.tokenizer, limit)
    if not encoded:
        message = f"no row has text of up to {limit:,} tokens"
        raise DataError(message, "name another --column or --max-length", file=file)
    # The weights of 144 heads (BERT base) in all rows do not fit in memory, so keep only sums over batches.
    patterns, relations = PatternCounter(encoded, model.tokenizer), RelationCounter()
    with stage("measuring heads", len(encoded)) as advance:
        for indices in sorted_batches(list(map(len, encoded)), _BATCH_TOKENS):
            batch = [encoded[index] for index in indices]
            weights = model.compute_weights([row.feature for row in batch])
            patterns.add(batch, weights)
            relations.add(indices, batch, weights)
            advance(len(indices))
    with stage("choosing the heads of relations", total=1):
        relation_scores = relations.compute_scores()
    return MeasuredHeads(
        model=model.name,
        file=file,
        layers=len(patterns.sums),
        heads=len(patterns.sums[0]),
        rows=len(encoded),
        left_out=len(rows) - len(encoded),
        max_tokens=limit,
        tokens=patterns.token_count,
        uniform=patterns.compute_uniform(),
        measured=patterns.measure_heads(),
        relations=relation_scores,
    )
