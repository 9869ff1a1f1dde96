"""Training masked language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weft.data.order import Lines, Order, Windows
from weft.errors import ConfigError
from weft.models.masked import MaskedModel, masked_model
from weft.nn.mixers import COMPILED
from weft.tasks.masking import MaskedTask, Masking, check_longest
from weft.text.whole_words import begins_word
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.text.tokenizers import Tokenizer
    from weft.train.job import Job
    from weft.train.settings import Settings


class MaskedLanguage:
    """Networks that fill gaps in a text."""

    scores = ("masked_nats", "masked_accuracy")

    def check(self, settings: Settings) -> None:
        if settings.data.read == "stream":
            raise ConfigError(
                "data.read: 'stream' goes on from text to text, but a masked language model reads each one whole; "
                "use 'lines' or 'windows'"
            )
        if settings.data.read == "windows" and settings.data.window < 3:
            raise ConfigError(f"data.window: {settings.data.window} has no room for a token between <s> and </s>; at least 3")

    def alike(self, settings: Settings) -> bool:
        return settings.model.mixer in COMPILED

    def build(self, settings: Settings, tokenizer: Tokenizer) -> Callable[[], MaskedModel]:
        return lambda: masked_model(settings.model, words=tokenizer.size, longest=settings.data.window)

    def order(self, job: Job) -> Order:
        corpus, data, settings = job.corpora["train"], job.settings.data, job.settings
        if data.read == "lines":
            return Lines(corpus, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
        rows = max(1, settings.train.batch_tokens // data.window)
        # a row of windows holds one token more than the window: here that is no target, but a part of the text
        return Windows(corpus, window=data.window - 1, stride=data.stride or data.window, rows=rows, seed=settings.seed)

    def task(self, job: Job, model: nn.Module) -> MaskedTask:
        longest: int | None = model.longest  # type: ignore[assignment]
        for corpus in job.corpora.values():
            check_longest(longest, corpus)
        return MaskedTask(
            masking(job.settings, job.tokenizer),
            valid=job.corpora.get("valid"),
            window=job.settings.data.window,
            device=pick_device(job.settings.train.device),
            smoothing=job.settings.train.label_smoothing,
        )

    def ready(self, model: Any, settings: Settings, tokenizer: Tokenizer, device: torch.device) -> Any:
        return model


def masking(settings: Settings, tokenizer: Tokenizer) -> Masking:
    """How a run makes gaps."""
    if not settings.model.whole_words:
        return Masking(tokenizer.size, settings.model.share)
    begins = begins_word(tokenizer)
    if begins is None:
        raise ConfigError(
            f"model.whole_words: true needs tokens that show where a word starts, which those of kind {tokenizer.kind!r} "
            f"don't; use tokenizer.kind = 'wordpiece' or 'bpe', or whole_words = false"
        )
    known = torch.ones(tokenizer.size + 1, dtype=torch.bool)
    known[:-1] = torch.from_numpy(begins)
    return Masking(tokenizer.size, settings.model.share, known)
