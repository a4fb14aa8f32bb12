"""Engines that compute answers: a checkpoint that predicts rows, or an encoder that embeds texts.

An engine encodes inputs, and computes the answers to a batch of encoded inputs of one group. All calls come from the
same thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import answer_rows
from bertkit.progress import SILENT, use_progress
from bertkit.recipe.sections import Row
from bertkit.tokens.features import count_tokens
from bertkit.vectors.embedder import Embedder


class EncodedInput(NamedTuple):
    """Input as `answer` takes it, and its number of tokens."""

    content: Any
    tokens: int


@dataclass(frozen=True)
class PredictionEngine:
    """Engine that predicts rows as `bertkit predict` does; an input is a row, and an answer is its prediction."""

    checkpoint: Checkpoint

    def group(self, value: Row) -> Hashable:
        """Return the key of the batch: the columns, because rows with a second text are encoded separately."""
        return tuple(sorted(value))

    def encode(self, values: Sequence[Row]) -> list[EncodedInput]:
        """Check rows, and return each row with its features.

        Raises:
            DataError: If a row is not valid.
        """
        task, context = self.checkpoint.task, self.checkpoint.context
        rows = [task.read(row, context.recipe) or row for row in values]
        # A long text can have several features, one per window.
        features: list[list[Any]] = [[] for _ in rows]
        for feature in task.encode(rows, context):
            features[feature["row"]].append(feature)
        return [
            EncodedInput((row, row_features), sum(map(count_tokens, row_features)))
            for row, row_features in zip(rows, features, strict=True)
        ]

    def answer(self, encoded: Sequence[EncodedInput]) -> list[Any]:
        """Run the model on the features of all rows, and decode its outputs."""
        rows = [content[0] for content, _ in encoded]
        # Rows can come from several calls of `encode`, so features get the index of their row in this batch.
        features = [{**feature, "row": index} for index, (content, _) in enumerate(encoded) for feature in content[1]]
        with use_progress(SILENT):
            return answer_rows(self.checkpoint, features, rows, "predicting")


@dataclass(frozen=True)
class EmbeddingEngine:
    """Engine that embeds texts as `bertkit embed` does.

    An input is a text with the name of its prompt, or None. An answer is a vector and the number of tokens.
    """

    embedder: Embedder
    _embedders: dict[str | None, Embedder] = field(default_factory=dict)
    """Name of a prompt -> embedder with the prompt."""

    def group(self, value: tuple[str, str | None]) -> Hashable:
        """Return the name of the prompt."""
        return value[1]

    def encode(self, values: Sequence[tuple[str, str | None]]) -> list[EncodedInput]:
        """Count the tokens of each text with its prompt, after truncation."""
        embedder = self._get_embedder(values[0][1])
        texts = [f"{embedder.prompt_text}{text}" for text, _ in values]
        # Only the number of tokens is needed here, to fill a batch; `Embedder.encode` tokenizes again.
        ids = embedder.tokenizer(
            texts, truncation=True, split_special_tokens=True, return_attention_mask=False, return_token_type_ids=False
        )["input_ids"]
        return [EncodedInput(value, len(text_ids)) for value, text_ids in zip(values, ids, strict=True)]

    def answer(self, encoded: Sequence[EncodedInput]) -> list[tuple[Any, int]]:
        """Embed texts that have the same prompt."""
        embedder = self._get_embedder(encoded[0].content[1])
        vectors = embedder.encode([content[0] for content, _ in encoded])
        return [(vector, tokens) for vector, (_, tokens) in zip(vectors, encoded, strict=True)]

    def _get_embedder(self, prompt: str | None) -> Embedder:
        if prompt not in self._embedders:
            self._embedders[prompt] = self.embedder if prompt is None else self.embedder.with_prompt(prompt)
        return self._embedders[prompt]


Engine = PredictionEngine | EmbeddingEngine
