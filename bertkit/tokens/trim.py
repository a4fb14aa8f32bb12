"""Tokenizers with fewer tokens, which split the texts that they are trimmed to into the same tokens as before.

This follows from the algorithms. WordPiece takes the longest token that matches, and every token that it took is kept.
BPE applies the first possible merge, and every merge that leads to a kept token is kept. Unigram takes the most
probable tokens, and without the removed tokens no other split becomes more probable.

To keep ``ab`` of five tokens, BPE needs the letters that it is merged from:

>>> model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4}, "merges": [("b", "c"), ("a", "b")]}
>>> trimmed, ids = trim({"model": model, "added_tokens": []}, [4])
>>> trimmed["model"]["vocab"], trimmed["model"]["merges"], ids
({'a': 0, 'b': 1, 'c': 2, 'ab': 3}, [('a', 'b')], [0, 1, 2, 4])
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.storage.files import write_text
from bertkit.tokens.features import Tokenizer, split_by_size, tokenize_texts

_BATCH = 1000  # texts
_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_OTHER_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def collect_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> set[int]:
    """Return the ids of all tokens of some texts, and of tokens that match the start of an unknown word."""
    used, unknown = set[int](), tokenizer.unk_token_id
    backend = tokenizer.backend_tokenizer
    model = json.loads(backend.to_str())["model"]
    for batch in split_by_size(texts, _BATCH, lambda _: 1):
        for text, encoding in zip(batch, tokenize_texts(tokenizer, batch), strict=True):
            used.update(encoding.ids)
            # An unknown word is one token, but WordPiece first matched the start of it. Without the longest match, a
            # shorter token could match, and then the rest of the word, so the word would no longer be unknown.
            if model["type"] == "WordPiece" and unknown in encoding.ids:
                normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
                for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized):
                    used.update(_match_word(word, model["vocab"], model["continuing_subword_prefix"]))
    return used


def trim_files(folder: Path, tokenizer: Tokenizer, used: Iterable[int], first: int = 0) -> list[int]:
    """Trim the tokenizer that `save_pretrained` wrote to a folder; return the ids that are kept, in order.

    A token's new id is its index in this list. Special and added tokens are kept too, and letters and bytes, so that
    other texts can still be split.

    Args:
        folder: Folder whose ``tokenizer.json`` is replaced, and whose other vocabulary files are deleted.
        tokenizer: Tokenizer that was written to the folder.
        used: Ids of tokens to keep.
        first: Ids below this one do not change.

    Raises:
        ModelError: If this type of tokenizer cannot be trimmed.
    """
    content = json.loads((folder / _TOKENIZER).read_text(encoding="utf-8"))
    trimmed, kept_ids = trim(content, {*used, *tokenizer.all_special_ids, *range(first)})
    write_text(folder / _TOKENIZER, json.dumps(trimmed, ensure_ascii=False))
    for name in _OTHER_VOCABULARIES:
        (folder / name).unlink(missing_ok=True)
    settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
    if decoder := settings.get("added_tokens_decoder"):
        new_ids = {str(old_id): str(new_id) for new_id, old_id in enumerate(kept_ids)}
        settings["added_tokens_decoder"] = {new_ids[old_id]: token for old_id, token in decoder.items()}
        write_text(folder / _SETTINGS, json.dumps(settings, ensure_ascii=False, indent=2))
    return kept_ids


def trim(content: Mapping[str, Any], used: Iterable[int]) -> tuple[dict[str, Any], list[int]]:
    """Return the content of a ``tokenizer.json`` with some tokens and the tokens that they need, and all kept ids.

    Raises:
        ModelError: If `_NEEDED` has no entry for the type of the tokenizer.
    """
    model, added = content["model"], [token["id"] for token in content["added_tokens"]]
    if model["type"] not in _NEEDED:
        message = f"a {model['type']} tokenizer cannot be trimmed"
        raise ModelError(message, f"prune the vocabulary of a model with {', '.join(_NEEDED)}")
    is_list = isinstance(model["vocab"], list)  # Unigram has a list of tokens and scores.
    ids = {token: token_id for token_id, (token, _) in enumerate(model["vocab"])} if is_list else model["vocab"]
    tokens = {token_id: token for token, token_id in ids.items()}
    needed = _NEEDED[model["type"]](model, {tokens[token_id] for token_id in used if token_id in tokens})
    kept_ids = sorted({*(ids[token] for token in needed), *added})
    new_ids = {old_id: new_id for new_id, old_id in enumerate(kept_ids)}
    trimmed = {**model}
    if is_list:
        trimmed["vocab"] = [entry for token_id, entry in enumerate(model["vocab"]) if token_id in new_ids]
        if model.get("unk_id") is not None:
            trimmed["unk_id"] = new_ids[model["unk_id"]]
    else:
        trimmed["vocab"] = {token: new_ids[token_id] for token, token_id in ids.items() if token_id in new_ids}
    if "merges" in model:
        trimmed["merges"] = [pair for pair in model["merges"] if {*_pair(pair), _merged(model, pair)} <= needed]
    padding = content.get("padding")
    return {
        **content,
        "model": trimmed,
        "added_tokens": [{**token, "id": new_ids[token["id"]]} for token in content["added_tokens"]],
        "post_processor": _renumber_ids(content.get("post_processor"), new_ids),
        "padding": padding and {**padding, "pad_id": new_ids[padding["pad_id"]]},
    }, kept_ids


def check_unchanged(before: Tokenizer, now: Tokenizer, kept_ids: Sequence[int], texts: Iterable[str]) -> int:
    """Check that a trimmed tokenizer splits texts into the same tokens as before; return the number of texts.

    Raises:
        ModelError: If a text has other tokens; the message has the first such text.
    """
    count = 0
    for batch in split_by_size(texts, _BATCH, lambda _: 1):
        encodings = zip(batch, tokenize_texts(before, batch), tokenize_texts(now, batch), strict=True)
        for text, old, new in encodings:
            if old.ids != [kept_ids[new_id] for new_id in new.ids]:
                message = f"the trimmed tokenizer splits {text[:60]!r} into other tokens than before"
                raise ModelError(message, "leave --vocabulary out, and report this tokenizer")
        count += len(batch)
    return count


def _match_word(word: str, ids: Mapping[str, int], prefix: str) -> Iterator[int]:
    """Yield the ids of the tokens that WordPiece finds in a word, until no token matches.

    >>> list(_match_word("owlish", {"owl": 5, "##ish": 6, "o": 1}, "##"))
    [5, 6]
    >>> list(_match_word("owls", {"owl": 5, "o": 1}, "##"))
    [5]
    """
    start = 0
    while start < len(word):
        candidates = ((end, (prefix if start else "") + word[start:end]) for end in range(len(word), start, -1))
        match = next(((end, token) for end, token in candidates if token in ids), None)
        if match is None:
            return
        start, token = match
        yield ids[token]


def _for_wordpiece(model: Mapping[str, Any], used: set[str]) -> set[str]:
    """Add the letters of tokens, so that other words with these letters are not unknown."""
    prefix = model["continuing_subword_prefix"]
    letters = {letter for token in used for letter in token.removeprefix(prefix)}
    return used | {token for token in (*letters, *(prefix + letter for letter in letters)) if token in model["vocab"]}


def _for_bpe(model: Mapping[str, Any], used: set[str]) -> set[str]:
    """Add bytes, and the tokens that merges join, down to letters."""
    from tokenizers import pre_tokenizers

    pairs_by_token = defaultdict(list)
    for pair in model["merges"]:
        pairs_by_token[_merged(model, pair)].append(_pair(pair))
    always = (*_BYTES, *pre_tokenizers.ByteLevel.alphabet(), model.get("unk_token") or "")
    needed = used | {token for token in always if token in model["vocab"]}
    # A merged token needs both of its parts, and these need theirs. Several merges can make one token; all are kept,
    # because it depends on the word which of them BPE reaches first.
    waiting = list[str](needed)
    while waiting:
        for pair in pairs_by_token[waiting.pop()]:
            waiting += [token for token in pair if token not in needed]
            needed.update(pair)
    return needed


def _for_unigram(model: Mapping[str, Any], used: set[str]) -> set[str]:
    """Add letters, bytes, and the token of the lowest score, which defines the score of the unknown token."""
    scores = dict(model["vocab"])
    letters = {letter for token in used for letter in token}
    unknown = {model["vocab"][model["unk_id"]][0]} if model.get("unk_id") is not None else set()
    lowest = min(scores, key=scores.__getitem__)
    return used | unknown | {lowest, *(token for token in (*letters, *_BYTES) if token in scores)}


def _for_words(model: Mapping[str, Any], used: set[str]) -> set[str]:
    unknown: str = model.get("unk_token") or ""
    return used | {unknown} if unknown in model["vocab"] else used


_NEEDED: Mapping[str, Callable[[Mapping[str, Any], set[str]], set[str]]] = {
    "WordPiece": _for_wordpiece,
    "BPE": _for_bpe,
    "Unigram": _for_unigram,
    "WordLevel": _for_words,
}
"""Type of a tokenizer's model -> function that adds the tokens that it needs to produce the used tokens."""


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    # Older files have one string.
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _merged(model: Mapping[str, Any], merge: str | Sequence[str]) -> str:
    """Return the token that a merge makes."""
    first, second = _pair(merge)
    return first + second.removeprefix(model.get("continuing_subword_prefix") or "")


def _renumber_ids(part: Any, new_ids: Mapping[int, int]) -> Any:
    """Return a post-processor, which can nest templates, with the new ids of its special tokens."""
    if isinstance(part, list):
        return [_renumber_ids(inner, new_ids) for inner in part]
    if not isinstance(part, dict):
        return part
    renumbered = {name: _renumber_ids(inner, new_ids) for name, inner in part.items()}
    if isinstance(part.get("ids"), list):  # A template has lists of ids.
        renumbered["ids"] = [new_ids[old_id] for old_id in part["ids"]]
    for name in ("sep", "cls"):  # BERT and RoBERTa have pairs (token, id).
        if isinstance(part.get(name), list):
            renumbered[name] = [part[name][0], new_ids[part[name][1]]]
    return renumbered
