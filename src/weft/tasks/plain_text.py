"""The data of language models and masked language models: running text or lines, without labels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from weft.data.config import TextDataConfig, training
from weft.data.corpus import Corpus
from weft.data.findings import CheckOptions, CheckPlan
from weft.data.memory import MemoryFormat, text_format
from weft.data.source import Source
from weft.tasks.data_spec import Column
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

MIN_DUPLICATE_CHARS = 40  # shorter lines of running text often occur twice


def texts(dataset: Source) -> Iterator[str]:
    return dataset.texts()


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column]:
    return [Column("", vocabulary)]


def check(config: RunConfig) -> CheckPlan:
    minimum = 0 if config.data.read_as == "lines" else MIN_DUPLICATE_CHARS
    train = training(config.datasets)
    return CheckPlan(CheckOptions(("line",), min_chars=minimum), lambda: [train_tokenizer(config.tokenizer, train.texts())])


def decode_between(tokenizer: Tokenizer, corpus: Corpus, edges: np.ndarray) -> list[str]:
    """The texts between token positions `edges` (N + 1,)."""
    return [tokenizer.decode(corpus.tokens[low:high].tolist()) for low, high in pairwise(edges.tolist())]


def lines(dataset: Source) -> Iterator[tuple[str, None]]:
    return ((line, None) for piece in dataset.texts() for line in piece.split("\n"))


def in_memory(config: TextDataConfig) -> MemoryFormat:
    return text_format(lines=config.read_as == "lines")
