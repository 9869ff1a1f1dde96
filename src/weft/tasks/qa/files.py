"""Questions about passages from files, one by one. All of it comes through the gate.

    .tsv .csv .xlsx  columns by name: question, passage, answer, and start where there is one; an empty answer is none
    .jsonl .parquet  keys by name; an answer is a text, a list of texts (all of them right), or null
    .json            as SQuAD has it, 1.1 or 2.0: data, paragraphs, qas; or a list of such objects as lines of .jsonl hold

An answer is a part of its passage. `start` is the character where it stands, from 0; without it, it is the first that reads so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.columns import missing_column
from weft.data.json_objects import JSON_TYPES, get_string, get_value, has_key, read_objects
from weft.data.table_rows import NOT_A_TABLE, OBJECT_FORMATS, OpenTable, TableOptions, file_format, file_location, open_table
from weft.errors import DataError
from weft.text.reading import FileSummary, check_text, quote, read_lines, read_text

DIGITS = 18  # of a start: no passage has more characters than these count


@dataclass(frozen=True)
class Reading:
    """How such files are read: the options of their table."""

    encoding: str = "utf-8"
    question: str = "question"
    passage: str = "passage"
    answer: str = "answer"
    start: str = "answer_start"
    delimiter: str | None = None
    sheet: str | int | None = None

    def tables(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def provenance(self) -> dict[str, Any]:
        """What is read depends on: all of it, as far as it is given."""
        usual = {name: value for name, value in asdict(self).items() if name not in ("delimiter", "sheet")}
        return usual | self.tables().provenance()


class Reference(NamedTuple):
    """A right answer, and the character of the passage where it starts."""

    text: str
    start: int


class Record(NamedTuple):
    question: str
    passage: str
    answers: tuple[Reference, ...]  # several may be right; none where the passage does not say
    path: Path
    line: int  # where it starts in that file, from 1; in SQuAD's JSON, the number of the question
    is_guessed: bool  # its answer occurs in the passage more than once, and has no start


def is_squad(path: Path, encoding: str) -> bool:
    """Whether a file is in SQuAD's format: a .json file that is not a list."""
    if file_format(path) != "json":
        return False
    first = next((line for line in read_lines(path, encoding) if line.strip()), "")
    return not first.lstrip().startswith("[")


# ---- answers


def _reference(text: str, start: int | None, passage: str, where: str) -> tuple[Reference, bool]:
    """An answer with its start, and whether that was guessed; surrounding whitespace is not part of it."""
    inner = text.strip()
    if start is None:
        match = passage.find(inner)
        if match < 0:
            raise DataError(where, f"answer {quote(inner, 40)} is not in the passage", "copy it from the passage")
        return Reference(inner, match), passage.find(inner, match + 1) >= 0
    if start < 0 or passage[start : start + len(text)] != text:
        there = quote(passage[max(0, start) : max(0, start) + len(text)], 40)
        raise DataError(where, f"expected answer {quote(text, 40)} at character {start} of the passage, got {there}")
    return Reference(inner, start + len(text) - len(text.lstrip())), False


def _record(cells: tuple[str, str], answers: Sequence[tuple[str, int | None]], path: Path, line: int, where: str) -> Record:
    question, passage = cells
    for name, text in (("question", question), ("passage", passage)):
        if not text.strip():
            raise DataError(where, f"empty {name}", "add one or remove the example")
    if any(not text.strip() for text, _ in answers):
        start = next((start for text, start in answers if not text.strip()), None)
        if start is not None:
            raise DataError(where, f"start {start} without an answer", "add the answer or leave the start empty")
        answers = [answer for answer in answers if answer[0].strip()]
    references = [_reference(text, start, passage, where) for text, start in answers]
    guessed = bool(references) and references[0][1]
    return Record(question, passage, tuple(dict.fromkeys(answer for answer, _ in references)), path, line, guessed)


# ---- tables


def _number(cell: str, where: str) -> int | None:
    """A start; an empty cell has none."""
    text = cell.strip()
    if not text:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > DIGITS:
        raise DataError(where, f"expected a character offset from 0 as the start of the answer, got {quote(text, 40)}")
    return int(text)


def _places(config: OpenTable, reading: Reading) -> list[int | None]:
    """Where question, passage, answer and start stand, from 0; the last may be missing."""
    columns: list[int | None] = []
    first, place = config.first, file_location(config.path, 1)
    for option in ("question", "passage", "answer", "start"):
        name = getattr(reading, option)
        if first.count(name) > 1:
            raise DataError(place, f"{first.count(name)} columns are named {name!r}", "rename all but one")
        if name not in first and option != "start":
            raise missing_column(config, name, option)
        columns.append(first.index(name) if name in first else None)
    return columns


def _read_table(path: Path, reading: Reading, seen: FileSummary) -> Iterator[Record]:
    config = open_table(path, reading.tables(), seen)
    places = _places(config, reading)
    for line, cells in config.rows():
        where = file_location(path, line)
        question, passage, answer, start = ("" if place is None else cells[place] for place in places)
        yield _record((question, passage), [(answer, _number(start, where))], path, line, where)


# ---- JSON


def _kind(value: Any) -> str:
    return JSON_TYPES.get(type(value), "null")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _answers(row: dict[str, Any], reading: Reading, where: str, *, parquet: bool) -> list[tuple[str, int | None]]:
    """The answers of a line of JSON, and where they start, if that is said."""
    texts = _listed(get_value(row, reading.answer, where))
    starts = _listed(get_value(row, reading.start, where)) if has_key(row, reading.start) else []
    for value in texts:
        if not isinstance(value, str):
            raise DataError(where, f"expected strings in {reading.answer!r}, got {_kind(value)}", "put it in quotes")
    if parquet:  # whose numbers are texts, and "" where there is none
        starts = [_number(value, where) if isinstance(value, str) else value for value in starts]
    for value in starts:
        if type(value) is not int and not (parquet and value is None):
            raise DataError(where, f"expected a character offset from 0 as {reading.start!r}, got {_kind(value)}")
    if starts and len(starts) != len(texts):
        raise DataError(where, f"{len(texts)} answers but {len(starts)} starts", "set one start per answer, or none")
    answers = [check_text(text, f"{where}, {reading.answer!r}") for text in texts]
    return list(zip(answers, starts or [None] * len(answers), strict=True))


def _read_objects(path: Path, reading: Reading, seen: FileSummary) -> Iterator[Record]:
    names = (reading.question, reading.passage, reading.answer)
    for line, row in read_objects(path, names, reading.encoding, seen, optional_keys=(reading.start,)):
        where = file_location(path, line)
        cells = get_string(row, reading.question, where), get_string(row, reading.passage, where)
        yield _record(cells, _answers(row, reading, where, parquet=file_format(path) == "parquet"), path, line, where)


def _member(row: Any, name: str, kind: type[Any], where: str) -> Any:
    """What SQuAD's format has by this name, of the kind that it has there."""
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not kind:
        fix = "use SQuAD's format, or .jsonl for one object per line"
        raise DataError(where, f"no {name!r} that is {JSON_TYPES[kind]}", fix)
    return check_text(value, f"{where}, {name!r}") if isinstance(value, str) else value


def _asked(found: SquadQuestion, path: Path) -> Record:
    row, where = found.row, f"{path}: question {found.number}"
    impossible = bool(row.get("is_impossible"))
    value = [] if impossible else _member(row, "answers", list, where)
    if not value and not impossible:
        raise DataError(where, "no answer", 'set "is_impossible": true if the passage has none')
    answers = [(_member(answer, "text", str, where), _member(answer, "answer_start", int, where)) for answer in value]
    return _record((found.question, found.passage), answers, path, found.number, where)


class SquadQuestion(NamedTuple):
    question: str
    passage: str
    row: dict[str, Any]  # with its id, and its answers where there are some
    number: int  # in its file, from 1


def _paragraphs(whole: Any, path: Path) -> Iterator[Any]:
    for number, article in enumerate(_member(whole, "data", list, str(path)), 1):
        yield from _member(article, "paragraphs", list, f"{path}: article {number}")


def squad_questions(path: Path, text: str) -> Iterator[SquadQuestion]:
    """The questions of a file in SQuAD's format."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"invalid JSON: {error}", "use .jsonl for one object per line") from None
    number = 0
    for paragraph in _paragraphs(whole, path):
        place = f"{path}: after question {number}"
        passage, rows = _member(paragraph, "context", str, place), _member(paragraph, "qas", list, place)
        for row in rows:
            number += 1
            yield SquadQuestion(_member(row, "question", str, f"{path}: question {number}"), passage, row, number)


def _read_squad(path: Path, reading: Reading, seen: FileSummary) -> Iterator[Record]:
    for records in squad_questions(path, "".join(read_text(path, reading.encoding, seen))):
        yield _asked(records, path)


def no_questions(path: Path) -> DataError:
    return DataError(path, NOT_A_TABLE, "use a table or SQuAD's JSON for questions")


def read_records(paths: Sequence[Path], reading: Reading, seen: FileSummary) -> Iterator[Record]:
    """Every question of the files, in order."""
    for path in paths:
        if file_format(path) == "text":
            raise no_questions(path)
        squad = is_squad(path, reading.encoding)
        read = _read_squad if squad else _read_objects if file_format(path) in OBJECT_FORMATS else _read_table
        count = 0
        for record in read(path, reading, seen):
            count += 1
            yield record
        if not count:
            raise DataError(path, "no questions")
