"""Builds models, data and objectives to train masked language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from weft.data.batching import BatchSampler, Lines, Windows
from weft.data.corpus import Corpus
from weft.data.line_pairs import LinePairBatchSampler, pair_lines
from weft.data.source import Source
from weft.errors import ConfigError
from weft.models.config import StackConfig
from weft.models.masked_lm import MaskedLanguageModel, masked_language_model
from weft.tasks.masked_lm.masked_texts import FixedMaskTask, MaskedExamples
from weft.tasks.masked_lm.objective import MaskedLMObjective, Masking, check_line_lengths
from weft.text.whole_words import word_starts
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


class MaskedLMBuilder(NetworkTask[MaskedExamples]):
    """Masked language models."""

    def compiles(self, config: RunConfig) -> bool:
        model: StackConfig = config.model
        return config.data.read_as != "lines" and model.traits.compiles

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], MaskedLanguageModel]:
        return lambda: masked_language_model(
            config.model, vocab_size=vocabulary.vocab_size, max_positions=config.data.context_length
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Source,
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> MaskedExamples:
        (corpus,) = columns
        return MaskedExamples(corpus, partial(masking, config, vocabulary), config.data.context_length)

    def check_lengths(self, config: RunConfig, columns: Sequence[Corpus], max_length: int | None) -> None:
        for corpus in columns:
            check_line_lengths(max_length, corpus)

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: MaskedExamples | None,
        valid: MaskedExamples | None,
        device: torch.device,
    ) -> MaskedLMObjective:
        length, smoothing = config.data.context_length, config.train.label_smoothing
        corpus = None if valid is None else valid.corpus
        if corpus is not None and config.model.sentence_pairs:  # as in training
            corpus = pair_lines(corpus, max_length=length)
        if train is None:
            return FixedMaskTask(masking(config, vocabulary), valid=corpus, context_length=length, device=device)
        return MaskedLMObjective(
            masking(config, vocabulary), valid=corpus, context_length=length, device=device, smoothing=smoothing
        )

    def batch_sampler(self, config: RunConfig, train: MaskedExamples) -> BatchSampler:
        """Batches of lines or line pairs of similar length; of running text, shuffled windows. The objective masks them."""
        corpus, data = train.corpus, config.data
        if config.model.sentence_pairs:
            return LinePairBatchSampler(
                corpus, max_length=data.context_length, batch_tokens=config.train.batch_tokens, seed=config.seed
            )
        if data.read_as == "lines":
            return Lines(corpus, batch_tokens=config.train.batch_tokens, seed=config.seed)
        rows = max(1, config.train.batch_tokens // data.context_length)
        # a row has one token more than the window: here it is not a target, but part of the text
        return Windows(
            corpus,
            context_length=data.context_length - 1,
            stride=data.stride or data.context_length,
            rows=rows,
            seed=config.seed,
        )


def masking(config: RunConfig, tokenizer: Tokenizer) -> Masking:
    """The masking of a run."""
    masking = Masking(tokenizer.vocab_size, config.model.mask_prob, spans=config.model.masking == "span")
    if config.model.masking == "token":
        return masking
    starts = word_starts(tokenizer)
    if starts is None and config.model.masking == "whole-word":
        raise ConfigError(
            "model.masking",
            f"'whole-word' is not possible with tokenizer type {tokenizer.type!r}, which does not mark word starts",
            "use tokenizer.type = 'wordpiece' or 'bpe', or masking = 'token' or 'span'",
        )
    if starts is None:  # spans of tokens
        return masking
    with_mask = torch.ones(tokenizer.vocab_size + 1, dtype=torch.bool)
    with_mask[:-1] = torch.from_numpy(starts)
    return masking._replace(word_starts=with_mask)
