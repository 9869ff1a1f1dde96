"""What the data of a task is to the rest of the package: the part of its record that reading and tokenizing ask.

Nothing here imports torch or numpy when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from weft.config import Table

if TYPE_CHECKING:
    from weft.data.corpus import Corpus
    from weft.data.findings import CheckPlan
    from weft.data.memory import MemoryFormat
    from weft.data.records import InputFile, Opened
    from weft.runs.folder import RunFolder
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer

V = TypeVar("V")
Note = Callable[[str], None]
Watched = Callable[[Iterator[str]], Iterator[str]]  # texts, with the progress of whoever reads them


class VocabularyBuilder(Protocol[V]):
    """How what a run reads with is made and kept: a tokenizer, or several, and labels."""

    def make(self, settings: Settings, dataset: Any, watched: Watched, note: Note) -> V:
        """From the training data, or from the files that the run file names."""

    def save(self, vocabulary: V, folder: Path) -> None: ...

    def load(self, folder: Path) -> V: ...


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
    note: str | None = None


def keep_all(settings: Settings, dataset: Any, corpora: Sequence[Corpus]) -> Fitted:
    """Texts of any length are read."""
    return Fitted(corpora)


def accept_files(paths: Sequence[Path]) -> None:
    """Any files will do."""


def never(settings: Settings) -> bool:
    return False


@dataclass(frozen=True)
class Data:
    """How the data of a task is read and tokenized. A data set is a `Dataset` of records, or a `Source` of running text."""

    table: type[Table]  # [data] of the run file; it has `sources(base)`, the data set of each split
    tokenizer: type[Table]  # [tokenizer] of the run file
    vocabulary: VocabularyBuilder[Any]
    columns: Callable[[Settings, Any], Sequence[Column]]  # of a vocabulary; (): models read texts themselves
    check: Callable[[Settings], CheckPlan]  # for `weft check`
    open: Callable[[Any, InputFile], Opened | None]  # a file for a run with this [data]; None: its records are its lines
    lines: Callable[[Any], Iterator[tuple[str, str | None]]]  # a data set as lines that a run reads, and writes
    fit: Callable[[Settings, Any, Sequence[Corpus]], Fitted] = keep_all  # refuse or cut what is too long
    finish: Callable[[Settings, Prepared, Path, Note], None] | None = None  # what else a new run keeps of its data
    check_files: Callable[[Sequence[Path]], None] = accept_files  # refuse files that can't be the data of an evaluation
    extended: Callable[[Settings], bool] = never  # whether a run's vocabulary has parts that others of its task lack
    windows: Callable[[Settings], bool] = never  # whether training reads windows of running text
    in_memory: Callable[[Any], MemoryFormat] | None = None  # records of Python callers, of [data]; None: files alone will do

    def load(self, folder: RunFolder) -> Any:
        """The vocabulary of a run."""
        return self.vocabulary.load(folder.path)
