"""Predict the masked words of texts with a pretrained model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from bertkit.errors import DataError, ModelError, UsageError, shorten
from bertkit.hardware.precision import detect_device
from bertkit.modeling.checkpoint import load_config, read_config
from bertkit.modeling.info import get_loading_info
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import log, stage
from bertkit.storage import hub
from bertkit.storage.cache import log_once
from bertkit.tokens.features import Tokenizer

_SPELLINGS = ("[MASK]", "<mask>")
_CHUNK, _BATCH = 256, 16  # texts
# The first character of a token that starts a word, in vocabularies whose tokens include spaces.
_WORD_STARTS = ("Ġ", "▁")


def fill_mask(
    model: str, texts: Iterable[str], *, top: int = 5, targets: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Predict each mask of each text, the likeliest token first.

    Probabilities are over the complete vocabulary. With `targets`, these words are the answers, however likely. A text
    that is longer than the model reads is truncated.

    Returns:
        One record per text: ``text`` and ``masks``. A mask has its index ``mask`` (from 1) and ``answers``. An answer
        has ``word``, ``probability`` and the filled ``text``.

    Raises:
        ModelError: If the model was not trained on masked tokens.
        UsageError: If a target is not a single token.
        DataError: If a text has no mask.
    """
    # 1. Load the tokenizer, and check the targets and the first texts. A text without a mask is an error before the
    #    weights are loaded.
    folder = hub.find_model(model)
    read_config(folder)
    with stage("loading torch and transformers"):
        tokenizer = load_tokenizer(folder)
    if tokenizer.mask_token_id is None:
        raise ModelError("the tokenizer has no mask token", "use a model trained on masked tokens", file=folder)
    target_words = find_targets(tokenizer, targets)
    writes_spaces = any(token.startswith(_WORD_STARTS) for token in tokenizer.get_vocab())
    # Pairs of a text, and the text with its masks as the tokenizer spells them.
    spelled_texts = ((text, _check_masks(position, text, tokenizer)) for position, text in enumerate(texts, start=1))
    first = list(islice(spelled_texts, _CHUNK))

    # 2. Load the model. A head with random weights would give random words, so it is an error.
    with stage(f"loading {model}"):
        from transformers import AutoModelForMaskedLM, FillMaskPipeline

        trained = load_for_pretraining(AutoModelForMaskedLM, folder, load_config(folder))
        if new := get_loading_info(trained).new_weights:
            message = f"no trained head for masked words (the checkpoint lacks {new[0]})"
            raise ModelError(message, "name an encoder that was pretrained on masked words", file=folder)
        trained = trained.eval().to(detect_device())
        pipeline = FillMaskPipeline(trained, tokenizer, device=trained.device, tokenizer_kwargs={"truncation": True})

    # 3. Choose how many answers the pipeline returns. An embedding table can have more rows than the vocabulary has
    #    tokens. These rows are not answers, so their number is added, and they are filtered out below.
    token_ids, rows = {*tokenizer.get_vocab().values()}, trained.get_input_embeddings().num_embeddings
    options: dict[str, Any] = {"top_k": min(top + rows - len(token_ids), rows)}
    if target_words:
        options = {"top_k": len(target_words), "targets": tokenizer.convert_ids_to_tokens([*target_words])}

    def describe(answer: Mapping[str, Any], text: str, mask: int) -> dict[str, Any]:
        """Return the word, the probability and the filled text of an answer of the pipeline."""
        token = tokenizer.convert_ids_to_tokens(answer["token"])
        word = answer["token_str"].strip().removeprefix("##")
        joins = token.startswith("##") or (writes_spaces and not token.startswith(_WORD_STARTS))
        filled_text = _replace_mask(text, tokenizer.mask_token, mask, word, joins=joins)
        listed = target_words.get(answer["token"]) or (token if token.startswith("##") else word)
        return {"word": listed, "probability": answer["score"], "text": filled_text}

    # 4. Predict chunk by chunk. The pipeline omits the list around the result of a single text, and the list around the
    #    answers of a single mask.
    def answer() -> Iterator[dict[str, Any]]:
        for chunk in chain([first], iter(lambda: list(islice(spelled_texts, _CHUNK)), [])):
            results = pipeline([spelled for _, spelled in chunk], batch_size=_BATCH, **options)
            for (text, spelled), result in zip(chunk, [results] if len(chunk) == 1 else results, strict=True):
                masks = []
                for mask, likeliest in enumerate(result if isinstance(result[0], list) else [result], start=1):
                    tokens = [answer for answer in likeliest if answer["token"] in token_ids][
                        : len(target_words) or top
                    ]
                    answers = [describe(token, spelled, mask) for token in tokens]
                    masks.append({"mask": mask, "answers": answers})
                yield {"text": text, "masks": masks}

    return answer()


def find_targets(tokenizer: Tokenizer, words: Sequence[str]) -> dict[int, str]:
    """Return token id -> word for each word.

    Raises:
        UsageError: If a word is several tokens, or not in the vocabulary.
    """
    # If tokens include spaces, " cat" is the token of a word within a text. Other tokenizers ignore the space.
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


def _check_masks(position: int, text: str, tokenizer: Tokenizer) -> str:
    """Return a text with its masks as the tokenizer spells them: a text may write [MASK] for any model.

    Raises:
        DataError: If the model reads no mask.
    """
    mask, spelled = tokenizer.mask_token, text
    for spelling in _SPELLINGS:
        if spelling != mask and spelling in spelled:
            log_once(f"{spelling} is read as {mask}, the mask of this model")
            spelled = spelled.replace(spelling, mask)
    if mask not in spelled:
        raise DataError(f"text {position} has no mask: {shorten(text)!r}", f"write {mask} for a word")
    count, limit = len(tokenizer(spelled, verbose=False)["input_ids"]), int(tokenizer.model_max_length)
    if count > limit:
        log.info(f"text {position} has {count:,} tokens and is truncated to {limit:,}")
        if tokenizer.mask_token_id not in tokenizer(spelled, truncation=True)["input_ids"]:
            raise DataError(f"text {position} has no mask in its first {limit:,} tokens", "shorten the text before it")
    return spelled


def _replace_mask(text: str, mask_token: str, mask: int, word: str, *, joins: bool) -> str:
    """Replace a mask, numbered from 1, by a word.

    >>> _replace_mask("two cat[M] and a [M]", "[M]", 1, "s", joins=True)
    'two cats and a [M]'
    >>> _replace_mask("two cat [M].", "[M]", 1, "s", joins=True)
    'two cats.'
    """
    pieces = text.split(mask_token)
    before, after = mask_token.join(pieces[:mask]), mask_token.join(pieces[mask:])
    return (before.rstrip() if joins else before) + word + after
