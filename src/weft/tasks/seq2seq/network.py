"""Training encoder-decoders: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.corpus import Corpus
from weft.data.order import Order
from weft.metrics.bleu_tokenizers import automatic
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.tasks.seq2seq.data import references as references_of
from weft.tasks.seq2seq.files import Record
from weft.tasks.seq2seq.objective import Held, TranslationTask
from weft.tasks.seq2seq.order import PairBatch, Pairs
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.settings import Settings
    from weft.text.sides import Sides


class Translation(NetworkTask[Held]):
    """Networks that write a target for a source."""

    def build(self, settings: Settings, vocabulary: Sides) -> Callable[[], EncoderDecoder]:
        return lambda: encoder_decoder(
            settings.model,
            source_words=vocabulary.source.size,
            target_words=vocabulary.target.size,
            longest=settings.data.longest,
            vocabulary=vocabulary.target.hash,
        )

    def encode(
        self,
        settings: Settings,
        vocabulary: Sides,
        dataset: Dataset[Record],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Held:
        source, target = columns
        if learned:
            return Held(source, target)
        references = list(references_of(dataset))
        return Held(source, target, references, automatic(references, spaced=vocabulary.target.kind == "space"))

    def objective(
        self,
        settings: Settings,
        vocabulary: Sides,
        train: Held | None,
        valid: Held | None,
        device: torch.device,
    ) -> TranslationTask:
        smoothing = 0.0 if train is None else settings.train.label_smoothing
        return TranslationTask(valid=valid, tokenizer=vocabulary.target, device=device, smoothing=smoothing)

    def order(self, settings: Settings, train: Held) -> Order[PairBatch]:
        """Pairs that are alike on both sides together."""
        return Pairs(train.source, train.target, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
