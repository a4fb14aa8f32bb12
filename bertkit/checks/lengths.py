"""Check the tokens of texts: unknown tokens, tokens per word, and loss by truncation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bertkit.checks import Finding, get_example_places, get_severity, read_texts
from bertkit.checks.reading import describe_refusal
from bertkit.data.checks import format_fraction
from bertkit.data.rows import Split
from bertkit.errors import DataError
from bertkit.metrics.linear import sample_rows
from bertkit.tasks import Task
from bertkit.tokens.features import TaskContext, max_tokens, tokenize_texts
from bertkit.tokens.splitting import Splitting
from bertkit.tokens.truncation import SHORTENED, describe_lost_gold, find_long, get_read_fractions, reads_windows

_MAX_ROWS = 100_000  # per split
_MAX_TEXTS = 20_000  # per split, for unknown tokens
_WARN_LOST, _WARN_UNKNOWN, _FAIL_UNKNOWN, _WARN_FERTILITY = 0.01, 0.01, 0.2, 3.0


def find_lost_tokens(splits: Mapping[str, Split], task: Task, context: TaskContext) -> list[Finding]:
    """Describe the tokens of each split, and the rows that are longer than the maximum length."""
    return [
        finding
        for split in splits.values()
        for finding in (*_describe_tokens(split, task, context), *_find_truncated(split, task, context))
    ]


def _describe_tokens(split: Split, task: Task, context: TaskContext) -> list[Finding]:
    """Describe the number of tokens per word, and the fraction of unknown tokens."""
    # Tokenize only the first of equal texts, which have equal hashes, because repetitions add no information.
    hashes = np.fromiter(map(hash, _read_all_texts(split, task)), np.int64)
    if not len(hashes):
        return []
    sampled = set(sample_rows(np.sort(np.unique(hashes, return_index=True)[1]).tolist(), _MAX_TEXTS))
    texts = [text for index, text in enumerate(_read_all_texts(split, task)) if index in sampled]
    encodings, splitting = tokenize_texts(context.tokenizer, texts), Splitting()
    for text, encoding in zip(texts, encodings, strict=True):
        splitting.add(text, encoding.ids, encoding.offsets, context.tokenizer.unk_token_id)
    is_unknown = [context.tokenizer.unk_token_id in encoding.ids for encoding in encodings]
    unknown, fertility = splitting.unknown_rate, splitting.fertility
    level = get_severity(unknown, warn=_WARN_UNKNOWN, fail=_FAIL_UNKNOWN)
    unknown_texts = {text for text, has_unknown in zip(texts, is_unknown, strict=True) if has_unknown}
    candidates = split.rows if level != "good" else []
    rows = (
        index for index, row in enumerate(candidates) if unknown_texts & set(read_texts(row, task.COLUMNS).values())
    )
    is_odd = fertility >= _WARN_FERTILITY and level == "good"
    text = f"{split.name}: {fertility:.2f} tokens per word, {unknown:.2%} of the tokens unknown"
    level = "warn" if is_odd else level
    return [Finding(level, "tokens", "unknown_tokens", text, get_example_places(split, rows), sum(is_unknown))]


def _read_all_texts(split: Split, task: Task) -> Iterator[str]:
    return (text for row in split.rows for text in read_texts(row, task.COLUMNS).values() if text)


def _find_truncated(split: Split, task: Task, context: TaskContext) -> list[Finding]:
    """Describe the rows that are longer than the recipe's maximum, and the gold values that are lost with the rest."""
    # 1. Find the rows that are longer than the maximum. `long` has their positions in `rows`, a sample of the split.
    indices = sample_rows(range(len(split.rows)), _MAX_ROWS)
    rows = [split.rows[index] for index in indices]
    limit = max_tokens(context)
    try:
        long, lengths, unlimited = find_long(rows, task.encode, context)
    except DataError as error:
        return [describe_refusal(error, "tokens", "unreadable_rows")]
    median, percentile_99 = map(int, np.quantile(lengths, (0.5, 0.99), method="higher"))
    spread = f"half up to {median}, 99% up to {percentile_99}, the longest {lengths.max():,}"
    # 2. Find the rows whose gold value is lost, such as an answer at the end of a long text.
    long_rows = [rows[index] for index in long]
    features = task.encode(long_rows, context) if long else []
    lost_gold = []
    if task.find_truncated_answers is not None and task.COLUMNS.gold in rows[0]:
        # Shorter rows are not encoded again: the maximum does not change their features.
        lost_rows = set(task.find_truncated_answers(unlimited, rows, context)) - set(long)
        lost_rows |= {
            long[index] for index in (task.find_truncated_answers(features, long_rows, context) if long else ())
        }
        text = f"{split.name}: {describe_lost_gold(len(lost_rows), len(rows), task.OPTIONS)}"
        level = get_severity(len(lost_rows) / len(rows), warn=_WARN_LOST)
        places = get_example_places(split, [indices[row] for row in sorted(lost_rows)])
        lost_gold = [Finding(level, "tokens", "lost_gold", text, places, len(lost_rows))]
    # 3. Describe the long rows. Windows read all of their tokens, so only truncation is a warning.
    if not long:
        text = f"{split.name}: no row is longer than {limit} tokens ({spread})"
        return [Finding("good", "tokens", "truncated", text), *lost_gold]
    is_windowed = len(features) > len(long_rows) or ("long_text" in task.OPTIONS and reads_windows(context.recipe))
    share = len(long) / len(rows)
    treatment = "are read in overlapping windows" if is_windowed else "truncated"
    fraction = format_fraction(len(long), len(rows))
    text = f"{split.name}: {fraction} rows are longer than {limit} tokens and {treatment} ({spread})"
    level = "good" if is_windowed else get_severity(share, warn=_WARN_LOST)
    places = get_example_places(split, [indices[index] for index in long])
    findings = [Finding(level, "tokens", "truncated", text, places, len(long))]
    # 4. Report the fraction of the long rows that each option would read.
    if "long_text" in task.OPTIONS:
        in_one, in_windows, windows = get_read_fractions(long_rows, context)
        text = f"{split.name}: in these rows, {', '.join(SHORTENED)} read {in_one:.1%} of the tokens"
        text += f", windows {in_windows:.1%} in {windows:.1f} windows per row"
        findings.append(Finding("good", "tokens", "long_text_ways", text))
    return [*findings, *lost_gold]
