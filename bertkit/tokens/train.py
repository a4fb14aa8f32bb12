"""Tokenizers learned from text: the same text gives the same tokenizer, byte for byte."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import DataError, UsageError

Read = Callable[[], Iterable[str]]
"""Gives the text anew, document by document: it is read more than once and never held."""

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
_BYTES = 256


@dataclass(frozen=True)
class Plan:
    """What a tokenizer is to be."""

    kind: str
    vocabulary_size: int
    lowercase: bool
    min_frequency: int
    """How often a letter (unless it is bytes) and a pair that is joined must occur."""
    special: tuple[str, ...]
    """Special tokens beside those of the kind."""
    max_length: int


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer: what the model it is named after has, and how it is learned."""

    special: tuple[str, ...]
    vocabulary_size: int
    lowercase: bool
    learn: Callable[[Plan, Read], Any]


def check_plan(plan: Plan) -> None:
    """Refuse a tokenizer that cannot be, before any text is read.

    Raises:
        UsageError: special tokens that are none or come twice, or no room for letters.
    """
    special = KINDS[plan.kind].special
    for token in plan.special:
        if token in special or plan.special.count(token) > 1 or not token or token != token.strip():
            raise UsageError(f"--special {token!r}", f"give new tokens; there are: {', '.join(special)}")
    least = len(special) + len(plan.special) + (_BYTES if plan.kind == "bpe" else 4)
    if plan.vocabulary_size < least:
        what = "special tokens and one a byte" if plan.kind == "bpe" else "special tokens and letters"
        raise UsageError(f"--vocabulary-size {plan.vocabulary_size}", f"{what} need at least {least}")


def train_tokenizer_from(plan: Plan, read: Read) -> Any:
    """Learn a tokenizer of transformers from text.

    Raises:
        DataError: the text has too few letters to learn from.
    """
    return KINDS[plan.kind].learn(plan, read)


def _learn_wordpiece(plan: Plan, read: Read) -> Any:
    """Learn tokens of words (Wu et al. 2016, as BERT has them).

    The trainer numbers tokens such as ``##e`` in the random order of a hash table, and breaks ties by number. So they
    are found first, then given in order.
    """
    from tokenizers import trainers
    from transformers import BertTokenizer

    backend = BertTokenizer(do_lower_case=plan.lowercase).backend_tokenizer
    letters = _frequent_letters(backend.normalizer, read(), plan)
    special = [*_BERT, *plan.special]

    def train(tokens: Sequence[str], size: int) -> list[str]:
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=plan.min_frequency,
            special_tokens=list(tokens),
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        )
        backend.train_from_iterator(read(), trainer)
        vocabulary = backend.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    inner = sorted(token for token in train(special, 0) if len(token) == 3 and token.startswith("##"))
    tokens = train([*special, *inner], plan.vocabulary_size)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return BertTokenizer(vocab=vocabulary, do_lower_case=plan.lowercase, **_settings(plan))


def _frequent_letters(normalizer: Any, texts: Iterable[str], plan: Plan) -> list[str]:
    """Give the letters that occur often enough, in at most a quarter of the vocabulary.

    Text from the web has thousands of letters that occur now and then, and each would be a token, or two.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    found = [(-count, letter) for letter, count in counts.items() if count >= plan.min_frequency]
    most = (plan.vocabulary_size - len(KINDS[plan.kind].special) - len(plan.special)) // 4
    letters = [letter for _, letter in sorted(found) if not letter.isspace()][:most]
    if not letters:
        raise DataError("the text has no letter often enough", "give more text, or a lower --min-frequency")
    return letters


def _learn_bpe(plan: Plan, read: Read) -> Any:
    """Learn pairs of bytes to join (Radford et al. 2019, as RoBERTa has them)."""
    from tokenizers import normalizers, pre_tokenizers, trainers
    from transformers import AddedToken, PreTrainedTokenizerFast, RobertaTokenizer

    backend = RobertaTokenizer().backend_tokenizer
    if plan.lowercase:
        backend.normalizer = normalizers.Lowercase()
    trainer = trainers.BpeTrainer(
        vocab_size=plan.vocabulary_size,
        min_frequency=plan.min_frequency,
        special_tokens=[*_ROBERTA, *plan.special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(read(), trainer)
    model = json.loads(backend.to_str())["model"]
    mask = AddedToken("<mask>", lstrip=True, special=True)  # the blank before it belongs to the word it stands for
    settings = {"mask_token": mask, **_settings(plan)}
    tokenizer = RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], **settings)
    if not plan.lowercase:
        return tokenizer
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()  # that class knows none and would lose it
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), _ROBERTA[:4], strict=True))
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, model_input_names=inputs, **names, **settings
    )


def _learn_unigram(plan: Plan, read: Read) -> Any:
    """Learn tokens with a probability each (Kudo 2018, as ALBERT and XLM-R have them)."""
    from tokenizers import trainers
    from transformers import AlbertTokenizer

    kind = {"do_lower_case": plan.lowercase, "keep_accents": not plan.lowercase}
    backend = AlbertTokenizer(**kind).backend_tokenizer
    normalize = backend.normalizer.normalize_str
    letters = set(_frequent_letters(backend.normalizer, read(), plan))
    special = [*_ALBERT, *plan.special]
    trainer = trainers.UnigramTrainer(
        vocab_size=plan.vocabulary_size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    # the trainer makes a token of every letter it sees
    texts = ("".join(letter if letter in letters else " " for letter in normalize(text)) for text in read())
    backend.train_from_iterator(texts, trainer)
    tokens = _settled_scores(json.loads(backend.to_str())["model"]["vocab"], special)
    return AlbertTokenizer(vocab=tokens, model_input_names=_INPUTS, **kind, **_settings(plan))


def _settled_scores(tokens: Sequence[tuple[str, float]], special: Sequence[str]) -> list[tuple[str, float]]:
    """Take out of scores what the trainer leaves to chance.

    It adds them up in the random order of a hash table, which is seen in the last digits, and gives letters that it
    had dropped scores near the lowest in that order too.
    """
    scores = {token: round(score, 6) for token, score in tokens if token not in special}
    if not scores or not all(map(math.isfinite, scores.values())):
        raise DataError("the text is too small to learn tokens from", "give more text")
    letters = {token for token in scores if len(token) == 1}
    lowest = min(scores.values())
    rare = lowest + 1e-4 * (len(letters) + 1)
    settled = {token: lowest if token in letters and score <= rare else score for token, score in scores.items()}
    ordered = sorted(settled.items(), key=lambda entry: (-entry[1], entry[0]))
    return [*((token, 0.0) for token in special), *ordered]


def _settings(plan: Plan) -> dict[str, Any]:
    settings: dict[str, Any] = {"model_max_length": plan.max_length}
    return {**settings, "extra_special_tokens": list(plan.special)} if plan.special else settings


KINDS = {
    "wordpiece": Kind(_BERT, 30_522, True, _learn_wordpiece),
    "bpe": Kind(_ROBERTA, 50_265, False, _learn_bpe),
    "unigram": Kind(_ALBERT, 30_000, True, _learn_unigram),
}
