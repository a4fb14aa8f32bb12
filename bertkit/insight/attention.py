"""The attention weights of an encoder, as the model itself computes them, for a text or for many; and their rollout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Encoding
from transformers import AutoModel

from bertkit.errors import UsageError
from bertkit.hardware.precision import compute_as_stored
from bertkit.modeling.attention import attention_weights
from bertkit.modeling.checkpoint import load_config, read_config
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.sentence.folder import is_sentence_folder, read_modules
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.tokens.features import Features, Tensor, Tokenizer, find_template, pad_features, tokenize_texts


@dataclass(frozen=True)
class AttendedToken:
    """A token of a text or of a pair."""

    token: str
    """As the vocabulary has it."""
    text: str
    """The characters that it stands for, after ``##`` where it continues a word; a special token as it is."""
    segment: int | None
    """0 in the first text, 1 in the second; None for a special token."""


@dataclass(frozen=True)
class AttendedText:
    """What the heads of an encoder attend to in one text, or in a pair of texts."""

    model: str
    tokens: list[AttendedToken]
    weights: np.ndarray
    """float32, (layers, heads, tokens, tokens): the weights of each token over the last axis add up to 1."""


@dataclass(frozen=True)
class AttentionModel:
    """An encoder that is loaded to look at its attention."""

    name: str
    model: Model
    tokenizer: Tokenizer

    @property
    def max_tokens(self) -> int:
        """The most tokens that it reads."""
        return int(self.tokenizer.model_max_length)

    def collate(self, features: Features) -> dict[str, Tensor]:
        """Build the batch of some features, on the device of the model, padded to the longest one."""
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": self.tokenizer.pad_token_type_id}
        arrays = pad_features(features, padding, max(len(feature["input_ids"]) for feature in features))
        return {name: torch.from_numpy(values).to(self.model.device) for name, values in arrays.items()}


def load_attention_model(folder: Path, name: str) -> AttentionModel:
    """Load the encoder of a run or of any other checkpoint, in float32.

    Raises:
        ModelError: it is damaged, or it is not an encoder.
    """
    if is_sentence_folder(folder):
        folder = folder / read_modules(folder).subfolder
    read_config(folder)
    model = load_for_pretraining(AutoModel, folder, load_config(folder))
    return AttentionModel(name, model.eval().to(compute_as_stored()), load_tokenizer(folder))


def attend(model: AttentionModel, text: str, pair: str | None = None, *, max_tokens: int) -> AttendedText:
    """Compute what the heads of an encoder attend to in a text, or in a pair of texts.

    Raises:
        UsageError: a text has no tokens, or both are longer than `max_tokens` or than the model reads.
        ModelError: the model has no weights to show.
    """
    # Tokenize a text or a pair as in training: special tokens that a text spells are read as characters.
    texts = [text] if pair is None else [text, pair]
    encodings = [tokenize_texts(model.tokenizer, [one])[0] for one in texts]
    if not all(encoding.ids for encoding in encodings):
        raise UsageError("a text without tokens", "write something in it")
    template = find_template(model.tokenizer, pair=pair is not None)
    feature = template.fill(*(encoding.ids for encoding in encodings))
    tokens = [AttendedToken(name, name, None) for name in model.tokenizer.convert_ids_to_tokens(feature["input_ids"])]
    start = len(template.before)
    for segment, (encoding, own) in enumerate(zip(encodings, texts, strict=True)):
        tokens[start : start + len(encoding.ids)] = _describe_tokens(encoding, own, segment)
        start += len(encoding.ids) + len(template.between)
    if len(tokens) > model.max_tokens:
        raise UsageError(f"{len(tokens):,} tokens, and the model reads {model.max_tokens:,}", "give a shorter text")
    if len(tokens) > max_tokens:
        remedy = "give a shorter text, or a larger --max-length: the output grows with its square"
        raise UsageError(f"{len(tokens):,} tokens, more than --max-length {max_tokens:,}", remedy)
    batch = model.collate([feature])
    weights = np.stack([one[0].float().cpu().numpy() for one in attention_weights(model.model, batch)])
    return AttendedText(model.name, tokens, weights)


def _describe_tokens(encoding: Encoding, text: str, segment: int) -> list[AttendedToken]:
    described, before = [], None
    for token, (start, end), word in zip(encoding.tokens, encoding.offsets, encoding.word_ids, strict=True):
        shown = text[start:end].strip() or token
        described.append(AttendedToken(token, f"##{shown}" if word == before else shown, segment))
        before = word
    return described


def roll_out(weights: np.ndarray) -> np.ndarray:
    """Compute the attention rollout up to each layer (Abnar and Zuidema 2020, section 3).

    Each layer is the mean of its heads, half of it attention and half the residual connection. The layers up to one are
    multiplied. It knows nothing of values, feed-forwards or norms.

    Args:
        weights: (layers, heads, tokens, tokens).

    Returns:
        (layers, tokens, tokens): for each position, the shares of the input tokens, which add up to 1.
    """
    means = weights.mean(axis=1, dtype=np.float64)
    mixed = (means + np.eye(weights.shape[-1])) / 2
    mixed /= mixed.sum(axis=-1, keepdims=True)
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return np.stack(rolled)


def entropies(weights: np.ndarray) -> np.ndarray:
    """Compute the mean entropy of each head in nats, (layers, heads), over all tokens of a text.

    Args:
        weights: (layers, heads, tokens, tokens).
    """
    logs = np.log(np.maximum(weights, np.finfo(np.float32).tiny))
    return np.asarray(-(weights * logs).sum(axis=-1).mean(axis=-1))
