"""A masked language model, from Python: `run = weft.load("runs/x")`, then `run.fill("the [MASK] sat")`, `run.embed(texts)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.errors import UsageError
from weft.explain import views
from weft.explain.options import ExplainOptions
from weft.explain.view import View
from weft.metrics.items import Items, Score
from weft.metrics.language import Measured
from weft.metrics.masked import masked_scores
from weft.models.encoder import Text
from weft.tasks import embedding
from weft.tasks.embedding import Embedded
from weft.tasks.masking import Hidden, hidden_items, hidden_nats
from weft.tasks.objective import Watch
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer
from weft.text.whole_words import pieces
from weft.train.folder import RunFolder
from weft.train.held import Files, HeldOut
from weft.train.settings import Settings

MASKS = ("[MASK]", "<mask>")
_MASK = re.compile("|".join(map(re.escape, MASKS)))
_SPACED = re.compile(" ?(?:" + "|".join(map(re.escape, MASKS)) + ")")  # where a space is a part of the token after it


class Filling(NamedTuple):
    token: str
    probability: float


class Filler:
    """A run folder, read. Nothing in it is ever run as code."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: Tokenizer, device: torch.device) -> None:
        self.folder, self.settings, self.tokenizer, self.device = folder, settings, tokenizer, device

    @cached_property
    def model(self) -> Any:
        """The model itself: `forward`, `log_probs`, `loss`, and its `encoder`."""
        return self.settings.preset.family.load(self.settings, self.tokenizer, self.folder, self.device)

    @property
    def lines(self) -> bool:
        return bool(self.settings.data.read == "lines")

    # ---- gaps

    def fill(self, texts: str | Sequence[str], *, n: int = 5) -> list[list[list[Filling]]]:
        """For each text (a string is one) and each [MASK] in it the `n` most probable tokens, best first."""
        if n < 1:
            raise UsageError(f"fill: n must be at least 1, not {n}")
        read = [clean(text, f"line {number}") for number, text in enumerate([texts] if isinstance(texts, str) else texts, 1)]
        coded = [self._tokens(text) for text in read]
        for number, tokens in enumerate(coded, 1):
            if fault := self.fault(tokens):
                raise UsageError(f"line {number}: {fault}")
        return [self._fill(tokens, n) for tokens in coded]

    def fault(self, tokens: Sequence[int]) -> str | None:
        """Why a text can't be filled, if it can't."""
        if self.tokenizer.size not in tokens:
            return f"has no {MASKS[0]}; write it where a token is missing"
        longest = self.model.longest
        if longest is not None and len(tokens) > longest:
            return f"has {len(tokens):,} tokens, but {self.folder.path} reads at most {longest}; shorten it"
        return None

    def faults(self, texts: Sequence[str]) -> dict[int, str]:
        """Which texts can't be filled, by their number from 0, and why."""
        found = {number: self.fault(self._tokens(text)) for number, text in enumerate(texts)}
        return {number: fault for number, fault in found.items() if fault is not None}

    @property
    def gaps(self) -> re.Pattern[str]:
        """What a gap looks like in a text."""
        return _SPACED if pieces(self.tokenizer) == "bytes" and self.tokenizer.kind != "byte" else _MASK

    def _tokens(self, text: str) -> list[int]:
        """<s>, the tokens of a text with its gaps, </s>."""
        parts = self.gaps.split(text)
        first, *others = self.tokenizer.encode_batch(parts)
        found = [self.tokenizer.begin, *first.tolist()]
        for ids in others:
            found += [self.tokenizer.size, *ids.tolist()]
        return [*found, self.tokenizer.end]

    @torch.inference_mode()
    def _fill(self, tokens: list[int], n: int) -> list[list[Filling]]:
        row = torch.tensor([tokens], device=self.device)
        y = self.model(Text(row, torch.ones_like(row, dtype=torch.bool)))[row == self.tokenizer.size]
        # special tokens are no text, and the mask is no answer
        found = self.model.log_probs(y).exp()[:, 3 : self.tokenizer.size].topk(min(n, self.tokenizer.size - 3))
        return [
            [Filling(self._shown(number + 3), value) for number, value in zip(numbers, values, strict=True)]
            for numbers, values in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        ]

    def _shown(self, number: int) -> str:
        """A token as it looks in a text; what is no whole character, by its name."""
        text = self.tokenizer.decode([number])
        return text if text and "\ufffd" not in text else self.tokenizer.show(number)

    # ---- vectors

    def embed(self, texts: Sequence[str], *, pool: str = "mean", watch: Watch | None = None) -> np.ndarray:
        """float32 (N, D): a vector for each text, the mean over its positions or what stands at <s>. A text longer than the
        model reads is cut; `embedded` says which were. `watch(texts done, texts in all)` is told of progress."""
        return self.embedded(texts, pool=pool, watch=watch).vectors

    def embedded(self, texts: Sequence[str], *, pool: str = "mean", watch: Watch | None = None) -> Embedded:
        """The vectors of `embed`, and which texts were cut."""
        embedding.check_pool(pool)
        read = [clean(text, f"line {number}") for number, text in enumerate(texts, 1)]
        corpus, cut = embedding.read(self.tokenizer, read, self.model.longest)
        return Embedded(embedding.embed(self.model.encoder, corpus, pool=pool, device=self.device, watch=watch), cut)

    # ---- whole texts

    def evaluate(
        self,
        data: Files | None = None,
        *,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> list[Score]:
        """Pseudo-perplexity over a whole text, with intervals: of `data`, or of the run's own test or validation data.

        `reading(bytes done, bytes in all)` and then `watch(tokens done, tokens in all)` are told of progress.
        """
        return self.measure(data, watch=watch, reading=reading)[0]

    def measure(
        self,
        data: Files | None = None,
        *,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> tuple[list[Score], Items]:
        """Scores, and what they were made from, line by line, or window by window of running text."""
        items = hidden_items(self.nats(data, watch=watch, reading=reading)[0])
        return masked_scores(items, self.measured()), items

    def nats(
        self,
        data: Files | None = None,
        *,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> tuple[Hidden, Corpus]:
        """Nats of every token of a text when it alone is hidden, and the text's tokens."""
        window = self.settings.data.window
        with TemporaryDirectory() as place, torch.inference_mode():  # what was mapped stays when the file is gone
            corpus = HeldOut(self.folder, self.settings, self.tokenizer).corpus(data, Path(place), reading)
            return hidden_nats(self.model, corpus, window=window, device=self.device, watch=watch), corpus

    def measured(self) -> Measured:
        """How scores of the run are come by."""
        unit = "line" if self.lines else "window"
        context = "masked:line" if self.lines else f"masked:window/{self.settings.data.window}"
        return Measured(context, unit, self.tokenizer.hash)

    def explain(self, text: str, what: str | None = None, options: ExplainOptions | None = None, **named: Any) -> View:
        """How the gaps of a text are filled: data, pictures and words of one view; options as one object, or by name:
        `explain("the [MASK] sat", "attribution", method="occlusion")`."""
        return views.explain(self, text, what, options, named)

    def info(self) -> Mapping[str, Any]:
        """What the run is: settings, sizes."""
        return {
            "path": str(self.folder.path),
            "task": self.settings.task,
            "kind": self.settings.kind,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "vocabulary": self.tokenizer.size,
            "tokenizer": self.tokenizer.hash,
            "settings": self.settings.to_dict(),
        }
