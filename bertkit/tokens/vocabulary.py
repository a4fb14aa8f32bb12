"""Whether a tokenizer belongs to a model: what can be known is refused, and what can only be suspected is a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.progress import log
from bertkit.storage.runs import RECORD
from bertkit.tokens.features import Features, Tensor, Tokenizer, join_ids, special_ids

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_SPECIAL = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
# Published vocabularies are padded to a multiple of 128 at most, or reserve up to 1 % of their tokens. Half of BERT's
# vocabularies differ by 5%.
_PADDED, _MISSING = 128, 0.04
_ROWS = 100
_MANY_UNKNOWN, _MANY_LETTERS = 0.2, 0.6
# Like tokens of a published encoder are 1.5 standard deviations more alike than others; a tokenizer trained on other
# text reaches .1. But the right one reaches no more after a minute of pretraining: what a run has recorded is not
# doubted. Norms of random weights differ as those of a normal distribution do.
_FEW_PAIRS, _LEAST_ALIKE, _TRAINED = 50, 0.2, 2.0


def refuse_foreign(tokenizer: Tokenizer, config: PretrainedConfig, saved: Mapping[str, Any], folder: Path) -> None:
    """Refuse a tokenizer that cannot be the model's; log what makes another one suspect.

    Args:
        tokenizer: the one beside the model.
        config: of the model.
        saved: content of its ``config.json``, which says what was not filled in from defaults.
        folder: the model's.

    Raises:
        ModelError: more tokens than embeddings, or special tokens with other ids than in the config.
    """
    known = max(tokenizer.get_vocab().values()) + 1
    if known > config.vocab_size:
        what = f"the tokenizer knows {known - config.vocab_size:,} more tokens than the model"
        raise ModelError(what, "take both from one source", file=folder)
    for name in _SPECIAL:
        expected, found = saved.get(name), getattr(tokenizer, name)
        if isinstance(expected, int) and found not in (None, expected):
            what = f"{name} is {found} for the tokenizer and {expected} for the model"
            raise ModelError(what, "take both from one source, or correct config.json", file=folder)
    if _is_far_smaller(tokenizer, config):
        other = _other_algorithm(tokenizer, config)
        log.warning(
            f"the tokenizer may not be the model's: it has {known:,} tokens for {config.vocab_size:,} embeddings"
            f"{', and ' if other else ''}{other}"
        )


def _is_far_smaller(tokenizer: Tokenizer, config: PretrainedConfig) -> bool:
    missing = config.vocab_size - max(tokenizer.get_vocab().values()) - 1
    return missing >= _PADDED and missing > _MISSING * config.vocab_size  # type: ignore[no-any-return]


def _other_algorithm(tokenizer: Tokenizer, config: PretrainedConfig) -> str:
    """Tell, for a message, that a model of this type usually has a tokenizer of another algorithm; empty if not."""
    from transformers import TOKENIZER_MAPPING

    usual = TOKENIZER_MAPPING.get(type(config), None)
    expected = getattr(getattr(usual, "model", None), "__name__", "")
    found = type(tokenizer.backend_tokenizer.model).__name__
    return f"is {found} where {config.model_type} has {expected}" if expected not in ("", found) else ""


def report_foreign(
    tokenizer: Tokenizer, model: PreTrainedModel, folder: Path, features: Features, rows: str = "rows"
) -> None:
    """Log one warning where a tokenizer is probably not the model's: its embeddings, its algorithm, or the text say so.

    Args:
        tokenizer: the one beside the model, which `refuse_foreign` has accepted.
        model: as it was loaded.
        folder: the model's, which `find_model` has compared with the record of its run, if it has one.
        features: the first ones are looked at.
        rows: what a feature is, for people.
    """
    if _is_far_smaller(tokenizer, model.config):
        return  # `refuse_foreign` has said so
    is_recorded = any((place / RECORD).is_file() for place in (folder.resolve(), folder.resolve().parent))
    if signs := [] if is_recorded else _find_signs(tokenizer, model):
        log.warning(f"the tokenizer may not be the model's: {', and '.join(signs)}")
    else:
        report_tokens(tokenizer, features, rows)


def _find_signs(tokenizer: Tokenizer, model: PreTrainedModel) -> list[str]:
    """Return what of a trained model's embeddings and type does not fit the tokenizer."""
    weights = model.get_input_embeddings().weight.detach().float()
    alike, signs = _compare_like_tokens(tokenizer, weights), []
    norms = weights.norm(dim=1)
    norms = norms[norms > 0]  # that of padding is 0
    # the norms of trained embeddings, (tokens, width), differ more than those of random weights
    is_trained = bool(norms.std() / norms.mean() * (2 * weights.shape[1]) ** 0.5 > _TRAINED)
    if is_trained and (alike is None or alike < _LEAST_ALIKE):
        if alike is not None:
            signs.append("tokens that differ in one letter are no more alike to the model than any two")
        if other := _other_algorithm(tokenizer, model.config):
            signs.append(f"it {other}")
    return signs


def _compare_like_tokens(tokenizer: Tokenizer, weights: Tensor) -> float | None:
    """Compute how much more alike the embeddings of `walk` and `walks` are than those of any two such tokens.

    Returns:
        the mean difference of the cosines, in standard deviations; None where the vocabulary has few such pairs.
    """
    from torch.nn.functional import cosine_similarity

    ids = tokenizer.get_vocab()
    pairs = sorted((ids[token[:-1]], ids[token]) for token in ids if len(_text_of(token)) > 3 and token[:-1] in ids)
    if len(pairs) < _FEW_PAIRS:
        return None
    first, second = (weights[list(numbers)] for numbers in zip(*pairs, strict=True))
    others = second.roll(len(pairs) // 2, dims=0)
    differences = cosine_similarity(first, second) - cosine_similarity(first, others)
    return float(differences.mean() / differences.std())


def report_tokens(tokenizer: Tokenizer, features: Features, rows: str = "rows") -> None:
    """Log a warning where the first features hold many unknown tokens, or little but single letters."""
    first = [features[number] for number in range(min(_ROWS, len(features)))]
    counts = Counter(number for feature in first for number in join_ids(feature).tolist())
    special = special_ids(tokenizer)
    counts = Counter({number: count for number, count in counts.items() if number not in special})
    total = counts.total()
    if not total:
        return
    unknown = counts[tokenizer.unk_token_id] / total if tokenizer.unk_token_id is not None else 0.0
    tokens = tokenizer.convert_ids_to_tokens(list(counts))
    letters = sum(count for token, count in zip(tokens, counts.values(), strict=True) if _is_letter(token)) / total
    for share, most, what in ((unknown, _MANY_UNKNOWN, "unknown"), (letters, _MANY_LETTERS, "single letters")):
        if share > most:
            log.warning(
                f"{share:.0%} of the tokens of the first {len(first)} {rows} are {what}: is this the model's "
                "tokenizer, and does it know this language?"
            )
            return


def _is_letter(token: str) -> bool:
    """Tell whether a token is a single letter; of Chinese, Japanese and Korean, a character says as much as a word.

    >>> [_is_letter(token) for token in ("##e", "Ġt", "▁a", "the", ".", "語")]
    [True, True, True, False, False, False]
    """
    text = _text_of(token)
    return len(text) == 1 and text.isalpha() and ord(text) < 0x2E80


def _text_of(token: str) -> str:
    return token.removeprefix("##").lstrip("Ġ▁").removesuffix("</w>")
