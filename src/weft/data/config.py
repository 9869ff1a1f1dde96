"""The [data] table of the run file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from weft.config import Config, invalid
from weft.data.columns import ColumnSpec
from weft.data.dataset import Dataset, Format, R
from weft.data.input_records import ColumnSelection
from weft.data.source import Source
from weft.data.table_rows import file_format, is_conll
from weft.errors import ConfigError, DataError
from weft.text.compression import COMPRESSED_SUFFIXES, is_pattern
from weft.text.reading import as_paths, check_encoding

Files = str | list[str]
Split = Files | float | None  # files, a fraction of train, or no data
Train = Files | Literal[False]  # files; false: an imported model without training data
S = TypeVar("S")


def _delimiter(value: str | None) -> str | None:
    delimiter = "\t" if value == "tab" else value
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0'):
        raise invalid("", f'expected one character, no quote or line break, or "tab", got {value!r}')
    return delimiter


def _sheet(value: str | int | None) -> str | int | None:
    if value == "" or (isinstance(value, int) and value < 1):
        raise invalid("", f"expected a name or a 1-based index, got {value!r}")
    return value


Delimiter = Annotated[str | None, AfterValidator(_delimiter)]
Sheet = Annotated[str | int | None, AfterValidator(_sheet)]


def check_splits(train: Train, valid: Split, test: Split, encoding: str) -> None:
    """Refuse splits without files, fractions that leave no training data, and unknown encodings."""
    fractions = {name: split for name, split in (("valid", valid), ("test", test)) if isinstance(split, float)}
    for name, files in (("train", train), ("valid", valid), ("test", test)):
        if isinstance(files, str | list) and not (files and all(files)):
            raise invalid(name, f"expected file names, got {files!r}")
        if isinstance(files, str) and name != "train" and re.fullmatch(r"0?\.\d+", files):
            raise invalid(name, f"expected a file name or a fraction, got {files!r}", f"write {name} = {float(files):g}")
    for name, fraction in fractions.items():
        if not 0 < fraction < 1:
            raise invalid(name, f"a fraction must be between 0 and 1, got {fraction:g}")
        if train is False:
            raise invalid(name, f"there is no training data to take a fraction of {fraction:g} from", "set it to files")
    if sum(fractions.values()) >= 1:
        raise invalid("", f"valid ({valid:g}) and test ({test:g}) leave no training data")
    try:
        check_encoding(encoding)
    except DataError as error:
        raise invalid("encoding", error.problem, error.fix) from None


class DataFilesConfig(Config):
    """The files of a data set and its splits; tasks add columns and limits."""

    train: Train
    """Training files. Paths are relative to this file; .gz, .xz and .zst are decompressed."""
    # fractions are taken from the end of train, in the order train, valid, test
    valid: Split = None
    """Validation files, or a fraction of train. Selects the best weights."""
    test: Split = None
    """Test files, or a fraction of train. Read only by weft evaluate and weft compare."""
    fold: list[int] | None = Field(None, min_length=2, max_length=2)
    """Cross-validation: [I, N] makes fold I of N of the training data the validation data."""
    encoding: str = "utf-8"
    """Text encoding of the files."""
    prepared: str | None = None
    """Directory with the tokens of these files, written by weft prepare. Default: the run tokenizes them itself."""

    @model_validator(mode="after")
    def check_files(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        if self.fold is not None and not 1 <= self.fold[0] <= self.fold[1] != 1:
            raise invalid("fold", f"expected [I, N] with 1 <= I <= N and N >= 2, got {self.fold}")
        if self.fold is not None and (self.valid is not None or self.train is False):
            raise invalid("fold", "requires data.train, and that data.valid is not set", "remove one of them")
        return self

    @property
    def has_valid(self) -> bool:
        """Whether there is validation data."""
        return self.valid is not None or self.fold is not None

    def with_defaults(self) -> Self:
        """A copy with a value for every option that applies."""
        return self

    def with_detected(self) -> Self:
        """A copy with values for options that depend on the data. Paths are absolute. Data that cannot be read changes nothing:
        what reads it later reports the problem."""
        return self


class ImportableTableFilesConfig(DataFilesConfig):
    """Data that may be in tables: .csv, .tsv, .xlsx, .jsonl, .parquet. An imported model has no training data."""

    delimiter: Delimiter = None
    """Column separator: a character or "tab". Default: as the first line shows. If set, text files of any name are tables."""
    sheet: Sheet = None
    """Sheet of an .xlsx file: a name or a 1-based index. Default: the first."""


class TableFilesConfig(ImportableTableFilesConfig):
    """Data that may be in tables, of a task whose models are not imported."""

    train: Files


class SplitRange(NamedTuple):
    """The files of a split, and which of their rows or characters it has, as fractions."""

    files: Files
    low: float = 0.0
    high: float = 1.0
    without: tuple[float, float] | None = None  # a range inside that belongs to another split


def split_ranges(config: DataFilesConfig) -> dict[str, SplitRange]:
    """The range of each split that is set."""
    train, valid, test = config.train, config.valid, config.test
    ends = {"train": 1.0}
    for name, fraction in (("test", test), ("valid", valid)):
        if isinstance(fraction, float):
            ends[name] = ends["train"]
            # rounded, because 1 - 0.1 - 0.1 is not 0.8 and the split would change by a character
            ends["train"] = round(ends["train"] - fraction, 12)
    ranges: dict[str, SplitRange] = {}
    if train is not False:
        ranges["train"] = SplitRange(train, 0.0, ends["train"])
    if train is not False and config.fold is not None:
        index, num_folds = config.fold
        low, high = (round(ends["train"] * end / num_folds, 12) for end in (index - 1, index))
        ranges |= {"train": SplitRange(train, 0.0, ends["train"], (low, high)), "valid": SplitRange(train, low, high)}
    low = ends["train"]
    for name, files in (("valid", valid), ("test", test)):
        if isinstance(files, float) and train is not False:
            ranges[name] = SplitRange(train, low, ends[name])
            low = ends[name]
        elif isinstance(files, str | list):
            ranges[name] = SplitRange(files)
    return ranges


def training(sources: Mapping[str, S]) -> S:
    """The training data; an error for an imported run, which has none."""
    if "train" not in sources:
        raise ConfigError("data.train", "is false: the run has no training data", "set data.train to a file")
    return sources["train"]


def datasets(base: Path, format: Format[R], config: DataFilesConfig) -> dict[str, Dataset[R]]:
    """The data set of each split that is set. Paths are relative to `base`, the directory of the run file. Splits of the same
    files read them once."""
    wholes: dict[tuple[Path, ...], Dataset[R]] = {}
    splits: dict[str, Dataset[R]] = {}
    for name, (files, low, high, without) in split_ranges(config).items():
        inputs = tuple(base / path for path in as_paths(files))
        whole = wholes.setdefault(inputs, Dataset(inputs, format))
        splits[name] = Dataset(inputs, format, low, high, without, whole)
    return splits


def refuse_conll(path: Path) -> None:
    """Refuse CoNLL files for tasks that read plain text: tags would be read as text."""
    if is_conll(path):
        raise DataError(path, "CoNLL file, but this run reads plain text", "use a text file with one sentence per line")


def _plain_text(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return `paths`; tables and CoNLL files are an error."""
    for path in paths:
        refuse_conll(path)
        if (name := file_format(path)) != "text":
            raise DataError(
                path,
                f"{name.upper()} file, but language models read plain text",
                "write the text column to a .txt file, or rename the file to .txt to read it as it is",
            )
    return paths


def _is_visible(path: Path, base: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(base).parts)


def expand_files(base: Path, files: Files) -> tuple[Path, ...]:
    """Expand directories to the .txt files in them, compressed or not, at any depth, and patterns to their matches, both sorted
    by name. Paths are relative to `base`. A missing file stays in the result: reading it is an error."""
    expanded: list[Path] = []
    for name in as_paths(files):
        path = base / name
        if os.path.isdir(path):  # unlike Path.is_dir, accepts names of any length
            suffixes = {f".txt{compression}" for compression in ("", *COMPRESSED_SUFFIXES)}
            matches = sorted(
                file
                for file in path.rglob("*.txt*")
                if _is_visible(file, path) and file.name[file.name.rfind(".txt") :] in suffixes
            )
        elif is_pattern(path) and not os.path.exists(path):
            names = glob(str(name), root_dir=base, recursive=True)
            matches = sorted(base / match for match in names if (base / match).is_file())
        else:
            matches = []
        expanded += matches or [path]
    return tuple(expanded)


def _is_expanded(base: Path, files: Files) -> bool:
    """Whether `files` contains a directory or a pattern; each file is then a separate text."""
    return expand_files(base, files) != tuple(base / path for path in as_paths(files))


class TextDataConfig(DataFilesConfig):
    """Running text, or lines of text."""

    read_as: Literal["windows", "stream", "lines"] = "windows"
    """windows: shuffled windows of running text. stream: running text in order, state carried over. lines: one sequence per
    line."""
    context_length: int = Field(256, ge=1, le=2**31 - 1)
    """Tokens per training sequence, and the attention span."""
    stride: int | None = None
    """Tokens from the start of one window to the next. Default: context_length."""

    @model_validator(mode="after")
    def check_stride(self) -> Self:
        if self.stride is not None and self.read_as != "windows":
            raise invalid("stride", f"not used with read_as {self.read_as!r}", "remove it")
        if self.stride is not None and not 1 <= self.stride <= self.context_length:
            raise invalid("stride", f"must be between 1 and context_length ({self.context_length}), got {self.stride}")
        return self

    def input_columns(self) -> ColumnSelection:
        """The column that a trained run reads from a table."""
        return ColumnSelection((ColumnSpec("", "text"),), (ColumnSpec("", "text"),))

    def with_defaults(self) -> Self:
        if self.read_as != "windows" or self.stride is not None:
            return self
        return self.model_copy(update={"stride": self.context_length})

    def sources(self, base: Path) -> dict[str, Source]:
        """The source of each split that is set. Paths are relative to `base`, the directory of the run file."""
        lines = self.read_as == "lines"
        return {
            name: Source(
                _plain_text(expand_files(base, files)),
                self.encoding,
                lines,
                low,
                high,
                without,
                separate_files=not lines and _is_expanded(base, files),
            )
            for name, (files, low, high, without) in split_ranges(self).items()
        }
