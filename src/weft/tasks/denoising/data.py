"""The [data] section of denoising: texts without labels, and the noise that is added to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice, invalid
from weft.data.columns import ColumnSpec
from weft.data.config import TableFilesConfig, datasets, expand_files, refuse_conll, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.formats import TableFormat, TableRecord, TableSummary
from weft.data.input_files import open_columns
from weft.data.input_records import ColumnSelection, InputFile, OpenedRecords
from weft.data.memory import MemoryFormat, text_format
from weft.data.noise import KEEP, NOISES, SENTINELS
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import DEFAULT_TABLE_OPTIONS, TableOptions, file_format
from weft.errors import DataError
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.encoder_decoder.lengths import limit_side
from weft.text.reading import FileSummary, read_lines
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

TEXT = "text"
BART_DENSITY, T5_DENSITY = 0.3, 0.15
MEAN_SPAN_LENGTH, NUM_SENTINELS = 3.0, 100
SPAN_OPTIONS = ("noise_density", "mean_span_length")
OTHER_NOISE = ("deletion_prob", "permute_sentences", "rotation_prob")


@dataclass(frozen=True)
class TextFormat:
    """Lines of text files, and columns of tables; each line or cell is a text. Blank ones are skipped and counted."""

    encoding: str = "utf-8"
    text_columns: tuple[str, ...] = (TEXT,)
    tables: TableOptions = DEFAULT_TABLE_OPTIONS  # its encoding is ignored
    columns: tuple[str, ...] = (TEXT,)
    rows: str = "texts"
    in_memory: bool = False

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        """The files; directories and patterns are replaced by the text files in them."""
        return expand_files(Path(), [str(path) for path in inputs])

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[TableRecord]:
        for path in self.files(inputs):
            refuse_conll(path)
            count = 0
            for text, line in self._texts(path, summary):
                summary.blank += not text.strip()
                if text.strip():
                    count += 1
                    yield TableRecord((text,), (), path, line)
            if not count:
                raise DataError(path, "no text")

    def _texts(self, path: Path, summary: FileSummary) -> Iterator[tuple[str, int]]:
        """The texts of a file with their lines."""
        if file_format(path) == "text":
            yield from ((text, line) for line, text in enumerate(read_lines(path, self.encoding, summary), 1))
            return
        table = TableFormat(self.text_columns, encoding=self.encoding, delimiter=self.tables.delimiter, sheet=self.tables.sheet)
        for record in table.read((path,), summary):
            yield from ((text, record.line) for text in record.texts)

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> TableSummary:
        return TableSummary(summary, self.columns, (ColumnSize(),))

    def texts(self, record: TableRecord) -> tuple[str, ...]:
        return record.texts

    def column_label(self, column: str) -> str:
        return ""

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        files = self.files(inputs)
        has_tables = any(file_format(path) != "text" for path in files)
        source = {"columns": list(self.text_columns), **self.tables.provenance()} if has_tables else {}
        return {**source, "encoding": self.encoding, "files": fingerprints(files)}


class DenoisingDataConfig(TableFilesConfig):
    """Texts, one per line of a text file or per cell of a table, and the noise that is added to them."""

    # of several columns, each cell is a text of its own: the spellings and the pronunciations of a dictionary
    text_column: str | list[str] = TEXT
    """Column or JSON key of the text, or several; not used for text files."""
    max_length: int = Field(512, ge=4, le=2**31 - 1)
    """Maximum length in tokens, including special tokens."""
    truncate: bool = False
    """Truncate longer texts. If false, they are an error."""
    noise: Annotated[str, Choice(NOISES)] = "infilling"
    """infilling: spans become one mask each, the target is the text (BART). span-corruption: spans become sentinels, the target
    is the spans (T5). none: only the other kinds of noise."""
    noise_density: float | None = Field(None, gt=0.0, lt=1.0)
    """Fraction of the text in spans. Default: 0.3 for infilling, 0.15 for span-corruption."""
    mean_span_length: float | None = Field(None, ge=1.0, le=100.0)
    """Mean length of a span. Default: 3."""
    span_unit: Literal["token", "word"] | None = None
    """Unit of spans. Default: token."""
    num_sentinels: int | None = Field(None, ge=3, le=10**5)
    """Number of sentinels of span-corruption. Default: 100."""
    deletion_prob: float = Field(0.0, ge=0.0, lt=1.0)
    """Probability that a token is deleted."""
    permute_sentences: bool = False
    """Permute the sentences of a text."""
    rotation_prob: float = Field(0.0, ge=0.0, le=1.0)
    """Probability that a text starts at a random token, with the tokens before it at its end."""

    @model_validator(mode="after")
    def check_noise(self) -> Self:
        if not self.text_columns() or "" in self.text_columns():
            raise invalid("text_column", f"expected a column name, got {self.text_column!r}")
        others = [name for name in OTHER_NOISE if getattr(self, name)]
        if self.noise == SENTINELS and others:
            raise invalid(others[0], f"not possible with noise {SENTINELS!r}, whose target has only the spans", "remove it")
        if self.noise == KEEP and not others:
            raise invalid("noise", "'none' leaves the text as it is", f"set {', '.join(OTHER_NOISE[:-1])} or {OTHER_NOISE[-1]}")
        if self.noise == KEEP and (spans := [name for name in (*SPAN_OPTIONS, "span_unit") if getattr(self, name) is not None]):
            raise invalid(spans[0], "not used with noise 'none'", "remove it")
        if self.noise != SENTINELS and self.num_sentinels is not None:
            raise invalid("num_sentinels", f"not used with noise {self.noise!r}", "remove it")
        return self

    def text_columns(self) -> tuple[str, ...]:
        return (self.text_column,) if isinstance(self.text_column, str) else tuple(self.text_column)

    def with_defaults(self) -> Self:
        """A copy with a value for every option that applies."""
        if self.noise == KEEP:
            return self
        is_t5 = self.noise == SENTINELS
        defaults = {
            "noise_density": T5_DENSITY if is_t5 else BART_DENSITY,
            "mean_span_length": MEAN_SPAN_LENGTH,
            "span_unit": "token",
            **({"num_sentinels": NUM_SENTINELS} if is_t5 else {}),
        }
        return self.model_copy(update={name: value for name, value in defaults.items() if getattr(self, name) is None})

    @property
    def num_noise_tokens(self) -> int:
        """The number of tokens that the tokenizer does not have: a mask, or sentinels."""
        return (self.num_sentinels or NUM_SENTINELS) if self.noise == SENTINELS else 1

    def describe_noise(self) -> str:
        """The noise, for the signature of a score."""
        parts = [self.noise, *(f"{value:g}" for value in (self.noise_density, self.mean_span_length) if value is not None)]
        parts += [self.span_unit] if self.span_unit == "word" else []
        parts += [f"{name}:{float(getattr(self, name)):g}" for name in OTHER_NOISE if getattr(self, name)]
        return "/".join(parts)

    def table_options(self) -> TableOptions:
        return TableOptions(self.encoding, self.delimiter, self.sheet)

    def input_columns(self) -> ColumnSelection:
        """The column that a trained run reads from a table."""
        column = (ColumnSpec(TEXT, self.text_columns()[0]),)
        return ColumnSelection(column, column if self.text_column == TEXT else (), options=self.table_options())

    def sources(self, base: Path) -> dict[str, Dataset[TableRecord]]:
        """The data set of each split that is set. Paths are relative to `base`, the directory of the run file."""
        return datasets(base, TextFormat(self.encoding, self.text_columns(), self.table_options()), self)


def texts(dataset: Dataset[TableRecord]) -> Iterator[str]:
    return dataset.texts(TEXT)


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    return [Column(TEXT, vocabulary)]


def limit_lengths(config: RunConfig, dataset: Dataset[TableRecord], corpora: Sequence[Corpus]) -> SplitColumns:
    (corpus,), data = corpora, config.data
    return SplitColumns([limit_side(corpus, dataset, TEXT, max_length=data.max_length, truncate=data.truncate)])


def check(config: RunConfig) -> CheckPlan:
    data, train = config.data, training(config.datasets)
    options = CheckOptions((TEXT,), data.max_length, data.truncate, has_start_tokens=True)
    return CheckPlan(options, lambda: [train_tokenizer(config.tokenizer, texts(train))])


def open_texts(config: DenoisingDataConfig, file: InputFile) -> OpenedRecords | None:
    """The text column of a table; None for a text file, whose records are its lines."""
    return open_columns(file, config.input_columns(), config.train)


def lines(dataset: Dataset[TableRecord]) -> Iterator[tuple[str, None]]:
    return ((text, None) for text in texts(dataset))


def in_memory(config: DenoisingDataConfig) -> MemoryFormat:
    return text_format(lines=True)
