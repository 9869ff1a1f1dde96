"""Training language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from weft.data.corpus import Corpus
from weft.data.order import LineExamples, Lines, Order, Streams, WindowExamples, Windows
from weft.data.source import Source
from weft.errors import ConfigError
from weft.models.language import LanguageModel, language_model
from weft.models.tables import StackTable
from weft.tasks.lm.objective import LanguageTask
from weft.tasks.lm.scoring import Context, check_positions, parse_context
from weft.train.meaning import Part, Weights, encoder_parts, words_of
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer

TextExamples = LineExamples | WindowExamples


def default_context(settings: Settings) -> Context:
    """The policy `full`: lines by themselves; running text by a carried state, or by windows that overlap by half where the
    model was trained on windows and knows nothing else: attention, and positions that begin with each window.

    Measured (examples/positions.toml, one model for each kind of positions): carried on beyond its window, attention is worse
    than in windows with any kind, by 0.008 nats (rotary) to 3.1 (sinusoidal). Strides of a quarter or less cost twice as much
    and more, and gain nothing.
    """
    window, model = settings.data.window, settings.model
    if settings.data.read == "lines":
        return Context("reset", window)
    within = settings.preset.estimator.by_steps and (model.traits.attends or model.positions != "none")
    if within and settings.data.read == "windows":
        return Context("stride", window, -(-window // 2), full=True)
    return Context("carry", window, full=True)


def chosen_context(settings: Settings, text: str | None) -> Context:
    """The policy that is asked for, as a run of these settings follows it; None: `full`."""
    data, default = settings.data, default_context(settings)
    return default if text is None else parse_context(text, lines=data.read == "lines", window=data.window, default=default)


def language_objective(
    settings: Settings, valid: Corpus | None, device: torch.device, *, carries: bool, smoothing: float = 0.0
) -> LanguageTask:
    context = default_context(settings)
    return LanguageTask(carries=carries, valid=valid, context=context, device=device, smoothing=smoothing)


class Language(NetworkTask[TextExamples]):
    """Networks that predict the next token of a text."""

    def check(self, settings: Settings) -> None:
        if settings.data.read == "stream" and settings.model.positions == "learned":
            raise ConfigError("model.positions: 'learned' has a last position, but data.read='stream' runs on; use 'rotary'")

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
    ) -> TextExamples:
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
        train: TextExamples | None,
        valid: TextExamples | None,
        device: torch.device,
    ) -> LanguageTask:
        held = None if valid is None else valid.corpus
        if train is None:
            return language_objective(settings, held, device, carries=False)
        carries, smoothing = settings.data.read == "stream", settings.train.label_smoothing
        return language_objective(settings, held, device, carries=carries, smoothing=smoothing)

    def order(self, settings: Settings, train: TextExamples) -> Order:
        """Lines of like length together; of running text windows at any place, or streams, side by side."""
        corpus, data = train.corpus, settings.data
        rows = max(1, settings.train.batch_tokens // data.window)
        match data.read:
            case "lines":
                return Lines(corpus, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
            case "stream":
                return Streams(corpus, window=data.window, rows=rows)
        return Windows(corpus, window=data.window, stride=data.stride or data.window, rows=rows, seed=settings.seed)


def _parts(settings: Settings, vocabulary: Tokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    return encoder_parts(settings, vocabulary, layers, longest=settings.data.window, head=words_of(vocabulary))


def _named(name: str) -> str:
    """A weight of a language model as if its embedding and its stack were an encoder."""
    if name.startswith("head."):
        return name
    return "encoder.front.embedding.weight" if name == "embedding.weight" else f"encoder.{name}"


WEIGHTS = Weights(_parts, named=_named, masked=False, continues=True)
