"""Readers of files of questions about passages.

    .tsv .csv .xlsx  columns by name: question, passage, answer and, optionally, answer_start; an empty answer means no answer
    .jsonl .parquet  keys by name; an answer is a text, a list of alternative texts, or null
    .json            SQuAD 1.1 or 2.0 (data, paragraphs, qas), or a list of objects like those of .jsonl

An answer is a span of its passage. Its start is a character offset from 0; without one, the first match in the passage is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.columns import missing_column
from weft.data.json_objects import JSON_TYPES, get_string, get_value, has_key, read_objects
from weft.data.table_rows import (
    NOT_A_TABLE,
    OBJECT_FORMATS,
    OpenTable,
    TableOptions,
    file_format,
    file_location,
    is_table,
    open_table,
)
from weft.errors import DataError
from weft.text.reading import FileSummary, check_text, quote, read_lines, read_text

MAX_DIGITS = 18  # of a start; Python does not parse thousands of digits


@dataclass(frozen=True)
class QAFileOptions:
    """Options of [data] that determine how files of questions are read: encoding, names of columns, format of tables."""

    encoding: str = "utf-8"
    question: str = "question"
    passage: str = "passage"
    answer: str = "answer"
    start: str = "answer_start"
    delimiter: str | None = None
    sheet: str | int | None = None

    def table_options(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def provenance(self) -> dict[str, Any]:
        """The options as JSON values, for checks whether tokenized data is up to date."""
        columns = {name: value for name, value in asdict(self).items() if name not in ("delimiter", "sheet")}
        return columns | self.table_options().provenance()


class Reference(NamedTuple):
    """A reference answer."""

    text: str
    start: int  # character offset in the passage


class Record(NamedTuple):
    question: str
    passage: str
    answers: tuple[Reference, ...]  # alternatives; () if the passage does not contain an answer
    path: Path
    line: int  # line number from 1; in SQuAD's JSON, the number of the question
    is_ambiguous: bool  # the first answer has no start and occurs in the passage more than once


def is_squad(path: Path, encoding: str) -> bool:
    """Whether a file is in SQuAD's format: a .json file that is not a list."""
    if file_format(path) != "json":
        return False
    first = next((line for line in read_lines(path, encoding) if line.strip()), "")
    return not first.lstrip().startswith("[")


# ---- answers


def _reference(text: str, start: int | None, passage: str, location: str) -> tuple[Reference, bool]:
    """An answer without surrounding whitespace, and whether its start is ambiguous."""
    stripped = text.strip()
    if start is None:
        match = passage.find(stripped)
        if match < 0:
            raise DataError(location, f"answer {quote(stripped, 40)} is not in the passage", "copy it from the passage")
        return Reference(stripped, match), passage.find(stripped, match + 1) >= 0
    if start < 0 or passage[start : start + len(text)] != text:
        actual = quote(passage[max(0, start) : max(0, start) + len(text)], 40)
        raise DataError(location, f"expected answer {quote(text, 40)} at character {start} of the passage, got {actual}")
    return Reference(stripped, start + len(text) - len(text.lstrip())), False


def _record(cells: tuple[str, str], answers: Sequence[tuple[str, int | None]], path: Path, line: int, location: str) -> Record:
    """Check the texts of a question. An empty answer means that there is none."""
    question, passage = cells
    for name, text in (("question", question), ("passage", passage)):
        if not text.strip():
            raise DataError(location, f"empty {name}", "add one or remove the example")
    if any(not text.strip() for text, _ in answers):
        start = next((start for text, start in answers if not text.strip()), None)
        if start is not None:
            raise DataError(location, f"start {start} without an answer", "add the answer or leave the start empty")
        answers = [answer for answer in answers if answer[0].strip()]
    references = [_reference(text, start, passage, location) for text, start in answers]
    is_ambiguous = bool(references) and references[0][1]
    return Record(question, passage, tuple(dict.fromkeys(answer for answer, _ in references)), path, line, is_ambiguous)


# ---- tables


def _parse_start(cell: str, location: str) -> int | None:
    """The start of an answer; None if the cell is empty."""
    text = cell.strip()
    if not text:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > MAX_DIGITS:
        raise DataError(location, f"expected a character offset from 0 as the start of the answer, got {quote(text, 40)}")
    return int(text)


def _column_indices(table: OpenTable, options: QAFileOptions) -> list[int | None]:
    """The columns of question, passage, answer and start, from 0; None if there is no column of starts."""
    indices: list[int | None] = []
    header = table.first
    for option in ("question", "passage", "answer", "start"):
        name = getattr(options, option)
        if header.count(name) > 1:
            location = file_location(table.path, 1)
            raise DataError(location, f"{header.count(name)} columns are named {name!r}", "rename all but one")
        if name not in header and option != "start":
            raise missing_column(table, name, option)
        indices.append(header.index(name) if name in header else None)
    return indices


def _read_table(path: Path, options: QAFileOptions, summary: FileSummary) -> Iterator[Record]:
    table = open_table(path, options.table_options(), summary)
    indices = _column_indices(table, options)
    for line, cells in table.rows():
        location = file_location(path, line)
        question, passage, answer, start = ("" if index is None else cells[index] for index in indices)
        yield _record((question, passage), [(answer, _parse_start(start, location))], path, line, location)


# ---- JSON


def _type_name(value: Any) -> str:
    return JSON_TYPES.get(type(value), "null")


def _as_list(value: Any) -> list[Any]:
    """A value as a list; null is the empty list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _answers(row: dict[str, Any], options: QAFileOptions, location: str, *, parquet: bool) -> list[tuple[str, int | None]]:
    """The answers of a JSON object with their starts; None for a start that is missing."""
    texts = _as_list(get_value(row, options.answer, location))
    starts = _as_list(get_value(row, options.start, location)) if has_key(row, options.start) else []
    for value in texts:
        if not isinstance(value, str):
            raise DataError(location, f"expected strings in {options.answer!r}, got {_type_name(value)}", "put it in quotes")
    if parquet:  # numbers of Parquet files are read as strings, missing ones as ""
        starts = [_parse_start(value, location) if isinstance(value, str) else value for value in starts]
    for value in starts:
        if type(value) is not int and not (parquet and value is None):
            raise DataError(location, f"expected a character offset from 0 as {options.start!r}, got {_type_name(value)}")
    if starts and len(starts) != len(texts):
        raise DataError(location, f"{len(texts)} answers but {len(starts)} starts", "set one start per answer, or none")
    answers = [check_text(text, f"{location}, {options.answer!r}") for text in texts]
    return list(zip(answers, starts or [None] * len(answers), strict=True))


def _read_objects(path: Path, options: QAFileOptions, summary: FileSummary) -> Iterator[Record]:
    names = (options.question, options.passage, options.answer)
    for line, row in read_objects(path, names, options.encoding, summary, optional_keys=(options.start,)):
        location = file_location(path, line)
        cells = get_string(row, options.question, location), get_string(row, options.passage, location)
        yield _record(cells, _answers(row, options, location, parquet=file_format(path) == "parquet"), path, line, location)


def _member(row: Any, name: str, kind: type[Any], location: str) -> Any:
    """The value of a key of SQuAD's format; an error if it is missing or of another type."""
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not kind:
        fix = "use SQuAD's format, or .jsonl for one object per line"
        raise DataError(location, f"no {name!r} that is {JSON_TYPES[kind]}", fix)
    return check_text(value, f"{location}, {name!r}") if isinstance(value, str) else value


class SquadQuestion(NamedTuple):
    question: str
    passage: str
    row: dict[str, Any]  # the JSON object, with `id` and `answers`
    number: int  # in the file, from 1


def _squad_record(question: SquadQuestion, path: Path) -> Record:
    row, location = question.row, f"{path}: question {question.number}"
    is_impossible = bool(row.get("is_impossible"))
    values = [] if is_impossible else _member(row, "answers", list, location)
    if not values and not is_impossible:
        raise DataError(location, "no answer", 'set "is_impossible": true if the passage has none')
    answers = [(_member(answer, "text", str, location), _member(answer, "answer_start", int, location)) for answer in values]
    return _record((question.question, question.passage), answers, path, question.number, location)


def _paragraphs(document: Any, path: Path) -> Iterator[Any]:
    for number, article in enumerate(_member(document, "data", list, str(path)), 1):
        yield from _member(article, "paragraphs", list, f"{path}: article {number}")


def squad_questions(path: Path, text: str) -> Iterator[SquadQuestion]:
    """The questions of a file in SQuAD's format."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"invalid JSON: {error}", "use .jsonl for one object per line") from None
    number = 0
    for paragraph in _paragraphs(document, path):
        location = f"{path}: after question {number}"
        passage, rows = _member(paragraph, "context", str, location), _member(paragraph, "qas", list, location)
        for row in rows:
            number += 1
            yield SquadQuestion(_member(row, "question", str, f"{path}: question {number}"), passage, row, number)


def _read_squad(path: Path, options: QAFileOptions, summary: FileSummary) -> Iterator[Record]:
    for question in squad_questions(path, "".join(read_text(path, options.encoding, summary))):
        yield _squad_record(question, path)


def no_questions(path: Path) -> DataError:
    if not path.exists():  # the name would be corrected in vain
        return DataError(path, "file not found")
    return DataError(path, NOT_A_TABLE, "use a table or SQuAD's JSON for questions")


def read_records(paths: Sequence[Path], options: QAFileOptions, summary: FileSummary) -> Iterator[Record]:
    """The questions of all files, in order."""
    for path in paths:
        if not is_table(path, options.delimiter):
            raise no_questions(path)
        squad = is_squad(path, options.encoding)
        read = _read_squad if squad else _read_objects if file_format(path) in OBJECT_FORMATS else _read_table
        count = 0
        for record in read(path, options, summary):
            count += 1
            yield record
        if not count:
            raise DataError(path, "no questions")
