"""A trained reader, from Python: `run = weft.load("runs/x")`, then `run.predict((question, passage))`, `run.evaluate(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from weft.errors import DataError
from weft.explain import views
from weft.explain.options import ExplainOptions
from weft.explain.view import View
from weft.metrics.answers import Asked, answer_items, answer_scores
from weft.metrics.items import Items, Score
from weft.tasks import embedding
from weft.tasks.embedding import Embedded
from weft.tasks.objective import Watch
from weft.tasks.span import Answer
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer
from weft.train.folder import RunFolder
from weft.train.held import held_source
from weft.train.settings import Settings

Pair = tuple[str, str]  # a question, and the passage that it is about


class Reader:
    """A run that answers questions by a part of a passage."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: Tokenizer, device: torch.device) -> None:
        self.folder, self.settings, self.tokenizer, self.device = folder, settings, tokenizer, device

    @cached_property
    def model(self) -> Any:
        """What answers questions: `answers`."""
        return self.settings.preset.family.load(self.settings, self.tokenizer, self.folder, self.device)

    def predict(self, asked: Pair | Sequence[Pair], *, watch: Watch | None = None) -> list[Answer]:
        """The answer to each question about its passage (a tuple of two strings is one); an empty text where there is none."""
        alone = isinstance(asked, tuple) and all(isinstance(text, str) for text in asked)
        rows: list[Any] = [asked] if alone else list(asked)
        read: list[Pair] = []
        for number, row in enumerate(rows, 1):
            if isinstance(row, str) or len(row) != 2:
                raise DataError(f"line {number}: must be a question and a passage, a tuple of two texts")
            question, passage = (clean(text, f"line {number}") for text in row)
            for name, text in (("question", question), ("passage", passage)):
                if not text.strip():
                    raise DataError(f"line {number}: has an empty {name}")
            read.append((question, passage))
        found: list[Answer] = self.model.answers(read, watch) if read else []
        return found

    def embed(self, texts: Sequence[str], *, pool: str = "mean", watch: Watch | None = None) -> np.ndarray:
        """float32 (N, D): a vector for each text, the mean over its positions or what stands at <s>. A text longer than the
        model reads is cut; `embedded` says which were."""
        return self.embedded(texts, pool=pool, watch=watch).vectors

    def embedded(self, texts: Sequence[str], *, pool: str = "mean", watch: Watch | None = None) -> Embedded:
        """The vectors of `embed`, and which texts were cut."""
        embedding.check_pool(pool)
        read = [clean(text, f"line {number}") for number, text in enumerate(texts, 1)]
        corpus, cut = embedding.read(self.tokenizer, read, self.settings.data.longest)
        return Embedded(embedding.embed(self.model.encoder, corpus, pool=pool, device=self.device, watch=watch), cut)

    def evaluate(self, data: Any = None, *, watch: Watch | None = None) -> list[Score]:
        """Scores with intervals, of `data` (a file, or several), or of the run's own test or validation data."""
        return self.measure(data, watch=watch)[0]

    def measure(self, data: Any = None, *, watch: Watch | None = None) -> tuple[list[Score], Items]:
        """Scores, and what they were made from, question by question; `outputs` are the answers that were said."""
        records = list(held_source(self.folder, self.settings, data).records())
        said = self.model.answers([(record.question, record.passage) for record in records], watch)
        references = [[answer.text for answer in record.answers] for record in records]
        items = answer_items([answer.text for answer in said], references, np.arange(len(said)))
        return answer_scores(items, Asked(self.tokenizer.hash, self.model.threshold)), items

    def explain(self, text: str, what: str | None = None, options: ExplainOptions | None = None, **named: Any) -> View:
        """How a question is answered (it, a tab, and the passage): data, pictures and words of one view; options as one object,
        or by name: `explain("Who?\tIda sang.", "attribution", method="occlusion")`."""
        return views.explain(self, text, what, options, named)

    def info(self) -> Mapping[str, Any]:
        """What the run is: settings, sizes, how far it got."""
        return {
            "path": str(self.folder.path),
            "task": self.settings.task,
            "kind": self.settings.kind,
            "parameters": self.model.parameters,
            "vocabulary": self.tokenizer.size,
            "tokenizer": self.tokenizer.hash,
            "settings": self.settings.to_dict(),
        }
