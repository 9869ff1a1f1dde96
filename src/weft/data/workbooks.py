"""Rows of Excel workbooks (.xlsx) and Parquet files, which hold cells with types, not lines. Both need a package of their own,
which is imported when such a file is named, and never before.

Cells become text as a spreadsheet shows them: whole numbers without a point, dates as 2026-11-16, an empty cell as "". Rows are
read in a stream. (Of a workbook the texts that its cells share are read at once: they stand in a part of their own.)
"""

from __future__ import annotations

import importlib
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import DataError, suggest
from weft.text.compression import MAX_RATIO, PACKED, check_kind, is_bomb, unreadable
from weft.text.reading import FileSummary, preview

BATCH = 1024  # rows at a time
PACKAGES: dict[str, tuple[str, Callable[[], Any]]] = {  # what to install, and how to import it
    "xlsx": ("openpyxl", lambda: importlib.import_module("openpyxl")),
    "parquet": ("pyarrow", lambda: importlib.import_module("pyarrow.parquet")),
}
_OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class Sheet(NamedTuple):
    """A sheet of a workbook: its name, and its rows with their numbers, from 1; those that are empty are among them."""

    name: str
    sheets: int  # of its workbook
    rows: Iterator[tuple[int, list[str]]]


def cell_text(value: Any) -> str:
    """A value as a spreadsheet shows it, where nothing is said about its format."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return f"{value:.15g}"  # the digits that spreadsheets keep: 0.1 + 0.2 is 0.3
    if isinstance(value, datetime):
        whole = value.replace(microsecond=0)
        return whole.date().isoformat() if whole.time() == datetime.min.time() and not whole.tzinfo else whole.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)


def _package(path: Path, kind: str) -> Any:
    name, load = PACKAGES[kind]
    check_kind(path)
    if path.suffix in PACKED:
        raise DataError(path, f"is packed twice, for .{kind} is packed itself", f"unpack the {path.suffix} first")
    try:
        return load()
    except ImportError:
        raise DataError(path, f".{kind} needs {name}", f'pip install "weft[{kind}]"') from None


# ---- workbooks


def _check_workbook(path: Path) -> None:
    """Refuse what is no workbook, or would take all the memory."""
    try:
        with path.open("rb") as file:
            if file.read(len(_OLD)) == _OLD:
                raise DataError(path, "is an old Excel file, or has a password", "save it as .xlsx without one")
        with zipfile.ZipFile(path) as archive:
            total = sum(part.file_size for part in archive.infolist())
    except OSError as error:
        raise unreadable(path, error) from None
    except zipfile.BadZipFile as error:
        raise _damaged(path, "an Excel workbook", error) from None
    if is_bomb(total, path.stat().st_size):
        raise DataError(path, f"unpacks to more than {MAX_RATIO} times its size", "save it as CSV UTF-8 if it is meant to")


def _damaged(path: Path, what: str, error: Exception) -> DataError:
    text = str(error).split("\n")[0]
    return DataError(path, f"is damaged or not {what}: {preview(text[:1].lower() + text[1:], 200)}")


def choose_sheet(path: Path, names: Sequence[str], sheet: str | int | None) -> str:
    """The name of a sheet that is asked for by its name or its place, from 1; the first unless one is."""
    if not names:
        raise DataError(path, "has no sheet with cells")
    if isinstance(sheet, int) and sheet > len(names):
        raise DataError(path, f"has no sheet {sheet}, which data.sheet names", f"sheets: {', '.join(names)}")
    if isinstance(sheet, str) and sheet not in names:
        raise DataError(path, f"has no sheet {sheet!r}, which data.sheet names", suggest(sheet, names))
    return sheet if isinstance(sheet, str) else names[(sheet or 1) - 1]


def open_sheet(path: Path, sheet: str | int | None) -> Sheet:
    """A sheet of a workbook. Of formulas the results that were saved are read."""
    openpyxl = _package(path, "xlsx")
    _check_workbook(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and the like
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    except Exception as error:  # of several kinds, whatever is wrong in there
        raise _damaged(path, "an Excel workbook", error) from None
    names = [one.title for one in book.worksheets]
    name = choose_sheet(path, names, sheet)
    return Sheet(name, len(names), _sheet_rows(path, book, book[name]))


def _sheet_rows(path: Path, book: Any, sheet: Any) -> Iterator[tuple[int, list[str]]]:
    sheet.reset_dimensions()  # some programs write wrong ones
    rows = enumerate(sheet.iter_rows(values_only=True), 1)
    try:
        while batch := _next_rows(path, rows):
            yield from batch
    finally:
        book.close()


def _next_rows(path: Path, rows: Iterator[tuple[int, Sequence[Any]]]) -> list[tuple[int, list[str]]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [(number, [cell_text(value) for value in row]) for number, row in islice(rows, BATCH)]
    except Exception as error:
        raise _damaged(path, "an Excel workbook", error) from None


# ---- Parquet


class ParquetRow(NamedTuple):
    number: int  # from 1
    row: dict[str, Any]  # texts, lists and objects of them
    values: dict[str, Any]  # as the file has them


def _texts(value: Any) -> Any:
    """A value with text for every number, date and so on; objects and lists stay what they are."""
    if isinstance(value, dict):
        return {name: _texts(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_texts(inner) for inner in value]
    if isinstance(value, bool):
        return "true" if value else "false"  # as in JSON
    return value.decode("utf-8") if isinstance(value, bytes) else cell_text(value)


def _typed(value: Any) -> Any:
    """A value as JSON can hold it: binary data and numbers that are none are null."""
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return None if isinstance(value, bytes) else cell_text(value)


def _holds(column: str, key: str) -> bool:
    """Whether a key, which may be one of an object in a column by points, is in that column."""
    return key == column or key.startswith(f"{column}.")


def _text_of(value: Any) -> Any:
    """A cell; one of binary data, which holds no text, is bytes still."""
    try:
        return _texts(value)
    except UnicodeDecodeError:
        return value


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON can hold it."""
    return {name: _typed(value) for name, value in row.items()}


def _columns(path: Path, names: Sequence[str], needed: Sequence[str], others: Sequence[str] | None) -> list[str] | None:
    """The columns to read; None: all."""
    for key in needed:
        if not any(_holds(name, key) for name in names):
            raise DataError(path, f"has no column {key!r}", suggest(key, [preview(name, 40) for name in names]))
    keys = [*needed, *(others or ())]
    return None if others is None else [name for name in names if any(_holds(name, key) for key in keys)]


def read_parquet(path: Path, needed: Sequence[str], others: Sequence[str] | None, summary: FileSummary) -> Iterator[ParquetRow]:
    """The rows of a Parquet file, of which some columns are `needed`; read besides are `others`, as far as they are there, or
    all columns where that is None."""
    parquet = _package(path, "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            summary.columns, summary.container = tuple(file.schema_arrow.names), "Parquet"
            wanted = _columns(path, summary.columns, needed, others)
            batches = file.iter_batches(batch_size=BATCH, columns=wanted, use_threads=False)
            for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
                yield ParquetRow(number, {name: _text_of(value) for name, value in row.items()}, row)
    except DataError:
        raise
    except OSError as error:
        raise _damaged(path, "a Parquet file", error) if error.errno is None else unreadable(path, error) from None
    except Exception as error:
        raise _damaged(path, "a Parquet file", error) from None
