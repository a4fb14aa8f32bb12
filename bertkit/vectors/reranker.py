"""Scores of passages by a cross-encoder, or by late interaction, that is loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, find_checkpoint
from bertkit.evaluation.scoring import run_model
from bertkit.modeling.sentence.folder import LATE, find_format
from bertkit.modeling.sentence.texts import drop_padding, encode_rows, max_sim
from bertkit.modeling.tokenizer import fit_tokenizer
from bertkit.progress import Progress, with_progress
from bertkit.recipe.load import load_recipe
from bertkit.storage import hub

_MAX_LENGTH = 100_000  # tokens; more than any tokenizer reads, so that its limit applies


@dataclass(frozen=True)
class Reranker:
    """A model that scores how relevant passages are to queries, loaded when the first pair comes.

    The scores are the same as in sentence-transformers: a CrossEncoder returns probabilities, or logits if its folder
    sets them, and late interaction (MultiVectorEncoder) sums over the query's tokens. A higher score is more relevant.

    Examples:
        >>> Reranker("runs/rerank").score([("Who sleeps?", "The cat sleeps."), ("Who sleeps?", "It rains.")])
        ... # doctest: +SKIP
        array([0.93, 0.02])
    """

    model: str
    """Run folder of the recipe ``rerank`` or ``late-interaction``, folder of a CrossEncoder, or Hub name."""
    max_length: int | None = None
    """Maximum tokens of query and passage together; by default, the folder's."""
    precision: str = "auto"

    @cached_property
    def is_late(self) -> bool:
        """Whether queries and passages are encoded separately, so that each passage is encoded once for all queries."""
        return find_format(hub.find_model(self.model)) == LATE

    @cached_property
    def checkpoint_info(self) -> CheckpointInfo:
        """The checkpoint, found and checked without its weights.

        Raises:
            BertkitError: If the model does not exist or cannot rerank.
        """
        if self.max_length is not None and self.max_length < 8:
            raise UsageError(f"max_length {self.max_length} leaves no room for a passage", "give at least 8")
        name = "late-interaction" if self.is_late else "rerank"
        info = find_checkpoint(load_recipe(name, {"model": self.model, "training.precision": self.precision}))
        training = info.record.get("identity", {}).get("recipe", {}).get("training", {})
        length = self.max_length or training.get("max_length", _MAX_LENGTH)
        return replace(info, recipe=info.recipe.replace("training", max_length=length))

    @cached_property
    def _loaded(self) -> Checkpoint:
        checkpoint = self.checkpoint_info.load(inference=True)
        checkpoint.pack_texts()
        # The length can exceed the limit in the tokenizer's file, but not the model's number of positions.
        if self.max_length is not None:
            tokenizer = checkpoint.context.tokenizer
            tokenizer.model_max_length = self.max_length
            fit_tokenizer(tokenizer, checkpoint.model.config)
        return checkpoint

    @with_progress
    def score(self, pairs: Sequence[tuple[str, str]], *, progress: Progress | None = None) -> np.ndarray:
        """Compute the score of each pair of a query and a passage, float64 of shape (pairs,).

        Probabilities are computed in float64, because float32 would round those near 1 to the same number.
        """
        if not len(pairs):
            return np.zeros(0)
        if self.is_late:
            return self._score_late(pairs)
        checkpoint = self._loaded
        task, context = checkpoint.task, checkpoint.context
        rows = [{"query": query, "passage": passage} for query, passage in pairs]
        features = task.encode(rows, context)
        outputs, _ = run_model(checkpoint, features, "reranking")
        return np.array([record["prediction"] for record in task.decode(outputs, features, rows, context)])

    def _score_late(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        vectors_by_text: list[dict[str, Any]] = []
        for texts, role in zip(zip(*pairs, strict=True), ("query", "document"), strict=True):
            # A passage is in the pairs of many queries, and is encoded once.
            distinct = list(dict.fromkeys(texts))
            rows = [[text] for text in distinct]
            features = encode_rows(rows, self._loaded.context, (role, role), model_format=LATE)
            outputs, _ = run_model(self._loaded, features, f"reading {role} texts")
            vectors = [drop_padding(output["vectors"][0]) for output in outputs]
            vectors_by_text.append(dict(zip(distinct, vectors, strict=True)))
        queries, passages = vectors_by_text
        scores = [max_sim([queries[query]], [passages[passage]]).item() for query, passage in pairs]
        return np.array(scores, dtype=np.float64)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the options, so that another process loads the model itself."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}
