"""What is wrong, or worth knowing, about the data of a run: what ruins runs silently, found before anything is trained.

Every function here looks at numbers (see `survey`) and gives findings with the numbers of a few rows; the text of those
rows and their places are read at the end, in one pass a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from weft.data.alignment import find_misalignment
from weft.data.check_labels import find_label_problems
from weft.data.findings import MAX_ROWS, SEVERITIES, CheckOptions, Finding, Severity, count_of, first_rows, percent, severity_of
from weft.data.statistics import (
    BREAK,
    DECOMPOSED,
    PADDED,
    RETURN,
    Split,
    SplitStatistics,
    TokenCounts,
    collect_statistics,
    count_tokens,
    count_words,
)
from weft.errors import WeftError
from weft.text.reading import quote, subject
from weft.text.tokenizers import Tokenizer

MAX_EXAMPLE_CHARS = 200  # characters of a row that is shown
# a ratio of lengths is an outlier so many deviations from the usual; where ratios hardly differ, one is taken to be FLOOR
FAR, FLOOR = 5.0, 0.1
ProgressCallback = Callable[[str, float], None]  # what is done, and which share of it
_FIRST = "put that right first"


@dataclass(frozen=True)
class Report:
    sizes: dict[str, dict[str, Any]]  # by split: rows, and for each side characters, tokens, longest, unknown
    findings: list[Finding]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def truncate_text(text: str, max_chars: int = MAX_EXAMPLE_CHARS) -> str:
    """Both ends of a text that is too long: what is odd about it is often there."""
    return (
        text
        if len(text) <= max_chars
        else f"{text[: max_chars // 2 - 3]} ... {text[len(text) - (max_chars - max_chars // 2 - 2) :]}"
    )


# ---- row by row

_ODD: dict[str, tuple[int, str, str]] = {  # by name: which bit, what it is, and the cure
    "white_space": (PADDED, "start or end with white space", "strip it, or two texts that look alike are not"),
    "not_nfc": (
        DECOMPOSED,
        "are not in Unicode's normal form NFC",
        "bring all files into one form, NFC unless you know better",
    ),
    "carriage_return": (RETURN, "hold a carriage return that ends no line", "remove it: it is read as text"),
    "newline": (BREAK, "hold a newline", "replace it, if the run is to read and write line by line"),
}


def find_unusual_texts(split: str, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Empty texts, line ends, white space, normal forms: side by side."""
    rows = len(statistics.lengths)
    if statistics.crlf:
        what = f"{statistics.crlf:,} line ends of its files are CRLF, and read as LF"
        yield Finding("note", "crlf", split, what, "nothing: they are no part of the text", statistics.crlf)
    for side, name in enumerate(options.sides):
        empty = statistics.lengths[:, side] == 0
        if count := int(empty.sum()):
            severity: Severity = "warning" if len(options.sides) > 1 else "note"
            what, fix = f"{count_of(count, rows, f'{name}s')} are empty", f"drop these {options.rows}, unless they are meant"
            yield Finding(severity, "empty", split, what, fix, count, first_rows(empty), side)
        for key, (bit, is_so, fix) in _ODD.items():
            odd = statistics.unusual[:, side] & bit != 0
            if count := int(odd.sum()):
                what = f"{count_of(count, rows, f'{name}s')} {is_so}"
                yield Finding(severity_of(count, rows), key, split, what, fix, count, first_rows(odd), side)


# ---- rows against rows


def duplicate_mask(keys: np.ndarray) -> np.ndarray:
    """bool (N,): which of `keys` (N,) stood before."""
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), dtype=bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again


def find_duplicates(split: str, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Rows that come twice, and sources with several targets."""
    keys, rows = statistics.keys(), len(statistics.lengths)
    again = duplicate_mask(keys) & (statistics.lengths.max(axis=1) > options.min_chars)
    if count := int(again.sum()):
        what = f"{count_of(count, rows, options.rows)} stand there more than once"
        yield Finding(
            severity_of(count, rows),
            "duplicate",
            split,
            what,
            "drop the copies, unless they are meant",
            count,
            first_rows(again),
        )
    if not options.aligned:
        return
    distinct = ~duplicate_mask(keys)
    sources = statistics.hashes[:, 0]
    other = np.zeros(rows, dtype=bool)
    other[distinct] = duplicate_mask(sources[distinct])
    if count := len(np.unique(sources[other])):
        what = f"{subject(count, 'source', 'has', 'have')} several targets"
        fix = "keep one, if one is right: the others teach that it is not, and count as wrong"
        one = sources == sources[np.argmax(other)]
        yield Finding("note", "several_targets", split, what, fix, count, first_rows(one & distinct))


def find_overlaps(statistics: Mapping[str, SplitStatistics], options: CheckOptions) -> Iterator[Finding]:
    """What of valid and test is in the splits before them."""
    for first, second in combinations(statistics, 2):
        before, after = statistics[first], statistics[second]
        rows = len(after.lengths)
        large = after.lengths.max(axis=1) > options.min_chars
        known = np.isin(after.keys(), before.keys()) & large
        fix = f"take them out of {first}, or the scores on {second} are too good"
        if count := int(known.sum()):
            what = f"{count_of(count, rows, options.rows)} are in {first} too"
            yield Finding(severity_of(count, rows), "overlap", second, what, fix, count, first_rows(known))
        if not options.aligned:
            continue
        same = np.isin(after.hashes[:, 0], before.hashes[:, 0]) & (after.lengths[:, 0] > 0) & ~known
        if count := int(same.sum()):
            what = f"{count_of(count, rows, 'sources')} are in {first} with another target"
            yield Finding(severity_of(count, rows), "overlap_source", second, what, fix, count, first_rows(same))


def find_misaligned(split: str, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Pairs whose lengths don't fit, one by one and by the stretch."""
    whole = (statistics.lengths > 0).all(axis=1)
    if not options.aligned or not whole.any():
        return
    source, target = statistics.lengths.T
    if slip := find_misalignment(source, target):
        lines = "line" if abs(slip.shift) == 1 else "lines"
        what = (
            f"from here on, {slip.last - slip.first + 1:,} sources fit the target {abs(slip.shift)} {lines}"
            f" {'further on' if slip.shift > 0 else 'before'} better than their own"
        )
        fix = "look there for a line too many or too few on one side"
        yield Finding("warning", "misaligned", split, what, fix, slip.last - slip.first + 1, (slip.first,))
    ratios = np.log(np.maximum(target, 1) / np.maximum(source, 1))
    middle = float(np.median(ratios[whole]))
    off = np.where(whole, np.abs(ratios - middle), 0.0)
    far = off > FAR * max(FLOOR, 1.4826 * float(np.median(off[whole])))
    if count := int(far.sum()):
        usual = np.exp(middle)
        what = (
            f"{count_of(count, len(ratios), 'pairs')} are far from the usual length of a target, {usual:.2g} times its source"
        )
        worst = np.argsort(-off, kind="stable")[: min(MAX_ROWS, count)]
        fix = "look at the worst, shown here: is one side cut, or another's?"
        yield Finding(severity_of(count, len(ratios)), "length_ratio", split, what, fix, count, tuple(worst.tolist()))


# ---- as tokens


def _find_unknown(split: str, name: str, counted: TokenCounts, side: int, options: CheckOptions) -> Iterator[Finding]:
    lines, unknown, tokens = counted.unknown > 0, int(counted.unknown.sum()), int(counted.tokens.sum())
    if not unknown:
        return
    often = ", ".join(f"{quote(piece, 20)} {count:,}" for piece, count in counted.pieces.most_common(8))
    what = f"{count_of(unknown, tokens, f'tokens of its {name}s')} are unknown: {often}"
    if name == "target" and split != "train":
        what += f"; {percent(int(lines.sum()), len(lines))} of the targets have one, and can't be hit exactly"
    fix = 'raise tokenizer.vocab_size, have more of it in train, or take kind = "bpe" or "byte", which spell everything'
    severity = severity_of(unknown, tokens)
    if options.has_char_encoder:
        severity, fix = "note", "nothing: their letters are read ([model.char_encoder])"
    yield Finding(severity, "unknown", split, what, fix, unknown, first_rows(lines), side)


def _find_long(split: str, name: str, tokens: np.ndarray, side: int | None, options: CheckOptions) -> Iterator[Finding]:
    if options.max_length is None or not (count := int((tokens > options.max_length).sum())):
        return
    what = (
        f"{count_of(count, len(tokens), name)} have more than data.max_length = {options.max_length} tokens, up to {tokens.max():,}, and are"
        f" {'cut there' if options.truncate else 'refused'}"
    )
    fix = "raise data.max_length"
    if not options.truncate:
        fix += ", or split them with blank lines" if options.words else ", set data.truncate = true, or remove them"
    severity: Severity = "note" if options.truncate else "error"
    yield Finding(severity, "long", split, what, fix, count, first_rows(tokens > options.max_length), side)


def _apart(texts: tuple[str, str]) -> tuple[str, str]:
    """Both from a little before they differ."""
    before, after = texts
    ends = min(len(before), len(after))
    same = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), ends)
    start = max(0, same - 30)
    return "..." * (start > 0) + before[start:], "..." * (start > 0) + after[start:]


def find_token_problems(split: str, sides: Sequence[TokenCounts], options: CheckOptions) -> Iterator[Finding]:
    """What is too long, unknown, or lost."""
    for side, (name, counted) in enumerate(zip(options.sides, sides, strict=False)):
        yield from _find_unknown(split, name, counted, side, options)
        if options.labels is None:
            yield from _find_long(split, f"{name}s", counted.tokens, side, options)
        if name == "target" and counted.change is not None:
            what = f"{count_of(counted.changed, counted.decoded, 'targets')} come back from the tokenizer as another text"
            fix = 'take a kind that loses nothing (bpe, unigram, byte, char), or tokenise the text yourself for kind = "space"'
            draft = Finding(severity_of(counted.changed, counted.decoded), "lossy", split, what, fix, counted.changed)
            yield replace(draft, examples=(_apart(counted.change),))
    if options.labels is not None and sides:  # all texts of an example are read as one, behind one <s>
        yield from _find_long(split, options.rows, 1 + np.stack([counted.tokens for counted in sides]).sum(0), None, options)


# ---- all together


def _example_side(texts: tuple[str, ...], side: int | None) -> tuple[str, ...]:
    """What to show of a row: the side that is meant, or all of it where that one is empty."""
    return texts if side is None or not texts[side] else texts[side : side + 1]


def _with_examples(findings: list[Finding], splits: Mapping[str, Split]) -> Iterator[Finding]:
    """The same with places and texts."""
    for name, split in splits.items():
        own = [finding for finding in findings if finding.split == name]
        wanted = {row for finding in own for row in finding.rows}
        found = {}
        for number, row in enumerate(split.rows() if wanted else ()):
            if number in wanted:
                found[number] = row
            if len(found) == len(wanted):
                break
        for finding in own:
            rows = [found[number] for number in finding.rows]
            where = tuple(f"{row.paths[finding.side or 0]}:{row.line}" for row in rows)
            texts = [_example_side(row.texts, finding.side) for row in rows if any(row.texts)] or finding.examples
            yield replace(finding, locations=where, examples=tuple(tuple(map(truncate_text, row)) for row in texts))


def _sizes(statistics: SplitStatistics, sides: Sequence[TokenCounts], options: CheckOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": len(statistics.lengths)}
    for number, name in enumerate(options.sides):
        found[name] = {"characters": int(statistics.lengths[:, number].sum())}
    for name, counted in zip(options.sides, sides, strict=False):
        tokens, unknown = int(counted.tokens.sum()), int(counted.unknown.sum())
        found[name] |= {"tokens": tokens, "longest": int(counted.tokens.max()), "unknown": unknown}
    return found


def _no_progress(step: str, fraction: float) -> None:
    pass


def _surveyed(
    splits: Mapping[str, Split], options: CheckOptions, progress: ProgressCallback
) -> tuple[dict[str, SplitStatistics], list[Finding]]:
    """The splits that can be read, and what is to be said about their text."""
    statistics: dict[str, SplitStatistics] = {}
    findings: list[Finding] = []
    for number, (name, split) in enumerate(splits.items()):
        progress(f"reading {name}", number / len(splits))
        try:
            statistics[name] = collect_statistics(split)
        except WeftError as error:
            if all(str(error) != finding.message for finding in findings):  # of shares of one file it is said once
                findings.append(Finding("error", "unreadable", name, str(error), _FIRST, 1))
            continue
        for look in (find_unusual_texts, find_misaligned, find_duplicates):
            findings += look(name, statistics[name], options)
    findings += find_overlaps(statistics, options)
    findings += find_label_problems({name: splits[name] for name in statistics}, statistics, options)
    return statistics, findings


def _counted(split: Any, made: Sequence[Tokenizer], options: CheckOptions) -> list[TokenCounts]:
    """Every side as tokens; none where there are no tokenizers."""
    if not made:
        return []
    return count_tokens(split, made) if options.words is None else [count_words(split, made[0], options.words)]


def check_data(
    splits: Mapping[str, Split],
    tokenizers: Callable[[], Sequence[Tokenizer]],
    options: CheckOptions,
    progress: ProgressCallback = _no_progress,
) -> Report:
    """Everything that is to be said about train, valid and test; what can't be read is an error among the findings."""
    surveys, findings = _surveyed(splits, options, progress)
    progress("making the tokenizer", 0.0)
    made: Sequence[Tokenizer] = []
    try:
        made = tokenizers()
    except WeftError as error:
        if "train" in surveys:  # else it has been said
            findings.append(Finding("error", "tokenizer", "train", str(error), _FIRST, 1))
    sizes = {}
    for number, (name, survey) in enumerate(surveys.items()):
        progress(f"tokenising {name}", number / len(surveys))
        sides = _counted(splits[name], made, options)
        sizes[name] = _sizes(survey, sides, options)
        findings += find_token_problems(name, sides, options)
    # by weight; then what is alike together, in the order in which it was found, split after split
    kinds = [(finding.name, finding.side) for finding in findings]

    def order(finding: Finding) -> tuple[int, int]:
        return SEVERITIES.index(finding.severity), kinds.index((finding.name, finding.side))

    return Report(sizes, sorted(_with_examples(findings, splits), key=order))
