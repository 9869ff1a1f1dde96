"""Builds models, data and objectives to train neural language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.batching import BatchSampler, LineExamples, Lines, Streams, WindowExamples, Windows
from weft.data.corpus import Corpus
from weft.data.equal_shapes import EqualShapes
from weft.data.source import Source
from weft.errors import ConfigError
from weft.models.config import StackConfig
from weft.models.lm import LanguageModel, language_model
from weft.tasks.lm.contexts import check_positions, default_context
from weft.tasks.lm.objective import LanguageModelObjective
from weft.training.distillation import check_teacher_length
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun
    from weft.text.tokenizers import Tokenizer

CorpusExamples = LineExamples | WindowExamples


class LanguageModelBuilder(NetworkTask[CorpusExamples]):
    """Builds neural language models, their examples and objectives."""

    def compiles(self, config: RunConfig) -> bool:
        model: StackConfig = config.model
        return config.data.read_as != "lines" and model.traits.compiles

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], LanguageModel]:
        return lambda: language_model(
            config.model,
            vocab_size=vocabulary.vocab_size,
            context_length=config.data.context_length,
            vocabulary=vocabulary.hash,
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
    ) -> CorpusExamples:
        """Lines, or running text in the windows of evaluation."""
        (corpus,) = columns
        if config.data.read_as == "lines":
            return LineExamples(corpus)
        context_length = config.data.context_length
        return WindowExamples(corpus, context_length, default_context(config).stride or context_length)

    def check_lengths(self, config: RunConfig, columns: Sequence[Corpus], max_length: int | None) -> None:
        for corpus in columns:
            check_positions(max_length, corpus, default_context(config))

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: CorpusExamples | None,
        valid: CorpusExamples | None,
        device: torch.device,
    ) -> LanguageModelObjective:
        return LanguageModelObjective(
            carry_state=train is not None and config.data.read_as == "stream",
            valid=None if valid is None else valid.corpus,
            context=default_context(config),
            device=device,
            smoothing=0.0 if train is None else config.train.label_smoothing,
        )

    def batch_sampler(self, config: RunConfig, train: CorpusExamples) -> BatchSampler:
        """Batches of lines of similar length; of running text, shuffled windows or parallel streams."""
        corpus, data = train.corpus, config.data
        rows = max(1, config.train.batch_tokens // data.context_length)
        match data.read_as:
            case "lines":
                return Lines(corpus, batch_tokens=config.train.batch_tokens, seed=config.seed)
            case "stream":
                return Streams(corpus, context_length=data.context_length, rows=rows)
        return Windows(
            corpus, context_length=data.context_length, stride=data.stride or data.context_length, rows=rows, seed=config.seed
        )

    def equal_shapes(self, config: RunConfig, sampler: BatchSampler) -> BatchSampler | None:
        # experts would get the padding as a mask, and with one attention is slow
        return None if config.data.read_as == "lines" or config.model.num_experts else EqualShapes(sampler)

    def check_teacher(self, config: RunConfig, vocabulary: Tokenizer, run: AnyRun) -> None:
        super().check_teacher(config, vocabulary, run)
        reads_lines = [each.data.read_as == "lines" for each in (run.config, config)]
        if reads_lines[0] != reads_lines[1]:
            kinds = ["lines" if lines else "running text" for lines in reads_lines]
            problem = f"{run.path} reads {kinds[0]}, this run reads {kinds[1]}"
            raise ConfigError("train.distill_from", problem, "set the same data.read_as")
        check_teacher_length(config, run, "context_length")
