"""What computes answers: a checkpoint that predicts rows, or an encoder that embeds texts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bertkit.evaluation.together import Together
from bertkit.metrics import Numbers
from bertkit.progress import SILENT, use_progress
from bertkit.recipe import Row
from bertkit.tokens.features import count_tokens
from bertkit.vectors.embedder import Embedder

TaskRow = tuple[str, Row]
"""The name of a task, which is empty where there is one, and a row of it."""


class Encoded(NamedTuple):
    """An input as the model reads it."""

    content: Any
    tokens: int


class Engine(Protocol):
    """Computes answers, always in the same thread."""

    def group(self, value: Any) -> Hashable:
        """Return what the inputs of a batch must have in common."""

    def encode(self, values: Sequence[Any]) -> list[Encoded]:
        """Encode inputs of one group.

        Raises:
            DataError: one is wrong.
        """

    def answer(self, values: Sequence[Any], encoded: Sequence[Encoded]) -> list[Any]:
        """Compute the answer to each input of a batch of one group."""


@dataclass(frozen=True)
class Predictor:
    """Predicts rows as `bertkit predict` does, those of one model or of several tasks over one encoder.

    An input is a row with the name of its task, and an answer is a prediction.
    """

    together: Together

    def group(self, value: TaskRow) -> Hashable:
        """Return the columns of a row, since rows with a second text are encoded apart from those without."""
        return tuple(sorted(value[1]))

    def encode(self, values: Sequence[TaskRow]) -> list[Encoded]:
        """Check rows and encode them, each to its features."""
        encoded = dict[int, Encoded]()
        for name in dict.fromkeys(name for name, _ in values):
            checkpoint = self.together.tasks[name]
            task, setup = checkpoint.task, checkpoint.setup
            rows = {
                n: task.read(row, setup.recipe) or row for n, (of_task, row) in enumerate(values) if of_task == name
            }
            features: list[list[Any]] = [[] for _ in rows]
            for feature in task.encode(list(rows.values()), setup):
                features[feature["row"]].append(feature)
            for (number, row), of_row in zip(rows.items(), features, strict=True):
                encoded[number] = Encoded((row, of_row), sum(map(count_tokens, of_row)))
        return [encoded[number] for number in range(len(values))]

    def answer(self, values: Sequence[TaskRow], encoded: Sequence[Encoded]) -> list[Any]:
        """Run the models over the features of all rows, and decode their outputs."""
        rows, features = dict[str, list[Row]](), dict[str, list[Any]]()
        for (name, _), (content, _) in zip(values, encoded, strict=True):
            of_task = rows.setdefault(name, [])
            # Features were encoded in other batches, so they get the number of their row in this one.
            features.setdefault(name, []).extend({**feature, "row": len(of_task)} for feature in content[1])
            of_task.append(content[0])
        with use_progress(SILENT):
            predictions = {name: iter(of_task) for name, of_task in self.together.predict(features, rows).items()}
        return [next(predictions[name]) for name, _ in values]


@dataclass(frozen=True)
class Vectorizer:
    """Embeds texts as `bertkit embed` does; an input is a text and the name of its prompt, an answer is a vector."""

    embedder: Embedder
    _by_prompt: dict[str, Embedder] = field(default_factory=dict)

    @property
    def prompts(self) -> list[str]:
        """The names of the prompts that texts may begin with."""
        return list(self.embedder.modules.prompts)

    @property
    def is_normal(self) -> bool:
        """Whether its vectors have length 1."""
        return self.embedder.modules.is_normal

    def group(self, value: tuple[str, str | None]) -> Hashable:
        """Return the name of the prompt."""
        return value[1]

    def encode(self, values: Sequence[tuple[str, str | None]]) -> list[Encoded]:
        """Count the tokens that are read of each text with its prompt."""
        embedder = self._with_prompt(values[0][1])
        texts = [f"{embedder.prompt_text}{text}" for text, _ in values]
        # Only their number is needed here, to fill a batch; `Embedder.encode` tokenizes once more.
        ids = embedder.tokenizer(
            texts, truncation=True, split_special_tokens=True, return_attention_mask=False, return_token_type_ids=False
        )["input_ids"]
        return [Encoded(text, len(of_text)) for (text, _), of_text in zip(values, ids, strict=True)]

    def answer(self, values: Sequence[tuple[str, str | None]], encoded: Sequence[Encoded]) -> list[tuple[Any, int]]:
        """Return the vector of each text, and how many tokens were read of it."""
        vectors: Numbers = self._with_prompt(values[0][1]).encode([one.content for one in encoded])
        return [(vector, one.tokens) for vector, one in zip(vectors, encoded, strict=True)]

    def _with_prompt(self, name: str | None) -> Embedder:
        if name is None:
            return self.embedder
        if name not in self._by_prompt:
            self._by_prompt[name] = self.embedder.with_prompt(name)
        return self._by_prompt[name]
