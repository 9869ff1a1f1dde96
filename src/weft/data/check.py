"""What is wrong, or worth knowing, about the data of a run: what ruins runs silently, found before anything is trained.

Every function here looks at numbers (see `survey`) and gives findings with the numbers of a few rows; the text of those
rows and their places are read at the end, in one pass a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from weft.data.alignment import find_slip
from weft.data.survey import BREAK, DECOMPOSED, PADDED, RETURN, Counted, Split, Survey, count_tokens, take_survey
from weft.errors import WeftError
from weft.text.gate import shown
from weft.text.tokenizers import Tokenizer

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WARNED = 0.01  # from this share of the rows on, a finding that may be harmless is a warning
SHOWN = 3  # rows of a finding that are shown
LONGEST = 200  # characters of them
# a ratio of lengths is an outlier so many deviations from the usual; where ratios hardly differ, one is taken to be FLOOR
FAR, FLOOR = 5.0, 0.1
Watch = Callable[[str, float], None]  # what is done, and which share of it
_FIRST = "put that right first"


@dataclass(frozen=True)
class Finding:
    severity: Severity
    name: str  # for programs; `what` is for people
    split: str
    what: str
    cure: str
    count: int
    rows: tuple[int, ...] = ()  # of the split, from 0
    side: int | None = None  # which one is meant, if it is one
    where: tuple[str, ...] = ()  # file:line of these rows
    examples: tuple[tuple[str, ...], ...] = ()  # their texts, of the side that is meant or of both


@dataclass(frozen=True)
class Checked:
    """What a check is told: how sides and rows are called, and what is allowed."""

    sides: tuple[str, ...]  # ("source", "target") of pairs, ("line",) of a text; of labelled texts one or two
    longest: int | None = None  # tokens a side, </s> counted
    truncate: bool = False
    least: int = 0  # characters; shorter lines may come twice: in running text they always do
    labelled: bool = False  # two sides are then two texts, neither of which is made from the other

    @property
    def rows(self) -> str:
        return "pairs" if len(self.sides) > 1 else f"{self.sides[0]}s"

    @property
    def aligned(self) -> bool:
        """Whether one side should fit the other."""
        return len(self.sides) > 1 and not self.labelled


@dataclass(frozen=True)
class Report:
    sizes: dict[str, dict[str, Any]]  # by split: rows, and for each side characters, tokens, longest, unknown
    findings: list[Finding]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def percent(count: float, total: float) -> str:
    """1 of 3 -> '33.3 %', 1 of 30 -> '3.3 %'."""
    share = 100 * count / max(1, total)
    return f"{share:.3g} %" if share >= 10 else f"{share:.2g} %"


def elided(text: str, most: int = LONGEST) -> str:
    """Both ends of a text that is too long: what is odd about it is often there."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]} ... {text[len(text) - (most - most // 2 - 2) :]}"


def _of(count: int, total: int, what: str) -> str:
    return f"{count:,} of {total:,} {what} ({percent(count, total)})"


def _by_share(count: int, total: int) -> Severity:
    return "warning" if count >= WARNED * total else "note"


def _first(found: np.ndarray) -> tuple[int, ...]:
    """The first rows of a mask (N,)."""
    return tuple(np.flatnonzero(found)[:SHOWN].tolist())


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


def odd_texts(split: str, survey: Survey, told: Checked) -> Iterator[Finding]:
    """Empty texts, line ends, white space, normal forms: side by side."""
    rows = len(survey.lengths)
    if survey.crlf:
        what = f"{survey.crlf:,} line ends of its files are CRLF, and read as LF"
        yield Finding("note", "crlf", split, what, "nothing: they are no part of the text", survey.crlf)
    for side, name in enumerate(told.sides):
        empty = survey.lengths[:, side] == 0
        if count := int(empty.sum()):
            severity: Severity = "warning" if len(told.sides) > 1 else "note"
            what, cure = f"{_of(count, rows, f'{name}s')} are empty", f"drop these {told.rows}, unless they are meant"
            yield Finding(severity, "empty", split, what, cure, count, _first(empty), side)
        for key, (bit, is_so, cure) in _ODD.items():
            odd = survey.odd[:, side] & bit != 0
            if count := int(odd.sum()):
                what = f"{_of(count, rows, f'{name}s')} {is_so}"
                yield Finding(_by_share(count, rows), key, split, what, cure, count, _first(odd), side)


# ---- rows against rows


def repeated(keys: np.ndarray) -> np.ndarray:
    """bool (N,): which of `keys` (N,) stood before."""
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), dtype=bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again


def repeats(split: str, survey: Survey, told: Checked) -> Iterator[Finding]:
    """Rows that come twice, and sources with several targets."""
    keys, rows = survey.keys(), len(survey.lengths)
    again = repeated(keys) & (survey.lengths.max(axis=1) > told.least)
    if count := int(again.sum()):
        what = f"{_of(count, rows, told.rows)} stand there more than once"
        yield Finding(
            _by_share(count, rows), "duplicate", split, what, "drop the copies, unless they are meant", count, _first(again)
        )
    if not told.aligned:
        return
    distinct = ~repeated(keys)
    sources = survey.hashes[:, 0]
    other = np.zeros(rows, dtype=bool)
    other[distinct] = repeated(sources[distinct])
    if count := len(np.unique(sources[other])):
        what = f"{count:,} sources have several targets"
        cure = "keep one, if one is right: the others teach that it is not, and count as wrong"
        one = sources == sources[np.argmax(other)]
        yield Finding("note", "several_targets", split, what, cure, count, _first(one & distinct))


def overlaps(surveys: Mapping[str, Survey], told: Checked) -> Iterator[Finding]:
    """What of valid and test is in the splits before them."""
    for first, second in combinations(surveys, 2):
        before, after = surveys[first], surveys[second]
        rows = len(after.lengths)
        large = after.lengths.max(axis=1) > told.least
        known = np.isin(after.keys(), before.keys()) & large
        cure = f"take them out of {first}, or the scores on {second} are too good"
        if count := int(known.sum()):
            what = f"{_of(count, rows, told.rows)} are in {first} too"
            yield Finding(_by_share(count, rows), "overlap", second, what, cure, count, _first(known))
        if not told.aligned:
            continue
        same = np.isin(after.hashes[:, 0], before.hashes[:, 0]) & (after.lengths[:, 0] > 0) & ~known
        if count := int(same.sum()):
            what = f"{_of(count, rows, 'sources')} are in {first} with another target"
            yield Finding(_by_share(count, rows), "overlap_source", second, what, cure, count, _first(same))


def misfits(split: str, survey: Survey, told: Checked) -> Iterator[Finding]:
    """Pairs whose lengths don't fit, one by one and by the stretch."""
    whole = (survey.lengths > 0).all(axis=1)
    if not told.aligned or not whole.any():
        return
    source, target = survey.lengths.T
    if slip := find_slip(source, target):
        lines = "line" if abs(slip.shift) == 1 else "lines"
        what = (
            f"from here on, {slip.last - slip.first + 1:,} sources fit the target {abs(slip.shift)} {lines}"
            f" {'further on' if slip.shift > 0 else 'before'} better than their own"
        )
        cure = "look there for a line too many or too few on one side"
        yield Finding("warning", "misaligned", split, what, cure, slip.last - slip.first + 1, (slip.first,))
    ratios = np.log(np.maximum(target, 1) / np.maximum(source, 1))
    middle = float(np.median(ratios[whole]))
    off = np.where(whole, np.abs(ratios - middle), 0.0)
    far = off > FAR * max(FLOOR, 1.4826 * float(np.median(off[whole])))
    if count := int(far.sum()):
        usual = np.exp(middle)
        what = f"{_of(count, len(ratios), 'pairs')} are far from the usual length of a target, {usual:.2g} times its source"
        worst = np.argsort(-off, kind="stable")[: min(SHOWN, count)]
        cure = "look at the worst, shown here: is one side cut, or another's?"
        yield Finding(_by_share(count, len(ratios)), "length_ratio", split, what, cure, count, tuple(worst.tolist()))


# ---- as tokens


def _unknown(split: str, name: str, counted: Counted, side: int) -> Iterator[Finding]:
    lines, unknown, tokens = counted.unknown > 0, int(counted.unknown.sum()), int(counted.tokens.sum())
    if not unknown:
        return
    often = ", ".join(f"{shown(piece, 20)!r} {count:,}" for piece, count in counted.pieces.most_common(8))
    what = f"{_of(unknown, tokens, f'tokens of its {name}s')} are unknown: {often}"
    if name == "target" and split != "train":
        what += f"; {percent(int(lines.sum()), len(lines))} of the targets have one, and can't be hit exactly"
    cure = 'raise tokenizer.size, have more of it in train, or take kind = "bpe" or "byte", which spell everything'
    yield Finding(_by_share(unknown, tokens), "unknown", split, what, cure, unknown, _first(lines), side)


def _apart(texts: tuple[str, str]) -> tuple[str, str]:
    """Both from a little before they differ."""
    before, after = texts
    ends = min(len(before), len(after))
    same = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), ends)
    start = max(0, same - 30)
    return "..." * (start > 0) + before[start:], "..." * (start > 0) + after[start:]


def token_findings(split: str, sides: Sequence[Counted], told: Checked) -> Iterator[Finding]:
    """What is too long, unknown, or lost."""
    for side, (name, counted) in enumerate(zip(told.sides, sides, strict=False)):
        rows = len(counted.tokens)
        yield from _unknown(split, name, counted, side)
        if told.longest is not None and (count := int((counted.tokens > told.longest).sum())):
            what = (
                f"{_of(count, rows, f'{name}s')} have more than data.longest = {told.longest} tokens, up to"
                f" {counted.tokens.max():,}, and are {'cut there' if told.truncate else 'refused'}"
            )
            severity: Severity = "note" if told.truncate else "error"
            cure = "raise data.longest" + ("" if told.truncate else ", set data.truncate = true, or remove them")
            yield Finding(severity, "long", split, what, cure, count, _first(counted.tokens > told.longest), side)
        if name == "target" and counted.change is not None:
            what = f"{_of(counted.changed, counted.decoded, 'targets')} come back from the tokenizer as another text"
            cure = 'take a kind that loses nothing (bpe, unigram, byte, char), or tokenise the text yourself for kind = "space"'
            draft = Finding(_by_share(counted.changed, counted.decoded), "lossy", split, what, cure, counted.changed)
            yield replace(draft, examples=(_apart(counted.change),))


# ---- all together


def _meant(texts: tuple[str, ...], side: int | None) -> tuple[str, ...]:
    """What to show of a row: the side that is meant, or all of it where that one is empty."""
    return texts if side is None or not texts[side] else texts[side : side + 1]


def _illustrated(findings: list[Finding], splits: Mapping[str, Split]) -> Iterator[Finding]:
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
            texts = [_meant(row.texts, finding.side) for row in rows if any(row.texts)] or finding.examples
            yield replace(finding, where=where, examples=tuple(tuple(map(elided, row)) for row in texts))


def _sizes(survey: Survey, sides: Sequence[Counted], told: Checked) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": len(survey.lengths)}
    for number, name in enumerate(told.sides):
        found[name] = {"characters": int(survey.lengths[:, number].sum())}
    for name, counted in zip(told.sides, sides, strict=False):
        tokens, unknown = int(counted.tokens.sum()), int(counted.unknown.sum())
        found[name] |= {"tokens": tokens, "longest": int(counted.tokens.max()), "unknown": unknown}
    return found


def _nobody(step: str, share: float) -> None:
    pass


def _surveyed(splits: Mapping[str, Split], told: Checked, watch: Watch) -> tuple[dict[str, Survey], list[Finding]]:
    """The splits that can be read, and what is to be said about their text."""
    surveys: dict[str, Survey] = {}
    findings: list[Finding] = []
    for number, (name, split) in enumerate(splits.items()):
        watch(f"reading {name}", number / len(splits))
        try:
            surveys[name] = take_survey(split)
        except WeftError as error:
            findings.append(Finding("error", "unreadable", name, str(error), _FIRST, 1))
            continue
        for look in (odd_texts, misfits, repeats):
            findings += look(name, surveys[name], told)
    return surveys, [*findings, *overlaps(surveys, told)]


def check_data(
    splits: Mapping[str, Split], tokenizers: Callable[[], Sequence[Tokenizer]], told: Checked, watch: Watch = _nobody
) -> Report:
    """Everything that is to be said about train, valid and test; what can't be read is an error among the findings."""
    surveys, findings = _surveyed(splits, told, watch)
    watch("making the tokenizer", 0.0)
    made: Sequence[Tokenizer] = []
    try:
        made = tokenizers()
    except WeftError as error:
        if "train" in surveys:  # else it has been said
            findings.append(Finding("error", "tokenizer", "train", str(error), _FIRST, 1))
    sizes = {}
    for number, (name, survey) in enumerate(surveys.items()):
        watch(f"tokenising {name}", number / len(surveys))
        sides = count_tokens(splits[name], made) if made else []
        sizes[name] = _sizes(survey, sides, told)
        findings += token_findings(name, sides, told)
    # by weight; then what is alike together, in the order in which it was found, split after split
    kinds = [(finding.name, finding.side) for finding in findings]

    def order(finding: Finding) -> tuple[int, int]:
        return SEVERITIES.index(finding.severity), kinds.index((finding.name, finding.side))

    return Report(sizes, sorted(_illustrated(findings, splits), key=order))
