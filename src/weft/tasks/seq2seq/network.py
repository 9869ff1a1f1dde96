"""Training encoder-decoders: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from weft.data.order import Order
from weft.errors import ConfigError
from weft.metrics.bleu_tokenizers import automatic
from weft.models.seq2seq import EncoderDecoder, encoder_decoder
from weft.tasks.seq2seq.data import references as references_of
from weft.tasks.seq2seq.objective import Held, TranslationTask
from weft.tasks.seq2seq.order import PairBatch, Pairs
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.text.sides import Sides


def translation_task(job: Job) -> TranslationTask:
    held = None
    if "valid.source" in job.corpora:
        references = list(references_of(job.settings.datasets["valid"]))
        tokenize = automatic(references, spaced=job.tokenizer.target.kind == "space")
        held = Held(job.corpora["valid.source"], job.corpora["valid.target"], references, tokenize)
    return TranslationTask(
        valid=held,
        tokenizer=job.tokenizer.target,
        device=pick_device(job.settings.train.device),
        smoothing=job.settings.train.label_smoothing,
    )


class Translation:
    """Networks that write a target for a source."""

    def check(self, settings: Settings) -> None:
        joint = settings.tokenizer.source is None
        for option in ("shared", "copying"):
            if getattr(settings.model, option) and not joint:
                raise ConfigError(
                    f"model.{option}: true needs one tokenizer for both sides, but [tokenizer.source] and [tokenizer.target] "
                    f"are two; use [tokenizer] alone, or {option}=false"
                )

    def alike(self, settings: Settings) -> bool:
        return False

    def build(self, settings: Settings, tokenizer: Sides) -> Callable[[], EncoderDecoder]:
        return lambda: encoder_decoder(
            settings.model,
            source_words=tokenizer.source.size,
            target_words=tokenizer.target.size,
            longest=settings.data.longest,
            vocabulary=tokenizer.target.hash,
        )

    def order(self, job: Job) -> Order[PairBatch]:
        corpora, settings = job.corpora, job.settings
        budget = settings.train.batch_tokens
        return Pairs(corpora["train.source"], corpora["train.target"], batch_tokens=budget, seed=settings.seed)

    def task(self, job: Job, model: nn.Module) -> TranslationTask:
        return translation_task(job)
