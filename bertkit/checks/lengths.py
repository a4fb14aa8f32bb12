"""Check the tokens of texts: unknown tokens, tokens per word, and what truncation removes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bertkit.checks import Finding, get_severity, locate_examples, read_texts
from bertkit.checks.reading import describe_error
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
    """Describe the tokens of each split, and the rows that exceed the maximum length."""
    return [
        finding
        for split in splits.values()
        for finding in (*_describe_tokens(split, task, context), *_find_truncated(split, task, context))
    ]


def _describe_tokens(split: Split, task: Task, context: TaskContext) -> list[Finding]:
    """Describe the number of tokens per word, and the fraction of unknown tokens."""
    # Tokenize each distinct text once. Equal texts have equal hashes.
    hashes = np.fromiter(map(hash, _read_all_texts(split, task)), np.int64)
    if not len(hashes):
        return []
    sampled_indices = set(sample_rows(np.sort(np.unique(hashes, return_index=True)[1]).tolist(), _MAX_TEXTS))
    texts = [text for index, text in enumerate(_read_all_texts(split, task)) if index in sampled_indices]
    encodings, splitting = tokenize_texts(context.tokenizer, texts), Splitting()
    for text, encoding in zip(texts, encodings, strict=True):
        splitting.add(text, encoding.ids, encoding.offsets, context.tokenizer.unk_token_id)
    is_unknown = [context.tokenizer.unk_token_id in encoding.ids for encoding in encodings]
    unknown_rate, fertility = splitting.unknown_rate, splitting.fertility
    level = get_severity(unknown_rate, warn=_WARN_UNKNOWN, fail=_FAIL_UNKNOWN)
    unknown_texts = {text for text, has_unknown in zip(texts, is_unknown, strict=True) if has_unknown}
    candidates = split.rows if level != "good" else []
    rows = (
        index for index, row in enumerate(candidates) if unknown_texts & set(read_texts(row, task.COLUMNS).values())
    )
    is_fragmented = fertility >= _WARN_FERTILITY and level == "good"
    text = f"{split.name}: {fertility:.2f} tokens per word, {unknown_rate:.2%} of the tokens unknown"
    level = "warn" if is_fragmented else level
    return [Finding(level, "tokens", "unknown_tokens", text, locate_examples(split, rows), sum(is_unknown))]


def _read_all_texts(split: Split, task: Task) -> Iterator[str]:
    return (text for row in split.rows for text in read_texts(row, task.COLUMNS).values() if text)


def _find_truncated(split: Split, task: Task, context: TaskContext) -> list[Finding]:
    """Describe the rows that exceed the recipe's maximum length, and the gold values that truncation removes."""
    # 1. Find the rows that exceed the maximum. `long_indices` indexes `rows`, which is a sample of the split.
    indices = sample_rows(range(len(split.rows)), _MAX_ROWS)
    rows = [split.rows[index] for index in indices]
    limit = max_tokens(context)
    try:
        long_indices, lengths, unlimited = find_long(rows, task.encode, context)
    except DataError as error:
        return [describe_error(error, "tokens", "unreadable_rows")]
    median, percentile_99 = map(int, np.quantile(lengths, (0.5, 0.99), method="higher"))
    length_summary = f"half up to {median}, 99% up to {percentile_99}, the longest {lengths.max():,}"
    # 2. Find the rows whose gold value is truncated, such as an answer at the end of a long text.
    long_rows = [rows[index] for index in long_indices]
    features = task.encode(long_rows, context) if long_indices else []
    lost_gold = []
    if task.find_truncated_answers is not None and task.COLUMNS.gold in rows[0]:
        # Shorter rows need no new encoding, because the maximum does not change their features.
        lost_rows = set(task.find_truncated_answers(unlimited, rows, context)) - set(long_indices)
        if long_indices:
            lost_rows |= {long_indices[index] for index in task.find_truncated_answers(features, long_rows, context)}
        text = f"{split.name}: {describe_lost_gold(len(lost_rows), len(rows), task.OPTIONS)}"
        level = get_severity(len(lost_rows) / len(rows), warn=_WARN_LOST)
        places = locate_examples(split, [indices[row] for row in sorted(lost_rows)])
        lost_gold = [Finding(level, "tokens", "lost_gold", text, places, len(lost_rows))]
    # 3. Describe the long rows. Windows cover all tokens, so only truncation is a warning.
    if not long_indices:
        text = f"{split.name}: no row is longer than {limit} tokens ({length_summary})"
        return [Finding("good", "tokens", "truncated", text), *lost_gold]
    is_windowed = len(features) > len(long_rows) or ("long_text" in task.OPTIONS and reads_windows(context.recipe))
    treatment = "are read in overlapping windows" if is_windowed else "truncated"
    fraction = format_fraction(len(long_indices), len(rows))
    text = f"{split.name}: {fraction} rows are longer than {limit} tokens and {treatment} ({length_summary})"
    level = "good" if is_windowed else get_severity(len(long_indices) / len(rows), warn=_WARN_LOST)
    places = locate_examples(split, [indices[index] for index in long_indices])
    findings = [Finding(level, "tokens", "truncated", text, places, len(long_indices))]
    # 4. Report the fraction of the long rows that each option would read.
    if "long_text" in task.OPTIONS:
        truncated_fraction, window_fraction, windows_per_row = get_read_fractions(long_rows, context)
        text = f"{split.name}: in these rows, {', '.join(SHORTENED)} read {truncated_fraction:.1%} of the tokens"
        text += f", and {windows_per_row:.1f} windows per row read {window_fraction:.1%}"
        findings.append(Finding("good", "tokens", "long_text_ways", text))
    return [*findings, *lost_gold]
