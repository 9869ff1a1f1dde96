"""Reads rows of Excel workbooks (.xlsx) and Parquet files, which have typed cells. Each format needs an optional package, which
is imported only to read such a file.

Cells become text as in a spreadsheet: integers without a decimal point, dates as 2026-11-16, empty cells as "". Rows are
streamed, but the shared strings of a workbook are read at once.
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

from weft.errors import MAX_LISTED, DataError, closest_name
from weft.text.compression import COMPRESSED_SUFFIXES, MAX_RATIO, check_regular_file, is_bomb, read_error
from weft.text.reading import FileSummary, preview

BATCH_ROWS = 1024
PACKAGES: dict[str, tuple[str, Callable[[], Any]]] = {  # by format: name, and a function that imports it
    "xlsx": ("openpyxl", lambda: importlib.import_module("openpyxl")),
    "parquet": ("pyarrow", lambda: importlib.import_module("pyarrow.parquet")),
}
_XLS_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class Sheet(NamedTuple):
    """A sheet of a workbook."""

    name: str
    num_sheets: int  # of the workbook
    rows: Iterator[tuple[int, list[str]]]  # 1-based row and cells, including empty rows


def available(name: str, names: Sequence[str]) -> str:
    """The fix for a missing column or key: the closest name, else a list of all names if there are few."""
    closest = closest_name(name, names)
    if closest is not None:
        return f"did you mean {closest!r}?"
    return f"available: {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""


def cell_text(value: Any) -> str:
    """The text that a spreadsheet displays for a value in the default format."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return f"{value:.15g}"  # the precision of spreadsheets: 0.1 + 0.2 is 0.3
    if isinstance(value, datetime):
        time = value.replace(microsecond=0)
        return time.date().isoformat() if time.time() == datetime.min.time() and not time.tzinfo else time.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)


def _import_package(path: Path, format: str) -> Any:
    """The package for a format; an error with the install command if it is missing."""
    name, load = PACKAGES[format]
    check_regular_file(path)
    if path.suffix in COMPRESSED_SUFFIXES:
        raise DataError(path, f"compressed .{format} files are not supported", f"decompress the {path.suffix} first")
    try:
        return load()
    except ImportError:
        raise DataError(path, f".{format} files need the package {name}", f"run pip install {name}") from None


# ---- workbooks


def _check_workbook(path: Path) -> None:
    """Refuse files that are not workbooks, and decompression bombs."""
    try:
        with path.open("rb") as file:
            if file.read(len(_XLS_MAGIC)) == _XLS_MAGIC:
                raise DataError(path, "old Excel format or password-protected", "save it as .xlsx without a password")
        with zipfile.ZipFile(path) as archive:
            total = sum(part.file_size for part in archive.infolist())
    except OSError as error:
        raise read_error(path, error) from None
    except zipfile.BadZipFile as error:
        raise _damaged(path, "an Excel workbook", error) from None
    if is_bomb(total, path.stat().st_size):
        problem = f"decompresses to more than {MAX_RATIO} times its size"
        raise DataError(path, problem, "save it as CSV UTF-8 if that is intended")


def _damaged(path: Path, expected: str, error: Exception) -> DataError:
    text = str(error).split("\n")[0]
    return DataError(path, f"corrupted or not {expected}: {preview(text[:1].lower() + text[1:], 200)}")


def choose_sheet(path: Path, names: Sequence[str], sheet: str | int | None) -> str:
    """The name of a sheet, given its name or 1-based index; None: the first."""
    if not names:
        raise DataError(path, "no sheet with cells")
    if (isinstance(sheet, int) and sheet > len(names)) or (isinstance(sheet, str) and sheet not in names):
        raise DataError(path, f"no sheet {sheet!r}", f"set data.sheet to one of: {', '.join(names[:MAX_LISTED])}")
    return sheet if isinstance(sheet, str) else names[(sheet or 1) - 1]


def open_sheet(path: Path, sheet: str | int | None) -> Sheet:
    """Open a sheet of a workbook. Formulas are read as their saved results."""
    openpyxl = _import_package(path, "xlsx")
    _check_workbook(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example, about styles
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    except Exception as error:  # openpyxl raises exceptions of many types
        raise _damaged(path, "an Excel workbook", error) from None
    names = [worksheet.title for worksheet in book.worksheets]
    name = choose_sheet(path, names, sheet)
    return Sheet(name, len(names), _sheet_rows(path, book, book[name]))


def _sheet_rows(path: Path, book: Any, sheet: Any) -> Iterator[tuple[int, list[str]]]:
    sheet.reset_dimensions()  # some programs write wrong dimensions
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
            return [(number, [cell_text(value) for value in row]) for number, row in islice(rows, BATCH_ROWS)]
    except Exception as error:
        raise _damaged(path, "an Excel workbook", error) from None


# ---- Parquet


class ParquetRow(NamedTuple):
    number: int  # from 1
    row: dict[str, Any]  # values as text; lists and objects contain texts
    values: dict[str, Any]  # typed values


def _to_text(value: Any) -> Any:
    """Convert numbers, dates and other values to text, also inside objects and lists."""
    if isinstance(value, dict):
        return {name: _to_text(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_to_text(inner) for inner in value]
    if isinstance(value, bool):
        return "true" if value else "false"  # as in JSON
    return value.decode("utf-8") if isinstance(value, bytes) else cell_text(value)


def _json_value(value: Any) -> Any:
    """Convert to a value that JSON can represent: binary data, NaN and infinities become null."""
    if isinstance(value, dict):
        return {name: _json_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return None if isinstance(value, bytes) else cell_text(value)


def _contains(column: str, key: str) -> bool:
    """Whether a key, which may be a dotted key of nested objects, is in a column."""
    return key == column or key.startswith(f"{column}.")


def _cell_to_text(value: Any) -> Any:
    """`_to_text`, but binary data that is not UTF-8 stays bytes."""
    try:
        return _to_text(value)
    except UnicodeDecodeError:
        return value


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row to values that JSON can represent."""
    return {name: _json_value(value) for name, value in row.items()}


def _columns(path: Path, names: Sequence[str], required: Sequence[str], optional: Sequence[str] | None) -> list[str] | None:
    """Names of the columns to read; None: all."""
    for key in required:
        if not any(_contains(name, key) for name in names):
            raise DataError(path, f"no column {key!r}", available(key, [preview(name, 40) for name in names]))
    keys = [*required, *(optional or ())]
    return None if optional is None else [name for name in names if any(_contains(name, key) for key in keys)]


def read_parquet(
    path: Path, required: Sequence[str], optional: Sequence[str] | None, summary: FileSummary
) -> Iterator[ParquetRow]:
    """Rows of a Parquet file with the `required` columns and the `optional` ones that exist; None: all columns."""
    parquet = _import_package(path, "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            summary.columns, summary.container = tuple(file.schema_arrow.names), "Parquet"
            columns = _columns(path, summary.columns, required, optional)
            batches = file.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False)
            for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
                yield ParquetRow(number, {name: _cell_to_text(value) for name, value in row.items()}, row)
    except DataError:
        raise
    except OSError as error:
        raise _damaged(path, "a Parquet file", error) if error.errno is None else read_error(path, error) from None
    except Exception as error:
        raise _damaged(path, "a Parquet file", error) from None
