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

_MASK_SPELLINGS = ("[MASK]", "<mask>")
_CHUNK_TEXTS, _BATCH_TEXTS = 256, 16
# First character of a token that starts a word, in vocabularies whose tokens include spaces.
_WORD_STARTS = ("Ġ", "▁")


def fill_mask(
    model: str, texts: Iterable[str], *, top: int = 5, targets: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Predict each mask of each text, the most probable token first.

    Probabilities are over the complete vocabulary. With `targets`, only these words are answers, regardless of their
    probability. Texts that are too long for the model are truncated.

    Returns:
        One record per text: ``text`` and ``masks``. A mask has its index ``mask`` (from 1) and ``answers``. An answer
        has ``word``, ``probability`` and the filled ``text``.

    Raises:
        ModelError: If the model was not trained on masked tokens.
        UsageError: If a target is not a single token.
        DataError: If a text has no mask.
    """
    # 1. Load the tokenizer, and check the targets and the first texts before the weights are loaded.
    folder = hub.find_model(model)
    read_config(folder)
    with stage("loading torch and transformers"):
        tokenizer = load_tokenizer(folder)
    if tokenizer.mask_token_id is None:
        raise ModelError("the tokenizer has no mask token", "use a model trained on masked tokens", file=folder)
    target_words = find_targets(tokenizer, targets)
    writes_spaces = any(token.startswith(_WORD_STARTS) for token in tokenizer.get_vocab())
    # Yield each text, and the text with the masks that the tokenizer reads.
    pairs = ((text, _normalize_masks(position, text, tokenizer)) for position, text in enumerate(texts, start=1))
    first_chunk = list(islice(pairs, _CHUNK_TEXTS))

    # 2. Load the model. Reject a head with random weights, which would predict random words.
    with stage(f"loading {model}"):
        from transformers import AutoModelForMaskedLM, FillMaskPipeline

        mlm = load_for_pretraining(AutoModelForMaskedLM, folder, load_config(folder))
        if new_weights := get_loading_info(mlm).new_weights:
            message = f"no trained head for masked words (the checkpoint lacks {new_weights[0]})"
            raise ModelError(message, "name an encoder that was pretrained on masked words", file=folder)
        mlm = mlm.eval().to(detect_device())
        pipeline = FillMaskPipeline(mlm, tokenizer, device=mlm.device, tokenizer_kwargs={"truncation": True})

    # 3. Choose how many answers the pipeline returns. The embedding table can have more rows than the vocabulary has
    #    tokens, so request as many answers more, and drop the rows without a token below.
    token_ids = {*tokenizer.get_vocab().values()}
    num_rows = mlm.get_input_embeddings().num_embeddings
    options: dict[str, Any] = {"top_k": min(top + num_rows - len(token_ids), num_rows)}
    if target_words:
        options = {"top_k": len(target_words), "targets": tokenizer.convert_ids_to_tokens([*target_words])}

    def describe(answer: Mapping[str, Any], text: str, mask: int) -> dict[str, Any]:
        """Return the word, the probability and the filled text of an answer of the pipeline."""
        token = tokenizer.convert_ids_to_tokens(answer["token"])
        word = answer["token_str"].strip().removeprefix("##")
        joins = token.startswith("##") or (writes_spaces and not token.startswith(_WORD_STARTS))
        filled_text = _replace_mask(text, tokenizer.mask_token, mask, word, joins=joins)
        name = target_words.get(answer["token"]) or (token if token.startswith("##") else word)
        return {"word": name, "probability": answer["score"], "text": filled_text}

    # 4. Predict chunk by chunk. The pipeline omits the list around the result of a single text, and the list around the
    #    answers of a single mask.
    def predict() -> Iterator[dict[str, Any]]:
        for chunk in chain([first_chunk], iter(lambda: list(islice(pairs, _CHUNK_TEXTS)), [])):
            results = pipeline([masked_text for _, masked_text in chunk], batch_size=_BATCH_TEXTS, **options)
            for (text, masked_text), result in zip(chunk, [results] if len(chunk) == 1 else results, strict=True):
                masks = []
                for mask, candidates in enumerate(result if isinstance(result[0], list) else [result], start=1):
                    tokens = (candidate for candidate in candidates if candidate["token"] in token_ids)
                    top_tokens = islice(tokens, len(target_words) or top)
                    answers = [describe(token, masked_text, mask) for token in top_tokens]
                    masks.append({"mask": mask, "answers": answers})
                yield {"text": text, "masks": masks}

    return predict()


def find_targets(tokenizer: Tokenizer, words: Sequence[str]) -> dict[int, str]:
    """Return token id -> word for each word.

    Raises:
        UsageError: If a word is several tokens, or not in the vocabulary.
    """
    # If tokens include spaces, the word "cat" within a text is the token " cat". Other tokenizers ignore the space.
    targets = {}
    for word in words:
        encodings = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word}", word)]
        ids = next((encoding for encoding in encodings if len(encoding) == 1), encodings[0])
        if len(ids) != 1:
            tokens = " ".join(tokenizer.convert_ids_to_tokens(ids)) or "nothing"
            raise UsageError(f"--targets: {word!r} is not one token but {tokens}", "give words of one token")
        if ids[0] == tokenizer.unk_token_id:
            raise UsageError(f"--targets: {word!r} is not in the vocabulary", "give words that the model knows")
        targets[ids[0]] = word
    return targets


def _normalize_masks(position: int, text: str, tokenizer: Tokenizer) -> str:
    """Replace [MASK] and <mask> in a text by the mask token of the tokenizer.

    Raises:
        DataError: If the text has no mask, or none after truncation.
    """
    mask, masked_text = tokenizer.mask_token, text
    for spelling in _MASK_SPELLINGS:
        if spelling != mask and spelling in masked_text:
            log_once(f"{spelling} is read as {mask}, the mask of this model")
            masked_text = masked_text.replace(spelling, mask)
    if mask not in masked_text:
        raise DataError(f"text {position} has no mask: {shorten(text)!r}", f"write {mask} for a word")
    count = len(tokenizer(masked_text, verbose=False)["input_ids"])
    limit = int(tokenizer.model_max_length)
    if count > limit:
        log.info(f"text {position} has {count:,} tokens and is truncated to {limit:,}")
        if tokenizer.mask_token_id not in tokenizer(masked_text, truncation=True)["input_ids"]:
            raise DataError(f"text {position} has no mask in its first {limit:,} tokens", "shorten the text before it")
    return masked_text


def _replace_mask(text: str, mask_token: str, mask: int, word: str, *, joins: bool) -> str:
    """Replace a mask, numbered from 1, by a word.

    >>> _replace_mask("two cat[M] and a [M]", "[M]", 1, "s", joins=True)
    'two cats and a [M]'
    >>> _replace_mask("two cat [M].", "[M]", 1, "s", joins=True)
    'two cats.'
    """
    parts = text.split(mask_token)
    start, end = mask_token.join(parts[:mask]), mask_token.join(parts[mask:])
    return (start.rstrip() if joins else start) + word + end
