"""Prompts with two responses: tokens and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.formats import TableRecord
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.responses.data import limited
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

    return limited(config, dataset, corpora, pair_lengths(corpora).max(0), "pair")
