"""Explanations of a prediction: contribution of each word of a row to a score of the model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.analysis.attributions import ExplainedInput, integrated_gradients, occlusion
from bertkit.errors import UsageError, did_you_mean
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.heads.targets import Target, build_logit_targets
from bertkit.recipe.sections import Row
from bertkit.tasks import Prediction
from bertkit.tokens.features import Features, Tokenizer, are_several_texts, special_ids


@dataclass(frozen=True)
class WordValue:
    """Contribution of a word to the score, by two methods."""

    word: str
    segment: int
    """Index of its text among the texts between special tokens."""
    integrated_gradients: float
    occlusion: float


@dataclass(frozen=True)
class Explanation:
    """Contributions of the words of a row to one score of the model."""

    target: str
    measure: str
    """Kind of score, such as ``log-odds`` or ``cosine``."""
    score: float
    baseline_score: float
    """Score of the row with all words replaced by the baseline."""
    steps: int
    gap: float
    """Completeness error; see `bertkit.analysis.attributions.Gradients.gap`."""
    is_complete: bool
    """Whether the attributions sum to the score difference within 1%."""
    words: list[WordValue]


@dataclass(frozen=True)
class PredictedRow:
    """A row with its features, and the model's outputs and prediction."""

    row: Row
    prediction: Prediction
    features: Features
    outputs: Sequence[Mapping[str, Any]]


def explain(
    checkpoint: Checkpoint, example: PredictedRow, *, targets: Sequence[str] = (), max_steps: int = 512
) -> list[Explanation]:
    """Compute the contribution of each word of a row to the score of each target.

    Args:
        checkpoint: Model that has predicted the row.
        example: Row with its prediction.
        targets: Names of targets, or the words that they are about; empty for the targets of the prediction.
        max_steps: Maximum steps of integrated gradients.

    Raises:
        UsageError: If no target has one of the names.
        RecipeError: If the task family does not define what to explain.
    """
    tokenizer = checkpoint.context.tokenizer
    # In pretraining, [MASK] represents an unknown word, so it carries less information than other tokens.
    baseline = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    model, collate = checkpoint.model.eval(), checkpoint.task.collator(checkpoint.context)
    explanations = []
    for target in find_targets(checkpoint, example, targets):
        feature = {**example.features[target.feature], "row": 0}
        ids = feature["input_ids"]
        words = find_words(ids if are_several_texts(ids) else [ids], tokenizer)
        positions = [position for word in words for position in word.positions]
        explained = ExplainedInput(model, feature, collate, target.score, int(baseline), positions)
        gradients = integrated_gradients(explained, max_steps)
        drops = occlusion(explained, [word.positions for word in words])
        values = []
        for word, drop in zip(words, drops.tolist(), strict=True):
            total = float(sum(gradients.values[position] for position in word.positions))
            values.append(WordValue(word.text, word.segment, total, drop))
        scores = gradients.score, gradients.baseline_score, gradients.steps, gradients.gap, gradients.is_complete
        explanations.append(Explanation(target.name, target.measure, *scores, values))
    return explanations


def find_targets(checkpoint: Checkpoint, example: PredictedRow, names: Sequence[str]) -> list[Target]:
    """Return the targets with the requested names, or else the targets of the prediction."""
    task, context = checkpoint.task, checkpoint.context
    if task.targets is None:
        targets = build_logit_targets(example.outputs, context, context.recipe.task)
    else:
        targets = task.targets(example.prediction, example.outputs, example.features, example.row, context)
    if not names:
        return [target for target in targets if target.is_predicted]
    selected = []
    for name in names:
        matches = [target for target in targets if name in (target.name, target.name.partition(": ")[0])]
        if not matches:
            raise UsageError(f"no target is called {name!r}", did_you_mean(name, [target.name for target in targets]))
        selected += matches
    return selected


# --- Words: groups of tokens whose attributions are summed ---


@dataclass(frozen=True)
class Word:
    """A word of an input."""

    text: str
    segment: int
    """Index of its text among the texts between special tokens."""
    positions: tuple[tuple[int, int], ...]
    """Tokens of the word: index of a text in the feature, and position in the text."""


def find_words(texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Word]:
    """Return the words of a feature's texts, which are lists of token ids."""
    special, words, segment = special_ids(tokenizer), [], 0
    is_bytes = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
    for index, ids in enumerate(texts):
        # Special tokens separate texts, so each run of other tokens is one text.
        for is_special, group in itertools.groupby(enumerate(map(int, ids)), lambda token: token[1] in special):
            if is_special:
                continue
            text_tokens = list(group)
            tokens = tokenizer.convert_ids_to_tokens([token_id for _, token_id in text_tokens])
            for start, end in itertools.pairwise(_find_bounds(tokens, tokenizer.unk_token, is_bytes=is_bytes)):
                # A character can be several tokens of bytes, so decode the tokens of a word together.
                word_ids = [token_id for _, token_id in text_tokens[start:end]]
                text = tokenizer.decode(word_ids) if is_bytes else "".join(map(_strip_marks, tokens[start:end]))
                positions = tuple((index, position) for position, _ in text_tokens[start:end])
                words.append(Word("".join(text.split()), segment, positions))
            segment += 1
    return words


def _find_bounds(tokens: Sequence[str], unknown: str | None, *, is_bytes: bool) -> list[int]:
    """Return the index of the first token of each word, and the number of tokens."""
    # Byte-level BPE and SentencePiece mark the beginning of a word, WordPiece its continuation.
    prefix = "Ġ" if is_bytes else "▁"
    if is_bytes or any(token.startswith(prefix) for token in tokens):
        is_start = [token.startswith(prefix) for token in tokens]
    else:
        is_start = [not token.startswith("##") for token in tokens]
    # WordPiece replaces a complete word by [UNK], so an unknown token is a separate word.
    is_unknown = [token == unknown and not is_bytes for token in tokens]
    return [0, *(index for index in range(1, len(tokens)) if is_start[index] or is_unknown[index]), len(tokens)]


def _strip_marks(token: str) -> str:
    return token.removeprefix("##").replace("▁", "").removesuffix("</w>")
