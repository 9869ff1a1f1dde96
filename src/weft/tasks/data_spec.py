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
    from weft.data.findings import CheckPlan
    from weft.data.frames import FrameColumn
    from weft.data.input_records import InputFile, OpenedRecords
    from weft.data.memory import MemoryFormat
    from weft.data.source import Readable
    from weft.runs.config import RunConfig
    from weft.runs.run_dir import RunDir
    from weft.text.tokenizers import Tokenizer

V = TypeVar("V")  # a vocabulary
Note = Callable[[str], None]  # shows a remark to the user
TextsWithProgress = Callable[[Iterator[str]], Iterator[str]]  # yields the same texts and reports progress


class VocabularyBuilder(Protocol[V]):
    """Builds, saves and loads the vocabulary of a run: one or more tokenizers, and labels.

    A vocabulary V has `hash`, which is stored with the weights, and `by_name()`, its tokenizers by their names in output.
    """

    def build(self, config: RunConfig, dataset: Any, with_progress: TextsWithProgress, note: Note) -> V:
        """Build the vocabulary from the training data, or load it from the files that the run file names."""

    def save(self, vocabulary: V, directory: Path) -> None: ...

    def load(self, directory: Path) -> V: ...


class Column(NamedTuple):
    """A column of texts that is tokenized: one corpus per split."""

    name: str  # the corpus of the training data is "train.NAME"; for running text, NAME is "" and the corpus is "train"
    tokenizer: Tokenizer
    texts: Callable[[Any], Iterable[str]] | None = None  # from a record; None: the column of the data set with this name

    def source(self, dataset: Any) -> Readable:
        """The texts of this column of a data set; running text has a single column."""
        texts: Readable = dataset.column(self.name, self.texts) if self.name else dataset
        return texts


def corpus_name(split: str, column: str) -> str:
    """The name of a corpus: train, or train.source."""
    return f"{split}.{column}" if column else split


class Prepared(NamedTuple):
    """The vocabulary of a run and its data: tokenized texts, and frames of files."""

    vocabulary: Any
    columns: Mapping[str, Any]  # corpora and frames by split, or split and column: train, or train.source and train.target


class SplitColumns(NamedTuple):
    """The columns of a split, corpora or frames, and a note if texts were truncated."""

    columns: Sequence[Any]
    note: str | None = None


def any_length(config: RunConfig, dataset: Any, columns: Sequence[Any]) -> SplitColumns:
    """Accept texts of any length."""
    return SplitColumns(columns)


def accept_files(config: Any, paths: Sequence[Path]) -> None:
    """Accept all files."""


def always_false(config: RunConfig) -> bool:
    return False


@dataclass(frozen=True)
class Data:
    """How the data of a task is read and tokenized. A data set is a `Dataset` of records, or a `Source` of running text."""

    data_config: type[Config]  # [data] of the run file; it has `sources(base)`, the data set of each split
    tokenizer_config: type[Config]  # [tokenizer] of the run file
    vocabulary: VocabularyBuilder[Any]
    columns: Callable[[RunConfig, Any], Sequence[Column | FrameColumn]]  # of a run with this vocabulary; () if models use none
    check: Callable[[RunConfig], CheckPlan]  # for `weft check`
    open_input: Callable[[Any, InputFile], OpenedRecords | None]  # with the [data] options; None if the records are lines
    input_output_pairs: Callable[[Any], Iterator[tuple[str, str | None]]]  # the records of a data set, as lines of text
    limit_lengths: Callable[[RunConfig, Any, Sequence[Any]], SplitColumns] = any_length  # refuse or truncate long texts
    on_prepared: Callable[[RunConfig, Prepared, Path, Note], None] | None = None  # further preparation of a new run
    # refuse files that cannot be evaluation data, with the [data] options
    check_files: Callable[[Any, Sequence[Path]], None] = accept_files
    # whether the vocabulary of a run has parts that other runs of the task do not have
    has_extended_vocabulary: Callable[[RunConfig], bool] = always_false
    uses_windows: Callable[[RunConfig], bool] = always_false  # whether training uses windows of running text
    # the first examples as training reads them, with a tokenizer and their number, for `weft check`; None: as in the files
    training_examples: Callable[[RunConfig, Tokenizer, int], Sequence[Mapping[str, str]]] | None = None
    in_memory: Callable[[Any], MemoryFormat] | None = None  # the format of data in memory, by [data]; None: files only

    def load(self, directory: RunDir) -> Any:
        """The vocabulary of a run."""
        return self.vocabulary.load(directory.path)
