"""The [data] table of the run file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from weft.config import Config, invalid
from weft.data.columns import WantedColumn
from weft.data.dataset import Dataset, Format, R
from weft.data.input_records import ColumnUse
from weft.data.source import Source
from weft.data.table_rows import is_conll, kind_of
from weft.errors import ConfigError, DataError
from weft.text.compression import PACKED, is_pattern
from weft.text.reading import as_paths, check_encoding

Files = str | list[str]
Split = Files | float | None  # files, a fraction of train, or none
Train = Files | Literal[False]  # files; false: the model was trained elsewhere, so there are none
S = TypeVar("S")


def _delimiter(value: str | None) -> str | None:
    delimiter = "\t" if value == "tab" else value
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0'):
        raise invalid("", f'expected "tab" or one character that is not a quote or a line ending, got {value!r}')
    return delimiter


def _sheet(value: str | int | None) -> str | int | None:
    if value == "" or (isinstance(value, int) and value < 1):
        raise invalid("", f"expected the name or the 1-based index of a sheet, got {value!r}")
    return value


Delimiter = Annotated[str | None, AfterValidator(_delimiter)]  # between columns of .csv and .tsv: a character, or "tab"
Sheet = Annotated[str | int | None, AfterValidator(_sheet)]  # of a workbook: a name, or an index from 1


def check_splits(train: Train, valid: Split, test: Split, encoding: str) -> None:
    """Check that every split names files, that fractions leave training data, and the encoding."""
    fractions = [fraction for fraction in (valid, test) if isinstance(fraction, float)]
    for name, files in (("train", train), ("valid", valid), ("test", test)):
        if isinstance(files, str | list) and not (files and all(files)):
            raise invalid(name, f"expected file names, got {files!r}")
        if isinstance(files, float) and not 0 < files < 1:
            raise invalid(name, f"a fraction must be between 0 and 1, got {files:g}")
    if train is False and fractions:
        name = "valid" if isinstance(valid, float) else "test"
        raise invalid(name, f"train = false has no fraction {fractions[0]:g}", "set it to a file")
    if sum(fractions) >= 1:
        raise invalid("", f"valid ({valid:g}) and test ({test:g}) leave no training data")
    try:
        check_encoding(encoding)
    except DataError as error:
        raise invalid("encoding", error.problem, error.fix) from None


def split_ranges(train: Train, valid: Split, test: Split) -> dict[str, tuple[Files, float, float]]:
    """The files of train, valid and test, as far as they are set, and the range of fractions of each split."""
    ends = {"train": 1.0}
    for name, fraction in (("test", test), ("valid", valid)):
        if isinstance(fraction, float):
            ends[name] = ends["train"]
            # 1 - 0.1 - 0.1 is 0.8 only after rounding, and one character more or less is another split
            ends["train"] = round(ends["train"] - fraction, 12)
    ranges: dict[str, tuple[Files, float, float]] = {}
    if train is not False:
        ranges["train"] = (train, 0.0, ends["train"])
    low = ends["train"]
    for name, files in (("valid", valid), ("test", test)):
        if isinstance(files, float) and train is not False:
            ranges[name] = (train, low, ends[name])
            low = ends[name]
        elif isinstance(files, str | list):
            ranges[name] = (files, 0.0, 1.0)
    return ranges


def training(sources: Mapping[str, S]) -> S:
    """The training data; an error for an imported run, which has none."""
    if "train" not in sources:
        raise ConfigError("data.train", "is false: the run has no training data", "set data.train to a file")
    return sources["train"]


def datasets(base: Path, format: Format[R], train: Train, valid: Split, test: Split) -> dict[str, Dataset[R]]:
    """The data sets of train, valid and test, as far as they are set. Paths are relative to `base`, the directory of the run
    file."""
    return {
        name: Dataset(tuple(base / path for path in as_paths(files)), format, low, high)
        for name, (files, low, high) in split_ranges(train, valid, test).items()
    }


def refuse_conll(path: Path) -> None:
    """Refuse CoNLL files for tasks that read plain text, which would read their tags as text."""
    if is_conll(path):
        raise DataError(path, "CoNLL file, but this run reads plain text", "use a text file with one sentence per line")


def _plain_text(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The paths themselves; tables and CoNLL files are an error."""
    for path in paths:
        refuse_conll(path)
        if (kind := kind_of(path)) != "text":
            raise DataError(
                path,
                f"{kind.upper()} file, but language models read plain text",
                "write the text column to a .txt file, or rename the file to .txt to read it as it is",
            )
    return paths


def _is_visible(path: Path, base: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(base).parts)


def expand_files(base: Path, files: Files) -> tuple[Path, ...]:
    """The files of a corpus, relative to `base`, sorted by name. A directory stands for the .txt files in it, compressed or
    not, at any depth; a pattern stands for its matches. A missing file stays in the result: reading it is an error."""
    expanded: list[Path] = []
    for name in as_paths(files):
        path = base / name
        if os.path.isdir(path):  # unlike Path.is_dir, accepts names of any length
            suffixes = {f".txt{compression}" for compression in ("", *PACKED)}
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
    """Whether files come from a directory or a pattern; each is then a separate text."""
    return expand_files(base, files) != tuple(base / path for path in as_paths(files))


class TextDataConfig(Config):
    """Which text, and how it is read."""

    train: Train
    valid: Split = None  # files, or the share of train that is taken off its end
    test: Split = None  # likewise; the order is train, valid, test
    encoding: str = "utf-8"
    # running text in shuffled windows, running text in contiguous streams, or every line on its own
    read_as: Literal["windows", "stream", "lines"] = "windows"
    context_length: int = Field(256, le=2**31 - 1)  # tokens; running text only
    stride: int | None = None  # from one window to the next; windows only

    @model_validator(mode="after")
    def check_options(self) -> Self:
        check_splits(self.train, self.valid, self.test, self.encoding)
        if self.context_length < 1:
            raise invalid("context_length", f"must be at least 1, got {self.context_length}")
        if self.stride is not None and self.read_as != "windows":
            raise invalid("stride", f"not used with read_as '{self.read_as}'", "remove it")
        if self.stride is not None and not 1 <= self.stride <= self.context_length:
            raise invalid("stride", f"must be from 1 to context_length ({self.context_length}), got {self.stride}")
        return self

    def columns_in_use(self) -> ColumnUse:
        """The columns of a table that a trained run reads: `text`."""
        return ColumnUse((WantedColumn("", "text"),), (WantedColumn("", "text"),))

    def with_defaults(self) -> Self:
        """A copy with defaults filled in for every option that applies."""
        if self.read_as != "windows" or self.stride is not None:
            return self
        return self.model_copy(update={"stride": self.context_length})

    def sources(self, base: Path) -> dict[str, Source]:
        """The sources of train, valid and test, as far as they are set. Paths are relative to `base`, the directory of the run
        file."""
        lines = self.read_as == "lines"
        return {
            name: Source(
                _plain_text(expand_files(base, files)),
                self.encoding,
                lines,
                low,
                high,
                separate_files=not lines and _is_expanded(base, files),
            )
            for name, (files, low, high) in split_ranges(self.train, self.valid, self.test).items()
        }
