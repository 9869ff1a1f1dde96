"""Training language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.corpus import Corpus
from weft.data.order import LineExamples, Lines, Order, Streams, WindowExamples, Windows
from weft.data.source import Source
from weft.models.language import LanguageModel, language_model
from weft.models.tables import StackTable
from weft.tasks.lm.contexts import check_positions, default_context
from weft.tasks.lm.objective import LanguageTask
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer

CorpusExamples = LineExamples | WindowExamples


def language_objective(
    settings: Settings, valid: Corpus | None, device: torch.device, *, carries: bool, smoothing: float = 0.0
) -> LanguageTask:
    context = default_context(settings)
    return LanguageTask(carries=carries, valid=valid, context=context, device=device, smoothing=smoothing)


class Language(NetworkTask[CorpusExamples]):
    """Networks that predict the next token of a text."""

    def compiles(self, settings: Settings) -> bool:
        table: StackTable = settings.model
        return settings.data.read != "lines" and table.traits.compiles

    def build(self, settings: Settings, vocabulary: Tokenizer) -> Callable[[], LanguageModel]:
        return lambda: language_model(
            settings.model, words=vocabulary.size, window=settings.data.window, vocabulary=vocabulary.hash
        )

    def encode(
        self,
        settings: Settings,
        vocabulary: Tokenizer,
        dataset: Source,
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> CorpusExamples:
        """Lines, or running text in the windows that it is measured by."""
        (corpus,) = columns
        if settings.data.read == "lines":
            return LineExamples(corpus)
        window = settings.data.window
        return WindowExamples(corpus, window, default_context(settings).stride or window)

    def check_lengths(self, settings: Settings, columns: Sequence[Corpus], longest: int | None) -> None:
        for corpus in columns:
            check_positions(longest, corpus, default_context(settings))

    def objective(
        self,
        settings: Settings,
        vocabulary: Tokenizer,
        train: CorpusExamples | None,
        valid: CorpusExamples | None,
        device: torch.device,
    ) -> LanguageTask:
        held = None if valid is None else valid.corpus
        if train is None:
            return language_objective(settings, held, device, carries=False)
        carries, smoothing = settings.data.read == "stream", settings.train.label_smoothing
        return language_objective(settings, held, device, carries=carries, smoothing=smoothing)

    def order(self, settings: Settings, train: CorpusExamples) -> Order:
        """Lines of like length together; of running text windows at any place, or streams, side by side."""
        corpus, data = train.corpus, settings.data
        rows = max(1, settings.train.batch_tokens // data.window)
        match data.read:
            case "lines":
                return Lines(corpus, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
            case "stream":
                return Streams(corpus, window=data.window, rows=rows)
        return Windows(corpus, window=data.window, stride=data.stride or data.window, rows=rows, seed=settings.seed)
