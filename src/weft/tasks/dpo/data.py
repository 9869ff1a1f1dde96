"""Prompts with two responses: tokens and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.formats import TableRecord
from weft.errors import DataError
from weft.tasks.data_spec import Column, SplitColumns
from weft.text.reading import pluralize
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    """The prompts, in the template, and both responses."""
    template, data = config.data.read_template(), config.data
    prompt = Column(data.prompt_column, vocabulary, lambda record: [template.prompt(record.texts[0])])
    return [prompt, Column(data.chosen_column, vocabulary), Column(data.rejected_column, vocabulary)]


def limit_lengths(config: RunConfig, dataset: Dataset[TableRecord], corpora: Sequence[Corpus]) -> SplitColumns:
    """Count the pairs that are too long, which are skipped later, or refuse them."""
    from weft.tasks.dpo.batching import pair_lengths

    max_length, lengths = config.data.max_length, pair_lengths(corpora).max(0)
    long = np.flatnonzero(lengths > max_length)
    if len(long) == len(lengths) or (len(long) and not config.data.skip_long):
        more = f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        raise DataError(
            f"{dataset.location(int(long[0]))}{more}",
            f"prompt and response have {lengths[long[0]]:,} tokens, more than data.max_length ({max_length})",
            "increase it" if config.data.skip_long else "increase it or set data.skip_long = true",
        )
    verb = "is" if len(long) == 1 else "are"
    note = f"{pluralize(len(long), 'pair')} {verb} longer than data.max_length = {max_length} tokens and {verb} skipped"
    return SplitColumns(corpora, note if len(long) else None)
