"""Preferences: pairs of a chosen and a rejected text, and the [data] section."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.config import TableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.formats import TableRecord
from weft.models.reward_config import LinearRewardConfig
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.responses.preferences import PreferenceFormat
from weft.tasks.vocabulary import all_texts
from weft.text.reading import pluralize
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig


class PreferenceDataConfig(TableFilesConfig):
    """Pairs of texts, of which one was preferred."""

    prompt_column: str | None = None
    """Column of the prompt that both texts respond to. Default: there is none."""
    chosen_column: str = "chosen"
    """Column of the preferred text."""
    rejected_column: str = "rejected"
    """Column of the other text."""
    group_column: str | None = None
    """Column of a group, such as a topic: weft evaluate prints the accuracy of each."""
    # with a prompt: of both texts together
    max_length: int = Field(512, ge=4, le=2**31 - 1)
    """Maximum length in tokens, including special tokens. Longer texts are truncated."""

    @model_validator(mode="after")
    def check_columns(self) -> Self:
        names = [name for name in (*self.columns(), self.group_column) if name is not None]
        if len(set(names)) < len(names):
            raise invalid("", "two options name the same column")
        return self

    def columns(self) -> tuple[str, ...]:
        prompt = () if self.prompt_column is None else (self.prompt_column,)
        return (*prompt, self.chosen_column, self.rejected_column)

    def sources(self, base: Path) -> dict[str, Dataset[TableRecord]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        values = () if self.group_column is None else (self.group_column,)
        form = PreferenceFormat(self.columns(), values, self.encoding, delimiter=self.delimiter, sheet=self.sheet)
        return datasets(base, form, self)


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    """One tokenized column per text; none for linear models, which extract their own features."""
    if isinstance(config.model, LinearRewardConfig):
        return []
    return [Column(name, vocabulary) for name in config.data.columns()]


def limit_lengths(config: RunConfig, dataset: Dataset[TableRecord], corpora: Sequence[Corpus]) -> SplitColumns:
    """Count the pairs with a text that is truncated."""
    from weft.tasks.reward_model.batching import row_lengths

    max_length = config.data.max_length
    truncated = int((row_lengths(corpora).max(0) > max_length).sum()) if len(corpora) else 0
    verb = "has a text that is" if truncated == 1 else "have texts that are"
    note = f"{pluralize(truncated, 'pair')} {verb} longer than data.max_length = {max_length} tokens and truncated"
    return SplitColumns(corpora, note if truncated else None)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    names = config.data.columns()
    return CheckPlan(
        CheckOptions(names[-2:], independent_sides=True),
        lambda: [train_tokenizer(config.tokenizer, all_texts(train))] * 2,
    )


def pairs_of_texts(dataset: Dataset[TableRecord]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The chosen and the rejected texts, each after its prompt if there is one."""
    records = [record.texts for record in dataset.records()]
    return [(*texts[:-2], texts[-2]) for texts in records], [(*texts[:-2], texts[-1]) for texts in records]
