"""The [data] table of the run file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from weft.config import Config
from weft.data.columns import WantedColumn
from weft.data.dataset import Dataset, Format, R
from weft.data.input_records import ColumnUse
from weft.data.source import Source
from weft.data.table_rows import is_conll, kind_of
from weft.errors import ConfigError, DataError
from weft.text.compression import PACKED, is_pattern
from weft.text.reading import as_paths, check_encoding

Files = str | list[str]
Split = Files | float | None  # files, a share of train, or none
Train = Files | Literal[False]  # files; false: the model was trained elsewhere, so there are none
S = TypeVar("S")


def _delimiter(given: str | None) -> str | None:
    mark = "\t" if given == "tab" else given
    if mark is not None and (len(mark) != 1 or mark in '"\r\n\0'):
        raise ValueError(f'must be one character that is no quote and no line end, or "tab", not {given!r}')
    return mark


def _sheet(given: str | int | None) -> str | int | None:
    if given == "" or (isinstance(given, int) and given < 1):
        raise ValueError(f"{given!r} names no sheet; give its name, or its place from 1 on")
    return given


Delimiter = Annotated[str | None, AfterValidator(_delimiter)]  # between columns of .csv and .tsv: a character, or "tab"
Sheet = Annotated[str | int | None, AfterValidator(_sheet)]  # of a workbook: a name, or a place from 1


def check_splits(train: Train, valid: Split, test: Split, encoding: str) -> None:
    """Refuse what names no file, leaves nothing of train, or can't be decoded; pydantic says where."""
    fractions = [fraction for fraction in (valid, test) if isinstance(fraction, float)]
    for name, files in (("train", train), ("valid", valid), ("test", test)):
        if isinstance(files, str | list) and not (files and all(files)):
            raise ValueError(f"{name}={files!r} names no file")
        if isinstance(files, float) and not 0 < files < 1:
            raise ValueError(f"{name}={files:g}, a share of train, must be between 0 and 1")
    if train is False and fractions:
        raise ValueError(f"train=false has no share of {fractions[0]:g}; name files for valid and test")
    if sum(fractions) >= 1:
        raise ValueError(f"valid={valid:g} and test={test:g} leave nothing of train")
    try:
        check_encoding(encoding)
    except DataError as error:
        raise ValueError(str(error).removeprefix("data.encoding: ")) from None


def parts(train: Train, valid: Split, test: Split) -> dict[str, tuple[Files, float, float]]:
    """The files of train, valid and test, as far as given, and which part of them is meant: from one share to another."""
    cuts = {"train": 1.0}
    for name, fraction in (("test", test), ("valid", valid)):
        if isinstance(fraction, float):
            cuts[name] = cuts["train"]
            # 1 - 0.1 - 0.1 is 0.8 only after rounding, and a character more or less is another split
            cuts["train"] = round(cuts["train"] - fraction, 12)
    found: dict[str, tuple[Files, float, float]] = {}
    if train is not False:
        found["train"] = (train, 0.0, cuts["train"])
    low = cuts["train"]
    for name, files in (("valid", valid), ("test", test)):
        if isinstance(files, float) and train is not False:
            found[name] = (train, low, cuts[name])
            low = cuts[name]
        elif isinstance(files, str | list):
            found[name] = (files, 0.0, 1.0)
    return found


def training(sources: Mapping[str, S]) -> S:
    """What is trained on; a run that was imported has no such data."""
    if "train" not in sources:
        raise ConfigError("data.train", "is false, so there is nothing to train on", "name files, as in --set data.train=FILE")
    return sources["train"]


def datasets(base: Path, format: Format[R], train: Train, valid: Split, test: Split) -> dict[str, Dataset[R]]:
    """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
    return {
        name: Dataset(tuple(base / path for path in as_paths(files)), format, low, high)
        for name, (files, low, high) in parts(train, valid, test).items()
    }


def refuse_words(path: Path) -> None:
    """Refuse words with tags where plain text is read: their markup would be read as text."""
    if is_conll(path):
        raise DataError(path, "is CoNLL by its name, words with tags", "this run reads plain text: give a sentence a line")


def _plain(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The same; tables and words with tags are refused."""
    for path in paths:
        refuse_words(path)
        if (kind := kind_of(path)) != "text":
            raise DataError(
                path,
                f"is {kind.upper()} by its name, and language models read plain text",
                "write the texts of its column to a .txt file, or name it .txt to learn it as it is",
            )
    return paths


def _visible(path: Path, base: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(base).parts)


def expand_files(base: Path, files: Files) -> tuple[Path, ...]:
    """The files of a corpus, seen from `base`: a folder stands for the .txt files in it, packed or not, at any depth, a pattern
    for what it matches, both in the order of their names. What is not there stays as it is, and is refused when it is read."""
    found: list[Path] = []
    for given in as_paths(files):
        path = base / given
        if os.path.isdir(path):  # which takes any name, however long
            names = {f".txt{packing}" for packing in ("", *PACKED)}
            inner = sorted(
                one for one in path.rglob("*.txt*") if _visible(one, path) and one.name[one.name.rfind(".txt") :] in names
            )
        elif is_pattern(path) and not os.path.exists(path):
            inner = sorted(base / one for one in glob(str(given), root_dir=base, recursive=True) if (base / one).is_file())
        else:
            inner = []
        found += inner or [path]
    return tuple(found)


def _find_files(base: Path, files: Files) -> bool:
    """Whether files are looked for, in a folder or by a pattern: each is then a text of its own."""
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
            raise ValueError(f"window={self.context_length} must be at least 1")
        if self.stride is not None and self.read_as != "windows":
            raise ValueError(f"stride={self.stride}, but read='{self.read_as}' has no windows; drop it")
        if self.stride is not None and not 1 <= self.stride <= self.context_length:
            raise ValueError(f"stride={self.stride} must be from 1 to window={self.context_length}")
        return self

    def columns_in_use(self) -> ColumnUse:
        """What a trained run reads of a table: its column `text`."""
        return ColumnUse((WantedColumn("", "text"),), (WantedColumn("", "text"),))

    def with_defaults(self) -> Self:
        """The same with every option that applies filled in."""
        if self.read_as != "windows" or self.stride is not None:
            return self
        return self.model_copy(update={"stride": self.context_length})

    def sources(self, base: Path) -> dict[str, Source]:
        """What train, valid and test are, as far as given; paths are relative to `base`, the run file's folder."""
        lines = self.read_as == "lines"
        return {
            name: Source(
                _plain(expand_files(base, files)),
                self.encoding,
                lines,
                low,
                high,
                separate_files=not lines and _find_files(base, files),
            )
            for name, (files, low, high) in parts(self.train, self.valid, self.test).items()
        }
