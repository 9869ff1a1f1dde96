"""Opens the input files of a trained run: plain text, or columns of tables."""

from __future__ import annotations

from pathlib import Path

from weft.data.config import TextDataConfig, Train, refuse_conll
from weft.data.input_records import ColumnSelection, InputFile, OpenedRecords, open_records
from weft.data.table_rows import file_format, is_conll
from weft.errors import DataError
from weft.text.reading import as_paths


def check_unlabeled(path: Path, train: Train, *, tables: bool = False) -> None:
    """Refuse CoNLL files, and with `tables` also tables, for a run that was trained on plain text: their markup would be read
    as text."""
    if not any(map(is_conll, as_paths(train or ()))):
        refuse_conll(path)
    name = file_format(path)
    if tables and name != "text":
        raise DataError(path, f"{name.upper()} file, but this run was trained on plain text", "use a text file")


def open_columns(file: InputFile, columns: ColumnSelection, train: Train) -> OpenedRecords | None:
    """Open the columns of a table that a run reads; None for a text file, whose records are its lines."""
    check_unlabeled(file.path, train)
    return None if file_format(file.path) == "text" else open_records(file, columns)


def open_text(config: TextDataConfig, file: InputFile) -> OpenedRecords | None:
    """Open the text column of a table; None for a text file, whose records are its lines."""
    return open_columns(file, config.input_columns(), config.train)
