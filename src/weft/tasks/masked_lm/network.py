"""Training masked language models: what the training of networks must know of them."""

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
from weft.tasks.masked_lm.masked_texts import FixedGaps, GapExamples
from weft.tasks.masked_lm.objective import MaskedTask, Masking, check_longest
from weft.text.whole_words import word_starts
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


class MaskedLMBuilder(NetworkTask[GapExamples]):
    """Networks that fill gaps in a text."""

    def compiles(self, settings: RunConfig) -> bool:
        table: StackConfig = settings.model
        return settings.data.read_as != "lines" and table.traits.compiles

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
    ) -> GapExamples:
        (corpus,) = columns
        return GapExamples(corpus, partial(masking, config, vocabulary), config.data.context_length)

    def check_lengths(self, config: RunConfig, columns: Sequence[Corpus], max_length: int | None) -> None:
        for corpus in columns:
            check_longest(max_length, corpus)

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: GapExamples | None,
        valid: GapExamples | None,
        device: torch.device,
    ) -> MaskedTask:
        how, window = masking(config, vocabulary), config.data.context_length
        held = None if valid is None else valid.corpus
        if held is not None and config.model.sentence_pairs:  # read as training reads
            held = pair_lines(held, max_length=window)
        if train is None:
            return FixedGaps(how, valid=held, context_length=window, device=device)
        return MaskedTask(how, valid=held, context_length=window, device=device, smoothing=config.train.label_smoothing)

    def batch_sampler(self, config: RunConfig, train: GapExamples) -> BatchSampler:
        """Lines, or pairs of them, of like length together; of running text windows at any place. Gaps are made later."""
        corpus, data = train.corpus, config.data
        if config.model.sentence_pairs:
            return LinePairBatchSampler(
                corpus, max_length=data.context_length, batch_tokens=config.train.batch_tokens, seed=config.seed
            )
        if data.read_as == "lines":
            return Lines(corpus, batch_tokens=config.train.batch_tokens, seed=config.seed)
        rows = max(1, config.train.batch_tokens // data.context_length)
        # a row of windows holds one token more than the window: here that is no target, but a part of the text
        return Windows(
            corpus,
            context_length=data.context_length - 1,
            stride=data.stride or data.context_length,
            rows=rows,
            seed=config.seed,
        )


def masking(config: RunConfig, tokenizer: Tokenizer) -> Masking:
    """How a run makes gaps."""
    how = Masking(tokenizer.vocab_size, config.model.mask_prob, spans=config.model.masking == "span")
    if config.model.masking == "token":
        return how
    begins = word_starts(tokenizer)
    if begins is None and config.model.masking == "whole-word":
        raise ConfigError(
            "model.masking",
            f"'word' needs tokens that show where a word starts, which those of kind {tokenizer.type!r} don't",
            "use tokenizer.type = 'wordpiece' or 'bpe', or masking = 'token' or 'span'",
        )
    if begins is None:  # spans of tokens
        return how
    known = torch.ones(tokenizer.vocab_size + 1, dtype=torch.bool)
    known[:-1] = torch.from_numpy(begins)
    return how._replace(word_starts=known)
