"""Shared parts of tasks whose records are rows of texts for one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.config import Config
from weft.data.columns import ColumnSpec
from weft.data.config import DataFilesConfig, datasets, training
from weft.data.dataset import Dataset, Format, R
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_files import open_columns
from weft.data.input_records import ColumnSelection, InputFile, OpenedRecords
from weft.data.memory import MemoryFormat
from weft.tasks.data_spec import Column, Data
from weft.tasks.vocabulary import TokenizerOnly, WordTokenizerConfig, all_texts
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig


class SplitConfig(DataFilesConfig):
    """The splits of a data set; a task adds its columns and limits, and `sources(base)`."""

    def read_as(self, format: Format[R], base: Path) -> dict[str, Dataset[R]]:
        """The data set of each split that is set; paths are relative to `base`, the directory of the run file."""
        return datasets(base, format, self)


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    return [Column(name, vocabulary) for name in training(config.datasets).format.columns]


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    names = train.format.columns
    return CheckPlan(
        CheckOptions(names, independent_sides=True), lambda: [train_tokenizer(config.tokenizer, all_texts(train))] * len(names)
    )


def open_table(config: Any, file: InputFile) -> OpenedRecords | None:
    """The text columns of a table; None for a text file, whose records are its lines."""
    form = config.sources(Path())["train"].format
    return open_columns(
        file, ColumnSelection(tuple(ColumnSpec("", name) for name in form.columns), options=form.options()), config.train
    )


def lines(dataset: Dataset[Any]) -> Iterator[tuple[str, None]]:
    return (("\t".join(dataset.format.texts(record)), None) for record in dataset.records())


def in_memory(config: Any) -> MemoryFormat:
    """The text columns, followed by the other columns."""
    format = config.sources(Path())["train"].format
    return MemoryFormat((*format.columns, *format.values), num_inputs=len(format.columns))


def table_data(config: type[Config], tokenizer: type[Config] = WordTokenizerConfig) -> Data:
    """`Data` of a task whose `config` has `train` and `sources(base)`, data sets whose format is a `TableFormat`."""
    return Data(
        data_config=config,
        tokenizer_config=tokenizer,
        vocabulary=TokenizerOnly(all_texts),
        columns=columns,
        check=check,
        open_input=open_table,
        input_output_pairs=lines,
        in_memory=in_memory,
    )
