"""Ask a pretrained model which words it expects where a text is masked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit import hub
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.modeling.info import info_of
from bertkit.modeling.load import load_to_pretrain, load_tokenizer, read_config
from bertkit.modeling.weights import load_config
from bertkit.storage.cache import say_once
from bertkit.tokens.features import Feature, find_template

log = logging.getLogger("bertkit")

_SPELLINGS = ("[MASK]", "<mask>")
_CHUNK = 256  # texts
_TOKENS = 2048  # of a batch: each becomes as many numbers as there are tokens in the vocabulary
Answers = list[tuple[int, float]]
"""Tokens and their probabilities, the likeliest first."""

_STARTS = ("Ġ", "▁")  # how a token that begins a word begins, in vocabularies that write blanks


@dataclass(frozen=True)
class _Question:
    """What the model reads of a text, and the masks that are answered from it."""

    text: int
    feature: Feature
    masks: Mapping[int, int]
    """Number of the mask in the text -> its place in the feature."""


def fill_mask(
    model: str, texts: Iterable[str], *, top: int = 5, targets: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Give for each text what could stand at each of its masks, the likeliest first.

    Probabilities are over the whole vocabulary. With `targets`, those words are the answers, however likely.

    Returns:
        one record a text: ``text`` and ``masks``, each of these with its ``mask`` (numbered from 1) and ``answers``:
        ``word``, ``probability`` and the ``text`` with it.

    Raises:
        ModelError: a model that was not trained to find masked words.
        UsageError: a target that is not one token.
        DataError: a text without a mask.
    """
    if top < 1:
        raise UsageError(f"--top {top}", "give at least 1")
    folder = hub.find_model(model)
    read_config(folder)
    tokenizer = load_tokenizer(folder)
    if tokenizer.mask_token_id is None:
        raise ModelError("the tokenizer has no token for a mask", "use a model trained on masked words", file=folder)
    wanted = find_targets(tokenizer, targets)
    numbered = enumerate(texts, start=1)
    first = list(islice(numbered, _CHUNK))
    questions = _ask(first, tokenizer)  # a text without a mask is answered before weights are loaded
    return _answer_chunks(_load_trained(folder), tokenizer, first, questions, numbered, top, wanted)


def _load_trained(folder: Path) -> Any:
    """Load a model whose head for masked tokens comes from the checkpoint."""
    import torch
    from transformers import AutoModelForMaskedLM

    model = load_to_pretrain(AutoModelForMaskedLM, folder, load_config(folder))
    if new := info_of(model).new_weights:
        what = f"no trained head for masked words (the checkpoint lacks {new[0]})"
        raise ModelError(what, "name one that was pretrained on masked words", file=folder)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def find_targets(tokenizer: Any, words: Sequence[str]) -> dict[int, str]:
    """Give the token of each word.

    Raises:
        UsageError: a word that is several tokens, or none that the vocabulary has.
    """
    found = {}
    for word in words:
        spelled = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word}", word)]
        ids = next((each for each in spelled if len(each) == 1), spelled[0])
        if len(ids) != 1:
            tokens = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(f"--targets: {word!r} is not one token but {tokens}", "give words of one token")
        if ids[0] == tokenizer.unk_token_id:
            raise UsageError(f"--targets: {word!r} is not in the vocabulary", "give words that the model knows")
        found[ids[0]] = word
    return found


def _answer_chunks(
    model: Any,
    tokenizer: Any,
    chunk: list[tuple[int, str]],
    questions: list[_Question],
    rest: Iterator[tuple[int, str]],
    top: int,
    targets: Mapping[int, str],
) -> Iterator[dict[str, Any]]:
    """Answer texts chunk by chunk, the first of which are questions already."""
    while chunk:
        found: dict[int, dict[int, Answers]] = {number: {} for number, _ in chunk}
        for number, mask, answers in _answer(model, tokenizer, questions, top, targets):
            found[number][mask] = answers
        for number, text in chunk:
            masks = [_tell(text, tokenizer, mask, found[number][mask], targets) for mask in sorted(found[number])]
            yield {"text": text, "masks": masks}
        chunk = list(islice(rest, _CHUNK))
        questions = _ask(chunk, tokenizer)


def _tell(text: str, tokenizer: Any, mask: int, answers: Answers, targets: Mapping[int, str]) -> dict[str, Any]:
    """Give the record of a mask."""
    spelled = _spell(text, tokenizer)
    told = []
    for number, probability in answers:
        token = tokenizer.convert_ids_to_tokens(number)
        word, joins = _read_token(tokenizer, number, token)
        filled = _fill(spelled, tokenizer.mask_token, mask, word, joins=joins)
        shown = targets.get(number) or (token if token.startswith("##") else word)
        told.append({"word": shown, "probability": probability, "text": filled})
    return {"mask": mask, "answers": told}


def _ask(texts: Sequence[tuple[int, str]], tokenizer: Any) -> list[_Question]:
    """Find the masks of texts; of a text that is too long, the tokens around each are read."""
    frame = find_template(tokenizer, pair=False)
    room = int(tokenizer.model_max_length) - frame.size
    questions = []
    for number, text in texts:
        ids = tokenizer(_spell(text, tokenizer), add_special_tokens=False, verbose=False)["input_ids"]
        places = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
        if not places:
            short = text if len(text) <= 60 else f"{text[:60]}..."
            raise DataError(f"text {number} has no mask: {short!r}", f"write {tokenizer.mask_token} for a word")
        if len(ids) <= room:
            masks = {mask: len(frame.before) + place for mask, place in enumerate(places, start=1)}
            questions.append(_Question(number, frame.fill(ids), masks))
            continue
        log.info(f"text {number} has {len(ids):,} tokens: the {room} around each mask are read")
        for mask, place in enumerate(places, start=1):
            start = max(0, min(place - room // 2, len(ids) - room))
            feature = frame.fill(ids[start : start + room])
            questions.append(_Question(number, feature, {mask: len(frame.before) + place - start}))
    return questions


def _answer(
    model: Any, tokenizer: Any, questions: Sequence[_Question], top: int, targets: Mapping[int, str]
) -> Iterator[tuple[int, int, Answers]]:
    """Give text, mask and answers, in the order that batches of similar length make."""
    import torch

    device = next(model.parameters()).device
    known = torch.tensor(sorted(targets or tokenizer.get_vocab().values()), device=device)
    for batch in _batches(questions):
        padded = tokenizer.pad([question.feature for question in batch], return_tensors="pt")
        with torch.inference_mode():
            logits = model(**padded.to(device)).logits
            for row, question in zip(logits, batch, strict=True):
                at_masks = row[list(question.masks.values())].float().softmax(-1)[:, known]
                best = at_masks.topk(len(known) if targets else min(top, len(known)))
                for mask, values, places in zip(question.masks, best.values, best.indices, strict=True):
                    yield question.text, mask, list(zip(known[places].tolist(), values.tolist(), strict=True))


def _batches(questions: Sequence[_Question]) -> Iterator[list[_Question]]:
    """Split questions, sorted by length, into batches of a bounded number of tokens."""
    batch: list[_Question] = []
    for question in sorted(questions, key=lambda question: len(question.feature["input_ids"])):
        if batch and (len(batch) + 1) * len(question.feature["input_ids"]) > _TOKENS:
            yield batch
            batch = []
        batch.append(question)
    if batch:
        yield batch


def _read_token(tokenizer: Any, number: int, token: str) -> tuple[str, bool]:
    """Give a token as text, and whether it goes on with the word before it."""
    if token.startswith("##"):
        return token[2:], True
    word = tokenizer.decode([number]).strip()
    return word, _marks_word_starts(tokenizer) and not token.startswith(_STARTS)


@lru_cache(maxsize=1)
def _marks_word_starts(tokenizer: Any) -> bool:
    """Tell whether tokens of a vocabulary show where a word starts."""
    return any(token.startswith(_STARTS) for token in tokenizer.get_vocab())


def _fill(text: str, mask_token: str, mask: int, word: str, *, joins: bool) -> str:
    """Write a word in the place of a mask, which is numbered from 1.

    >>> _fill("two cat[M] and a [M]", "[M]", 1, "s", joins=True), _fill("two cat [M].", "[M]", 1, "s", joins=True)
    ('two cats and a [M]', 'two cats.')
    """
    parts = text.split(mask_token)
    before, after = mask_token.join(parts[:mask]), mask_token.join(parts[mask:])
    return (before.rstrip() if joins else before) + word + after


def _spell(text: str, tokenizer: Any) -> str:
    """Write masks as the tokenizer does: a text may say [MASK] to any model."""
    for spelling in _SPELLINGS:
        if spelling != tokenizer.mask_token and spelling in text:
            say_once(f"{spelling} is read as {tokenizer.mask_token}, the mask of this model")
            text = text.replace(spelling, tokenizer.mask_token)
    return text
