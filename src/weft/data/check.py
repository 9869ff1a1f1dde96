"""Checks the data of a run for problems that would spoil training silently.

The functions compute findings, with the indices of a few rows, from per-row statistics (see `statistics`). The texts and
locations of these rows are read at the end, in one pass per split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from weft.data.alignment import find_misalignment
from weft.data.check_labels import find_label_problems
from weft.data.findings import (
    MAX_ROWS,
    SEVERITIES,
    CheckOptions,
    Finding,
    MoreFindings,
    Severity,
    count_of,
    first_rows,
    no_more_findings,
    percent,
    severity_of,
)
from weft.data.statistics import (
    NEWLINE,
    NOT_NFC,
    OUTER_SPACE,
    RETURN,
    Split,
    SplitStatistics,
    TokenCounts,
    collect_statistics,
    count_tokens,
    count_words,
)
from weft.errors import WeftError
from weft.text.reading import pluralize, quote, subject
from weft.text.tokenizers import Tokenizer

MAX_EXAMPLE_CHARS = 200
CONTEXT_CHARS = 30  # before the first difference of two texts
# a log length ratio is an outlier if it is more than MAX_DEVIATIONS robust standard deviations from the median; a standard
# deviation is at least MIN_DEVIATION, because in some data the ratios hardly differ
MAX_DEVIATIONS, MIN_DEVIATION = 5.0, 0.1
MAD_TO_STD = 1.4826  # from median absolute deviation to standard deviation of a normal distribution
ProgressCallback = Callable[[str, float], None]  # phase, fraction done


@dataclass(frozen=True)
class Report:
    sizes: dict[str, dict[str, Any]]  # by split: rows, and for each side characters, tokens, max_length, unk_rate
    findings: list[Finding]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def truncate_text(text: str, max_chars: int = MAX_EXAMPLE_CHARS) -> str:
    """Shorten a text in the middle, because problems are often at one of its ends."""
    if len(text) <= max_chars:
        return text
    return f"{text[: max_chars // 2 - 3]} ... {text[len(text) - (max_chars - max_chars // 2 - 2) :]}"


# ---- single rows

_UNUSUAL: dict[str, tuple[int, str, str]] = {  # by name: bit, message and fix
    "outer_whitespace": (OUTER_SPACE, "start or end with whitespace", "strip it: texts that look the same would differ"),
    "not_nfc": (NOT_NFC, "are not in Unicode normalization form NFC", "convert all files to one form, usually NFC"),
    "carriage_return": (RETURN, "contain a carriage return inside a line", "remove it: it is read as text"),
    "newline_in_field": (NEWLINE, "contain a newline", "replace it if the run reads and writes line by line"),
}


def find_unusual_texts(split: str, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Empty texts, line endings, whitespace and Unicode normalization, for each side."""
    rows = len(statistics.lengths)
    if statistics.num_crlf:
        message = f"{subject(statistics.num_crlf, 'line ending', 'is', 'are')} CRLF and read as LF"
        yield Finding("note", "crlf", split, message, "none needed: line endings are not part of the text", statistics.num_crlf)
    for side, name in enumerate(options.sides):
        empty = statistics.lengths[:, side] == 0
        if count := int(empty.sum()):
            severity: Severity = "warning" if len(options.sides) > 1 else "note"
            message, fix = f"{count_of(count, rows, f'{name}s')} are empty", f"remove these {options.rows} unless intended"
            yield Finding(severity, "empty", split, message, fix, count, first_rows(empty), side)
        for key, (bit, description, fix) in _UNUSUAL.items():
            mask = statistics.unusual[:, side] & bit != 0
            if count := int(mask.sum()):
                message = f"{count_of(count, rows, f'{name}s')} {description}"
                yield Finding(severity_of(count, rows), key, split, message, fix, count, first_rows(mask), side)


# ---- comparisons of rows


def duplicate_mask(keys: np.ndarray) -> np.ndarray:
    """bool (N,): which of `keys` (N,) are equal to a previous one."""
    order = np.argsort(keys, kind="stable")
    is_duplicate = np.zeros(len(keys), dtype=bool)
    is_duplicate[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return is_duplicate


def find_duplicates(split: str, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Duplicate rows, and sources with more than one target."""
    keys, rows = statistics.keys(), len(statistics.lengths)
    duplicates = duplicate_mask(keys) & (statistics.lengths.max(axis=1) > options.min_chars)
    if count := int(duplicates.sum()):
        message, fix = f"{count_of(count, rows, options.rows)} are duplicates", "remove them unless intended"
        yield Finding(severity_of(count, rows), "duplicate", split, message, fix, count, first_rows(duplicates))
    if not options.aligned:
        return
    distinct = ~duplicate_mask(keys)
    sources = statistics.hashes[:, 0]
    duplicate_sources = np.zeros(rows, dtype=bool)
    duplicate_sources[distinct] = duplicate_mask(sources[distinct])
    if count := len(np.unique(sources[duplicate_sources])):
        message = f"{subject(count, 'source', 'has', 'have')} more than one target"
        fix = "keep the correct target; in evaluation only one of them can match"
        same_source = sources == sources[np.argmax(duplicate_sources)]
        yield Finding("note", "multiple_targets", split, message, fix, count, first_rows(same_source & distinct))


def find_overlaps(statistics: Mapping[str, SplitStatistics], options: CheckOptions) -> Iterator[Finding]:
    """Rows of valid and test that also occur in a previous split."""
    for first, second in combinations(statistics, 2):
        before, after = statistics[first], statistics[second]
        rows = len(after.lengths)
        is_long = after.lengths.max(axis=1) > options.min_chars
        overlap = np.isin(after.keys(), before.keys()) & is_long
        fix = f"remove them from {first}, or the scores on {second} are too high"
        if count := int(overlap.sum()):
            message = f"{count_of(count, rows, options.rows)} also occur in {first}"
            yield Finding(severity_of(count, rows), "overlap", second, message, fix, count, first_rows(overlap))
        if not options.aligned:
            continue
        same_source = np.isin(after.hashes[:, 0], before.hashes[:, 0]) & (after.lengths[:, 0] > 0) & ~overlap
        if count := int(same_source.sum()):
            message = f"{count_of(count, rows, 'sources')} occur in {first} with another target"
            yield Finding(severity_of(count, rows), "source_overlap", second, message, fix, count, first_rows(same_source))


def find_misaligned(split: str, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Pairs with an unusual length ratio, and ranges of lines that match better when shifted."""
    nonempty = (statistics.lengths > 0).all(axis=1)
    if not options.aligned or not nonempty.any():
        return
    source, target = statistics.lengths.T
    if misalignment := find_misalignment(source, target):
        count, shift = misalignment.last - misalignment.first + 1, misalignment.shift
        message = (
            f"from this line on, {count:,} sources match the target {pluralize(abs(shift), 'line')}"
            f" {'below' if shift > 0 else 'above'} better than their own"
        )
        fix = "look for an extra or missing line on one side"
        yield Finding("warning", "misaligned", split, message, fix, count, (misalignment.first,))
    ratios = np.log(np.maximum(target, 1) / np.maximum(source, 1))
    median = float(np.median(ratios[nonempty]))
    deviations = np.where(nonempty, np.abs(ratios - median), 0.0)
    outliers = deviations > MAX_DEVIATIONS * max(MIN_DEVIATION, MAD_TO_STD * float(np.median(deviations[nonempty])))
    if count := int(outliers.sum()):
        message = (
            f"{count_of(count, len(ratios), 'pairs')} have an unusual length ratio"
            f" (the median of target/source is {np.exp(median):.2g})"
        )
        worst = np.argsort(-deviations, kind="stable")[: min(MAX_ROWS, count)]
        fix = "check these pairs; one side may be truncated or misaligned"
        yield Finding(severity_of(count, len(ratios)), "length_ratio", split, message, fix, count, tuple(worst.tolist()))


# ---- tokens


def _find_unknown(split: str, name: str, counts: TokenCounts, side: int, options: CheckOptions) -> Iterator[Finding]:
    has_unknown, unknown, tokens = counts.unknown > 0, int(counts.unknown.sum()), int(counts.tokens.sum())
    if not unknown:
        return
    frequent = ", ".join(f"{quote(text, 20)} ({count:,})" for text, count in counts.unknown_texts.most_common(8))
    message = f"{count_of(unknown, tokens, f'{name} tokens')} are unknown: {frequent}"
    if name == "target" and split != "train":
        rate = percent(int(has_unknown.sum()), len(has_unknown))
        message += f"; {rate} of the targets contain one and can never match exactly"
    fix = (
        'increase tokenizer.vocab_size, add training data, or use tokenizer.type = "bpe" or "byte",'
        " which have no unknown tokens"
    )
    severity = severity_of(unknown, tokens)
    if options.has_char_encoder:
        severity, fix = "note", "none needed: [model.char_encoder] reads their characters"
    yield Finding(severity, "unknown_tokens", split, message, fix, unknown, first_rows(has_unknown), side)


def _find_long(split: str, name: str, tokens: np.ndarray, side: int | None, options: CheckOptions) -> Iterator[Finding]:
    if options.max_length is None or not (count := int((tokens > options.max_length).sum())):
        return
    message = (
        f"{count_of(count, len(tokens), name)} have more tokens than data.max_length ({options.max_length}), up to"
        f" {tokens.max():,}, and are {'truncated' if options.truncate else 'an error'}"
    )
    fix = "increase data.max_length"
    if not options.truncate:
        fix += " or split them with blank lines" if options.words else ", set data.truncate = true or remove them"
    severity: Severity = "note" if options.truncate else "error"
    yield Finding(severity, "too_long", split, message, fix, count, first_rows(tokens > options.max_length), side)


def _from_difference(texts: tuple[str, str]) -> tuple[str, str]:
    """Two texts from CONTEXT_CHARS before their first difference."""
    before, after = texts
    min_length = min(len(before), len(after))
    position = next((index for index, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min_length)
    start = max(0, position - CONTEXT_CHARS)
    return "..." * (start > 0) + before[start:], "..." * (start > 0) + after[start:]


def find_token_problems(split: str, sides: Sequence[TokenCounts], options: CheckOptions) -> Iterator[Finding]:
    """Texts that are too long, unknown tokens, and targets that the tokenizer does not reproduce."""
    for side, (name, counts) in enumerate(zip(options.sides, sides, strict=False)):
        yield from _find_unknown(split, name, counts, side, options)
        if options.labels is None:
            num_extra = counts.tokenizer.start_tokens.num_positions(name) if options.has_start_tokens else 0
            yield from _find_long(split, f"{name}s", counts.tokens + num_extra, side, options)
        if name == "target" and counts.first_change is not None:
            message = f"{count_of(counts.changed, counts.decoded, 'targets')} change when they are tokenized and detokenized"
            fix = 'use a lossless tokenizer.type (bpe, unigram, byte, char), or pre-tokenize the text for type = "whitespace"'
            severity = severity_of(counts.changed, counts.decoded)
            finding = Finding(severity, "lossy_tokenization", split, message, fix, counts.changed)
            yield replace(finding, examples=(_from_difference(counts.first_change),))
    if options.labels is not None and sides:  # the texts of an example form one sequence with one <s>
        yield from _find_long(split, options.rows, 1 + np.stack([counts.tokens for counts in sides]).sum(0), None, options)


# ---- report


def _example_side(texts: tuple[str, ...], side: int | None) -> tuple[str, ...]:
    """The side of a finding, or all sides if that one is empty."""
    return texts if side is None or not texts[side] else texts[side : side + 1]


def _with_examples(findings: list[Finding], splits: Mapping[str, Split]) -> Iterator[Finding]:
    """Findings with the locations and texts of their rows."""
    for name, split in splits.items():
        split_findings = [finding for finding in findings if finding.split == name]
        indices = {index for finding in split_findings for index in finding.rows}
        rows_by_index = {}
        for index, row in enumerate(split.rows() if indices else ()):
            if index in indices:
                rows_by_index[index] = row
            if len(rows_by_index) == len(indices):
                break
        for finding in split_findings:
            rows = [rows_by_index[index] for index in finding.rows]
            locations = tuple(f"{row.paths[finding.side or 0]}:{row.line}" for row in rows)
            texts = [_example_side(row.texts, finding.side) for row in rows if any(row.texts)] or finding.examples
            yield replace(finding, locations=locations, examples=tuple(tuple(map(truncate_text, row)) for row in texts))


def _sizes(statistics: SplitStatistics, sides: Sequence[TokenCounts], options: CheckOptions) -> dict[str, Any]:
    sizes: dict[str, Any] = {"rows": len(statistics.lengths)}
    for side, name in enumerate(options.sides):
        sizes[name] = {"characters": int(statistics.lengths[:, side].sum())}
    for name, counts in zip(options.sides, sides, strict=False):
        tokens = int(counts.tokens.sum())
        unk_rate = int(counts.unknown.sum()) / max(1, tokens)
        sizes[name] |= {"tokens": tokens, "max_length": int(counts.tokens.max()), "unk_rate": unk_rate}
    return sizes


def _no_progress(phase: str, fraction: float) -> None:
    pass


def _error_finding(name: str, split: str, error: WeftError) -> Finding:
    return Finding("error", name, split, ": ".join(filter(None, (error.where, error.problem))), error.fix, 1)


def _check_texts(
    splits: Mapping[str, Split], options: CheckOptions, progress: ProgressCallback
) -> tuple[dict[str, SplitStatistics], list[Finding]]:
    """Statistics of the splits that can be read, and findings about their texts and labels."""
    statistics: dict[str, SplitStatistics] = {}
    findings: list[Finding] = []
    for index, (name, split) in enumerate(splits.items()):
        progress(f"reading {name}", index / len(splits))
        try:
            statistics[name] = collect_statistics(split)
        except WeftError as error:
            new = _error_finding("unreadable", name, error)
            if all(new.message != finding.message for finding in findings):  # splits of the same file have the same error
                findings.append(new)
            continue
        for find in (find_unusual_texts, find_misaligned, find_duplicates):
            findings += find(name, statistics[name], options)
    findings += find_overlaps(statistics, options)
    findings += find_label_problems({name: splits[name] for name in statistics}, statistics, options)
    return statistics, findings


def _token_counts(split: Any, tokenizers: Sequence[Tokenizer], options: CheckOptions) -> list[TokenCounts]:
    """Token counts of every side; an empty list without tokenizers."""
    if not tokenizers:
        return []
    return count_tokens(split, tokenizers) if options.words is None else [count_words(split, tokenizers[0], options.words)]


def check_data(
    splits: Mapping[str, Split],
    tokenizers: Callable[[], Sequence[Tokenizer]],
    options: CheckOptions,
    more: MoreFindings = no_more_findings,
    progress: ProgressCallback = _no_progress,
) -> Report:
    """Check train, valid and test. A file that cannot be read gives a finding with severity "error". `more` are further checks
    of the splits that could be read."""
    statistics, findings = _check_texts(splits, options, progress)
    if more is not no_more_findings:
        progress("checking files", 0.0)
        findings += more({name: splits[name] for name in statistics})
    progress("training the tokenizer", 0.0)
    trained: Sequence[Tokenizer] = []
    try:
        trained = tokenizers()
    except WeftError as error:
        if "train" in statistics:  # otherwise a finding has this error already
            findings.append(_error_finding("tokenizer_error", "train", error))
    sizes = {}
    for index, (name, split_statistics) in enumerate(statistics.items()):
        progress(f"tokenizing {name}", index / len(statistics))
        sides = _token_counts(splits[name], trained, options)
        sizes[name] = _sizes(split_statistics, sides, options)
        findings += find_token_problems(name, sides, options)
    # by severity, then by name and side, in the order in which these first occur
    groups = [(finding.name, finding.side) for finding in findings]

    def sort_key(finding: Finding) -> tuple[int, int]:
        return SEVERITIES.index(finding.severity), groups.index((finding.name, finding.side))

    return Report(sizes, sorted(_with_examples(findings, splits), key=sort_key))
