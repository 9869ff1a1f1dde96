"""Training masked language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from weft.data.corpus import Corpus
from weft.data.line_pairs import PairedLines, paired
from weft.data.order import Lines, Order, Windows
from weft.errors import ConfigError
from weft.models.masked import MaskedModel, masked_model
from weft.models.tables import StackTable
from weft.tasks.masked_lm.objective import MaskedTask, Masking, check_longest
from weft.text.whole_words import begins_word
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer


class MaskedLanguage:
    """Networks that fill gaps in a text."""

    def check(self, settings: Settings) -> None:
        if settings.data.read == "stream":
            raise ConfigError(
                "data.read: 'stream' goes on from text to text, but a masked language model reads each one whole; "
                "use 'lines' or 'windows'"
            )
        if settings.data.read == "windows" and settings.data.window < 3:
            raise ConfigError(f"data.window: {settings.data.window} has no room for a token between <s> and </s>; at least 3")
        if settings.model.pairs and settings.data.read != "lines":
            raise ConfigError(
                f"model.pairs: true reads two lines as one text, but data.read = {settings.data.read!r} knows no lines; "
                "use read = 'lines'"
            )

    def alike(self, settings: Settings) -> bool:
        table: StackTable = settings.model
        return settings.data.read != "lines" and table.traits.compiles

    def build(self, settings: Settings, tokenizer: Tokenizer) -> Callable[[], MaskedModel]:
        return lambda: masked_model(settings.model, words=tokenizer.size, longest=settings.data.window)

    def order(self, job: Job) -> Order:
        corpus, data, settings = job.corpora["train"], job.settings.data, job.settings
        if settings.model.pairs:
            return PairedLines(corpus, longest=data.window, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
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
            valid=self._valid(job),
            window=job.settings.data.window,
            device=pick_device(job.settings.train.device),
            smoothing=job.settings.train.label_smoothing,
        )

    def _valid(self, job: Job) -> Corpus | None:
        """What is validated with, read as training reads."""
        corpus, settings = job.corpora.get("valid"), job.settings
        return corpus if corpus is None or not settings.model.pairs else paired(corpus, longest=settings.data.window)


def masking(settings: Settings, tokenizer: Tokenizer) -> Masking:
    """How a run makes gaps."""
    how = Masking(tokenizer.size, settings.model.share, spans=settings.model.masking == "span")
    if settings.model.masking == "token":
        return how
    begins = begins_word(tokenizer)
    if begins is None and settings.model.masking == "word":
        raise ConfigError(
            f"model.masking: 'word' needs tokens that show where a word starts, which those of kind {tokenizer.kind!r} "
            f"don't; use tokenizer.kind = 'wordpiece' or 'bpe', or masking = 'token' or 'span'"
        )
    if begins is None:  # spans of tokens
        return how
    known = torch.ones(tokenizer.size + 1, dtype=torch.bool)
    known[:-1] = torch.from_numpy(begins)
    return how._replace(begins=known)
