"""Reads suites of minimal pairs: a grammatical sentence and an ungrammatical one that differs as little as possible.

The format is recognized by the contents of the file:

    BLiMP (Warstadt et al. 2020)       JSONL with sentence_good, sentence_bad, UID, linguistics_term, one_prefix_...
    TSV                                a header with good and bad, optionally phenomenon and attractors; no quotes
    agreement (Linzen et al. 2016)     x.gold: index of the verb, verb, wrong form, attractors; sentences in x.text next to it
    agreement (Gulordava et al. 2018)  a table with one line per form: prefix, form, class (correct or wrong), n_attr, ...

Sentences of the last two are tokens separated by spaces, and end in <eos>, which is removed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.json_objects import JSON_TYPES, get_string
from weft.data.table_rows import file_location, preview_cells, wrong_column_count
from weft.errors import DataError, unknown_name
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import check_text, preview, quote, read_lines

AGREEMENT = "subject_verb_agreement"
EOS = "<eos>"
# number of attractors by paradigm; unknown for the other paradigms
BLIMP_ATTRACTORS = {
    "distractor_agreement_relational_noun": 1,
    "distractor_agreement_relative_clause": 1,
    "irregular_plural_subject_verb_agreement_1": 0,
    "irregular_plural_subject_verb_agreement_2": 0,
    "regular_plural_subject_verb_agreement_1": 0,
    "regular_plural_subject_verb_agreement_2": 0,
}
COLUMNS = ("good", "bad", "phenomenon", "attractors")
GENERATED_COLUMNS = ("pattern", "constr_id", "sent_id", "form", "class", "prefix", "n_attr", "len_prefix", "sent")
FORMATS = (
    "BLiMP JSONL (sentence_good, sentence_bad), TSV with a header (good, bad), Linzen et al. (.gold) or "
    "Gulordava et al. (form, class, prefix, n_attr)"
)


class MinimalPair(NamedTuple):
    """A grammatical and an ungrammatical sentence. A good model assigns the first a higher probability."""

    good: str
    bad: str
    phenomenon: str = ""
    paradigm: str = ""  # a subset of a phenomenon
    attractors: int | None = None  # nouns between subject and verb that differ in number from the subject; None if unknown
    choice: tuple[str, str] | None = None  # both sentences up to and including the critical word; None without one
    forced: bool = False  # whether the authors of the suite compare `choice` instead of whole sentences


class Suite(NamedTuple):
    pairs: list[MinimalPair]
    paths: list[Path]  # files that were read
    skipped: list[Path]  # files in directories that are not suites
    identical: int  # number of skipped pairs with two identical verb forms


class _NotASuite(Exception):
    """Unknown file format; the argument is the first line of the file."""


# ---- BLiMP


def _blimp_choice(row: dict[str, Any], where: str) -> tuple[str, str] | None:
    """Both sentences up to and including the critical word; None if they differ before it."""
    if row.get("one_prefix_method") is not True:
        return None
    prefix, good, bad = (get_string(row, f"one_prefix_{name}", where) for name in ("prefix", "word_good", "word_bad"))
    return f"{prefix} {good}".strip(), f"{prefix} {bad}".strip()


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(where, f"invalid JSON: {error}", ".jsonl files need one object per line") from None
    if not isinstance(row, dict):
        actual = JSON_TYPES.get(type(row), "null")
        raise DataError(where, f"expected an object with 'sentence_good' and 'sentence_bad', got {actual}")
    return row


def _read_blimp(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    for number, line in enumerate(read_lines(path), 1):
        where = file_location(path, number)
        row = _parse_object(line, where)
        good, bad = get_string(row, "sentence_good", where), get_string(row, "sentence_bad", where)
        term, paradigm = (get_string(row, name, where) if name in row else "" for name in ("linguistics_term", "UID"))
        attractors = BLIMP_ATTRACTORS.get(paradigm)
        yield number, MinimalPair(good, bad, term or paradigm, paradigm, attractors, _blimp_choice(row, where))


# ---- tables


def _parse_attractors(text: str, where: str, name: str) -> int:
    """Parse a number of attractors."""
    if not (text.isascii() and text.isdecimal() and len(text) < 4):
        raise DataError(where, f"{name} must be an integer from 0 to 999, got {quote(text)}")
    return int(text)


def first_difference(good: str, bad: str) -> tuple[str, str] | None:
    """Two texts up to and including the first word that differs; None if one is a prefix of the other."""
    good_words, bad_words = good.split(), bad.split()
    for index, (good_word, bad_word) in enumerate(zip(good_words, bad_words, strict=False)):
        if good_word != bad_word:
            return " ".join(good_words[: index + 1]), " ".join(bad_words[: index + 1])
    return None


def _read_tsv(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    lines = read_lines(path)
    names = next(lines).split("\t")
    for name in names:
        if name not in COLUMNS:
            raise DataError(file_location(path, 1), *unknown_name("column", preview(name, 40), COLUMNS))
        if (count := names.count(name)) > 1:
            raise DataError(file_location(path, 1), f"{count} columns are named {name!r}", "rename all but one")
    for number, line in enumerate(lines, 2):
        where, cells = file_location(path, number), line.split("\t")
        if len(cells) != len(names):
            raise DataError(where, wrong_column_count(cells, str(len(names)), "\t"))
        row = dict(zip(names, cells, strict=True))
        count_text = row.get("attractors", "")
        attractors = _parse_attractors(count_text, where, "attractors") if count_text else None
        choice = first_difference(row["good"], row["bad"])
        yield number, MinimalPair(row["good"], row["bad"], row.get("phenomenon", ""), "", attractors, choice)


# ---- agreement: the choice of a verb form


def _tokens(text: str) -> list[str]:
    words = text.split()
    return words[:-1] if words[-1:] == [EOS] else words


def _verb_pair(words: Sequence[str], index: int, forms: tuple[str, str], paradigm: str, attractors: int) -> MinimalPair:
    """The pair of a sentence with both forms of the verb at `index`."""
    good, bad = ([*words[:index], form, *words[index + 1 :]] for form in forms)
    choice = " ".join(good[: index + 1]), " ".join(bad[: index + 1])
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
            raise DataError(file_location(path, start), f"invalid table row: {error}", "close or double the quote") from None
        if len(cells) != len(names):
            raise DataError(file_location(path, start), wrong_column_count(cells, str(len(names)), "\t"))
        yield start, dict(zip(names, cells, strict=True))


def _read_generated(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    """Pairs from two rows each: the same sentence with the correct and the wrong form."""
    unpaired: dict[tuple[str, ...], tuple[int, dict[str, str]]] = {}
    for number, row in _generated_rows(path):
        where = file_location(path, number)
        if row["class"] not in ("correct", "wrong"):
            raise DataError(where, f"class must be 'correct' or 'wrong', got {quote(row['class'])}")
        sentence = tuple(row[name] for name in ("pattern", "constr_id", "sent_id"))
        earlier = unpaired.pop(sentence, None)
        if earlier is None:
            unpaired[sentence] = number, row
            continue
        rows = {form["class"]: form for form in (earlier[1], row)}
        if len(rows) < 2:
            problem = f"form is {row['class']}, as on line {earlier[0]}"
            raise DataError(where, problem, "write one correct and one wrong form per sentence")
        words, prefix = _tokens(row["sent"]), row["prefix"].split()
        # <unk> is a word outside the vocabulary of the authors
        if len(words) <= len(prefix) or any(a not in (b, "<unk>") for a, b in zip(prefix, words, strict=False)):
            raise DataError(where, f"the sentence does not continue its prefix {quote(row['prefix'])}")
        forms = rows["correct"]["form"], rows["wrong"]["form"]
        attractors = _parse_attractors(row["n_attr"], where, "n_attr")
        yield number, _verb_pair(words, len(prefix), forms, row.get("type", ""), attractors)
    if unpaired:
        number, row = next(iter(unpaired.values()))
        other = "wrong" if row["class"] == "correct" else "correct"
        raise DataError(file_location(path, number), f"the {other} form of this sentence is missing")


def _sentences_of(gold: Path) -> Path:
    """The file x.text for x.gold, compressed or not."""
    plain = gold.with_suffix("") if gold.suffix in COMPRESSED_SUFFIXES else gold
    text = plain.with_suffix(".text")
    for path in (text, *(text.with_name(text.name + suffix) for suffix in COMPRESSED_SUFFIXES)):
        if path.exists():
            return path
    raise DataError(gold, f"{text.name}, which has its sentences, not found", "put it into the same directory")


def _read_gold(path: Path) -> Iterator[tuple[int, MinimalPair]]:
    text = _sentences_of(path)
    plain = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    verbs, sentences = list(read_lines(path)), list(read_lines(text))
    if len(verbs) != len(sentences):
        raise DataError(path, f"{len(verbs):,} lines, but {text} has {len(sentences):,}", "use files of the same data set")
    for number, (line, sentence) in enumerate(zip(verbs, sentences, strict=True), 1):
        where, cells = file_location(path, number), line.split("\t")
        if not _is_gold(cells):
            problem = f"expected verb index, verb, wrong form and attractors, got {', '.join(preview_cells(cells))}"
            raise DataError(where, problem)
        index, words, forms = int(cells[0]), _tokens(sentence), (cells[1], cells[2])
        verb = words[index] if index < len(words) else "nothing"
        if verb.islower():  # sentences are lowercase, a few of the forms are not
            forms = forms[0].lower(), forms[1].lower()
        if verb != forms[0]:
            problem = f"the verb is {quote(forms[0], 40)}, but {file_location(text, number)} has {quote(verb, 40)} at {index}"
            raise DataError(where, problem, "use files of the same data set")
        yield number, _verb_pair(words, index, forms, plain.stem, int(cells[3]))


# ---- any format


def _is_gold(cells: Sequence[str]) -> bool:
    return len(cells) == 4 and all(cell.isascii() and cell.isdecimal() and len(cell) < 6 for cell in (cells[0], cells[3]))


def _choose_reader(path: Path) -> Callable[[Path], Iterator[tuple[int, MinimalPair]]]:
    """The reader for a file, chosen by its first line."""
    first = next(iter(read_lines(path)))
    cells = first.split("\t")
    if {"good", "bad"} <= set(cells):
        return _read_tsv
    if set(GENERATED_COLUMNS) <= set(cells):
        return _read_generated
    if _is_gold(cells):
        return _read_gold
    if first.startswith("{") and {"sentence_good", "sentence_bad"} & _parse_object(first, file_location(path, 1)).keys():
        return _read_blimp
    raise _NotASuite(first)


def _is_usable(pair: MinimalPair, where: str) -> bool:
    """Whether the sentences of a pair differ. Empty sentences, and equal ones that were not extracted automatically, are
    errors."""
    for name, text in (("good", pair.good), ("bad", pair.bad)):
        if not check_text(text, where).strip():
            raise DataError(where, f"{name} sentence is empty")
    if pair.good != pair.bad:
        return True
    if not pair.forced:  # some automatically extracted verbs have two identical forms
        raise DataError(where, f"good and bad sentence are identical: {quote(pair.good)}")
    return False


def _read_pairs(path: Path) -> tuple[list[MinimalPair], int]:
    """The pairs of a file, and the number of skipped pairs."""
    try:
        read = _choose_reader(path)
    except _NotASuite as error:
        problem = f"not a suite of minimal pairs, first line is {quote(str(error), 60)}"
        raise DataError(path, problem, f"use {FORMATS}") from None
    pairs, count = list[MinimalPair](), 0
    for number, pair in read(path):
        count += 1
        if _is_usable(pair, file_location(path, number)):
            pairs.append(pair)
    if not pairs:
        raise DataError(path, "no pairs below the header")
    return pairs, count - len(pairs)


def _suites_in(directory: Path) -> tuple[list[Path], list[Path]]:
    """Suites in a directory, sorted by name, and the other files."""
    suites, skipped = list[Path](), list[Path]()
    for path in sorted(file for file in directory.iterdir() if file.is_file() and file.name[0] != "."):
        try:
            _choose_reader(path)
        except (_NotASuite, DataError):
            skipped.append(path)
        else:
            suites.append(path)
    if not suites:
        raise DataError(directory, "contains no suite of minimal pairs", f"use {FORMATS}")
    return suites, skipped


def read_suite(paths: Sequence[Path]) -> Suite:
    """Read the pairs of files, and of all suites in directories."""
    pairs, read_paths, skipped, identical = list[MinimalPair](), list[Path](), list[Path](), 0
    for path in paths:
        suites, other_files = _suites_in(path) if path.is_dir() else ([path], [])
        read_paths, skipped = [*read_paths, *suites], [*skipped, *other_files]
        for suite in suites:
            suite_pairs, num_identical = _read_pairs(suite)
            pairs, identical = pairs + suite_pairs, identical + num_identical
    return Suite(pairs, read_paths, skipped, identical)
