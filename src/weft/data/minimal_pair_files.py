"""Suites of minimal pairs: a sentence that is right, and one that is wrong by as little as can be; through the gate all.

A file is known by what is in it:

    BLiMP (Warstadt et al. 2020)       JSONL with sentence_good, sentence_bad, UID, linguistics_term, one_prefix_...
    TSV                                a header with good and bad, and if wanted phenomenon and attractors; no quotes
    agreement (Linzen et al. 2016)     x.gold: place of the verb, verb, wrong form, attractors; sentences in x.text beside it
    agreement (Gulordava et al. 2018)  a table with a line for each form: prefix, form, class (correct or wrong), n_attr, ...

Sentences of the last two are made of tokens with blanks between them, and end in <eos>, which is dropped.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.json_objects import JSON_KINDS, field_of
from weft.data.table_rows import preview_cells
from weft.errors import DataError, unknown_name
from weft.text.compression import PACKED
from weft.text.reading import check_text, preview, quote, read_lines

AGREEMENT = "subject_verb_agreement"
EOS = "<eos>"
# nouns of the other number between subject and verb; of BLiMP's other paradigms nobody says
BLIMP_ATTRACTORS = {
    "distractor_agreement_relational_noun": 1,
    "distractor_agreement_relative_clause": 1,
    "irregular_plural_subject_verb_agreement_1": 0,
    "irregular_plural_subject_verb_agreement_2": 0,
    "regular_plural_subject_verb_agreement_1": 0,
    "regular_plural_subject_verb_agreement_2": 0,
}
COLUMNS = ("good", "bad", "phenomenon", "attractors")
GENERATED = ("pattern", "constr_id", "sent_id", "form", "class", "prefix", "n_attr", "len_prefix", "sent")
KNOWN = (
    "BLiMP's JSONL (sentence_good, sentence_bad), TSV with a header (good, bad), agreement of Linzen et al. (.gold), "
    "agreement of Gulordava et al. (form, class, prefix, n_attr)"
)


class MinimalPair(NamedTuple):
    """Two sentences, of which a model that knows the language prefers the first."""

    good: str
    bad: str
    phenomenon: str = ""
    paradigm: str = ""  # one of the kinds of pair that a phenomenon has
    attractors: int | None = None  # nouns of the other number between subject and verb; None where nobody says
    choice: tuple[str, str] | None = None  # both up to the word that decides, it included; None where no one word does
    forced: bool = False  # whether the authors of the suite compare that choice; whole sentences else


class Suite(NamedTuple):
    pairs: list[MinimalPair]
    paths: list[Path]  # that were read
    skipped: list[Path]  # of a folder: what is no suite
    identical: int  # verbs whose two forms are one, left out


class _NotASuite(Exception):
    """A file that is nothing of what is known; the text is its first line."""


# ---- BLiMP


def _blimp_choice(row: dict[str, Any], where: str) -> tuple[str, str] | None:
    """Up to the word that decides, where all before it is the same."""
    if row.get("one_prefix_method") is not True:
        return None
    prefix, good, bad = (field_of(row, f"one_prefix_{name}", where) for name in ("prefix", "word_good", "word_bad"))
    return f"{prefix} {good}".strip(), f"{prefix} {bad}".strip()


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON", f"{error}", "JSONL has one object a line") from None
    if not isinstance(row, dict):
        kind = JSON_KINDS.get(type(row), "null")
        raise DataError("", f"{where} is {kind}, not an object with 'sentence_good' and 'sentence_bad'")
    return row


def _blimp(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}: line {number}"
        row = _object(line, where)
        good, bad = field_of(row, "sentence_good", where), field_of(row, "sentence_bad", where)
        term, paradigm = (field_of(row, name, where) if name in row else "" for name in ("linguistics_term", "UID"))
        attractors = BLIMP_ATTRACTORS.get(paradigm)
        yield number, MinimalPair(good, bad, term or paradigm, paradigm, attractors, _blimp_choice(row, where))


# ---- tables


def _count(text: str, where: str, name: str) -> int:
    """A number of attractors."""
    if not (text.isascii() and text.isdecimal() and len(text) < 4):
        raise DataError("", f"{where} has {quote(text)} as {name}", "it must be a number from 0 to 999")
    return int(text)


def first_difference(good: str, bad: str) -> tuple[str, str] | None:
    """Two texts up to the first word in which they differ, it included; None where one is the beginning of the other."""
    left, right = good.split(), bad.split()
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return " ".join(left[: at + 1]), " ".join(right[: at + 1])
    return None


def _tsv(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    lines = read_lines(path)
    names = next(lines).split("\t")
    for name in names:
        if name not in COLUMNS:
            raise DataError(f"{path}:1", *unknown_name("column", preview(name, 40), COLUMNS))
        if names.count(name) > 1:
            raise DataError(path, f"line 1, its header, has {names.count(name)} columns {name!r}", "rename all but one")
    for number, line in enumerate(lines, 2):
        where, cells = f"{path}: line {number}", line.split("\t")
        if len(cells) != len(names):
            raise DataError(
                f"{where} has {len(cells)} columns, not {len(names)} as line 1 has", f"{', '.join(preview_cells(cells))}"
            )
        row = dict(zip(names, cells, strict=True))
        given = row.get("attractors", "")
        attractors = _count(given, where, "attractors") if given else None
        choice = first_difference(row["good"], row["bad"])
        yield number, MinimalPair(row["good"], row["bad"], row.get("phenomenon", ""), "", attractors, choice)


# ---- agreement: a verb that is to be chosen


def _tokens(text: str) -> list[str]:
    words = text.split()
    return words[:-1] if words[-1:] == [EOS] else words


def _verb_pair(words: Sequence[str], at: int, forms: tuple[str, str], paradigm: str, attractors: int) -> MinimalPair:
    """A sentence with either form of the verb at the place of the verb."""
    good, bad = ([*words[:at], form, *words[at + 1 :]] for form in forms)
    choice = " ".join(good[: at + 1]), " ".join(bad[: at + 1])
    return MinimalPair(" ".join(good), " ".join(bad), AGREEMENT, paradigm, attractors, choice, forced=True)


def _generated_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader((line + "\n" for line in read_lines(path)), delimiter="\t", strict=True)
    names = next(reader)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                path, f"line {start} is no row of a table: {error}", "is a quote not closed, or not doubled?"
            ) from None
        if len(cells) != len(names):
            raise DataError(path, f"line {start} has {len(cells)} columns, not {len(names)} as line 1 has")
        yield start, dict(zip(names, cells, strict=True))


def _generated(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    """Two lines are a pair: the same sentence with the right and the wrong form."""
    waiting: dict[tuple[str, ...], tuple[int, dict[str, str]]] = {}
    for number, row in _generated_rows(path):
        where = f"{path}: line {number}"
        if row["class"] not in ("correct", "wrong"):
            raise DataError("", f"{where} has {quote(row['class'])} as class", "it must be correct or wrong")
        sentence = tuple(row[name] for name in ("pattern", "constr_id", "sent_id"))
        before = waiting.pop(sentence, None)
        if before is None:
            waiting[sentence] = number, row
            continue
        rows = {one["class"]: one for one in (before[1], row)}
        if len(rows) < 2:
            raise DataError(
                "", f"{where} and line {before[0]} are both {row['class']}", "a pair has one correct and one wrong form"
            )
        words, prefix = _tokens(row["sent"]), row["prefix"].split()
        # <unk>: what the authors' own vocabulary had no word for
        if len(words) <= len(prefix) or any(a not in (b, "<unk>") for a, b in zip(prefix, words, strict=False)):
            raise DataError(where, f"its sentence does not begin with its prefix and go on: {quote(row['prefix'])}")
        forms = rows["correct"]["form"], rows["wrong"]["form"]
        attractors = _count(row["n_attr"], where, "n_attr")
        yield number, _verb_pair(words, len(prefix), forms, row.get("type", ""), attractors)
    if waiting:
        number, row = next(iter(waiting.values()))
        raise DataError(path, f"line {number} has a {row['class']} form and there is no other of its sentence")


def _sentences_of(gold: Path) -> Path:
    """x.text of x.gold, packed or not."""
    plain = gold.with_suffix("") if gold.suffix in PACKED else gold
    text = plain.with_suffix(".text")
    for path in (text, *(text.with_name(text.name + suffix) for suffix in PACKED)):
        if path.exists():
            return path
    raise DataError(gold, f"says where verbs stand in the sentences of {text.name}, which is not beside it", "put it there")


def _gold(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    text = _sentences_of(path)
    plain = path.with_suffix("") if path.suffix in PACKED else path
    places, sentences = list(read_lines(path)), list(read_lines(text))
    if len(places) != len(sentences):
        raise DataError(f"{path} has {len(places):,} lines, {text} {len(sentences):,}", "they must have equally many")
    for number, (line, sentence) in enumerate(zip(places, sentences, strict=True), 1):
        where, cells = f"{path}: line {number}", line.split("\t")
        if not _is_gold(cells):
            raise DataError(f"{where} is not place, verb, wrong form and attractors", f"{', '.join(preview_cells(cells))}")
        at, words, forms = int(cells[0]), _tokens(sentence), (cells[1], cells[2])
        verb = words[at] if at < len(words) else "nothing"
        if verb.islower():  # the sentences have no capitals, a few of the forms do
            forms = forms[0].lower(), forms[1].lower()
        if verb != forms[0]:
            summary = f"there is {quote(verb, 40)} in {text}, line {number}"
            raise DataError("", f"{where} has the verb {quote(forms[0], 40)} at {at}, but {summary}", "are they of one set?")
        yield number, _verb_pair(words, at, forms, plain.stem, int(cells[3]))


# ---- all of them


def _is_gold(cells: Sequence[str]) -> bool:
    return len(cells) == 4 and all(cell.isascii() and cell.isdecimal() and len(cell) < 6 for cell in (cells[0], cells[3]))


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, MinimalPair]]]:
    """What can read a file, by its first line."""
    first = next(iter(read_lines(path)))
    cells = first.split("\t")
    if {"good", "bad"} <= set(cells):
        return _tsv
    if set(GENERATED) <= set(cells):
        return _generated
    if _is_gold(cells):
        return _gold
    if first.startswith("{") and {"sentence_good", "sentence_bad"} & _object(first, f"{path}: line 1").keys():
        return _blimp
    raise _NotASuite(first)


def _checked(pair: MinimalPair, where: str) -> bool:
    """Whether a pair can be scored; one that can't be meant is refused."""
    for name, text in (("good", pair.good), ("bad", pair.bad)):
        if not check_text(text, where).strip():
            raise DataError("", f"{where} has no {name} sentence", "a pair has two")
    if pair.good != pair.bad:
        return True
    if not pair.forced:  # of verbs that were found by a program, a few have one form
        raise DataError(f"{where} has the same sentence twice", f"{quote(pair.good)}", "one must be wrong")
    return False


def _read(path: Path) -> tuple[list[MinimalPair], int]:
    """The pairs of a file, in their order, and how many were left out."""
    try:
        read = _reader(path)
    except _NotASuite as error:
        raise DataError(path, f"is no suite of minimal pairs: line 1 is {quote(str(error), 60)}", f"known: {KNOWN}") from None
    found, count = list[MinimalPair](), 0
    for number, pair in read(path):
        count += 1
        if _checked(pair, f"{path}: line {number}"):
            found.append(pair)
    if not found:
        raise DataError(path, "has a header and nothing below it", "give a file with pairs in it")
    return found, count - len(found)


def _suites_in(directory: Path) -> tuple[list[Path], list[Path]]:
    """The files of a folder that hold pairs, by name, and those that do not."""
    found, skipped = list[Path](), list[Path]()
    for path in sorted(one for one in directory.iterdir() if one.is_file() and one.name[0] != "."):
        try:
            _reader(path)
        except (_NotASuite, DataError):
            skipped.append(path)
        else:
            found.append(path)
    if not found:
        raise DataError(directory, "no file in it is a suite of minimal pairs", f"known: {KNOWN}")
    return found, skipped


def read_suite(paths: Sequence[Path]) -> Suite:
    """The pairs of files, and of all files of folders that hold some."""
    pairs, read, skipped, same = list[MinimalPair](), list[Path](), list[Path](), 0
    for path in paths:
        inner, others = _suites_in(path) if path.is_dir() else ([path], [])
        read, skipped = [*read, *inner], [*skipped, *others]
        for one in inner:
            found, left_out = _read(one)
            pairs, same = pairs + found, same + left_out
    return Suite(pairs, read, skipped, same)
