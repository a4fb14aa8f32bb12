"""What encoders cost on this machine: their size, how fast each reads the same texts, and what it may be used for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertkit.hardware.device import find_device
from bertkit.hardware.memory import peak_memory, restart_peak_memory
from bertkit.hardware.speed import time_by_turns
from bertkit.metrics.linear import sample
from bertkit.modeling.load import load_tokenizer
from bertkit.modeling.sentence.modules import is_sentence_folder
from bertkit.modeling.weights import load_config
from bertkit.recipe import Row
from bertkit.storage.hub.encoders import list_encoders
from bertkit.vectors.embedder import Embedder

UNKNOWN = "unknown"

_TIMED = 64  # texts
_TOGETHER = 16  # texts of a batch


@dataclass(frozen=True)
class EncoderCost:
    """The cost of one encoder."""

    parameters: int
    """Size of the encoder with its embeddings, without a head."""
    tokens_per_second: float
    rows_per_second: float
    memory_bytes: int | None
    """By which the process grew from before it was loaded to its longest batch; None where that is not known."""
    max_tokens: int
    """Length of the longest input that it can read."""
    license: str
    """``unknown`` for an encoder that is not listed by `bertkit encoders`."""
    languages: str
    spread: float = 0.0
    """By which share the slowest round of timing took longer than the fastest."""


def texts_of(rows: Sequence[Row]) -> list[str]:
    """Return the texts of rows that speed is measured on, a few dozen; words are joined, and so is a pair."""
    names = ("text", "text_pair")
    texts = (row.get("tokens") or [row[name] for name in names if name in row] for row in sample(rows, _TIMED))
    return list(map(" ".join, texts))


def measure_costs(embedders: Sequence[Embedder], rows: Sequence[Row]) -> list[EncoderCost]:
    """Load encoders and measure what each costs; they take turns at every batch of the same texts.

    Args:
        embedders: with the precision and length that vectors are read with.
        rows: the examples, of which a few dozen are timed.

    Raises:
        ModelError: one is damaged.
    """
    texts, device = texts_of(rows), find_device().type
    ordered = sorted(texts, key=len)
    # a warm-up: memory that libraries take once counts for no encoder
    Embedder("demo").encode(texts[:1])
    # By how much the process grows while an encoder is loaded and run on the longest texts.
    memory: list[int | None] = []
    for embedder in embedders:
        knows_memory = restart_peak_memory(device)
        before = peak_memory(device)
        embedder.load()
        embedder.encode(ordered[-_TOGETHER:])
        after = peak_memory(device)
        memory.append(max(0, after - before) if knows_memory and after is not None and before is not None else None)
    batches = [ordered[first : first + _TOGETHER] for first in range(0, len(ordered), _TOGETHER)]
    timings = time_by_turns([embedder.encode for embedder in embedders], batches)
    costs = []
    for embedder, grown, timing in zip(embedders, memory, timings, strict=True):
        tokens = sum(map(len, embedder.tokenizer(texts, truncation=True)["input_ids"]))
        license, languages = _describe_model(embedder.model)
        costs.append(
            EncoderCost(
                parameters=count_parameters(embedder),
                tokens_per_second=tokens / sum(timing.seconds),
                rows_per_second=len(texts) / sum(timing.seconds),
                memory_bytes=grown,
                max_tokens=max_tokens(embedder),
                license=license,
                languages=languages,
                spread=timing.spread(),
            )
        )
    return costs


def count_parameters(embedder: Embedder) -> int:
    """Count the parameters of an encoder from its config, without memory for them."""
    import torch
    from transformers import AutoModel

    folder = embedder.folder / embedder.modules.subfolder
    # Shapes without memory: a model of gigabytes is counted in a moment.
    with torch.device("meta"):
        model = AutoModel.from_config(load_config(folder, decoders=is_sentence_folder(embedder.folder)))
    return sum(parameter.numel() for parameter in model.parameters())


def max_tokens(embedder: Embedder) -> int:
    """Return how many tokens an encoder can read at most, whatever its vectors of sentences were trained with."""
    folder = embedder.folder / embedder.modules.subfolder
    return int(load_tokenizer(folder, decoders=is_sentence_folder(embedder.folder)).model_max_length)


def _describe_model(model: str) -> tuple[str, str]:
    """Return the license and languages of a published encoder."""
    found = next((one for one in list_encoders() if one.name == model), None)
    return (found.license, found.language_text) if found else (UNKNOWN, UNKNOWN)
