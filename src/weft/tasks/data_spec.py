"""What the data of a task is to the rest of the package: the part of its record that reading and tokenizing ask.

Nothing here imports torch or numpy when it runs.
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
Watched = Callable[[Iterator[str]], Iterator[str]]  # texts, with the progress of whoever reads them


class VocabularyBuilder(Protocol[V]):
    """How what a run reads with is made and kept: a tokenizer, or several, and labels."""

    def make(self, config: RunConfig, dataset: Any, watched: Watched, note: Note) -> V:
        """From the training data, or from the files that the run file names."""

    def save(self, vocabulary: V, directory: Path) -> None: ...

    def load(self, directory: Path) -> V: ...


class Column(NamedTuple):
    """Texts that become tokens, a corpus for each split."""

    name: str  # its corpus is "train.NAME"; "": running text, whose corpus is "train"
    tokenizer: Tokenizer
    texts: Callable[[Any], Iterable[str]] | None = None  # of a record; None: what the data set has by this name


class Prepared(NamedTuple):
    vocabulary: Any
    corpora: Mapping[str, Corpus]  # by split, and column where there are several: train, or train.source and train.target


class Fitted(NamedTuple):
    """The corpora of a split, and how much of it is cut, in words."""

    corpora: Sequence[Corpus]
    on_note: str | None = None


def keep_all(config: RunConfig, dataset: Any, corpora: Sequence[Corpus]) -> Fitted:
    """Texts of any length are read."""
    return Fitted(corpora)


def accept_files(paths: Sequence[Path]) -> None:
    """Any files will do."""


def never(config: RunConfig) -> bool:
    return False


@dataclass(frozen=True)
class Data:
    """How the data of a task is read and tokenized. A data set is a `Dataset` of records, or a `Source` of running text."""

    table: type[Config]  # [data] of the run file; it has `sources(base)`, the data set of each split
    tokenizer: type[Config]  # [tokenizer] of the run file
    vocabulary: VocabularyBuilder[Any]
    columns: Callable[[RunConfig, Any], Sequence[Column]]  # of a vocabulary; (): models read texts themselves
    check: Callable[[RunConfig], CheckPlan]  # for `weft check`
    open: Callable[[Any, InputFile], OpenedRecords | None]  # a file for a run with this [data]; None: its records are its lines
    lines: Callable[[Any], Iterator[tuple[str, str | None]]]  # a data set as lines that a run reads, and writes
    fit: Callable[[RunConfig, Any, Sequence[Corpus]], Fitted] = keep_all  # refuse or cut what is too long
    finish: Callable[[RunConfig, Prepared, Path, Note], None] | None = None  # what else a new run keeps of its data
    check_files: Callable[[Sequence[Path]], None] = accept_files  # refuse files that can't be the data of an evaluation
    extended: Callable[[RunConfig], bool] = never  # whether a run's vocabulary has parts that others of its task lack
    windows: Callable[[RunConfig], bool] = never  # whether training reads windows of running text
    in_memory: Callable[[Any], MemoryFormat] | None = None  # records of Python callers, of [data]; None: files alone will do

    def load(self, directory: RunDir) -> Any:
        """The vocabulary of a run."""
        return self.vocabulary.load(directory.path)
