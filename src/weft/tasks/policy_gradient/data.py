"""Prompts of policies: tokens and checks."""

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
    """The prompts, in the template."""
    template = config.data.read_template()
    return [Column(config.data.prompt_column, vocabulary, lambda record: [template.prompt(record.texts[0])])]


def limit_lengths(config: RunConfig, dataset: Dataset[TableRecord], corpora: Sequence[Corpus]) -> SplitColumns:
    """Count the prompts that leave no room for a response, which are skipped later, or refuse them."""
    lengths, limit = np.diff(corpora[0].line_starts()), config.data.max_length - config.model.max_new_tokens
    long = np.flatnonzero(lengths > limit)
    if len(long) == len(lengths) or (len(long) and not config.data.skip_long):
        more = f" (and {len(long) - 1:,} more)" if len(long) > 1 else ""
        problem = f"the prompt has {lengths[long[0]]:,} tokens, and {limit} fit beside model.max_new_tokens"
        fix = "increase data.max_length" + ("" if config.data.skip_long else " or set data.skip_long = true")
        raise DataError(f"{dataset.location(int(long[0]))}{more}", problem, fix)
    verb = "leaves" if len(long) == 1 else "leave"
    note = f"{pluralize(len(long), 'prompt')} {verb} no room for a response and {'is' if len(long) == 1 else 'are'} skipped"
    return SplitColumns(corpora, note if len(long) else None)
