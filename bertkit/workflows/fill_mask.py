"""Predict the masked words of texts with a pretrained model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.hardware.precision import compute_as_stored
from bertkit.modeling.info import Model, info_of
from bertkit.modeling.load import load_to_pretrain, load_tokenizer, read_config
from bertkit.modeling.weights import load_config
from bertkit.progress import log, stage
from bertkit.storage import hub
from bertkit.storage.cache import say_once
from bertkit.tokens.features import Feature, Tokenizer, find_template

_SPELLINGS = ("[MASK]", "<mask>")
_CHUNK = 256  # texts
_TOKENS = 2048  # of a batch: each has a logit for every token of the vocabulary
# first characters of a token that begins a word, in vocabularies that write spaces
_WORD_STARTS = ("Ġ", "▁")

Candidates = list[tuple[int, float]]
"""Token ids and their probabilities, the likeliest first."""


@dataclass(frozen=True)
class _Query:
    """What the model reads of a text, and the masks that are predicted from it."""

    text: int
    feature: Feature
    masks: Mapping[int, int]
    """Number of the mask in the text -> its position in the feature."""


@dataclass(frozen=True)
class _MaskFiller:
    """A model with its tokenizer, and what is asked of them."""

    model: Model
    tokenizer: Tokenizer
    top: int
    targets: Mapping[int, str]
    """Token id -> word to report; empty for the likeliest tokens."""

    @cached_property
    def writes_spaces(self) -> bool:
        """Whether tokens of this vocabulary that begin a word differ from those that continue one."""
        return any(token.startswith(_WORD_STARTS) for token in self.tokenizer.get_vocab())

    def fill(self, texts: Sequence[tuple[int, str]], queries: Sequence[_Query]) -> Iterator[dict[str, Any]]:
        """Yield the record of each numbered text."""
        candidates: dict[int, dict[int, Candidates]] = {number: {} for number, _ in texts}
        for number, mask, likeliest in self._predict_masks(queries):
            candidates[number][mask] = likeliest
        for number, text in texts:
            masks = [self._record(text, mask, candidates[number][mask]) for mask in sorted(candidates[number])]
            yield {"text": text, "masks": masks}

    def _predict_masks(self, queries: Sequence[_Query]) -> Iterator[tuple[int, int, Candidates]]:
        """Yield text, mask and candidates, in the order of batches of similar length."""
        import torch

        device = next(self.model.parameters()).device
        # embedding tables may have more rows than the vocabulary has tokens: those are no candidates
        ids = torch.tensor(sorted(self.targets or self.tokenizer.get_vocab().values()), device=device)
        count = len(ids) if self.targets else min(self.top, len(ids))
        for batch in _batch_queries(queries):
            padded = self.tokenizer.pad([query.feature for query in batch], return_tensors="pt")
            with torch.inference_mode():
                logits = self.model(**padded.to(device)).logits
            for row, query in zip(logits, batch, strict=True):
                best = row[list(query.masks.values())].float().softmax(-1)[:, ids].topk(count)
                for mask, values, indices in zip(query.masks, best.values, best.indices, strict=True):
                    yield query.text, mask, list(zip(ids[indices].tolist(), values.tolist(), strict=True))

    def _record(self, text: str, mask: int, candidates: Candidates) -> dict[str, Any]:
        spelled = _spell_masks(text, self.tokenizer)
        answers = []
        for number, probability in candidates:
            token = self.tokenizer.convert_ids_to_tokens(number)
            word, joins = self._read_token(number, token)
            filled = _replace_mask(spelled, self.tokenizer.mask_token, mask, word, joins=joins)
            shown = self.targets.get(number) or (token if token.startswith("##") else word)
            answers.append({"word": shown, "probability": probability, "text": filled})
        return {"mask": mask, "answers": answers}

    def _read_token(self, number: int, token: str) -> tuple[str, bool]:
        """Return a token as text, and whether it continues the word before it."""
        if token.startswith("##"):
            return token[2:], True
        word = self.tokenizer.decode([number]).strip()
        return word, self.writes_spaces and not token.startswith(_WORD_STARTS)


def fill_mask(
    model: str, texts: Iterable[str], *, top: int = 5, targets: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Predict each mask of each text, the likeliest token first.

    Probabilities are over the whole vocabulary. With `targets`, those words are the answers, however likely.

    Returns:
        one record per text: ``text`` and ``masks``. A mask has its number ``mask`` (from 1) and ``answers``, each with
        ``word``, ``probability`` and the filled ``text``.

    Raises:
        ModelError: a model that was not trained on masked tokens.
        UsageError: a target that is not a single token.
        DataError: a text without a mask.
    """
    folder = hub.find_model(model)
    read_config(folder)
    with stage("loading torch and transformers"):
        tokenizer = load_tokenizer(folder)
    if tokenizer.mask_token_id is None:
        raise ModelError("the tokenizer has no mask token", "use a model trained on masked tokens", file=folder)
    target_ids = find_targets(tokenizer, targets)
    numbered = enumerate(texts, start=1)
    chunk = list(islice(numbered, _CHUNK))
    # a text without a mask ends in its error before weights are loaded
    queries = _find_masks(chunk, tokenizer)
    with stage(f"loading {model}"):
        from transformers import AutoModelForMaskedLM

        trained = load_to_pretrain(AutoModelForMaskedLM, folder, load_config(folder))
        if new := info_of(trained).new_weights:
            what = f"no trained head for masked words (the checkpoint lacks {new[0]})"
            raise ModelError(what, "name one that was pretrained on masked words", file=folder)
        filler = _MaskFiller(trained.eval().to(compute_as_stored()), tokenizer, top, target_ids)

    def answer() -> Iterator[dict[str, Any]]:
        yield from filler.fill(chunk, queries)
        while later := list(islice(numbered, _CHUNK)):
            yield from filler.fill(later, _find_masks(later, tokenizer))

    return answer()


def find_targets(tokenizer: Tokenizer, words: Sequence[str]) -> dict[int, str]:
    """Return token id -> word for each word.

    Raises:
        UsageError: a word that is several tokens, or not in the vocabulary.
    """
    targets = {}
    for word in words:
        spellings = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word}", word)]
        ids = next((spelling for spelling in spellings if len(spelling) == 1), spellings[0])
        if len(ids) != 1:
            tokens = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(f"--targets: {word!r} is not one token but {tokens}", "give words of one token")
        if ids[0] == tokenizer.unk_token_id:
            raise UsageError(f"--targets: {word!r} is not in the vocabulary", "give words that the model knows")
        targets[ids[0]] = word
    return targets


def _find_masks(texts: Sequence[tuple[int, str]], tokenizer: Tokenizer) -> list[_Query]:
    """Find the masks of texts; of a text that is too long, only the tokens around each mask are read."""
    template = find_template(tokenizer, pair=False)
    budget = int(tokenizer.model_max_length) - template.size
    queries = []
    for number, text in texts:
        ids = tokenizer(_spell_masks(text, tokenizer), add_special_tokens=False, verbose=False)["input_ids"]
        positions = [position for position, token in enumerate(ids) if token == tokenizer.mask_token_id]
        if not positions:
            short = text if len(text) <= 60 else f"{text[:60]}..."
            raise DataError(f"text {number} has no mask: {short!r}", f"write {tokenizer.mask_token} for a word")
        if len(ids) <= budget:
            masks = {mask: len(template.before) + position for mask, position in enumerate(positions, start=1)}
            queries.append(_Query(number, template.fill(ids), masks))
            continue
        log.info(f"text {number} has {len(ids):,} tokens: the {budget} around each mask are read")
        # The mask in the middle, as far as the text reaches: both sides tell what it is.
        for mask, position in enumerate(positions, start=1):
            start = max(0, min(position - budget // 2, len(ids) - budget))
            feature = template.fill(ids[start : start + budget])
            queries.append(_Query(number, feature, {mask: len(template.before) + position - start}))
    return queries


def _batch_queries(queries: Sequence[_Query]) -> Iterator[list[_Query]]:
    """Yield queries, sorted by length, in batches of a bounded number of tokens."""
    batch: list[_Query] = []
    for query in sorted(queries, key=lambda query: len(query.feature["input_ids"])):
        if batch and (len(batch) + 1) * len(query.feature["input_ids"]) > _TOKENS:
            yield batch
            batch = []
        batch.append(query)
    if batch:
        yield batch


def _replace_mask(text: str, mask_token: str, mask: int, word: str, *, joins: bool) -> str:
    """Replace a mask, numbered from 1, by a word.

    >>> _replace_mask("two cat[M] and a [M]", "[M]", 1, "s", joins=True)
    'two cats and a [M]'
    >>> _replace_mask("two cat [M].", "[M]", 1, "s", joins=True)
    'two cats.'
    """
    stretches = text.split(mask_token)
    before, after = mask_token.join(stretches[:mask]), mask_token.join(stretches[mask:])
    return (before.rstrip() if joins else before) + word + after


def _spell_masks(text: str, tokenizer: Tokenizer) -> str:
    """Write masks as the tokenizer does: a text may say [MASK] to any model."""
    for spelling in _SPELLINGS:
        if spelling != tokenizer.mask_token and spelling in text:
            say_once(f"{spelling} is read as {tokenizer.mask_token}, the mask of this model")
            text = text.replace(spelling, tokenizer.mask_token)
    return text
