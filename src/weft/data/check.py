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

from weft.data.alignment import find_slip
from weft.data.check_labels import label_findings
from weft.data.findings import SEVERITIES, SHOWN, Checked, Finding, Severity, by_share, first_rows, of, percent
from weft.data.survey import BREAK, DECOMPOSED, PADDED, RETURN, Counted, Split, Survey, count_tokens, count_words, take_survey
from weft.errors import WeftError
from weft.text.gate import quoted, subject
from weft.text.tokenizers import Tokenizer

LONGEST = 200  # characters of a row that is shown
# a ratio of lengths is an outlier so many deviations from the usual; where ratios hardly differ, one is taken to be FLOOR
FAR, FLOOR = 5.0, 0.1
Watch = Callable[[str, float], None]  # what is done, and which share of it
_FIRST = "put that right first"


@dataclass(frozen=True)
class Report:
    sizes: dict[str, dict[str, Any]]  # by split: rows, and for each side characters, tokens, longest, unknown
    findings: list[Finding]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def elided(text: str, most: int = LONGEST) -> str:
    """Both ends of a text that is too long: what is odd about it is often there."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]} ... {text[len(text) - (most - most // 2 - 2) :]}"


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
            what, cure = f"{of(count, rows, f'{name}s')} are empty", f"drop these {told.rows}, unless they are meant"
            yield Finding(severity, "empty", split, what, cure, count, first_rows(empty), side)
        for key, (bit, is_so, cure) in _ODD.items():
            odd = survey.odd[:, side] & bit != 0
            if count := int(odd.sum()):
                what = f"{of(count, rows, f'{name}s')} {is_so}"
                yield Finding(by_share(count, rows), key, split, what, cure, count, first_rows(odd), side)


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
        what = f"{of(count, rows, told.rows)} stand there more than once"
        yield Finding(
            by_share(count, rows), "duplicate", split, what, "drop the copies, unless they are meant", count, first_rows(again)
        )
    if not told.aligned:
        return
    distinct = ~repeated(keys)
    sources = survey.hashes[:, 0]
    other = np.zeros(rows, dtype=bool)
    other[distinct] = repeated(sources[distinct])
    if count := len(np.unique(sources[other])):
        what = f"{subject(count, 'source', 'has', 'have')} several targets"
        cure = "keep one, if one is right: the others teach that it is not, and count as wrong"
        one = sources == sources[np.argmax(other)]
        yield Finding("note", "several_targets", split, what, cure, count, first_rows(one & distinct))


def overlaps(surveys: Mapping[str, Survey], told: Checked) -> Iterator[Finding]:
    """What of valid and test is in the splits before them."""
    for first, second in combinations(surveys, 2):
        before, after = surveys[first], surveys[second]
        rows = len(after.lengths)
        large = after.lengths.max(axis=1) > told.least
        known = np.isin(after.keys(), before.keys()) & large
        cure = f"take them out of {first}, or the scores on {second} are too good"
        if count := int(known.sum()):
            what = f"{of(count, rows, told.rows)} are in {first} too"
            yield Finding(by_share(count, rows), "overlap", second, what, cure, count, first_rows(known))
        if not told.aligned:
            continue
        same = np.isin(after.hashes[:, 0], before.hashes[:, 0]) & (after.lengths[:, 0] > 0) & ~known
        if count := int(same.sum()):
            what = f"{of(count, rows, 'sources')} are in {first} with another target"
            yield Finding(by_share(count, rows), "overlap_source", second, what, cure, count, first_rows(same))


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
        what = f"{of(count, len(ratios), 'pairs')} are far from the usual length of a target, {usual:.2g} times its source"
        worst = np.argsort(-off, kind="stable")[: min(SHOWN, count)]
        cure = "look at the worst, shown here: is one side cut, or another's?"
        yield Finding(by_share(count, len(ratios)), "length_ratio", split, what, cure, count, tuple(worst.tolist()))


# ---- as tokens


def _unknown(split: str, name: str, counted: Counted, side: int, told: Checked) -> Iterator[Finding]:
    lines, unknown, tokens = counted.unknown > 0, int(counted.unknown.sum()), int(counted.tokens.sum())
    if not unknown:
        return
    often = ", ".join(f"{quoted(piece, 20)} {count:,}" for piece, count in counted.pieces.most_common(8))
    what = f"{of(unknown, tokens, f'tokens of its {name}s')} are unknown: {often}"
    if name == "target" and split != "train":
        what += f"; {percent(int(lines.sum()), len(lines))} of the targets have one, and can't be hit exactly"
    cure = 'raise tokenizer.size, have more of it in train, or take kind = "bpe" or "byte", which spell everything'
    severity = by_share(unknown, tokens)
    if told.spelled:
        severity, cure = "note", "nothing: their letters are read ([model.spelling])"
    yield Finding(severity, "unknown", split, what, cure, unknown, first_rows(lines), side)


def _long(split: str, name: str, tokens: np.ndarray, side: int | None, told: Checked) -> Iterator[Finding]:
    if told.longest is None or not (count := int((tokens > told.longest).sum())):
        return
    what = (
        f"{of(count, len(tokens), name)} have more than data.longest = {told.longest} tokens, up to {tokens.max():,}, and are"
        f" {'cut there' if told.truncate else 'refused'}"
    )
    cure = "raise data.longest"
    if not told.truncate:
        cure += ", or split them with blank lines" if told.words else ", set data.truncate = true, or remove them"
    severity: Severity = "note" if told.truncate else "error"
    yield Finding(severity, "long", split, what, cure, count, first_rows(tokens > told.longest), side)


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
        yield from _unknown(split, name, counted, side, told)
        if told.labels is None:
            yield from _long(split, f"{name}s", counted.tokens, side, told)
        if name == "target" and counted.change is not None:
            what = f"{of(counted.changed, counted.decoded, 'targets')} come back from the tokenizer as another text"
            cure = 'take a kind that loses nothing (bpe, unigram, byte, char), or tokenise the text yourself for kind = "space"'
            draft = Finding(by_share(counted.changed, counted.decoded), "lossy", split, what, cure, counted.changed)
            yield replace(draft, examples=(_apart(counted.change),))
    if told.labels is not None and sides:  # all texts of an example are read as one, behind one <s>
        yield from _long(split, told.rows, 1 + np.stack([counted.tokens for counted in sides]).sum(0), None, told)


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
            if all(str(error) != finding.what for finding in findings):  # of shares of one file it is said once
                findings.append(Finding("error", "unreadable", name, str(error), _FIRST, 1))
            continue
        for look in (odd_texts, misfits, repeats):
            findings += look(name, surveys[name], told)
    findings += overlaps(surveys, told)
    findings += label_findings({name: splits[name] for name in surveys}, surveys, told)
    return surveys, findings


def _counted(split: Any, made: Sequence[Tokenizer], told: Checked) -> list[Counted]:
    """Every side as tokens; none where there are no tokenizers."""
    if not made:
        return []
    return count_tokens(split, made) if told.words is None else [count_words(split, made[0], told.words)]


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
        sides = _counted(splits[name], made, told)
        sizes[name] = _sizes(survey, sides, told)
        findings += token_findings(name, sides, told)
    # by weight; then what is alike together, in the order in which it was found, split after split
    kinds = [(finding.name, finding.side) for finding in findings]

    def order(finding: Finding) -> tuple[int, int]:
        return SEVERITIES.index(finding.severity), kinds.index((finding.name, finding.side))

    return Report(sizes, sorted(_illustrated(findings, splits), key=order))
