"""Builds models, data and objectives to train encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.batching import BatchSampler
from weft.data.corpus import Corpus
from weft.metrics.bleu_tokenizers import detect_tokenizer
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.tasks.seq2seq.batching import PairBatch, Pairs
from weft.tasks.seq2seq.data import references as references_of
from weft.tasks.seq2seq.files import Record
from weft.tasks.seq2seq.objective import EvalPairs, Seq2SeqObjective
from weft.training.distillation import check_teacher_length
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun
    from weft.text.tokenizer_pair import TokenizerPair


class Seq2SeqBuilder(NetworkTask[EvalPairs]):
    """Builds encoder-decoders, their examples and objectives."""

    def build(self, config: RunConfig, vocabulary: TokenizerPair) -> Callable[[], EncoderDecoder]:
        return lambda: encoder_decoder(
            config.model,
            source_vocab_size=vocabulary.source.vocab_size,
            target_vocab_size=vocabulary.target.vocab_size,
            max_positions=config.data.max_length,
            vocabulary=vocabulary.target.hash,
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: TokenizerPair,
        dataset: Dataset[Record],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> EvalPairs:
        source, target = columns
        if learned:
            return EvalPairs(source, target)
        references = list(references_of(dataset))
        return EvalPairs(
            source, target, references, detect_tokenizer(references, spaced=vocabulary.target.type == "whitespace")
        )

    def objective(
        self,
        config: RunConfig,
        vocabulary: TokenizerPair,
        train: EvalPairs | None,
        valid: EvalPairs | None,
        device: torch.device,
    ) -> Seq2SeqObjective:
        smoothing = 0.0 if train is None else config.train.label_smoothing
        return Seq2SeqObjective(valid=valid, tokenizer=vocabulary.target, device=device, smoothing=smoothing)

    def batch_sampler(self, config: RunConfig, train: EvalPairs) -> BatchSampler[PairBatch]:
        """Batches of pairs of similar length on both sides."""
        return Pairs(train.source, train.target, batch_tokens=config.train.batch_tokens, seed=config.seed)

    def check_teacher(self, config: RunConfig, vocabulary: TokenizerPair, run: AnyRun) -> None:
        super().check_teacher(config, vocabulary, run)
        check_teacher_length(config, run, "max_length")
