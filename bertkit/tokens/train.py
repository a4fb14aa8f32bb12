"""Training of tokenizers: the same text gives the same tokenizer, byte for byte."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.errors import DataError, UsageError, did_you_mean
from bertkit.tokens.features import Tokenizer

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

ReadTexts = Callable[[], Iterable[str]]
"""Function that starts a new pass over the documents, which are read more than once and never all in memory."""

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
_BYTES = 256


@dataclass(frozen=True)
class TokenizerSpec:
    """Settings of a new tokenizer."""

    type: str
    """A key of `TOKENIZER_TYPES`."""
    vocabulary_size: int
    lowercase: bool
    min_frequency: int
    """Minimum count of a letter (unless tokens are bytes) and of a pair to merge."""
    special: tuple[str, ...]
    """Special tokens in addition to the type's."""
    max_length: int


@dataclass(frozen=True)
class TokenizerType:
    """A type of tokenizer: the defaults of the model that introduced it, and its training function."""

    special: tuple[str, ...]
    vocabulary_size: int
    lowercase: bool
    train: Callable[[TokenizerSpec, ReadTexts], Tokenizer]


def make_spec(
    type: str,
    *,
    vocabulary_size: int | None = None,
    lowercase: bool | None = None,
    min_frequency: int | None = None,
    special: Sequence[str] = (),
    max_length: int = 512,
) -> TokenizerSpec:
    """Return the settings of a new tokenizer; None means the default of its type.

    Raises:
        UsageError: If the type is unknown, a special token is empty, repeated or exists already, or the vocabulary is
            too small for letters.
    """
    if type not in TOKENIZER_TYPES:
        raise UsageError(f"no type of tokenizer is called {type!r}", did_you_mean(type, TOKENIZER_TYPES))
    defaults = TOKENIZER_TYPES[type]
    spec = TokenizerSpec(
        type=type,
        vocabulary_size=defaults.vocabulary_size if vocabulary_size is None else vocabulary_size,
        lowercase=defaults.lowercase if lowercase is None else lowercase,
        min_frequency=2 if min_frequency is None else min_frequency,
        special=tuple(special),
        max_length=max_length,
    )
    for token in spec.special:
        if token in defaults.special or spec.special.count(token) > 1 or not token or token != token.strip():
            raise UsageError(f"--special {token!r}", f"give new tokens; there are: {', '.join(defaults.special)}")
    min_size = len(defaults.special) + len(spec.special) + (_BYTES if type == "bpe" else 4)
    if spec.vocabulary_size < min_size:
        contents = "special tokens and one per byte" if type == "bpe" else "special tokens and letters"
        raise UsageError(f"--vocabulary-size {spec.vocabulary_size}", f"{contents} need at least {min_size}")
    return spec


def train_from_texts(spec: TokenizerSpec, read_texts: ReadTexts) -> Tokenizer:
    """Train a tokenizer on text.

    Raises:
        DataError: If the text has too few letters to train on.
    """
    return TOKENIZER_TYPES[spec.type].train(spec, read_texts)


def _train_wordpiece(spec: TokenizerSpec, read_texts: ReadTexts) -> Tokenizer:
    """Train a WordPiece tokenizer (Wu et al. 2016) like BERT's.

    The trainer numbers tokens such as ``##e`` in the random order of a hash table, and breaks ties by number. So a
    first pass collects them, and a second pass gets them in alphabetical order.
    """
    from tokenizers import trainers
    from transformers import BertTokenizer

    backend = BertTokenizer(do_lower_case=spec.lowercase).backend_tokenizer
    letters = _frequent_letters(backend.normalizer, read_texts(), spec)
    special = [*_BERT, *spec.special]

    def train(tokens: Sequence[str], size: int) -> list[str]:
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=spec.min_frequency,
            special_tokens=list(tokens),
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        )
        backend.train_from_iterator(read_texts(), trainer)
        vocabulary = backend.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    inner = sorted(token for token in train(special, 0) if len(token) == 3 and token.startswith("##"))
    tokens = train([*special, *inner], spec.vocabulary_size)
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    return BertTokenizer(vocab=vocabulary, do_lower_case=spec.lowercase, **_settings(spec))


def _frequent_letters(normalizer: Normalizer, texts: Iterable[str], spec: TokenizerSpec) -> list[str]:
    """Find the letters that occur at least `min_frequency` times; they fill at most a quarter of the vocabulary.

    Text from the web has thousands of rare letters, and each would take a token or two.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted((-count, letter) for letter, count in counts.items() if count >= spec.min_frequency)
    max_letters = (spec.vocabulary_size - len(TOKENIZER_TYPES[spec.type].special) - len(spec.special)) // 4
    letters = [letter for _, letter in frequent if not letter.isspace()][:max_letters]
    if not letters:
        raise DataError("no letter of the text is frequent enough", "use more text, or a lower --min-frequency")
    return letters


def _train_bpe(spec: TokenizerSpec, read_texts: ReadTexts) -> Tokenizer:
    """Train a byte-level BPE tokenizer (Radford et al. 2019) like RoBERTa's."""
    from tokenizers import normalizers, pre_tokenizers, trainers
    from transformers import AddedToken, PreTrainedTokenizerFast, RobertaTokenizer

    backend = RobertaTokenizer().backend_tokenizer
    if spec.lowercase:
        backend.normalizer = normalizers.Lowercase()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocabulary_size,
        min_frequency=spec.min_frequency,
        special_tokens=[*_ROBERTA, *spec.special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(read_texts(), trainer)
    model = json.loads(backend.to_str())["model"]
    # The space before <mask> belongs to the masked word.
    mask = AddedToken("<mask>", lstrip=True, special=True)
    settings = {"mask_token": mask, **_settings(spec)}
    tokenizer = RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], **settings)
    if not spec.lowercase:
        return tokenizer
    # RobertaTokenizer has no normalizer and would drop it, so that a saved tokenizer would not lowercase any more.
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), _ROBERTA[:4], strict=True))
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, model_input_names=inputs, **names, **settings
    )


def _train_unigram(spec: TokenizerSpec, read_texts: ReadTexts) -> Tokenizer:
    """Train a unigram language model of tokens (Kudo 2018) like ALBERT's and XLM-R's."""
    from tokenizers import trainers
    from transformers import AlbertTokenizer

    case = {"do_lower_case": spec.lowercase, "keep_accents": not spec.lowercase}
    backend = AlbertTokenizer(**case).backend_tokenizer
    normalize = backend.normalizer.normalize_str
    letters = set(_frequent_letters(backend.normalizer, read_texts(), spec))
    special = [*_ALBERT, *spec.special]
    trainer = trainers.UnigramTrainer(
        vocab_size=spec.vocabulary_size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    # The trainer makes a token of every letter it sees, so rare letters are replaced by spaces.
    texts = ("".join(letter if letter in letters else " " for letter in normalize(text)) for text in read_texts())
    backend.train_from_iterator(texts, trainer)
    tokens = _settled_scores(json.loads(backend.to_str())["model"]["vocab"], special)
    return AlbertTokenizer(vocab=tokens, model_input_names=_INPUTS, **case, **_settings(spec))


def _settled_scores(tokens: Sequence[tuple[str, float]], special: Sequence[str]) -> list[tuple[str, float]]:
    """Make the scores of the unigram trainer reproducible: (token, score), special tokens first, then the best.

    The trainer sums scores in the random order of a hash table, which changes their last digits. It also adds letters
    that it had dropped, with scores near the lowest that follow that order.

    Raises:
        DataError: If the text is too small, so that no score is finite.
    """
    scores = {token: round(score, 6) for token, score in tokens if token not in special}
    if not scores or not all(map(math.isfinite, scores.values())):
        raise DataError("the text is too small to train a tokenizer on", "use more text")
    letters = {token for token in scores if len(token) == 1}
    lowest = min(scores.values())
    # The trainer gives the letters that it adds scores of lowest + 1e-4 * rank, so all of them are below this bound.
    rare = lowest + 1e-4 * (len(letters) + 1)
    settled = {token: lowest if token in letters and score <= rare else score for token, score in scores.items()}
    ordered = sorted(settled.items(), key=lambda entry: (-entry[1], entry[0]))
    return [*((token, 0.0) for token in special), *ordered]


def _settings(spec: TokenizerSpec) -> dict[str, Any]:
    settings: dict[str, Any] = {"model_max_length": spec.max_length}
    return {**settings, "extra_special_tokens": list(spec.special)} if spec.special else settings


TOKENIZER_TYPES = {
    "wordpiece": TokenizerType(_BERT, 30_522, True, _train_wordpiece),
    "bpe": TokenizerType(_ROBERTA, 50_265, False, _train_bpe),
    "unigram": TokenizerType(_ALBERT, 30_000, True, _train_unigram),
}
