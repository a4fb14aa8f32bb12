"""Explanations of a prediction: what each word of a row adds to a number that the model computes."""

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
    """Contributions of the words of a row to one number that the model computes."""

    target: str
    measure: str
    """Name of the number: ``log-odds``, ``cosine`` and so on."""
    score: float
    baseline_score: float
    """Score of the row with all words replaced by the baseline."""
    steps: int
    gap: float
    """Difference between the sum of integrated gradients and the difference of the scores, as a fraction of it."""
    is_complete: bool
    """Whether the gap is within 1%."""
    words: list[WordValue]


@dataclass(frozen=True)
class PredictedRow:
    """A row with its prediction, and the features and outputs of the model for it."""

    row: Row
    prediction: Prediction
    features: Features
    outputs: Sequence[Mapping[str, Any]]


def explain(
    checkpoint: Checkpoint, answered: PredictedRow, *, targets: Sequence[str] = (), max_steps: int = 512
) -> list[Explanation]:
    """Explain a row: the number behind each target, word by word.

    Args:
        checkpoint: Model that has answered the row.
        answered: Row with its prediction.
        targets: Names of targets, or the words that they are about; empty for the targets of the prediction.
        max_steps: Maximum steps of integrated gradients.

    Raises:
        UsageError: If no target has one of the names.
        RecipeError: If the task family does not define what to explain.
    """
    tokenizer = checkpoint.context.tokenizer
    # [MASK] represents an unknown word in pretraining, so no other token carries less information.
    baseline = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    model, collate = checkpoint.model.eval(), checkpoint.task.collator(checkpoint.context)
    explanations = []
    for target in find_targets(checkpoint, answered, targets):
        feature = {**answered.features[target.feature], "row": 0}
        # Features of some task families, such as multiple choice, have several texts.
        ids = feature["input_ids"]
        words = find_words(ids if are_several_texts(ids) else [ids], tokenizer)
        positions = [position for word in words for position in word.positions]
        explained = ExplainedInput(model, feature, collate, target.score, int(baseline), positions)
        gradients = integrated_gradients(explained, max_steps)
        drops = occlusion(explained, [word.positions for word in words])
        values = []
        for word, drop in zip(words, drops.tolist(), strict=True):
            # Attributions of tokens add up, so the attribution of a word is their sum.
            total = float(sum(gradients.values[position] for position in word.positions))
            values.append(WordValue(word.text, word.segment, total, drop))
        scores = gradients.score, gradients.baseline_score, gradients.steps, gradients.gap, gradients.is_complete
        explanations.append(Explanation(target.name, target.measure, *scores, values))
    return explanations


def find_targets(checkpoint: Checkpoint, answered: PredictedRow, names: Sequence[str]) -> list[Target]:
    """Return the numbers to explain: the numbers of the prediction, or those with the requested names."""
    task, context = checkpoint.task, checkpoint.context
    if task.targets is None:
        # A family that defines no targets is explained by its logits.
        targets = build_logit_targets(answered.outputs, context, context.recipe.task)
    else:
        targets = task.targets(answered.prediction, answered.outputs, answered.features, answered.row, context)
    if not names:
        return [target for target in targets if target.is_predicted]
    selected = []
    for name in names:
        matches = [target for target in targets if name in (target.name, target.name.partition(": ")[0])]
        if not matches:
            raise UsageError(f"no target is called {name!r}", did_you_mean(name, [target.name for target in targets]))
        selected += matches
    return selected


# --- Words: tokens put together, so that values of tokens can be summed per word ---


@dataclass(frozen=True)
class Word:
    """A word of an input, as the model reads it."""

    text: str
    segment: int
    """Index of its text among the texts between special tokens."""
    positions: tuple[tuple[int, int], ...]
    """Its tokens: index of the feature's text, and position in it."""


def find_words(texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Word]:
    """Return the words of a feature's texts, each a list of token ids."""
    special, words, segment = special_ids(tokenizer), [], 0
    is_bytes = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
    for index, ids in enumerate(texts):
        # Special tokens separate texts, so each run of other tokens is one text.
        for is_special, run in itertools.groupby(enumerate(map(int, ids)), lambda place: place[1] in special):
            if is_special:
                continue
            places = list(run)
            tokens = tokenizer.convert_ids_to_tokens([token_id for _, token_id in places])
            for start, end in itertools.pairwise(_find_bounds(tokens, tokenizer.unk_token, is_bytes=is_bytes)):
                # A character can be several tokens of bytes, so these are decoded together.
                word_ids = [token_id for _, token_id in places[start:end]]
                text = tokenizer.decode(word_ids) if is_bytes else "".join(map(_strip_marks, tokens[start:end]))
                positions = tuple((index, position) for position, _ in places[start:end])
                words.append(Word("".join(text.split()), segment, positions))
            segment += 1
    return words


def _find_bounds(tokens: Sequence[str], unknown: str | None, *, is_bytes: bool) -> list[int]:
    """Return the index of the first token of each word, and the number of tokens."""
    # Byte-level BPE and SentencePiece mark the beginning of a word, WordPiece its continuation.
    mark = "Ġ" if is_bytes else "▁"
    if is_bytes or any(token.startswith(mark) for token in tokens):
        begins = [token.startswith(mark) for token in tokens]
    else:
        begins = [not token.startswith("##") for token in tokens]
    # WordPiece replaces a complete word by [UNK], so an unknown token is a separate word.
    is_unknown = [token == unknown and not is_bytes for token in tokens]
    return [0, *(index for index in range(1, len(tokens)) if begins[index] or is_unknown[index]), len(tokens)]


def _strip_marks(token: str) -> str:
    return token.removeprefix("##").replace("▁", "").removesuffix("</w>")
