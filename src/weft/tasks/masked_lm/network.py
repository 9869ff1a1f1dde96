"""Training masked language models: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from weft.data.corpus import Corpus
from weft.data.line_pairs import PairedLines, paired
from weft.data.order import Lines, Order, Windows
from weft.data.source import Source
from weft.errors import ConfigError
from weft.models.masked import MaskedModel, masked_model
from weft.models.tables import StackTable
from weft.tasks.masked_lm.gaps import FixedGaps, GapExamples
from weft.tasks.masked_lm.objective import MaskedTask, Masking, check_longest
from weft.text.whole_words import begins_word
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer


class MaskedLanguage(NetworkTask[GapExamples]):
    """Networks that fill gaps in a text."""

    def compiles(self, settings: Settings) -> bool:
        table: StackTable = settings.model
        return settings.data.read != "lines" and table.traits.compiles

    def build(self, settings: Settings, vocabulary: Tokenizer) -> Callable[[], MaskedModel]:
        return lambda: masked_model(settings.model, words=vocabulary.size, longest=settings.data.window)

    def encode(
        self,
        settings: Settings,
        vocabulary: Tokenizer,
        dataset: Source,
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> GapExamples:
        (corpus,) = columns
        return GapExamples(corpus, partial(masking, settings, vocabulary), settings.data.window)

    def check_lengths(self, settings: Settings, columns: Sequence[Corpus], longest: int | None) -> None:
        for corpus in columns:
            check_longest(longest, corpus)

    def objective(
        self,
        settings: Settings,
        vocabulary: Tokenizer,
        train: GapExamples | None,
        valid: GapExamples | None,
        device: torch.device,
    ) -> MaskedTask:
        how, window = masking(settings, vocabulary), settings.data.window
        held = None if valid is None else valid.corpus
        if held is not None and settings.model.pairs:  # read as training reads
            held = paired(held, longest=window)
        if train is None:
            return FixedGaps(how, valid=held, window=window, device=device)
        return MaskedTask(how, valid=held, window=window, device=device, smoothing=settings.train.label_smoothing)

    def order(self, settings: Settings, train: GapExamples) -> Order:
        """Lines, or pairs of them, of like length together; of running text windows at any place. Gaps are made later."""
        corpus, data = train.corpus, settings.data
        if settings.model.pairs:
            return PairedLines(corpus, longest=data.window, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
        if data.read == "lines":
            return Lines(corpus, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
        rows = max(1, settings.train.batch_tokens // data.window)
        # a row of windows holds one token more than the window: here that is no target, but a part of the text
        return Windows(corpus, window=data.window - 1, stride=data.stride or data.window, rows=rows, seed=settings.seed)


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
