"""The part of a task that reads and tokenizes data.

This module does not import torch or numpy at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from weft.config import Config

if TYPE_CHECKING:
    from weft.data.corpus import Corpus
    from weft.data.findings import CheckPlan
    from weft.data.input_records import InputFile, OpenedRecords
    from weft.data.memory import MemoryFormat
    from weft.runs.config import RunConfig
    from weft.runs.run_dir import RunDir
    from weft.text.tokenizers import Tokenizer

V = TypeVar("V")
Note = Callable[[str], None]
Watched = Callable[[Iterator[str]], Iterator[str]]  # texts, with progress reports


class VocabularyBuilder(Protocol[V]):
    """Builds, saves and loads the vocabulary of a run: one or more tokenizers, and labels."""

    def make(self, config: RunConfig, dataset: Any, watched: Watched, note: Note) -> V:
        """The vocabulary from the training data, or from the files that the run file names."""

    def save(self, vocabulary: V, directory: Path) -> None: ...

    def load(self, directory: Path) -> V: ...


class Column(NamedTuple):
    """A column of texts that is tokenized: one corpus per split."""

    name: str  # its corpus is "train.NAME"; "": running text, whose corpus is "train"
    tokenizer: Tokenizer
    texts: Callable[[Any], Iterable[str]] | None = None  # from a record; None: the column of the data set with this name


class Prepared(NamedTuple):
    vocabulary: Any
    corpora: Mapping[str, Corpus]  # by split, or split and column: train, or train.source and train.target


class Fitted(NamedTuple):
    """The corpora of a split, and a note if texts were truncated."""

    corpora: Sequence[Corpus]
    on_note: str | None = None


def keep_all(config: RunConfig, dataset: Any, corpora: Sequence[Corpus]) -> Fitted:
    """Accept texts of any length."""
    return Fitted(corpora)


def accept_files(paths: Sequence[Path]) -> None:
    """Accept all files."""


def never(config: RunConfig) -> bool:
    return False


@dataclass(frozen=True)
class Data:
    """How the data of a task is read and tokenized. A data set is a `Dataset` of records, or a `Source` of running text."""

    table: type[Config]  # [data] of the run file; it has `sources(base)`, the data set of each split
    tokenizer: type[Config]  # [tokenizer] of the run file
    vocabulary: VocabularyBuilder[Any]
    columns: Callable[[RunConfig, Any], Sequence[Column]]  # by vocabulary; (): the models do not use tokens
    check: Callable[[RunConfig], CheckPlan]  # for `weft check`
    open: Callable[
        [Any, InputFile], OpenedRecords | None
    ]  # open an input file with this [data] table; None: its records are its lines
    lines: Callable[[Any], Iterator[tuple[str, str | None]]]  # a data set as lines of inputs and outputs
    fit: Callable[[RunConfig, Any, Sequence[Corpus]], Fitted] = keep_all  # refuse or truncate long texts
    finish: Callable[[RunConfig, Prepared, Path, Note], None] | None = None  # further preparation of a new run
    check_files: Callable[[Sequence[Path]], None] = accept_files  # refuse files that cannot be evaluation data
    extended: Callable[[RunConfig], bool] = (
        never  # whether the vocabulary of a run has parts that others of its task do not have
    )
    windows: Callable[[RunConfig], bool] = never  # whether training uses windows of running text
    in_memory: Callable[[Any], MemoryFormat] | None = None  # the format of data in memory, by [data]; None: files only

    def load(self, directory: RunDir) -> Any:
        """The vocabulary of a run."""
        return self.vocabulary.load(directory.path)
