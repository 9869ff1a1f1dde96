"""Instructions with responses: splits, summaries, and the [data] section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from weft.data.config import datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.input_records import InputFile, OpenedRecords
from weft.data.memory import MemoryFormat
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import TableOptions
from weft.errors import DataError
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.responses.files import PROMPTS, RESPONSES, ColumnNames, Dialogue, read_dialogues
from weft.tasks.responses.template import Template, TemplateConfig
from weft.text.reading import PREVIEW_CHARS, FileSummary, listed_files, pluralize, preview
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

SIDES = ("prompt", "response")
MAX_EXAMPLES = 3  # in a summary


@dataclass
class DialogueSummary:
    """A summary of files of instructions with responses."""

    files: FileSummary  # line endings, encoding, notes; its line count is not used
    count: int = 0
    turns: int = 0
    prompt: ColumnSize = field(default_factory=ColumnSize)
    response: ColumnSize = field(default_factory=ColumnSize)
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        return self.prompt.characters + self.response.characters

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: Dialogue) -> None:
        self.count += 1
        self.turns += len(record.responses)
        for text in record.prompts:
            self.prompt.add(text)
        for text in record.responses:
            self.response.add(text)
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((record.prompts[0][: PREVIEW_CHARS + 1], record.responses[0][: PREVIEW_CHARS + 1]))

    def bytes_of(self, column: str) -> int:
        return (self.prompt if column == "prompt" else self.response).bytes

    def strata(self) -> None:
        """None: fractions are taken from the end."""

    def problem(self) -> None:
        """None: the data is not checked as a whole."""

    def describe(self) -> str:
        """A description in several lines: files, sizes, encoding, line endings, notes, examples."""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(self.count, 'example')}, {pluralize(self.turns, 'response')},"
            f" {self.prompt.characters:,} prompt and {self.response.characters:,} response characters,"
            f" {self.files.encoding_info}"
        ]
        skipped, first = self.files.skipped, self.files.first_skipped
        notes = [f"examples without a response that were skipped: {skipped:,}, the first at {first}"] if skipped else []
        rows += [f"  note: {preview(note, 200)}" for note in [*self.files.notes, *notes]]
        rows += [f"  e.g.: {preview(prompt)} -> {preview(response)}" for prompt, response in self.examples]
        return "\n".join(rows)


@dataclass(frozen=True)
class DialogueFormat:
    """Conversations as records; the prompts and the responses of all turns are one corpus each."""

    names: ColumnNames
    template: Template
    tables: TableOptions
    columns: tuple[str, ...] = SIDES
    rows: str = "examples"
    in_memory: bool = False

    @property
    def encoding(self) -> str:
        return self.tables.encoding

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return inputs

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[Dialogue]:
        return read_dialogues(inputs, self.names, self.tables, self.template, summary)

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> DialogueSummary:
        return DialogueSummary(summary)

    def texts(self, record: Dialogue) -> tuple[str, ...]:
        """All prompts, without the template, and all responses."""
        return "\n".join(record.questions), "\n".join(record.responses)

    def column_label(self, column: str) -> str:
        return column

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        options = {"names": list(self.names), "template": list(self.template), **self.tables.provenance()}
        return {"side": column, **options, "encoding": self.encoding, "files": fingerprints(inputs)}


class DialogueDataConfig(TemplateConfig):
    """Instructions with responses, or conversations, in JSONL or a table."""

    prompt_column: str | None = None
    """Column or JSON key of the prompt. Default: instruction, prompt or question."""
    input_column: str | None = None
    """Column of a text that follows the prompt, may be empty. Default: input or context, if there is one."""
    response_column: str | None = None
    """Column or JSON key of the response. Default: output, response, completion or answer."""
    messages_column: str | None = None
    """JSON key of a list of chat messages. Default: messages or conversations, if there is one."""
    max_length: int = Field(512, ge=4, le=2**31 - 1)
    """Maximum length of an example in tokens, including special tokens, and the attention span."""
    skip_long: bool = True
    """Skip and count examples that are longer. If false, they are an error."""

    def sources(self, base: Path) -> dict[str, Dataset[Dialogue]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        names = ColumnNames(self.prompt_column, self.input_column, self.response_column, self.messages_column)
        tables = TableOptions(self.encoding, self.delimiter, self.sheet)
        return datasets(base, DialogueFormat(names, self.read_template(), tables), self)


def prompts_of(record: Dialogue) -> tuple[str, ...]:
    return record.prompts


def responses_of(record: Dialogue) -> tuple[str, ...]:
    return record.responses


def texts(dataset: Dataset[Dialogue]) -> Iterator[str]:
    """What a tokenizer is trained on: all prompts, in the template, then all responses."""
    return chain(*(chain.from_iterable(map(side, dataset.records())) for side in (prompts_of, responses_of)))


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    """The prompts and the responses of all turns, one per line."""
    return [Column("prompt", vocabulary, prompts_of), Column("response", vocabulary, responses_of)]


def dialogue_edges(dataset: Dataset[Dialogue]) -> np.ndarray:
    """int64 (N + 1,): the first turn of each example, and the number of turns."""
    return np.cumsum([0, *(len(record.responses) for record in dataset.records())], dtype=np.int64)


def dialogue_lengths(corpora: Sequence[Corpus], edges: np.ndarray) -> np.ndarray:
    """int64 (N,): tokens of each example, with <s>, and with </s> after each response."""
    prompts, responses = (corpus.line_starts()[edges] for corpus in corpora)
    # in the corpus, each prompt ends with </s>, which is not part of an example
    lengths: np.ndarray = 1 + np.diff(prompts) - np.diff(edges) + np.diff(responses)
    return lengths


def limit_lengths(config: RunConfig, dataset: Dataset[Dialogue], corpora: Sequence[Corpus]) -> SplitColumns:
    """Count the examples that are too long, which are skipped later, or refuse them."""
    return limited(config, dataset, corpora, dialogue_lengths(corpora, dialogue_edges(dataset)), "example")


def limited(
    config: RunConfig, dataset: Dataset[Any], corpora: Sequence[Corpus], lengths: np.ndarray, noun: str
) -> SplitColumns:
    """The columns of a split, with a note that counts the records that are too long. `lengths` (N,) are the tokens of prompt
    and response."""
    max_length = config.data.max_length
    long = np.flatnonzero(lengths > max_length)
    if len(long) == len(lengths) or (len(long) and not config.data.skip_long):
        more = f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{dataset.location(int(long[0]))}{more}",
            f"prompt and response have {lengths[long[0]]:,} tokens, more than data.max_length ({max_length})",
            "increase it" if config.data.skip_long else "increase it or set data.skip_long = true",
        )
    verb = "is" if len(long) == 1 else "are"
    note = f"{pluralize(len(long), noun)} {verb} longer than data.max_length = {max_length} tokens and {verb} skipped"
    return SplitColumns(corpora, note if len(long) else None)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    return CheckPlan(
        CheckOptions(SIDES, independent_sides=True), lambda: [train_tokenizer(config.tokenizer, texts(train))] * len(SIDES)
    )


def open_input(config: Any, file: InputFile) -> OpenedRecords | None:
    """None: the records of an input file are its lines, one prompt each."""
    return None


def lines(dataset: Dataset[Dialogue]) -> Iterator[tuple[str, str]]:
    """The first prompt and response of each example."""
    return ((record.questions[0], record.responses[0]) for record in dataset.records())


def in_memory(config: DialogueDataConfig) -> MemoryFormat:
    """A prompt and its response."""
    return MemoryFormat((config.prompt_column or PROMPTS[0], config.response_column or RESPONSES[0]))
