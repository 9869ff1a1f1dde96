"""Builds models, data and objectives for denoising."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from weft.data.batching import BatchSampler
from weft.data.corpus import Corpus
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.tasks.denoising.batching import NoisyBatches, NoisyTexts
from weft.tasks.denoising.corruption import Corrupter
from weft.tasks.denoising.objective import DenoisingObjective
from weft.tasks.encoder_decoder.pair_batch import PairBatch
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer


class DenoisingBuilder(NetworkTask[NoisyTexts]):
    """Builds encoder-decoders with noise tokens, their examples and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], EncoderDecoder]:
        data = config.data
        vocab_size = vocabulary.vocab_size + data.num_noise_tokens  # both sides, so that they can share embeddings
        return lambda: encoder_decoder(
            config.model,
            source_vocab_size=vocab_size,
            target_vocab_size=vocab_size,
            max_positions=data.max_length,
            # other noise tokens are another vocabulary
            vocabulary=f"{vocabulary.hash}+{data.noise}{data.num_noise_tokens}",
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Any,
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> NoisyTexts:
        (corpus,) = columns
        return NoisyTexts(corpus, Corrupter(config.data, vocabulary))

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: NoisyTexts | None,
        valid: NoisyTexts | None,
        device: torch.device,
    ) -> DenoisingObjective:
        smoothing = 0.0 if train is None else config.train.label_smoothing
        return DenoisingObjective(valid=valid, device=device, smoothing=smoothing)

    def batch_sampler(self, config: RunConfig, train: NoisyTexts) -> BatchSampler[PairBatch]:
        """Batches of texts of similar length, with other noise in each epoch."""
        return NoisyBatches(train, batch_tokens=config.train.batch_tokens, seed=config.seed)
