"""Questions of an input file of `weft predict`, and answers in the format of SQuAD predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.data.input_files import check_unlabeled
from weft.data.input_records import InputFile, InputRecord, OpenedRecords, OutputFormat, Values, open_records
from weft.data.table_rows import file_format
from weft.tasks.qa.data import QADataConfig
from weft.tasks.qa.files import is_squad, squad_questions


class SquadForm:
    """SQuAD's format of predictions: one JSON object with the answers by question ID."""

    is_plain = False

    def __init__(self) -> None:
        self.has_rows = False

    def head(self, names: Sequence[str]) -> str:
        return "{"

    def row(self, entry: InputRecord, values: Values) -> str:
        separator, self.has_rows = ",\n" if self.has_rows else "\n", True
        answer = json.dumps(values["prediction"] or "", ensure_ascii=False)
        return f"{separator}  {json.dumps(entry.raw, ensure_ascii=False)}: {answer}"

    def tail(self) -> str:
        return "\n}\n"

    def matches(self, other: OutputFormat) -> bool:
        return isinstance(other, SquadForm)


def _open_squad(path: Path, lines: Iterator[str]) -> OpenedRecords:
    questions = squad_questions(path, "\n".join(lines))

    def entries() -> Iterator[InputRecord]:
        for question in questions:
            texts, number = (question.question, question.passage), question.number
            yield InputRecord("\t".join(texts), texts, f"{path}: question {number}", str(question.row.get("id", number)))

    return OpenedRecords(SquadForm(), entries())


def open_questions(config: QADataConfig, file: InputFile) -> OpenedRecords | None:
    """The questions of a table or of SQuAD's JSON; None for a text file, whose lines are a question, a tab and a passage."""
    check_unlabeled(file.path, config.train)
    if file_format(file.path) == "text":
        return None
    if is_squad(file.path, config.encoding):
        return _open_squad(file.path, file.lines())
    return open_records(file, config.input_columns())
