"""Training language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from weft.data.opening import opened
from weft.data.order import Lines, Order, Streams, Windows
from weft.errors import ConfigError
from weft.models.language import LanguageModel, language_model
from weft.models.tables import StackTable
from weft.tasks.lm.objective import LanguageTask
from weft.tasks.lm.scoring import Context, check_positions, parse_context
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer


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
    within = isinstance(model, StackTable) and (model.traits.attends or model.positions != "none")
    if within and settings.data.read == "windows":
        return Context("stride", window, -(-window // 2), full=True)
    return Context("carry", window, full=True)


def chosen_context(settings: Settings, text: str | None) -> Context:
    """The policy that is asked for, as a run of these settings follows it; None: `full`."""
    data, default = settings.data, default_context(settings)
    return default if text is None else parse_context(text, lines=data.read == "lines", window=data.window, default=default)


def language_task(job: Job, *, carries: bool) -> LanguageTask:
    valid = job.corpora.get("valid")
    return LanguageTask(
        carries=carries,
        valid=opened(valid, job.folder.path, job.tokenizer) if valid is not None else None,
        context=default_context(job.settings),
        device=pick_device(job.settings.train.device),
        smoothing=job.settings.train.label_smoothing,
    )


class Language:
    """Networks that predict the next token of a text."""

    def check(self, settings: Settings) -> None:
        if settings.data.read == "stream" and settings.model.positions == "learned":
            raise ConfigError("model.positions: 'learned' has a last position, but data.read='stream' runs on; use 'rotary'")

    def alike(self, settings: Settings) -> bool:
        table: StackTable = settings.model
        return settings.data.read != "lines" and table.traits.compiles

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
