"""Files that a trained run is used on: what markup is no text, and the text column of tables."""

from __future__ import annotations

from pathlib import Path

from weft.data.records import InputFile, Opened, Used, open_records
from weft.data.rows import kind_of
from weft.data.tables import DataTable, Train
from weft.errors import DataError
from weft.text.gate import as_paths
from weft.text.unpack import PACKED

CONLL = (".conllu", ".conll")


def is_conll(path: Path) -> bool:
    """Whether a file is words with tags by its name, packed or not."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    return name.suffix.lower() in CONLL


def refuse_marked(path: Path, train: Train, *, tables: bool = False) -> None:
    """Refuse CoNLL, and `tables`, for a run that was trained on plain text: their markup would be read as text."""
    trained = as_paths(train or ())
    if is_conll(path) and not any(map(is_conll, trained)):
        raise DataError(f"{path}: is CoNLL by its name, words with tags; this run reads plain text: give a sentence a line")
    kind = kind_of(path)
    if tables and kind != "text" and all(kind_of(one) == "text" for one in trained):
        raise DataError(f"{path}: is {kind.upper()} by its name, and this run was trained on plain text; give plain text")


def open_columns(file: InputFile, used: Used, train: Train) -> Opened | None:
    """The columns of a table that a run reads; None for a text, whose records are its lines."""
    refuse_marked(file.path, train)
    return None if kind_of(file.path) == "text" else open_records(file, used)


def open_text(table: DataTable, file: InputFile) -> Opened | None:
    """The text column of a table; None for a text, and for a run that was trained on the lines of a table, which reads them
    again."""
    if all(kind_of(path) == "text" for path in as_paths(table.train or ())):
        return open_columns(file, table.used(), table.train)
    refuse_marked(file.path, table.train)
    return None
