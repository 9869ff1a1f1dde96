"""Training language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weft.data.order import Lines, Order, Streams, Windows
from weft.errors import ConfigError
from weft.models.language import LanguageModel, language_model
from weft.nn.mixers import COMPILED
from weft.tasks.language import LanguageTask
from weft.tasks.surprisal import Context, check_positions
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.text.tokenizers import Tokenizer
    from weft.train.job import Job
    from weft.train.settings import Settings


def default_context(settings: Settings) -> Context:
    """Lines by themselves; running text by a moving window where attention limits the view or positions were learned within
    windows, by a carried state elsewhere."""
    window = settings.data.window
    if settings.data.read == "lines":
        return Context("reset", window)
    attends = getattr(settings.model, "mixer", None) == "attention"
    placed = settings.data.read == "windows" and getattr(settings.model, "positions", "none") != "none"
    return Context("stride", window, window) if attends or placed else Context("carry", window)


def language_task(job: Job, *, carries: bool) -> LanguageTask:
    return LanguageTask(
        carries=carries,
        valid=job.corpora.get("valid"),
        context=default_context(job.settings),
        device=pick_device(job.settings.train.device),
        smoothing=job.settings.train.label_smoothing,
    )


class Language:
    """Networks that predict the next token of a text."""

    scores = ("nats_per_token",)

    def check(self, settings: Settings) -> None:
        if settings.data.read == "stream" and settings.model.positions == "learned":
            raise ConfigError("model.positions: 'learned' has a last position, but data.read='stream' runs on; use 'rotary'")

    def alike(self, settings: Settings) -> bool:
        return settings.data.read != "lines" and settings.model.mixer in COMPILED

    def build(self, settings: Settings, tokenizer: Tokenizer) -> Callable[[], LanguageModel]:
        return lambda: language_model(
            settings.model, words=tokenizer.size, window=settings.data.window, vocabulary=tokenizer.hash
        )

    def order(self, job: Job) -> Order:
        corpus, data, settings = job.corpora["train"], job.settings.data, job.settings
        rows = max(1, settings.train.batch_tokens // data.window)
        match data.read:
            case "lines":
                return Lines(corpus, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
            case "stream":
                return Streams(corpus, window=data.window, rows=rows)
        return Windows(corpus, window=data.window, stride=data.stride or data.window, rows=rows, seed=settings.seed)

    def task(self, job: Job, model: nn.Module) -> LanguageTask:
        task = language_task(job, carries=job.settings.data.read == "stream")
        longest: int | None = model.longest  # type: ignore[assignment]
        for corpus in job.corpora.values():
            check_positions(longest, corpus, task.context)
        return task

    def ready(self, model: Any, settings: Settings, tokenizer: Tokenizer, device: torch.device) -> Any:
        return model
